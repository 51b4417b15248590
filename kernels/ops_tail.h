/* SPDX-License-Identifier: MIT */
/* The mean of the rows that a step does not attend: running sums of K and V, and what is left of them. methods.md 17.2.
 */
#ifndef KERNELS_OPS_TAIL_H
#define KERNELS_OPS_TAIL_H

#include "kernels/ops.h"

enum {
    TAIL_BLOCK = 4096, /* positions that are added up together where a row stands for all */
    TAIL_PARTS = 16,   /* sums of the rows of a list, before they are added up */
    TAIL_RANGES = 2,   /* beside a list */
    TAIL_SAMPLE_MAX = 1024
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

/* A sample of the rest of n tokens, for each list of rest.of, drawn where it lies.
 * rest  of, more and n as above; rows: tokens of a list's sample at most; bias out f32 [n_heads][rows]; no sums, k, v.
 *       Lists ascend
 * seed, layer  of the draws
 * idx   out i32 [n_lists][rows], ascending; range out i64 [n_lists][2]: 0 and the number b; left out i64 [n_lists]: m
 *
 * The m tokens that a list leaves, in ascending order, fall into b = min(m, rows) strata: stratum i has those from
 * floor(i m / b) to floor((i + 1) m / b), of which one is drawn: tail_draw. Its bias is the logarithm of their number,
 * in double, rounded once. vAttention (Desai et al. 2025) draws from all at once; strata are ours. */
typedef struct {
    tail_rest_job rest;
    uint64_t seed;
    int layer;
    buf idx, range, left;
} tail_sample_job;

/* What a sample says of the share of attention that its list missed, after a decode step's attention over it.
 * of     that attention: scores, range, n_heads, n_lists and read are used
 * left   i64 [n_lists], of the sample
 * parts  f32 [n_parts][stride]: log-sum-exps of all that the step attends, the sample's included: entry h of a part is
 *        query head h's
 * out    f32 [n_heads][2]: the share tau; sigma, the standard error of the estimated weight of all that was missed, in
 *        units of that weight. log(tau / (1 - tau)) has it, tau itself tau (1 - tau) sigma
 *
 * With y_i = e^(score i) over the sum of the parts' e^lse: tau = sum y; sigma^2 tau^2 = (1 - b / m) b / (2 (b - 1))
 * sum (y_(i+1) - y_i)^2, successive differences of strata. b = m: sigma = 0. m = 0: both are 0. In double; of each list
 * the shares, the squared sum of its heads' errors and their number are added to `read`. */
typedef struct {
    attn_job of;
    buf left, parts, out;
    size_t n_parts, stride;
} tail_missed_job;

/* Jobs of a call have type, block, n_kv_heads, head_dim, n_heads, n_lists and rows in common. */
#define TAIL_OPS(OP, own, plain)                                                                                       \
    OP(own, void, add, (backend *, const tail_add_job *jobs, size_t n))                                                \
    /* After a rewind to n tokens: the sum of the last block, of the rows that the store holds. */                     \
    OP(own, void, redo, (backend *, const tail_sums *, const kv_rows *rows, int64_t n))                                \
    /* The rows of the lists are counted as read, and the sums of n tokens as index. */                                \
    OP(own, void, rest, (backend *, const tail_rest_job *jobs, size_t n))                                              \
    OP(plain, void, sample, (backend *, const tail_sample_job *jobs, size_t n))                                        \
    OP(plain, void, missed, (backend *, const tail_missed_job *jobs, size_t n))

struct tail_ops {
    TAIL_OPS(OP_POINTER, , )
};

static inline int64_t tail_blocks(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

#ifdef __CUDACC__
#define TAIL_FN static __host__ __device__ __forceinline__
#else
#define TAIL_FN static inline
#endif

/* A number from 0 to size - 1, size > 0, for draw i of list `list` of `layer` in the step whose newest token is at
 * `pos`: output 1 + ((pos 2^8 + layer) 2^16 + list) 2^12 + i of SplitMix64 (base/rng.h) from `seed`, times size over
 * 2^64. */
TAIL_FN int64_t tail_draw(uint64_t seed, int64_t pos, int layer, size_t list, size_t i, int64_t size)
{
    uint64_t k = 1 + (((((uint64_t)pos << 8) + (uint64_t)layer) << 16) + list) * 4096 + i;
    uint64_t z = seed + k * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (int64_t)(((unsigned __int128)(z ^ (z >> 31)) * (uint64_t)size) >> 64);
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
