/* SPDX-License-Identifier: MIT */
/* The serial kernels of one SIMD level. They know no threads: cpu_*.c splits the work and calls them
 * through this table. k_*.c implement it once and are compiled per level (simd.h). */
#ifndef KERNELS_CPU_LEVEL_H
#define KERNELS_CPU_LEVEL_H

#include "kernels/ops.h"

enum {
    DECODE_BLOCK = 64,    /* keys of one step of the online softmax */
    DECODE_GROUP = 16,    /* query heads that read a K/V row together; more go in several passes */
    PREFILL_KEYS = 128,   /* keys of a tile, aligned to slots: part of the result's definition */
    PREFILL_ROWS = 48,    /* query rows that pass over a packed panel while it lies in L1 */
    HEAD_DIM_MAX = 256,
    HEAD_DIM_PAD = 32     /* widest TILE_VECS * VF_LANES */
};

/* One chunk of keys for `group` query heads of one query (decode). */
typedef struct {
    const float *q;        /* [group, head_dim] */
    float scale;
    const void *k, *v;     /* rows of this kv head */
    const int32_t *idx;    /* slots, or NULL: slot = first + i */
    int64_t first;         /* idx NULL: the first slot; else the first entry of idx */
    size_t n;              /* keys, > 0 */
    size_t group, head_dim;
    dtype type;
    float *acc, *top, *sum; /* [group, head_dim] sum of exp(s - top) v, [group] max, [group] sum */
} decode_chunk;

/* A block of query rows against all key tiles of one kv head (prefill). Row r sees the slots
 * lo[r] <= s < hi[r]; n_rows is a multiple of the level's tile_rows, q padded with zero rows. */
typedef struct {
    const float *q;          /* [n_rows, head_dim], already scaled */
    const int64_t *lo, *hi;  /* [n_rows] */
    const void *k, *v;       /* rows of this kv head */
    size_t n_rows, head_dim;
    dtype type;
    int64_t slot_lo, slot_hi; /* stored keys: nothing outside is read */
    float *acc, *top, *sum;   /* [n_rows, dim_pad], [n_rows], [n_rows] */
    float *work;              /* prefill_work_floats(head_dim), 64-byte aligned */
} prefill_block;

static inline size_t prefill_dim_pad(size_t head_dim)
{
    return (head_dim + HEAD_DIM_PAD - 1) / HEAD_DIM_PAD * HEAD_DIM_PAD;
}

/* Packed K and V of one key tile, scores of PREFILL_ROWS rows, rows in transposition, factors. */
static inline size_t prefill_work_floats(size_t head_dim)
{
    return (2 * PREFILL_KEYS + HEAD_DIM_PAD) * prefill_dim_pad(head_dim) + PREFILL_ROWS * (PREFILL_KEYS + 16);
}

typedef struct {
    const char *name;
    size_t tile_rows; /* query rows of a prefill_block come in multiples of this */
    size_t lanes;

    void (*rmsnorm)(float *out, const float *x, const void *w, dtype wt, size_t n, size_t dim, float eps);
    void (*swiglu)(float *out, const float *gate, const float *up, size_t n);
    void (*add)(float *x, const float *y, size_t n);
    /* Rows [r0, r1) of n * heads rows of 2 * half. */
    void (*rope)(float *out, const float *x, const float *table, size_t heads, size_t half, size_t r0, size_t r1);
    void (*widen)(float *out, const void *in, dtype t, size_t n);
    void (*narrow)(void *out, const float *in, dtype t, size_t n);
    void (*scale)(float *out, const float *in, float by, size_t n); /* out = by * in */
    /* out[i * out_stride + r] = x[i] . w[r] + bias[r] for i < n and r0 <= r < r1. */
    void (*linear)(float *out, size_t out_stride, const float *x, size_t n, const weight *w,
                   const weight *bias, size_t r0, size_t r1);
    void (*decode)(const decode_chunk *c);
    /* Merge of n_parts partial results of one query head: out = sum w_i acc_i / sum w_i sum_i with
     * w_i = exp(top_i - max top). Strides in floats; parts with top = -INFINITY are skipped; sum
     * NULL: 1 each (then top is an lse and acc is normalised). lse NULL: not wanted. */
    void (*merge)(float *out, float *lse, const float *acc, const float *top, const float *sum,
                  size_t n_parts, size_t acc_stride, size_t stat_stride, size_t dim);
    void (*prefill)(const prefill_block *b);
    /* Reads `bytes` (a multiple of 4,096) as fast as the level can; returns their sum as floats. */
    float (*read_sum)(const void *p, size_t bytes);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_generic, cpu_kernels_avx2, cpu_kernels_avx512;

#endif
