/* SPDX-License-Identifier: MIT */
/* Any machine: four lanes as a vector extension of GCC and Clang (SSE2, NEON, ...). See simd.h. */
#ifndef KERNELS_CPU_SIMD_GENERIC_H
#define KERNELS_CPU_SIMD_GENERIC_H

#include <math.h>

#include "kernels/half.h"

typedef float VF __attribute__((vector_size(16)));
typedef int32_t vf_int __attribute__((vector_size(16)));
enum { VF_LANES = 4, TILE_ROWS = 4, TILE_VECS = 2, DOT_X = 2, DOT_W = 2, PV_ACC = 8 };

INLINE VF vf_set1(float x) { return (VF){x, x, x, x}; }
INLINE VF vf_zero(void) { return vf_set1(0); }
INLINE VF vf_add(VF a, VF b) { return a + b; }
INLINE VF vf_sub(VF a, VF b) { return a - b; }
INLINE VF vf_mul(VF a, VF b) { return a * b; }
INLINE VF vf_div(VF a, VF b) { return a / b; }
INLINE VF vf_fma(VF a, VF b, VF c) { return a * b + c; } /* two roundings: fma() is a slow call here */

INLINE VF vf_max(VF a, VF b)
{
    vf_int m = (vf_int)(a > b);
    return (VF)((m & (vf_int)a) | (~m & (vf_int)b));
}

INLINE VF vf_load(const float *p)
{
    VF v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void vf_store(float *p, VF v) { memcpy(p, &v, sizeof v); }

INLINE VF vf_load_n(const float *p, size_t n)
{
    float f[VF_LANES] = {0};
    memcpy(f, p, 4 * n);
    return vf_load(f);
}

INLINE void vf_store_n(float *p, VF v, size_t n)
{
    float f[VF_LANES];
    vf_store(f, v);
    memcpy(p, f, 4 * n);
}

INLINE VF vf_load_f16(const void *p)
{
    uint16_t h[VF_LANES];
    memcpy(h, p, sizeof h);
    return (VF){f16_to_f32(h[0]), f16_to_f32(h[1]), f16_to_f32(h[2]), f16_to_f32(h[3])};
}

INLINE VF vf_load_bf16(const void *p)
{
    uint16_t h[VF_LANES];
    memcpy(h, p, sizeof h);
    return (VF){bf16_to_f32(h[0]), bf16_to_f32(h[1]), bf16_to_f32(h[2]), bf16_to_f32(h[3])};
}

INLINE void vf_store_f16(void *p, VF v)
{
    uint16_t h[VF_LANES] = {f32_to_f16(v[0]), f32_to_f16(v[1]), f32_to_f16(v[2]), f32_to_f16(v[3])};
    memcpy(p, h, sizeof h);
}

INLINE void vf_store_bf16(void *p, VF v)
{
    uint16_t h[VF_LANES] = {f32_to_bf16(v[0]), f32_to_bf16(v[1]), f32_to_bf16(v[2]), f32_to_bf16(v[3])};
    memcpy(p, h, sizeof h);
}

INLINE float vf_sum(VF v) { return (v[0] + v[2]) + (v[1] + v[3]); }

INLINE VF vf_sum_each(const VF v[VF_LANES])
{
    return (VF){vf_sum(v[0]), vf_sum(v[1]), vf_sum(v[2]), vf_sum(v[3])};
}

INLINE float vf_hmax(VF v)
{
    float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
}

/* Adding 1.5 * 2^23 leaves no room for a fraction; |v| < 2^22 here. */
INLINE VF vf_round(VF v)
{
    VF big = vf_set1(12582912.0f);
    return (v + big) - big;
}

INLINE VF vf_exp2i(VF n)
{
    vf_int i;
    for (int l = 0; l < VF_LANES; l++) i[l] = (n[l] >= -127 && n[l] <= 127 ? (int32_t)n[l] + 127 : 0) << 23;
    return (VF)i;
}

#endif
