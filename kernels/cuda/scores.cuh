/* SPDX-License-Identifier: MIT */
/* Scores that decide selections: the order of ops_select.h, to the bit. 16 lanes have a row; lane i has channels i, i +
 * 16,
 * ..., which is partial sum i of the definition. A load of a warp touches two runs of 16 neighbouring elements. */
#ifndef KERNELS_CUDA_SCORES_CUH
#define KERNELS_CUDA_SCORES_CUH

#include "kernels/cuda/attention.cuh"

enum {
    SCORE_BLOCK = 128,
    SCORE_ROWS = SCORE_BLOCK / 16, /* at once */
    SCORE_TURNS = 4,               /* a block has SCORE_ROWS * SCORE_TURNS rows */
    PARTS = 16,
    MOST_CHANNELS = HEAD_DIM_MAX / PARTS /* of a lane */
};

/* The channels of one lane; those behind the end are never used. */
template <class T>
static __device__ __forceinline__ void load_part(float x[MOST_CHANNELS], const T *row, int lane, int dim)
{
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++) {
        int c = lane + PARTS * i;
        x[i] = c < dim ? to_f32(row[c]) : 0;
    }
}

/* (q0 + q1) + (q2 + q3) with q_i = (p_4i + p_4i+2) + (p_4i+1 + p_4i+3), in all 16 lanes. */
static __device__ __forceinline__ float sum_parts(float p)
{
    p = __fadd_rn(p, __shfl_xor_sync(ALL_LANES, p, 2));
    p = __fadd_rn(p, __shfl_xor_sync(ALL_LANES, p, 1));
    p = __fadd_rn(p, __shfl_xor_sync(ALL_LANES, p, 4));
    return __fadd_rn(p, __shfl_xor_sync(ALL_LANES, p, 8));
}

static __device__ __forceinline__ float dot_parts(const float x[MOST_CHANNELS], const float *q, int lane, int dim)
{
    float p = 0;
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++)
        if (lane + PARTS * i < dim) p = __fadd_rn(p, __fmul_rn(q[lane + PARTS * i], x[i]));
    return sum_parts(p);
}

/* The queries of one KV head into shared memory: q [group][dim]; ends with a barrier. */
static __device__ __forceinline__ void load_group(float *to, const float *q, int kv_head, int group, int dim)
{
    for (int i = threadIdx.x; i < group * dim; i += SCORE_BLOCK) to[i] = q[(size_t)kv_head * group * dim + i];
    __syncthreads();
}

static inline dim3 score_grid(int64_t n_max, size_t heads, unsigned jobs)
{
    return dim3(n_max > 0 ? cuda_blocks((size_t)n_max, SCORE_ROWS * SCORE_TURNS) : 1, (unsigned)heads, jobs);
}

#endif
