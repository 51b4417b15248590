/* SPDX-License-Identifier: MIT */
/* A text that grows. */
#ifndef EVAL_RULER_RULER_TEXT_H
#define EVAL_RULER_RULER_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

/* NUL-terminated once something was put in; zeroed: empty. */
typedef struct {
    char *s;
    size_t n, cap;
} grown_text;

void grown_free(grown_text *t);
/* Adds n bytes, which may be 0; a text. */
status grown_put(grown_text *t, const char *s, size_t n, err *e);
status grown_puts(grown_text *t, const char *s, err *e);
/* Adds the text with every run of white space (Python's) as one space; strip: without those at its ends. ST_FORMAT: it
 * is not UTF-8. */
status grown_squeeze(grown_text *t, const char *s, size_t n, bool strip, err *e);

#endif
