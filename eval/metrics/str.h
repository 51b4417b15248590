/* SPDX-License-Identifier: MIT */
/* A text that is rewritten step by step. An allocation that fails is remembered: later steps do nothing, str_check
 * tells at the end. */
#ifndef EVAL_METRICS_STR_H
#define EVAL_METRICS_STR_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

/* Zeroed: empty. With n bytes; s is NULL or has a NUL behind them. */
typedef struct {
    char *s;
    size_t n, cap;
    bool failed;
} str;

void str_free(str *t);
/* ST_NOMEM if a step failed. */
status str_check(const str *t, err *e);

void str_set(str *t, const char *s, size_t n);
void str_add(str *t, const char *s, size_t n);
/* Deletes [from, to). */
void str_cut(str *t, size_t from, size_t to);
/* str.replace: every occurrence, from the left; what was put in is not looked at again. */
void str_replace(str *t, const char *from, const char *to);
/* str.strip() */
void str_strip(str *t);

/* Whether the text at byte `at` begins with `word`. */
bool str_at(const str *t, size_t at, const char *word);
/* The first occurrence at `from` or later, the last one in all; t->n + 1: none. */
size_t str_find(const str *t, size_t from, const char *word);
size_t str_find_last(const str *t, const char *word);

#endif
