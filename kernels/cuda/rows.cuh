/* SPDX-License-Identifier: MIT */
/* Definitions shared by all forms of linear: the number of rows of x served by one read of the weights, and bias
 * elements. */
#ifndef KERNELS_CUDA_ROWS_CUH
#define KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/dev.cuh"
#include "kernels/ops.h"

enum { MOST_X = 8 };

/* Returns the largest number of rows of x for which our own kernels are used. */
static inline size_t most_x(dtype t)
{
    return t == DT_F32 || t == DT_F16 ? MOST_X : t == DT_BF16 ? 2 * MOST_X : 4 * MOST_X;
}

static __device__ __forceinline__ float element(const void *p, dtype t, size_t i)
{
    if (t == DT_F32) return ((const float *)p)[i];
    return t == DT_F16 ? to_f32(((const __half *)p)[i]) : to_f32(((const __nv_bfloat16 *)p)[i]);
}

#endif
