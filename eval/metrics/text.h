/* SPDX-License-Identifier: MIT */
/* Text as Python's str sees it: code points, and the character classes and functions that leak into scores.
 * Source: evals.md section 0 (CPython 3.11). The classes are those of utf8proc's Unicode version; they differ
 * from CPython's only in characters that one of the two does not know yet. */
#ifndef EVAL_METRICS_TEXT_H
#define EVAL_METRICS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

/* Code points; text_free releases, a zeroed one is empty. */
typedef struct {
    int32_t *c;
    size_t n;
} text;

/* Borrowed code points: a word, a line, a whole text. */
typedef struct {
    const int32_t *c;
    size_t n;
} span;

typedef struct {
    span *s;
    size_t n, cap;
} span_list;

static inline span text_span(const text *t)
{
    return (span){t->c, t->n};
}

/* ST_FORMAT where the n bytes at s are not UTF-8: official code would not have got that far. */
status text_decode(text *out, const char *s, size_t n, err *e);
void text_free(text *t);

/* str.lower(): full Unicode lower-casing, one capital becomes two characters, capital sigma by its place. */
status text_lower(text *out, span in, err *e);
/* str.upper(): full Unicode upper-casing, one character becomes up to three. */
status text_upper(text *out, span in, err *e);

bool char_is_no_space(int32_t c); /* no white space of str.strip() */
bool char_is_word(int32_t c);     /* \w of a regular expression */
bool char_is_digit(int32_t c);    /* \d */
bool char_is_punct(int32_t c);    /* string.punctuation */
bool char_is_punct_zh(int32_t c); /* either that or LongBench's list of Chinese punctuation (75 characters) */

bool span_equal(span a, span b);
span span_from(span s, size_t begin, size_t end);
/* str.strip() */
span span_strip(span s);
/* Where `part` begins in s at `from` or later; s.n + 1 when nowhere. */
size_t span_find(span s, size_t from, span part);
bool span_contains(span s, span part);
bool span_starts(span s, span part);

status span_push(span_list *l, span s, err *e);
void span_list_free(span_list *l);
/* Appends the maximal runs of characters for which in_run holds. */
status span_runs(span_list *l, span s, bool (*in_run)(int32_t), err *e);
/* str.split(): appends the maximal runs of characters that are not white space. */
status span_split(span_list *l, span s, err *e);

/* id[i] of each of the l->n spans: equal spans get equal numbers in 0..*n_distinct-1. */
status span_number(uint32_t *id, size_t *n_distinct, const span_list *l, err *e);

#endif
