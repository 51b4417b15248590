/* SPDX-License-Identifier: MIT */
/* Stand-in for CUDA's header: the type and its conversions. */
#ifndef TESTS_CUSHIM_CUDA_FP16_H
#define TESTS_CUSHIM_CUDA_FP16_H

#include "tests/cushim/device_like.h"

struct __half {
    uint16_t bits;
};
static inline float __half2float(__half h)
{
    return shim_nan(f16_to_f32(h.bits));
}
static inline __half __float2half_rn(float x)
{
    return {shim_half_nan(x, f32_to_f16(x))};
}
static inline __half __ushort_as_half(unsigned short u)
{
    return {u};
}
static inline unsigned short __half_as_ushort(__half h)
{
    return h.bits;
}

#endif
