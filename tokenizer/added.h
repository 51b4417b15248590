/* SPDX-License-Identifier: MIT */
/* Added tokens: spellings that are cut out of the text before anything else looks at it. */
#ifndef TOKENIZER_ADDED_H
#define TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

typedef struct {
    char *text;
    size_t n;
    int32_t id;
    size_t order;        /* set by added_push: of two with one text the earlier one stays */
    bool special;        /* control token: dropped by decoding, plain text unless asked for */
    bool normalized;     /* looked for in normalized text, else in the text as given */
    bool lstrip, rstrip; /* swallows white space in front, behind */
    bool single_word;    /* only between non-word characters */
} added_token;

/* Start from {0}. */
typedef struct {
    added_token *items; /* sorted by text once added_sort was called */
    size_t n, cap;
    int32_t *by_id;      /* indices into items, sorted by id */
    bool starts[2][256]; /* first bytes, by `normalized` */
} added_set;

/* Copies tok and its text. An empty text is ignored, as the reference does. */
status added_push(added_set *s, const added_token *tok, const char *what, err *e);
/* Call once before the searches below; pushing again needs another call. ST_FORMAT where two texts
 * have one id or one text has two ids. */
status added_sort(added_set *s, const char *what, err *e);
void added_free(added_set *s);

const added_token *added_by_text(const added_set *s, const char *text, size_t n);
const added_token *added_by_id(const added_set *s, int32_t id);

/* First token in text[from..n): the longest of those starting at the leftmost place, special ones
 * counted only if want_special. NULL if there is none. [*start, *end) is what it takes from the
 * text, *start >= from. */
const added_token *added_find(const added_set *s, const char *text, size_t n, size_t from, bool normalized,
                              bool want_special, size_t *start, size_t *end);

#endif
