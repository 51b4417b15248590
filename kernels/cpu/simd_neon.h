/* SPDX-License-Identifier: MIT */
/* Advanced SIMD of AArch64, little endian: 8 lanes in two of the 32 registers of 4 lanes. With pairs of registers the
 * tiles of AVX2 fit, 4 query heads share a row, and the order of every sum is that of AVX2. See simd.h. */
#ifndef KERNELS_CPU_SIMD_NEON_H
#define KERNELS_CPU_SIMD_NEON_H

#include <arm_neon.h>

typedef struct {
    float32x4_t lo, hi;
} VF;
enum { VF_LANES = 8, TILE_ROWS = 6, TILE_VECS = 2, DOT_X = 3, DOT_W = 2, PV_ACC = 8 };

INLINE VF vf_set1(float x)
{
    return (VF){vdupq_n_f32(x), vdupq_n_f32(x)};
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
    return (VF){vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)};
}
INLINE VF vf_sub(VF a, VF b)
{
    return (VF){vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)};
}
INLINE VF vf_mul(VF a, VF b)
{
    return (VF){vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)};
}
INLINE VF vf_div(VF a, VF b)
{
    return (VF){vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)};
}
INLINE VF vf_sqrt(VF v)
{
    return (VF){vsqrtq_f32(v.lo), vsqrtq_f32(v.hi)};
}
INLINE VF vf_fma(VF a, VF b, VF c)
{
    return (VF){vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
}

/* Returns b if one operand is NaN; fmax would return NaN, fmaxnm the other number. */
INLINE float32x4_t quad_max(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
INLINE float32x4_t quad_min(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
INLINE VF vf_max(VF a, VF b)
{
    return (VF){quad_max(a.lo, b.lo), quad_max(a.hi, b.hi)};
}
INLINE VF vf_min(VF a, VF b)
{
    return (VF){quad_min(a.lo, b.lo), quad_min(a.hi, b.hi)};
}

INLINE VF vf_load(const float *p)
{
    return (VF){vld1q_f32(p), vld1q_f32(p + 4)};
}

INLINE void vf_store(float *p, VF v)
{
    vst1q_f32(p, v.lo);
    vst1q_f32(p + 4, v.hi);
}

INLINE uint16x8_t halves_load(const void *p)
{
    return vreinterpretq_u16_u8(vld1q_u8(p)); /* unaligned */
}

INLINE VF vf_load_f16(const void *p)
{
    float16x8_t h = vreinterpretq_f16_u16(halves_load(p));
    return (VF){vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}

INLINE VF vf_set1_f16(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    float32x4_t v = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)));
    return (VF){v, v};
}

INLINE VF vf_load_bf16(const void *p)
{
    const uint16x8_t zero = vdupq_n_u16(0), h = halves_load(p);
    return (VF){vreinterpretq_f32_u16(vzip1q_u16(zero, h)), vreinterpretq_f32_u16(vzip2q_u16(zero, h))};
}

INLINE void vf_store_f16(void *p, VF v)
{
    float16x8_t h = vcvt_high_f16_f32(vcvt_f16_f32(v.lo), v.hi);
    vst1q_u8(p, vreinterpretq_u8_f16(h));
}

INLINE uint16x4_t quad_bf16(float32x4_t v)
{
    uint32x4_t u = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t even = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), even, quiet), 16);
}

INLINE void vf_store_bf16(void *p, VF v)
{
    vst1q_u8(p, vreinterpretq_u8_u16(vcombine_u16(quad_bf16(v.lo), quad_bf16(v.hi))));
}

INLINE VF vf_codes(const void *p, const int bits)
{
    static const int32_t right2[VF_LANES] = {0, -2, -4, -6, -8, -10, -12, -14};
    static const int32_t right4[VF_LANES] = {0, -4, -8, -12, -16, -20, -24, -28};
    const int32_t *right = bits == 2 ? right2 : right4;
    uint32_t w = 0;
    memcpy(&w, p, (size_t)bits);
    const uint32x4_t all = vdupq_n_u32(w), mask = vdupq_n_u32((1u << bits) - 1);
    return (VF){vcvtq_f32_u32(vandq_u32(vshlq_u32(all, vld1q_s32(right)), mask)),
                vcvtq_f32_u32(vandq_u32(vshlq_u32(all, vld1q_s32(right + 4)), mask))};
}

INLINE VF vf_bytes(const uint8_t *p)
{
    uint16x8_t w = vmovl_u8(vld1_u8(p));
    return (VF){vcvtq_f32_u32(vmovl_u16(vget_low_u16(w))), vcvtq_f32_u32(vmovl_high_u16(w))};
}

