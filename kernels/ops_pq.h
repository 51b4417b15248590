/* SPDX-License-Identifier: MIT */
/* Product-quantized keys. Source: PQCache (arXiv 2407.12820); methods.md 7b. */
#ifndef KERNELS_OPS_PQ_H
#define KERNELS_OPS_PQ_H

#include "kernels/ops_select.h"

enum { PQ_PARTS = 16, PQ_BITS = 8 }; /* maxima */

/* A key is split into `parts` sub-spaces of head_dim / parts channels, each stored as the number of its nearest
 * centroid (ops_kmeans.h, l2).
 * code      u8 [n_kv_heads][cap][parts]; only the lowest `bits` bits count
 * centroid  f16 [n_kv_heads][parts][1 << bits][head_dim / parts]
 * trained   tokens at the end of the prompt that the centroids were made of; 0: no centroids
 *
 * The ops are INDEX_OPS. add: writes codes of the keys, rounded to `type`; nothing while untrained. redo: nothing.
 * score of token t: the sum over the sub-spaces, ascending, starting with the first term, of q_p . centroid_p[code_p],
 * dot products in the order of ops_select.h. No spans and votes. */
typedef struct {
    buf code, centroid;
    dtype type; /* type of the rows */
    size_t n_kv_heads, head_dim, cap, parts, bits;
    int64_t trained;
} pq_index;

static inline size_t pq_words(const pq_index *x)
{
    return (size_t)1 << x->bits;
}

/* Returns the bytes that the scores of n tokens read: codes and centroids. */
static inline uint64_t pq_bytes(const pq_index *x, int64_t n)
{
    return n > 0 ? x->n_kv_heads * ((uint64_t)n * x->parts + pq_words(x) * x->head_dim * 2) : 0;
}

#endif
