/* SPDX-License-Identifier: MIT */
/* Nearest known name to an unknown one: "did you mean 'quest'?". */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include <stddef.h>

enum { NEAREST_MAX = 63 }; /* longest names compared, in bytes; longer ones match nothing */

typedef struct {
    const char *text; /* the unknown name; borrowed */
    size_t best;      /* distance of `name` */
    char name[NEAREST_MAX + 1];
    char hint[NEAREST_MAX + 24];
} nearest;

void nearest_start(nearest *n, const char *text);
/* Returns the number of letters that are missing, added, changed or swapped with a neighbour between a[0..m) and
 * b[0..n), both at most NEAREST_MAX bytes: optimal string alignment. */
size_t nearest_distance(const char *a, size_t m, const char *b, size_t n);
/* Considers a known name of len bytes. It matches if its distance is at most a third of the longer name's letters (at
 * least one); the first of equally near names is kept. */
void nearest_try(nearest *n, const char *name, size_t len);
/* Considers the words of a space-separated list. */
void nearest_try_words(nearest *n, const char *words);
/* Returns " (did you mean 'quest'?)", or "" without a match; valid as long as n. */
const char *nearest_hint(nearest *n);

#endif
