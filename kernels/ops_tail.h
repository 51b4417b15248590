/* SPDX-License-Identifier: MIT */
/* The mean of the rows that a step does not attend: running sums of K and V, and what is left of them. methods.md 17.2.
 */
#ifndef KERNELS_OPS_TAIL_H
#define KERNELS_OPS_TAIL_H

#include "kernels/ops.h"

enum {
    TAIL_BLOCK = 4096, /* positions that are added up together where a row stands for all */
    TAIL_PARTS = 16,   /* sums of the rows of a list, before they are added up */
    TAIL_RANGES = 2    /* beside a list */
};

/* Sums of the rows of one layer, K and V, block by block of positions.
 * sum   f32 [n_kv_heads][2][cap][head_dim], K first: entry b holds the sum of the positions [b * block, (b + 1) *
 * block) as far as they are there, in ascending order from 0 on, in float32 type  of exact rows: what is added is
 * rounded to it first, nearest even */
typedef struct {
    buf sum;
    int64_t block;
    dtype type;
    size_t n_kv_heads, head_dim, cap;
} tail_sums;

/* n tokens from position `first` on; k, v [n, n_kv_heads, head_dim] f32. */
typedef struct {
    const tail_sums *to;
    int64_t first;
    buf k, v;
    size_t n;
} tail_add_job;

/* The rest of n tokens without those that the lists of `of` hold, and `more` of every list.
 * of    one decode step's attention, neither masked nor with `at`: its rows, range, idx, n_lists, idx_stride, first,
 *       n_max, n_heads and read are used. rows has a region for each kv head, or for each query head
 * more  slots of the same rows that no list holds
 * rows  of a list: 1, one row of all that is left, or sums->cap, one of what is left of each block
 * k, v  out f32 [n_heads / share][rows][head_dim]: rows of h / share are query head h's, where `share` heads have a
 * list in common: those of a kv head, or one where n_lists = n_heads bias  out f32 [n_heads][rows]
 *
 * Of a list that with `more` has e entries, m = n - e > 0: a row is (all - attended) / m and a bias is log m. all:
 * blocks ascending, from the first one's sum on. attended: rows of the list, then of each range, as the store gives
 * them; entry i of each goes to part i % TAIL_PARTS, ascending from 0 on, and the parts are added up in ascending order
 * from the first one on. All in float32, the logarithm of m in double, rounded once. m = 0: a row of zeros with bias
 * -INFINITY. With a row a block: the same of each block, whose attended rows are added up in one part; rows of blocks
 * behind n are left as they are. Lists then ascend. */
typedef struct {
    const tail_sums *sums;
    attn_job of;
    slot_range more[TAIL_RANGES];
    int64_t n;
    size_t rows;
    buf k, v, bias;
} tail_rest_job;

/* Jobs of a call have type, block, n_kv_heads, head_dim, n_heads, n_lists and rows in common. */
#define TAIL_OPS(OP, own, plain)                                                                                       \
    OP(own, void, add, (backend *, const tail_add_job *jobs, size_t n))                                                \
    /* After a rewind to n tokens: the sum of the last block, of the rows that the store holds. */                     \
    OP(own, void, redo, (backend *, const tail_sums *, const kv_rows *rows, int64_t n))                                \
    /* The rows of the lists are counted as read, and the sums of n tokens as index. */                                \
    OP(own, void, rest, (backend *, const tail_rest_job *jobs, size_t n))

struct tail_ops {
    TAIL_OPS(OP_POINTER, , )
};

static inline int64_t tail_blocks(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

/* Query heads that have a row in common. */
static inline size_t tail_share(const tail_rest_job *j)
{
    return j->of.n_lists == j->of.n_heads ? 1 : j->of.n_heads / j->sums->n_kv_heads;
}

/* The rows of range i as a job of its own, for what is counted. */
static inline attn_job tail_range_job(const tail_rest_job *j, int i)
{
    attn_job x = j->of;
    x.range.p = x.idx.p = NULL;
    x.first = j->more[i].first;
    x.n_max = j->more[i].n;
    return x;
}

/* Bytes of the sums of n tokens. */
static inline uint64_t tail_bytes(const tail_sums *s, int64_t n)
{
    return (uint64_t)tail_blocks(n, s->block) * s->n_kv_heads * 2 * s->head_dim * sizeof(float);
}

#endif
