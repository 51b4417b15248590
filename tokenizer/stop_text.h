/* SPDX-License-Identifier: MIT */
/* Text that comes in pieces and ends at a stop text: what may be the beginning of one is held back. */
#ifndef TOKENIZER_STOP_TEXT_H
#define TOKENIZER_STOP_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

/* Start from {.stop = texts, .n_stop = their number}; empty texts stop nothing. */
typedef struct {
    const char *const *stop;
    int n_stop;
    char *held;
    size_t n, cap, given; /* held bytes, the first `given` of them were given by the last call */
} stop_text;

/* Adds text[0, n). *out gets what can be given away now, *k bytes that are valid until the next call; *stopped: a stop
 * text is complete, and *out is all that comes before it. ST_NOMEM. */
status stop_text_add(stop_text *t, const char *text, size_t n, const char **out, size_t *k, bool *stopped, err *e);
/* What is still held, valid until stop_text_free: the text ended without a stop text. */
void stop_text_rest(stop_text *t, const char **out, size_t *k);
void stop_text_free(stop_text *t);

#endif
