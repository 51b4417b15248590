/* SPDX-License-Identifier: MIT */
/* Log-sum-exp over a head's candidates, as needed by votes (GQA_VOTE). A thread block has a chunk of VOTE_ITEMS items,
 * one per thread, and the block that finishes last joins the chunks. The order is the same whichever kernel computes
 * the scores. */
#ifndef KERNELS_CUDA_VOTES_CUH
#define KERNELS_CUDA_VOTES_CUH

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/last.cuh"
#include "kernels/ops_select.h"

enum { VOTE_ITEMS = 256, VOTE_WARPS = VOTE_ITEMS / 32 };

/* Largest logit of some items, and the sum of exp(logit - top), 0 if top is not finite. */
typedef struct {
    float top, sum;
} vote_part;

/* Scratch for the votes of a launch. */
typedef struct {
    vote_part *parts; /* [jobs][heads][most]; NULL: no votes */
    float *lse;       /* [jobs][heads] */
    int *done;        /* [jobs][heads], left at 0 */
    size_t most;      /* chunks */
    float scale;
} vote_room;

static __device__ __forceinline__ float logit(float x, float scale)
{
    return isnan(x) ? -INFINITY : __fmul_rn(x, scale);
}

static __device__ __forceinline__ vote_part join_parts(vote_part a, vote_part b)
{
    float top = fmaxf(a.top, b.top);
    if (isinf(top)) return {top, 0};
    return {top,
            __fadd_rn(__fmul_rn(a.sum, expf(__fsub_rn(a.top, top))), __fmul_rn(b.sum, expf(__fsub_rn(b.top, top))))};
}

/* Returns the part of a warp's items, one logit per lane. */
static __device__ __forceinline__ vote_part part_of_warp(float x)
{
    float top = warp_max(x);
    return {top, warp_sum(isinf(top) ? 0 : expf(__fsub_rn(x, top)))};
}

/* Returns the number of chunks that hold the candidates; *first: the first of them. */
static __device__ __forceinline__ int chunks_of(int64_t lo, int64_t hi, int *first)
{
    *first = (int)(lo / VOTE_ITEMS);
    return hi > lo ? (int)((hi - 1) / VOTE_ITEMS) - *first + 1 : 0;
}

/* Joins all chunks of a head, with one warp. */
static __device__ __forceinline__ float lse_of_parts(const vote_part *parts, int n)
{
    vote_part p = {-INFINITY, 0};
    for (int i = threadIdx.x % 32; i < n; i += 32) p = join_parts(p, parts[i]);
    for (int m = 16; m > 0; m /= 2) {
        vote_part q;
        q.top = __shfl_xor_sync(ALL_LANES, p.top, m);
        q.sum = __shfl_xor_sync(ALL_LANES, p.sum, m);
        p = join_parts(p, q);
    }
    return isinf(p.top) ? p.top : p.top + logf(p.sum);
}

/* Sets up scratch for n_heads heads of all jobs and up to n_items items. Returns false after a fault. */
bool vote_room_of(backend *be, vote_room *v, size_t n_heads, int64_t n_items, float scale);
/* Computes the votes of up to CUDA_JOBS jobs, whose lse are in v. */
void cuda_combine_votes(backend *be, const combine_job *jobs, size_t n, const vote_room *v);

#endif
