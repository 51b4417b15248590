/* SPDX-License-Identifier: MIT */
/* The segmenter's dictionary: a tree of code points in a hash table of (node, code point) -> node. */
#ifndef EVAL_METRICS_DICTIONARY_H
#define EVAL_METRICS_DICTIONARY_H

#include "eval/metrics/text.h"

enum { DICTIONARY_ROOT = 0 };

typedef struct {
    uint64_t *key;     /* node << 21 | code point; 0: free */
    uint32_t *child;   /* by place of its key */
    size_t cap;        /* of the two, a power of two */
    uint32_t *freq;    /* by node; 0: only the beginning of words */
    size_t n, n_alloc; /* nodes, and room for them */
    double total;      /* sum of the frequencies, an exact integer */
} dictionary;

/* From "word frequency tag" lines. dictionary_free releases, also after an error. */
status dictionary_read(dictionary *d, const char *path, err *e);
void dictionary_free(dictionary *d);

/* The node behind `node` by c; 0 where there is none. */
uint32_t dictionary_step(const dictionary *d, uint32_t node, int32_t c);

#endif
