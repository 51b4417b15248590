/* SPDX-License-Identifier: MIT */
/* Products of bytes masked by bits with bytes. A 32-bit word holds 32 channels of one token. Quad j of a word is its
 * channels j, j + 8, j + 16 and j + 24: bit j of each byte.
 *
 *   DI                  VF_LANES sums of int32, one a token
 *   di_zero di_floats   0; the sums as floats
 *   quads_of(out, x, by, least)   x [32] times `by`, clamped to [least, 127] (NaN: least) and rounded to
 *                       nearest even: byte b of out[j] is channel j + 8 b
 *   di_take(x, j, u)    for the words x of VF_LANES tokens: the bytes 0..127 of quad j of u where a bit is set,
 *                       otherwise 0
 *   DI_COPIES           consecutive copies of a quad of signed bytes, as read by di_dot
 *   di_dot(s, e, p)     s + the products of the bytes of e with the signed bytes of the quad at p; exact */
#ifndef KERNELS_CPU_SIMD_BITS_H
#define KERNELS_CPU_SIMD_BITS_H

#include "kernels/cpu/simd.h"

#if SIMD_AVX512

INLINE __m128i clamped(const float *x, float by, float least)
{
    __m512 v = _mm512_max_ps(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(by)), _mm512_set1_ps(least));
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_min_ps(v, _mm512_set1_ps(127))));
}

/* Interleaves channels j and j + 8 in each half, then the pairs of both halves. */
INLINE void quads_of(int32_t out[8], const float *x, float by, float least)
{
    const __m128i pairs = _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    __m128i lo = _mm_shuffle_epi8(clamped(x, by, least), pairs);
    __m128i hi = _mm_shuffle_epi8(clamped(x + 16, by, least), pairs);
    _mm_storeu_si128((__m128i *)(void *)out, _mm_unpacklo_epi16(lo, hi));
    _mm_storeu_si128((__m128i *)(void *)(out + 4), _mm_unpackhi_epi16(lo, hi));
}

typedef __m512i DI;
enum { DI_COPIES = 1 };

INLINE DI di_zero(void)
{
    return _mm512_setzero_si512();
}
INLINE VF di_floats(DI s)
{
    return _mm512_cvtepi32_ps(s);
}

INLINE __m512i di_take(VI x, const int j, int32_t u)
{
#ifdef __GFNI__
    /* Every row of the matrix selects bit 0. Matrices of all bits would take registers that the sums need. */
    __m512i set = _mm512_gf2p8affine_epi64_epi8(_mm512_srli_epi32(x, j), _mm512_set1_epi8(1), 0);
    return _mm512_and_si512(set, _mm512_set1_epi32(u));
#else
    return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(x, _mm512_set1_epi8((char)(1 << j))), _mm512_set1_epi32(u));
#endif
}

