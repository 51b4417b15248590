/* SPDX-License-Identifier: MIT */
/* Samples of the rows that a step does not attend. methods.md 17.2. */
#ifndef KERNELS_OPS_TAIL_H
#define KERNELS_OPS_TAIL_H

#include "kernels/ops.h"

enum { TAIL_SAMPLE_MAX = 1024 };

/* Draws a sample of the n tokens, without those in the lists of `of`, for each list.
 * of    one decode step's attention, neither masked nor with `at`. Uses range, idx, n_lists, idx_stride, first, n_max,
 *       n_heads. Lists ascend
 * rows  maximum sample size of a list
 * bias  out f32 [n_heads][rows]
 * seed, layer  for the draws
 * idx   out i32 [n_lists][rows], ascending; range out i64 [n_lists][2]: 0 and the number b; left out i64 [n_lists]: m
 *
 * The m tokens that are not in a list, in ascending order, form b = min(m, rows) strata. Stratum i has those from
 * floor(i m / b) to floor((i + 1) m / b), and tail_draw draws one of them. Its bias is the logarithm of the size of the
 * stratum, in double, rounded once. vAttention (Desai et al. 2025) draws from all tokens at once; strata are ours. */
typedef struct {
    attn_job of;
    int64_t n;
    size_t rows;
    buf bias;
    uint64_t seed;
    int layer;
    buf idx, range, left;
} tail_sample_job;

/* Estimates the fraction of attention that a list missed, after a decode step's attention over the sample.
 * of     that attention. Uses scores, range, n_heads, n_lists and read
 * left   i64 [n_lists], from the sample
 * parts  f32 [n_parts][stride]: log-sum-exps of everything that the step attends, including the sample. Entry h of a
 *        part is query head h's
 * out    f32 [n_heads][2]: the fraction tau; sigma, the standard error of the estimated missed weight relative to that
 *        weight. sigma is the error of log(tau / (1 - tau)); the error of tau is tau (1 - tau) sigma
 *
 * With y_i = e^(score i) over the sum of the parts' e^lse: tau = sum y; sigma^2 tau^2 = (1 - b / m) b / (2 (b - 1))
 * sum (y_(i+1) - y_i)^2, successive differences of strata. b = m: sigma = 0. m = 0: both are 0. In double. For each
 * list, the fractions, the squared sum of its heads' errors and the number of fractions are added to `read`. */
typedef struct {
    attn_job of;
    buf left, parts, out;
    size_t n_parts, stride;
} tail_missed_job;

/* Jobs of a call have the same n_heads, n_lists and rows. */
#define TAIL_OPS(OP, own, plain)                                                                                       \
    OP(plain, void, sample, (backend *, const tail_sample_job *jobs, size_t n))                                        \
    OP(plain, void, missed, (backend *, const tail_missed_job *jobs, size_t n))

struct tail_ops {
    TAIL_OPS(OP_POINTER, , )
};

#ifdef __CUDACC__
#define TAIL_FN static __host__ __device__ __forceinline__
#else
#define TAIL_FN static inline
#endif

/* Returns a number from 0 to size - 1, size > 0, for draw i of list `list` of `layer` in the step whose newest token is
 * at `pos`: output 1 + ((pos 2^8 + layer) 2^16 + list) 2^12 + i of SplitMix64 (base/rng.h) from `seed`, times size over
 * 2^64. */
TAIL_FN int64_t tail_draw(uint64_t seed, int64_t pos, int layer, size_t list, size_t i, int64_t size)
{
    uint64_t k = 1 + (((((uint64_t)pos << 8) + (uint64_t)layer) << 16) + list) * 4096 + i;
    uint64_t z = seed + k * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (int64_t)(((unsigned __int128)(z ^ (z >> 31)) * (uint64_t)size) >> 64);
}

#endif
