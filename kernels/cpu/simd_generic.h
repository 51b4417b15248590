/* SPDX-License-Identifier: MIT */
/* Any machine: four lanes with the vector extensions of GCC and Clang (SSE2, NEON, ...). See simd.h. */
#ifndef KERNELS_CPU_SIMD_GENERIC_H
#define KERNELS_CPU_SIMD_GENERIC_H

#include <math.h>

#include "kernels/half.h"

typedef float VF __attribute__((vector_size(16)));
typedef int32_t vf_int __attribute__((vector_size(16)));
enum { VF_LANES = 4, TILE_ROWS = 4, TILE_VECS = 2, DOT_X = 2, DOT_W = 2, PV_ACC = 8 };

INLINE VF vf_set1(float x)
{
    return (VF){x, x, x, x};
}
INLINE VF vf_zero(void)
{
    return vf_set1(0);
}
INLINE VF vf_held(VF v)
{
    return v;
}
INLINE VF vf_add(VF a, VF b)
{
    return a + b;
}
INLINE VF vf_sub(VF a, VF b)
{
    return a - b;
}
INLINE VF vf_mul(VF a, VF b)
{
    return a * b;
}
INLINE VF vf_div(VF a, VF b)
{
    return a / b;
}
INLINE VF vf_sqrt(VF v)
{
    return (VF){sqrtf(v[0]), sqrtf(v[1]), sqrtf(v[2]), sqrtf(v[3])};
}
INLINE VF vf_fma(VF a, VF b, VF c)
{
    return a * b + c;
} /* two roundings: fma() is a slow call here */

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

INLINE void vf_store(float *p, VF v)
{
    memcpy(p, &v, sizeof v);
}

INLINE VF vf_load_f16(const void *p)
{
    uint16_t h[VF_LANES];
    memcpy(h, p, sizeof h);
    return (VF){f16_to_f32(h[0]), f16_to_f32(h[1]), f16_to_f32(h[2]), f16_to_f32(h[3])};
}

INLINE VF vf_set1_f16(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    float x = f16_to_f32(h);
    return (VF){x, x, x, x};
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

INLINE VF vf_codes(const void *p, const int bits)
{
    const unsigned char *b = p;
    int32_t w = bits == 2 ? b[0] : b[0] | b[1] << 8, mask = (1 << bits) - 1;
    return (VF){(float)(w & mask), (float)(w >> bits & mask), (float)(w >> 2 * bits & mask),
                (float)(w >> 3 * bits & mask)};
}

INLINE VF vf_bytes(const uint8_t *p)
{
    return (VF){(float)p[0], (float)p[1], (float)p[2], (float)p[3]};
}

INLINE VF vf_signed_bytes(const void *p)
{
    const int8_t *b = (const int8_t *)p;
    return (VF){(float)b[0], (float)b[1], (float)b[2], (float)b[3]};
}

INLINE VF vf_e4m3(const void *p)
{
    const uint8_t *b = (const uint8_t *)p;
    VF v;
    for (int l = 0; l < VF_LANES; l++) v[l] = e4m3_to_f32(b[l]) * 0x1p-8f;
    return v;
}

INLINE void vf_store_s8(int8_t *p, VF v)
{
    for (int l = 0; l < VF_LANES; l++) p[l] = (int8_t)v[l];
}

INLINE float vf_sum(VF v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

INLINE VF vf_sum_each(const VF v[VF_LANES])
{
    return (VF){vf_sum(v[0]), vf_sum(v[1]), vf_sum(v[2]), vf_sum(v[3])};
}

INLINE float vf_hmax(VF v)
{
    float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
}

INLINE VF vf_swap(VF v, const int by)
{
    return by == 1 ? (VF){v[1], v[0], v[3], v[2]} : (VF){v[2], v[3], v[0], v[1]};
}

/* Rounds by adding 1.5 * 2^23, which leaves no bits for a fraction; |v| < 2^22 here. */
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

INLINE VF vf_log_split(VF x, VF *m)
{
    const int32_t root = 0x3f3504f3; /* sqrt(1/2) */
    vf_int i = (vf_int)x + (0x3f800000 - root), e;
    *m = (VF)((i & 0x7fffff) + root);
    e = (i >> 23) - 127;
    return (VF){(float)e[0], (float)e[1], (float)e[2], (float)e[3]};
}

INLINE VF vf_min(VF a, VF b)
{
    vf_int m = (vf_int)(a < b);
    return (VF)((m & (vf_int)a) | (~m & (vf_int)b));
}

INLINE VF vf_by_sign(VF q, VF a, VF b)
{
    vf_int m = (vf_int)q >> 31;
    return (VF)((~m & (vf_int)a) | (m & (vf_int)b));
}

INLINE unsigned vf_ge(VF a, VF b)
{
    vf_int m = (vf_int)(a >= b);
    return (m[0] & 1u) | (m[1] & 2u) | (m[2] & 4u) | (m[3] & 8u);
}

INLINE uint64_t vb_ge(const unsigned char *p, unsigned char least)
{
    uint64_t m = 0;
    for (int i = 0; i < 64; i++) m |= (uint64_t)(p[i] >= least) << i;
    return m;
}

typedef struct {
    double lane[4];
} VD;
INLINE VD vd_zero(void)
{
    return (VD){{0}};
}

INLINE VD vd_add(VD s, VF v)
{
    for (int l = 0; l < VF_LANES; l++) s.lane[l] += (double)v[l];
    return s;
}

INLINE double vd_sum(VD s)
{
    return (s.lane[0] + s.lane[2]) + (s.lane[1] + s.lane[3]);
}

typedef uint32_t VI __attribute__((vector_size(16)));
typedef struct {
    float sum[4];
} VT;

INLINE VI vi_load(const uint32_t *p)
{
    VI v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE VI vi_set1(uint32_t x)
{
    return (VI){x, x, x, x};
}
INLINE void vi_store(uint32_t *p, VI v)
{
    memcpy(p, &v, sizeof v);
}
INLINE VI vi_add_ge(VI s, VI c, VF a, VF b)
{
    return s + ((VI)(a >= b) & c);
}
INLINE VI vi_add_gt(VI s, VI c, VF a, VF b)
{
    return s + ((VI)(a > b) & c);
}
INLINE VI vi_inc_less(VI s, VI a, VI b)
{
    return s - (VI)(a < b);
}
INLINE VI vi_shr2(VI v)
{
    return v >> 2;
}
INLINE VF vt_get(VT t, VI i)
{
    return (VF){t.sum[i[0] & 3], t.sum[i[1] & 3], t.sum[i[2] & 3], t.sum[i[3] & 3]};
}

INLINE VT vt_make(const float *w)
{
    VT t;
    for (int i = 0; i < 4; i++) t.sum[i] = (i & 1 ? w[0] : 0) + (i & 2 ? w[1] : 0);
    return t;
}

#endif
