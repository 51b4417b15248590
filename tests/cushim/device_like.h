/* SPDX-License-Identifier: MIT */
/* Arithmetic of a device where it differs from the host's (make EMULATED=1; else these functions change nothing): NaN
 * results have the same bits, expf, logf and exp2 are off by a unit in the last place, and tensor cores truncate after
 * each product. Sums and products are fused as nvcc_arithmetic (kernels/local.mk) lets nvcc fuse them, except those of
 * functions of CUDA. NaN results of operators keep the host's bits, and tensor cores align no addends.
 * Source: CUDA C++ Programming Guide, "Floating-Point Standard", "Mathematical Functions"; Fasi et al. 2021, "Numerical
 * behavior of NVIDIA tensor cores". */
#ifndef TESTS_CUSHIM_DEVICE_LIKE_H
#define TESTS_CUSHIM_DEVICE_LIKE_H

#include <math.h>

#include "kernels/half.h"

#ifdef SHIM_EMULATED
static inline float shim_nan(float x)
{
    return isnan(x) ? bits_to_f32(0x7fffffff) : x;
}
static inline uint16_t shim_half_nan(float x, uint16_t h)
{
    return isnan(x) ? 0x7fff : h;
}
/* Rounds a number where the compiler would fuse operations. */
static inline double shim_rounded(double x)
{
    volatile double apart = x;
    return apart;
}
static inline float shim_rounded(float x)
{
    volatile float apart = x;
    return shim_nan(apart);
}
/* Returns the next larger number. 0, 1 and what is not finite are exact. */
static inline float shim_inexact(float x)
{
    return x > 0 || x < 0 ? (x == 1 || isinf(x) ? x : nextafterf(x, INFINITY)) : shim_nan(x);
}
/* Rounds toward 0. */
static inline float shim_truncated(double x)
{
    float f = (float)x;
    return fabs((double)f) > fabs(x) ? nextafterf(f, 0) : f;
}
#else
static inline float shim_nan(float x)
{
    return x;
}
static inline uint16_t shim_half_nan(float, uint16_t h)
{
    return h;
}
template <class T> T shim_rounded(T x)
{
    return x;
}
static inline float shim_inexact(float x)
{
    return x;
}
static inline float shim_truncated(double x)
{
    return (float)x;
}
#endif

#endif
