/* SPDX-License-Identifier: MIT */
/* What votes need of a head's scores (GQA_VOTE): the log of the sum of exp over its candidates. A block of threads has
 * a chunk of VOTE_ITEMS items, an item a thread, and the block that is done last joins the chunks: one order, whatever
 * kernel the scores come from. */
#ifndef KERNELS_CUDA_VOTES_CUH
#define KERNELS_CUDA_VOTES_CUH

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/last.cuh"
#include "kernels/ops_select.h"

enum { VOTE_ITEMS = 256, VOTE_WARPS = VOTE_ITEMS / 32 };

/* Of some items: their largest logit, and the sum of exp(logit - top), 0 where top is not finite. */
typedef struct {
    float top, sum;
} vote_part;

/* Scratch of the votes of a launch. */
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

/* Of a warp's items, a logit a lane. */
static __device__ __forceinline__ vote_part part_of_warp(float x)
{
    float top = warp_max(x);
    return {top, warp_sum(isinf(top) ? 0 : expf(__fsub_rn(x, top)))};
}

/* Chunks [first, first + n) hold the candidates. */
static __device__ __forceinline__ int chunks_of(int64_t lo, int64_t hi, int *first)
{
    *first = (int)(lo / VOTE_ITEMS);
    return hi > lo ? (int)((hi - 1) / VOTE_ITEMS) - *first + 1 : 0;
}

/* All chunks of a head, by one warp. */
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

/* For n_heads heads of all jobs and up to n_items items; false after a fault. */
bool vote_room_of(backend *be, vote_room *v, size_t n_heads, int64_t n_items, float scale);
/* Votes of up to CUDA_JOBS jobs, whose lse the room has. */
void cuda_combine_votes(backend *be, const combine_job *jobs, size_t n, const vote_room *v);

#endif
