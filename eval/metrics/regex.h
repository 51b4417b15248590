/* SPDX-License-Identifier: MIT */
/* Regular expressions with the semantics of the original scoring code. Character classes of Python's str are spelled
 * out. */
#ifndef EVAL_METRICS_REGEX_H
#define EVAL_METRICS_REGEX_H

#include <stdbool.h>

#include "kernels/base/err.h"
#include "tokenizer/chars.h"

/* \s and \w of Python, for use inside brackets. */
#define PYTHON_SPACE                                                                                                   \
    "\\t-\\r\\x{1c}-\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define PYTHON_WORD "\\p{L}\\p{N}_"

typedef struct {
    void *code, *data;
    utf8_text s, group; /* group: first group of the last match; the whole match if there are no groups */
    size_t begin, end;  /* of the last match, which is not empty */
} regex;

/* Opens a constant pattern over a text. Requires regex_close, also after an error. */
status regex_open(regex *r, const char *pattern, utf8_text s, err *e);
/* Starts over with another text. */
void regex_restart(regex *r, utf8_text s);
/* Finds the next match. ST_FORMAT: the text is not UTF-8; ST_UNSUPPORTED: too many steps. */
status regex_next(regex *r, bool *found, err *e);
void regex_close(regex *r);

/* Finds the group of the first match, or of the last one. */
status regex_find(utf8_text *group, bool *found, const char *pattern, bool last, utf8_text s, err *e);

#endif
