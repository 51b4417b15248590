/* SPDX-License-Identifier: MIT */
/* Stand-in for CUDA's header: the type and its conversions. */
#ifndef TESTS_CUSHIM_CUDA_BF16_H
#define TESTS_CUSHIM_CUDA_BF16_H

#include "tests/cushim/device_like.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
static inline float __bfloat162float(__nv_bfloat16 h)
{
    return bf16_to_f32(h.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return {shim_half_nan(x, f32_to_bf16(x))};
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u)
{
    return {u};
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.bits;
}

#endif
