/* SPDX-License-Identifier: MIT */
/* The known name that is nearest to one that nobody knows: "did you mean 'quest'?". */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include <stddef.h>

enum { NEAREST_MAX = 63 }; /* bytes of names that are looked at; longer ones are near to nothing */

typedef struct {
    const char *text; /* what was found; borrowed */
    size_t best;      /* distance of `name` */
    char name[NEAREST_MAX + 1];
    char hint[NEAREST_MAX + 24];
} nearest;

void nearest_start(nearest *n, const char *text);
/* Letters that are missing, added, changed or swapped with a neighbour between a[0..m) and b[0..n), both at most
 * NEAREST_MAX bytes: optimal string alignment. */
size_t nearest_distance(const char *a, size_t m, const char *b, size_t n);
/* A known name of len bytes. It is near when its distance is at most a third of the longer name's letters (one at
 * least); of equally near ones the first is kept. */
void nearest_try(nearest *n, const char *name, size_t len);
/* The words of a list separated by spaces. */
void nearest_try_words(nearest *n, const char *words);
/* " (did you mean 'quest'?)", or "" when nothing is near; lives as long as n. */
const char *nearest_hint(nearest *n);

#endif
