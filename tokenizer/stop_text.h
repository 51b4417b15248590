/* SPDX-License-Identifier: MIT */
/* Stop texts in streamed text: holds back text that may begin a stop text. */
#ifndef TOKENIZER_STOP_TEXT_H
#define TOKENIZER_STOP_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

/* Stream state. Start from {.stop = texts, .n_stop = their number}; empty stop texts are ignored. */
typedef struct {
    const char *const *stop;
    int n_stop;
    char *held;
    int hit;              /* index of the stop text that was found */
    size_t n, cap, given; /* bytes held back; the first `given` of them were returned by the last call */
} stop_text;

/* Adds text[0, n). Returns in *out the *k bytes that can be output now, valid until the next call. *stopped is set if a
 * stop text is complete; *out is then the text before it. ST_NOMEM. */
status stop_text_add(stop_text *t, const char *text, size_t n, const char **out, size_t *k, bool *stopped, err *e);
/* Returns the text still held back, valid until stop_text_free, for a text that ended without a stop text. */
void stop_text_rest(stop_text *t, const char **out, size_t *k);
void stop_text_free(stop_text *t);

#endif