INLINE VF vf_signed_bytes(const void *p)
{
    int16x8_t w = vmovl_s8(vld1_s8((const int8_t *)p));
    return (VF){vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_high_s16(w))};
}

INLINE VF vf_e4m3(const void *p)
{
    int16x8_t w = vshlq_n_s16(vmovl_s8(vld1_s8((const int8_t *)p)), 7);
    float16x8_t h = vreinterpretq_f16_s16(vandq_s16(w, vdupq_n_s16((int16_t)0xbf80)));
    return (VF){vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}

INLINE void vf_store_s8(int8_t *p, VF v)
{
    int16x4_t lo = vmovn_s32(vcvtq_s32_f32(v.lo)), hi = vmovn_s32(vcvtq_s32_f32(v.hi));
    vst1_s8(p, vmovn_s16(vcombine_s16(lo, hi)));
}

INLINE float vf_sum(VF v)
{
    float32x4_t s = vaddq_f32(v.lo, v.hi);
    float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vpadds_f32(t);
}

/* Returns in lane i the sum of v[i], (0 + 2) + (1 + 3). */
INLINE float32x4_t quad_sums(float32x4_t v0, float32x4_t v1, float32x4_t v2, float32x4_t v3)
{
    float64x2_t a = vreinterpretq_f64_f32(vaddq_f32(vzip1q_f32(v0, v1), vzip2q_f32(v0, v1)));
    float64x2_t b = vreinterpretq_f64_f32(vaddq_f32(vzip1q_f32(v2, v3), vzip2q_f32(v2, v3)));
    return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(a, b)), vreinterpretq_f32_f64(vzip2q_f64(a, b)));
}

INLINE VF vf_sum_each(const VF v[VF_LANES])
{
    float32x4_t s[2];
    UNROLL for (int i = 0; i < 2; i++)
    {
        const VF *q = v + 4 * i;
        s[i] = vaddq_f32(quad_sums(q[0].lo, q[1].lo, q[2].lo, q[3].lo), quad_sums(q[0].hi, q[1].hi, q[2].hi, q[3].hi));
    }
    return (VF){s[0], s[1]};
}

INLINE float vf_hmax(VF v)
{
    float32x4_t s = quad_max(v.lo, v.hi);
    s = quad_max(s, vextq_f32(s, s, 2));
    return vgetq_lane_f32(quad_max(s, vdupq_laneq_f32(s, 1)), 0);
}

INLINE VF vf_swap(VF v, const int by)
{
    if (by == 4) return (VF){v.hi, v.lo};
    if (by == 2) return (VF){vextq_f32(v.lo, v.lo, 2), vextq_f32(v.hi, v.hi, 2)};
    return (VF){vrev64q_f32(v.lo), vrev64q_f32(v.hi)};
}

INLINE VF vf_round(VF v)
{
    return (VF){vrndnq_f32(v.lo), vrndnq_f32(v.hi)};
}

INLINE float32x4_t quad_exp2i(float32x4_t n)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}

INLINE VF vf_exp2i(VF n)
{
    return (VF){quad_exp2i(n.lo), quad_exp2i(n.hi)};
}

INLINE float32x4_t quad_log_split(float32x4_t x, float32x4_t *m)
{
    const int32_t root = 0x3f3504f3; /* sqrt(1/2) */
    int32x4_t i = vaddq_s32(vreinterpretq_s32_f32(x), vdupq_n_s32(0x3f800000 - root));
    *m = vreinterpretq_f32_s32(vaddq_s32(vandq_s32(i, vdupq_n_s32(0x7fffff)), vdupq_n_s32(root)));
    return vcvtq_f32_s32(vsubq_s32(vshrq_n_s32(i, 23), vdupq_n_s32(127)));
}

INLINE VF vf_log_split(VF x, VF *m)
{
    VF e;
    e.lo = quad_log_split(x.lo, &m->lo);
    e.hi = quad_log_split(x.hi, &m->hi);
    return e;
}

INLINE uint32x4_t quad_negative(float32x4_t v)
{
    return vcltzq_s32(vreinterpretq_s32_f32(v));
}

INLINE VF vf_by_sign(VF q, VF a, VF b)
{
    return (VF){vbslq_f32(quad_negative(q.lo), b.lo, a.lo), vbslq_f32(quad_negative(q.hi), b.hi, a.hi)};
}

