/* SPDX-License-Identifier: MIT */
/* What the forms of linear share: how many rows of x one reading of the weights serves, elements of a bias. */
#ifndef KERNELS_CUDA_ROWS_CUH
#define KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/dev.cuh"
#include "kernels/ops.h"

enum { MOST_X = 8 };

/* Rows of x up to which our own kernels are taken. */
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