INLINE DI di_dot(DI s, __m512i e, const int32_t *p)
{
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(s, e, _mm512_set1_epi32(*p));
#else
    __m512i pairs = _mm512_maddubs_epi16(e, _mm512_set1_epi32(*p));
    return _mm512_add_epi32(s, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

#elif CPU_LEVEL == 1

INLINE __m256i clamped(const float *x, float by, float least)
{
    __m256 v = _mm256_max_ps(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(by)), _mm256_set1_ps(least));
    return _mm256_cvtps_epi32(_mm256_min_ps(v, _mm256_set1_ps(127)));
}

INLINE void quads_of(int32_t out[8], const float *x, float by, float least)
{
    const __m256i low = _mm256_set1_epi32(255);
    __m256i q = _mm256_slli_epi32(clamped(x + 24, by, least), 24);
    q = _mm256_or_si256(q, _mm256_slli_epi32(_mm256_and_si256(clamped(x + 16, by, least), low), 16));
    q = _mm256_or_si256(q, _mm256_slli_epi32(_mm256_and_si256(clamped(x + 8, by, least), low), 8));
    q = _mm256_or_si256(q, _mm256_and_si256(clamped(x, by, least), low));
    _mm256_storeu_si256((__m256i *)(void *)out, q);
}

typedef __m256i DI;
enum { DI_COPIES = 8 }; /* a memory operand; AVX-512 can broadcast it */

INLINE DI di_zero(void)
{
    return _mm256_setzero_si256();
}
INLINE VF di_floats(DI s)
{
    return _mm256_cvtepi32_ps(s);
}

/* Shifts bit j to the sign of each byte, which the blend reads. 16-bit shifts by 7 - j keep it within its byte. */
INLINE __m256i di_take(VI x, const int j, int32_t u)
{
    return _mm256_blendv_epi8(_mm256_setzero_si256(), _mm256_set1_epi32(u), _mm256_slli_epi16(x, 7 - j));
}

INLINE DI di_dot(DI s, __m256i e, const int32_t *p)
{
    __m256i pairs = _mm256_maddubs_epi16(e, _mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#elif SIMD_NEON

typedef struct {
    int32x4_t lo, hi;
} DI;
enum { DI_COPIES = 1 };

INLINE DI di_zero(void)
{
    return (DI){vdupq_n_s32(0), vdupq_n_s32(0)};
}
INLINE VF di_floats(DI s)
{
    return (VF){vcvtq_f32_s32(s.lo), vcvtq_f32_s32(s.hi)};
}

INLINE int32x4_t quad_clamped(const float *x, float by, float least)
{
    float32x4_t v = quad_max(vmulq_n_f32(vld1q_f32(x), by), vdupq_n_f32(least));
    return vcvtnq_s32_f32(quad_min(v, vdupq_n_f32(127)));
}

INLINE void quads_of(int32_t out[8], const float *x, float by, float least)
{
    UNROLL for (int i = 0; i < 8; i += 4)
    {
        int32x4_t q = quad_clamped(x + i, by, least);
        q = vsliq_n_s32(q, quad_clamped(x + 8 + i, by, least),
                        8); /* each insertion overwrites the sign extension of the previous one */
        q = vsliq_n_s32(q, quad_clamped(x + 16 + i, by, least), 16);
        q = vsliq_n_s32(q, quad_clamped(x + 24 + i, by, least), 24);
        vst1q_s32(out + i, q);
    }
}

INLINE int32x4_t quad_take(uint32x4_t x, const int j, int32_t u)
{
    uint8x16_t set = vtstq_u8(vreinterpretq_u8_u32(x), vdupq_n_u8((uint8_t)(1 << j)));
    return vandq_s32(vreinterpretq_s32_u8(set), vdupq_n_s32(u));
}

INLINE DI di_take(VI x, const int j, int32_t u)
{
    return (DI){quad_take(x.lo, j, u), quad_take(x.hi, j, u)};
}

INLINE int32x4_t quad_dot(int32x4_t s, int32x4_t e, int8x16_t w)
{
    int8x16_t b = vreinterpretq_s8_s32(e);
#if CPU_LEVEL == 5
    return vdotq_s32(s, b, w);
#else
    int16x8_t lo = vmull_s8(vget_low_s8(b), vget_low_s8(w)), hi = vmull_high_s8(b, w);
    return vpadalq_s16(s, vpaddq_s16(lo, hi)); /* two products of 127 * 127 fit 16 bits */
#endif
}

INLINE DI di_dot(DI s, DI e, const int32_t *p)
{
    int8x16_t w = vreinterpretq_s8_s32(vld1q_dup_s32(p));
    return (DI){quad_dot(s.lo, e.lo, w), quad_dot(s.hi, e.hi, w)};
}

#else

typedef int32_t DI __attribute__((vector_size(16)));
enum { DI_COPIES = 1 };
typedef int16_t di_pairs __attribute__((vector_size(16)));
typedef int8_t di_bytes __attribute__((vector_size(16)));

INLINE DI di_zero(void)
{
    return (DI){0};
}
INLINE VF di_floats(DI s)
{
    return (VF){(float)s[0], (float)s[1], (float)s[2], (float)s[3]};
}
INLINE DI di_all(int32_t x)
{
    return (DI){x, x, x, x};
}

INLINE void quads_of(int32_t out[8], const float *x, float by, float least)
{
    for (int i = 0; i < 8; i += VF_LANES) {
        DI q = di_zero();
        for (int b = 0; b < 4; b++) {
            VF v = vf_max(vf_mul(vf_load(x + 8 * b + i), vf_set1(by)), vf_set1(least));
            v = vf_round(vf_min(v, vf_set1(127)));
            q |= ((DI){(int32_t)v[0], (int32_t)v[1], (int32_t)v[2], (int32_t)v[3]} & 255) << 8 * b;
        }
        memcpy(out + i, &q, sizeof q);
    }
}

INLINE DI di_take(VI x, const int j, int32_t u)
{
    di_bytes set = (di_bytes)(((di_bytes)x & (di_bytes)di_all((int32_t)(0x01010101u << j))) != 0);
    return (DI)set & di_all(u);
}

/* Multiplies even and odd bytes separately; two products of 127 * 127 fit 16 bits. */
INLINE DI di_dot(DI s, DI e, const int32_t *p)
{
    di_pairs w = (di_pairs)di_all(*p), even = (di_pairs)(e & 0x00ff00ff), odd = (di_pairs)(e >> 8 & 0x00ff00ff);
    DI sum = (DI)(even * (w << 8 >> 8) + odd * (w >> 8));
    return s + (sum << 16 >> 16) + (sum >> 16);
}

#endif

#endif
