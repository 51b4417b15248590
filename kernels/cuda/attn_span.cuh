/* SPDX-License-Identifier: MIT */
/* The rows of one piece of a list (attn_pieces.cuh): their numbers, and readers for them. */
#ifndef KERNELS_CUDA_ATTN_SPAN_CUH
#define KERNELS_CUDA_ATTN_SPAN_CUH

#include <type_traits>

#include "kernels/cuda/attn_decode.cuh"

enum { WARPS = 4, BLOCK = 32 * WARPS };

/* n entries of a unit's list, for readers of N elements at a time. */
template <class T, int N, int FORM> struct span {
    enum : bool { BLOCKS = in_blocks<T> };
    typedef std::conditional_t<BLOCKS, block_reader<T>, row_reader<T, N, FORM == CODES>> here;
    typedef near_reader<T, BLOCKS ? 8 : N> nearest;
    typedef std::conditional_t<FORM == NEAR, nearest, here> reader;
    const attn_args &j;
    const attn_unit &u;
    int from;      /* first entry, as an index into the list's buffer (includes the list's offset) */
    int64_t entry; /* the same, relative to the list's first entry */
    int n;
    int *staged; /* [n] row numbers in shared memory, computed before the loads that need them */

    __device__ span(const attn_args &job, const attn_unit &unit, int64_t first, int count, int *rows)
        : j(job), u(unit), from((int)(unit.first + first)), entry(first), n(count),
          staged(FORM != EXACT || unit.idx ? rows : NULL)
    {
    }

    __device__ __forceinline__ reader reader_of(const half_rows &rows, const void *near) const
    {
        if constexpr (FORM == NEAR) return {rows, u.kv_head, j.near, (const T *)near};
        else return {rows, u.kv_head};
    }

    /* Stages the row numbers. Quantized rows of K and of V have separate indices. */
    __device__ __forceinline__ void stage(bool value) const
    {
        const half_rows rows = half_of(j, value);
        const reader r = reader_of(rows, NULL);
        for (int i = threadIdx.x; staged && i < n; i += BLOCK) staged[i] = (int)r.row_at(slot_at(u, from + i));
        if (staged) __syncthreads();
    }

    /* Returns the row of entry i; of the first one if the piece has no entry i. */
    __device__ __forceinline__ int row_of_entry(int i) const
    {
        if (i >= n) i = 0;
        return staged ? staged[i] : from + i;
    }

    /* Stages the queries of heads [h0, h0 + G) as q [G][dim], Hadamard-rotated if `rotated`. Ends with a barrier. */
    template <int G> __device__ __forceinline__ void stage_queries(float *q, int h0, bool rotated) const
    {
        const float *all = j.q + (size_t)(u.head + h0) * j.dim;
        int heads = min(G, u.heads - h0);
        if (rotated) hadamard_rows(q, all, heads, (size_t)j.dim, j.dim);
        else
            for (int i = threadIdx.x; i < heads * j.dim; i += BLOCK) q[i] = all[i];
        __syncthreads();
    }
};

#endif
