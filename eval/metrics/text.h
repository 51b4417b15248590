/* SPDX-License-Identifier: MIT */
/* Text with the semantics of Python's str: UTF-8, the character classes and functions that affect scores, and growing
 * texts. Source: evals.md section 0 (CPython 3.11). The classes are those of utf8proc's Unicode version. They differ
 * from CPython's only for characters that one of the two versions lacks. */
#ifndef EVAL_METRICS_TEXT_H
#define EVAL_METRICS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"
#include "tokenizer/chars.h"

/* ---- characters ---- */

bool char_is_no_space(int32_t c); /* not white space of str.strip() */
bool char_is_word(int32_t c);     /* \w of a regular expression */
bool char_is_digit(int32_t c);    /* \d */
bool char_is_punct(int32_t c);    /* string.punctuation */
bool char_is_punct_zh(int32_t c); /* string.punctuation or LongBench's list of Chinese punctuation (75 characters) */
bool char_is_ascii_digit(int32_t c);
bool char_is_ascii_letter(int32_t c);

/* ---- borrowed texts: a word, a line, a whole text ---- */

/* Returns ST_FORMAT if s is not UTF-8, on which the official code would fail. The functions below expect UTF-8. */
status text_check(utf8_text s, err *e);
/* Removes the first character from s; false: s is empty. */
bool text_next(utf8_text *s, int32_t *c);
/* Returns the first n characters, or all. */
utf8_text text_first(utf8_text s, size_t n);
utf8_text text_from(utf8_text s, size_t begin, size_t end);
/* str.strip() */
utf8_text text_strip(utf8_text s);
bool text_equal(utf8_text a, utf8_text b);
bool text_starts(utf8_text s, utf8_text part);
bool text_contains(utf8_text s, utf8_text part);
/* Return the first position of `part` from `from` on, and its last position; s.n + 1: not found. */
size_t text_find(utf8_text s, size_t from, utf8_text part);
size_t text_find_last(utf8_text s, utf8_text part);

typedef struct {
    utf8_text *s;
    size_t n, cap;
} text_list;

status text_push(text_list *l, utf8_text s, err *e);
void text_list_free(text_list *l);
bool text_is_listed(const text_list *l, utf8_text s);
/* Appends the maximal runs of characters for which in_run holds. */
status text_runs(text_list *l, utf8_text s, bool (*in_run)(int32_t), err *e);
/* str.split(): appends the maximal runs of characters that are not white space. */
status text_split(text_list *l, utf8_text s, err *e);
/* Numbers the l->n texts: equal texts get equal ids in 0..*n_distinct-1. */
status text_number(uint32_t *id, size_t *n_distinct, const text_list *l, err *e);

/* ---- growing texts; after a failed allocation, later steps do nothing ---- */

/* A zeroed str is empty. s is NULL, or n bytes and a NUL. */
typedef struct {
    char *s;
    size_t n, cap; /* cap: bytes allocated by str_add; 0: s is exactly as long as the text */
    bool failed;
} str;

void str_free(str *t);
/* Returns ST_NOMEM if a step failed. */
status str_check(const str *t, err *e);
static inline utf8_text str_text(const str *t)
{
    return (utf8_text){t->s ? t->s : "", t->n};
}

void str_set(str *t, const char *s, size_t n);
void str_add(str *t, const char *s, size_t n);
void str_add_char(str *t, int32_t c);
/* Appends str.lower(): one capital becomes two characters; capital sigma depends on its context. */
void str_add_lower(str *t, utf8_text s);
/* Appends str.upper(): one character becomes up to three. */
void str_add_upper(str *t, utf8_text s);
/* Deletes [from, to). */
void str_cut(str *t, size_t from, size_t to);
/* Replaces every occurrence of a nonempty text in one pass from the left, as str.replace. */
void str_replace(str *t, utf8_text from, utf8_text to);
/* str.strip() */
void str_strip(str *t);

/* Sets *out to true if s contains `part` after both have been converted to lower or upper case. */
status text_contains_cased(bool *out, utf8_text s, utf8_text part, void (*add)(str *, utf8_text), err *e);
/* True if the text at byte `at` begins with `word`. */
bool str_at(const str *t, size_t at, const char *word);
/* Returns the first occurrence from `from` on; t->n + 1: not found. */
size_t str_find(const str *t, size_t from, const char *word);

#endif
