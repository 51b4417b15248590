/* SPDX-License-Identifier: MIT */
/* Combination of heads (combine_job of ops_select.h), and the log-sum-exp over a head's candidates that votes need
 * (GQA_VOTE). A thread block has a chunk of VOTE_ITEMS items,
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

/* Returns the combined vote of a group. A head without a finite score does not vote. */
static __device__ __forceinline__ float vote(const float *x, size_t stride, const float *lse, int group, float scale)
{
    float top = -INFINITY, sum = 0;
    for (int h = 0; h < group; h++)
        if (!isinf(lse[h])) top = fmaxf(top, logit(x[h * stride], scale) - lse[h]);
    if (isinf(top)) return top;
    for (int h = 0; h < group; h++)
        if (!isinf(lse[h])) sum += expf(logit(x[h * stride], scale) - lse[h] - top);
    return top + logf(sum);
}

/* by: divisor of the mean. */
static __device__ __forceinline__ float reduce(const float *x, size_t stride, int group, gqa_mode mode, float by)
{
    float r = mode == GQA_MAX_S && isnan(x[0]) ? -INFINITY : x[0];
    for (int h = 1; h < group; h++) {
        float y = x[h * stride];
        r = mode != GQA_MAX_S ? __fadd_rn(r, y) : y > r ? y : r;
    }
    return mode == GQA_MEAN_S || mode == GQA_LAYER_MEAN ? __fdiv_rn(r, by) : r;
}

/* A job: raw scores in [heads][stride], their combinations out [lists][stride], in columns [lo, hi). */
typedef struct {
    float *out;
    const float *in;
    size_t stride;
    int64_t lo, hi;
} combine_args;

/* Parameters of a combination, shared by the jobs of a launch. lse [jobs][heads]; NULL: no vote. by: divisor of the
 * mean. */
typedef struct {
    const float *lse;
    int group;
    gqa_mode mode;
    float by, scale;
} combine_how;

/* Stores and returns the combination of item i for list blockIdx.y of job blockIdx.z. */
static __device__ __forceinline__ float combine_item(const combine_args &j, const combine_how &how, int64_t i)
{
    const float *x = j.in + (size_t)blockIdx.y * how.group * j.stride + i;
    const float *lse = how.lse + ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * how.group;
    float y = how.lse ? vote(x, j.stride, lse, how.group, how.scale) : reduce(x, j.stride, how.group, how.mode, how.by);
    j.out[blockIdx.y * j.stride + i] = y;
    return y;
}

combine_args cuda_combine_args(const combine_job &j);
combine_how cuda_combine_how(backend *be, const combine_job *j, const float *lse);

/* Sets up scratch for n_heads heads of all jobs and up to n_items items. Returns false after a fault. */
bool vote_room_of(backend *be, vote_room *v, size_t n_heads, int64_t n_items, float scale);
/* Defers the combinations of up to CUDA_JOBS jobs, of which a choice may take care. lse: for votes, else NULL. */
void cuda_defer_combine(backend *be, const combine_job *jobs, size_t n, const float *lse);

#endif
