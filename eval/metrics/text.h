/* SPDX-License-Identifier: MIT */
/* Text as Python's str sees it: UTF-8 with the character classes and functions that leak into scores, and texts that
 * are rewritten step by step. Source: evals.md section 0 (CPython 3.11). The classes are those of utf8proc's Unicode
 * version; they differ from CPython's only in characters that one of the two does not know yet. */
#ifndef EVAL_METRICS_TEXT_H
#define EVAL_METRICS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"
#include "tokenizer/chars.h"

/* ---- characters ---- */

bool char_is_no_space(int32_t c); /* no white space of str.strip() */
bool char_is_word(int32_t c);     /* \w of a regular expression */
bool char_is_digit(int32_t c);    /* \d */
bool char_is_punct(int32_t c);    /* string.punctuation */
bool char_is_punct_zh(int32_t c); /* either that or LongBench's list of Chinese punctuation (75 characters) */
bool char_is_ascii_digit(int32_t c);
bool char_is_ascii_letter(int32_t c);

/* ---- borrowed texts: a word, a line, a whole text ---- */

/* ST_FORMAT where s is not UTF-8: official code would not have got that far. The functions below expect UTF-8. */
status text_check(utf8_text s, err *e);
/* Takes the first character off s; false: s is empty. */
bool text_next(utf8_text *s, int32_t *c);
/* Returns the first n characters, or all. */
utf8_text text_first(utf8_text s, size_t n);
utf8_text text_from(utf8_text s, size_t begin, size_t end);
/* str.strip() */
utf8_text text_strip(utf8_text s);
bool text_equal(utf8_text a, utf8_text b);
bool text_starts(utf8_text s, utf8_text part);
bool text_contains(utf8_text s, utf8_text part);
/* Return where `part` first begins at `from` or later, and where it begins last; s.n + 1: nowhere. */
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
/* id[i] of each of the l->n texts: equal texts get equal numbers in 0..*n_distinct-1. */
status text_number(uint32_t *id, size_t *n_distinct, const text_list *l, err *e);

/* ---- texts that are rewritten. An allocation that fails is remembered: later steps do nothing ---- */

/* Zeroed: empty. s is NULL, or n bytes and a NUL. */
typedef struct {
    char *s;
    size_t n, cap; /* cap: bytes that str_add has allocated; 0: s is exactly as long as the text */
    bool failed;
} str;

void str_free(str *t);
/* ST_NOMEM if a step failed. */
status str_check(const str *t, err *e);
static inline utf8_text str_text(const str *t)
{
    return (utf8_text){t->s ? t->s : "", t->n};
}

void str_set(str *t, const char *s, size_t n);
void str_add(str *t, const char *s, size_t n);
void str_add_char(str *t, int32_t c);
/* Appends str.lower(): one capital becomes two characters, capital sigma follows its place. */
void str_add_lower(str *t, utf8_text s);
/* Appends str.upper(): one character becomes up to three. */
void str_add_upper(str *t, utf8_text s);
/* Deletes [from, to). */
void str_cut(str *t, size_t from, size_t to);
/* str.replace: every occurrence of a text that is not empty, from the left; what was put in is not looked at again. */
void str_replace(str *t, utf8_text from, utf8_text to);
/* str.strip() */
void str_strip(str *t);

/* Sets *out to true if s contains `part` after both have been changed to lower or upper case. */
status text_contains_cased(bool *out, utf8_text s, utf8_text part, void (*add)(str *, utf8_text), err *e);
/* True if the text at byte `at` begins with `word`. */
bool str_at(const str *t, size_t at, const char *word);
/* Returns the first occurrence at `from` or later; t->n + 1: none. */
size_t str_find(const str *t, size_t from, const char *word);

#endif