INLINE unsigned vf_ge(VF a, VF b)
{
    static const uint32_t bit[VF_LANES] = {1, 2, 4, 8, 16, 32, 64, 128};
    uint32x4_t lo = vandq_u32(vcgeq_f32(a.lo, b.lo), vld1q_u32(bit));
    return vaddvq_u32(vorrq_u32(lo, vandq_u32(vcgeq_f32(a.hi, b.hi), vld1q_u32(bit + 4))));
}

INLINE uint64_t vb_ge(const unsigned char *p, unsigned char least)
{
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint64_t m = 0;
    UNROLL for (int i = 0; i < 4; i++)
    {
        uint8x16_t ge = vandq_u8(vcgeq_u8(vld1q_u8(p + 16 * i), vdupq_n_u8(least)), vld1q_u8(bit));
        m |= (uint64_t)vaddv_u8(vget_low_u8(ge)) << 16 * i | (uint64_t)vaddv_u8(vget_high_u8(ge)) << (16 * i + 8);
    }
    return m;
}

typedef struct {
    float64x2_t part[4]; /* sums of lanes 2 i and 2 i + 1 */
} VD;
INLINE VD vd_zero(void)
{
    return (VD){{vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0)}};
}

INLINE VD vd_add(VD s, VF v)
{
    s.part[0] = vaddq_f64(s.part[0], vcvt_f64_f32(vget_low_f32(v.lo)));
    s.part[1] = vaddq_f64(s.part[1], vcvt_high_f64_f32(v.lo));
    s.part[2] = vaddq_f64(s.part[2], vcvt_f64_f32(vget_low_f32(v.hi)));
    s.part[3] = vaddq_f64(s.part[3], vcvt_high_f64_f32(v.hi));
    return s;
}

INLINE double vd_sum(VD s)
{
    return vpaddd_f64(vaddq_f64(vaddq_f64(s.part[0], s.part[2]), vaddq_f64(s.part[1], s.part[3])));
}

/* Converts indexes of words of a table to indexes of its bytes, for tbl. */
INLINE uint8x16_t bytes_of_words(uint32x4_t i)
{
    return vreinterpretq_u8_u32(vmlaq_u32(vdupq_n_u32(0x03020100), i, vdupq_n_u32(0x04040404)));
}

typedef struct {
    uint32x4_t lo, hi;
} VI;
typedef uint8x16_t VT;
INLINE VI vi_load(const uint32_t *p)
{
    return (VI){vld1q_u32(p), vld1q_u32(p + 4)};
}
INLINE VI vi_set1(uint32_t x)
{
    return (VI){vdupq_n_u32(x), vdupq_n_u32(x)};
}

INLINE void vi_store(uint32_t *p, VI v)
{
    vst1q_u32(p, v.lo);
    vst1q_u32(p + 4, v.hi);
}

INLINE VI vi_add_ge(VI s, VI c, VF a, VF b)
{
    return (VI){vaddq_u32(s.lo, vandq_u32(c.lo, vcgeq_f32(a.lo, b.lo))),
                vaddq_u32(s.hi, vandq_u32(c.hi, vcgeq_f32(a.hi, b.hi)))};
}

INLINE VI vi_add_gt(VI s, VI c, VF a, VF b)
{
    return (VI){vaddq_u32(s.lo, vandq_u32(c.lo, vcgtq_f32(a.lo, b.lo))),
                vaddq_u32(s.hi, vandq_u32(c.hi, vcgtq_f32(a.hi, b.hi)))};
}

INLINE VI vi_inc_less(VI s, VI a, VI b)
{
    return (VI){vsubq_u32(s.lo, vcltq_u32(a.lo, b.lo)), vsubq_u32(s.hi, vcltq_u32(a.hi, b.hi))};
}

INLINE VI vi_shr2(VI v)
{
    return (VI){vshrq_n_u32(v.lo, 2), vshrq_n_u32(v.hi, 2)};
}

INLINE float32x4_t quad_get(VT t, uint32x4_t i)
{
    return vreinterpretq_f32_u8(vqtbl1q_u8(t, bytes_of_words(vandq_u32(i, vdupq_n_u32(3)))));
}

INLINE VF vt_get(VT t, VI i)
{
    return (VF){quad_get(t, i.lo), quad_get(t, i.hi)};
}

INLINE VT vt_make(const float *w)
{
    float32x4_t b0 = vzip1q_f32(vdupq_n_f32(0), vdupq_n_f32(w[0]));
    return vreinterpretq_u8_f32(vaddq_f32(b0, vcombine_f32(vdup_n_f32(0), vdup_n_f32(w[1]))));
}

#endif
