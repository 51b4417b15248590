/* SPDX-License-Identifier: MIT */
/* Scores that decide selections, summed in the order of ops_select.h to the bit. 16 lanes share a row; lane i has
 * channels i, i + 16, ..., which are partial sum i of the definition. A load by a warp touches two runs of 16
 * neighbouring elements. */
#ifndef KERNELS_CUDA_SCORES_CUH
#define KERNELS_CUDA_SCORES_CUH

#include "kernels/cuda/attention.cuh"

enum {
    SCORE_BLOCK = 128,
    SCORE_ROWS = SCORE_BLOCK / 16, /* at once */
    SCORE_TURNS = 4,               /* a block has SCORE_ROWS * SCORE_TURNS rows */
    PARTS = 16,
    MOST_CHANNELS = HEAD_DIM_MAX / PARTS /* per lane */
};

/* Loads the channels of one lane; those past the end are 0 and never used. */
template <class T>
static __device__ __forceinline__ void load_part(float x[MOST_CHANNELS], const T *row, int lane, int dim)
{
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++) {
        int c = lane + PARTS * i;
        x[i] = c < dim ? to_f32(row[c]) : 0;
    }
}

/* Loads a row of the store for each half of a warp; inside: the row exists. Called by all lanes of a warp. */
template <class T>
static __device__ __forceinline__ void load_stored(float x[MOST_CHANNELS], const half_rows &r, int head, int64_t slot,
                                                   bool inside)
{
    int lane = threadIdx.x % PARTS;
    if constexpr (in_blocks<T>)
        if (r.rotated) { /* the whole warp loads one row after the other */
            for (int half = 0; half < 2; half++) {
                float all[ROW_BLOCKS_MAX];
                long long at = __shfl_sync(ALL_LANES, (long long)(inside ? slot : -1), PARTS * half);
                get_row(all, row_of<T>(r.exact, head * r.cap + (size_t)max(at, 0ll), r.dim), r.dim, true);
#pragma unroll
                for (int i = 0; i < MOST_CHANNELS; i++) {
                    float y = __shfl_sync(ALL_LANES, all[i / 2], lane + PARTS * (i % 2));
                    if ((int)threadIdx.x % 32 / PARTS == half) x[i] = y;
                }
            }
            return;
        }
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++) {
        int c = lane + PARTS * i;
        x[i] = inside && c < r.dim ? element_of<T>(r, head, slot, c) : 0;
    }
}

/* Returns (q0 + q1) + (q2 + q3) with q_i = (p_4i + p_4i+2) + (p_4i+1 + p_4i+3), in all 16 lanes. */
static __device__ __forceinline__ float sum_parts(float p)
{
    p = __fadd_rn(p, __shfl_xor_sync(ALL_LANES, p, 2));
    p = __fadd_rn(p, __shfl_xor_sync(ALL_LANES, p, 1));
    p = __fadd_rn(p, __shfl_xor_sync(ALL_LANES, p, 4));
    return __fadd_rn(p, __shfl_xor_sync(ALL_LANES, p, 8));
}

/* The same sum where each of 16 / N lanes has N consecutive partial sums; the largest of them. In all lanes. */
template <int N> static __device__ __forceinline__ float sum_packed(const float p[N])
{
    float s = __fadd_rn(__fadd_rn(p[0], p[2]), __fadd_rn(p[1], p[3]));
    if constexpr (N == 8) s = __fadd_rn(s, __fadd_rn(__fadd_rn(p[4], p[6]), __fadd_rn(p[5], p[7])));
    for (int m = 1; m < PARTS / N; m *= 2) s = __fadd_rn(s, __shfl_xor_sync(ALL_LANES, s, m));
    return s;
}
template <int N> static __device__ __forceinline__ float largest_part(const float p[N])
{
    float best = p[0];
    for (int i = 1; i < N; i++) best = fmaxf(best, p[i]);
    for (int m = 1; m < PARTS / N; m *= 2) best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, m));
    return best;
}

static __device__ __forceinline__ float dot_parts(const float x[MOST_CHANNELS], const float *q, int lane, int dim)
{
    float p = 0;
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++)
        if (lane + PARTS * i < dim) p = __fadd_rn(p, __fmul_rn(q[lane + PARTS * i], x[i]));
    return sum_parts(p);
}

/* Loads the queries of one KV head into shared memory as q [group][dim]. Ends with a barrier. */
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
