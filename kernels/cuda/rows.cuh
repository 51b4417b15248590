/* SPDX-License-Identifier: MIT */
/* What the two forms of linear share: how many rows of x one reading of the weights serves. */
#ifndef KERNELS_CUDA_ROWS_CUH
#define KERNELS_CUDA_ROWS_CUH

#include <type_traits>

#include "kernels/cuda/dev.cuh"
#include "kernels/ops.h"

enum { MOST_X = 8 };

/* Calls f with a constant: the rows of x that a kernel is to hold, of n in all. */
template <class F> static inline void by_rows(size_t n, F &&f)
{
    if (n <= 1) f(std::integral_constant<int, 1>());
    else if (n <= 2) f(std::integral_constant<int, 2>());
    else if (n <= 4) f(std::integral_constant<int, 4>());
    else f(std::integral_constant<int, MOST_X>());
}

static __device__ __forceinline__ float element(const void *p, dtype t, size_t i)
{
    if (t == DT_F32) return ((const float *)p)[i];
    return t == DT_F16 ? to_f32(((const __half *)p)[i]) : to_f32(((const __nv_bfloat16 *)p)[i]);
}

#endif
