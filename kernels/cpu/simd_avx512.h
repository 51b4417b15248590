/* SPDX-License-Identifier: MIT */
/* AVX-512 F, BW, VL, DQ: 16 lanes, 32 registers. See simd.h. */
#ifndef KERNELS_CPU_SIMD_AVX512_H
#define KERNELS_CPU_SIMD_AVX512_H

#include <immintrin.h>

typedef __m512 VF;
enum { VF_LANES = 16, TILE_ROWS = 12, TILE_VECS = 2, DOT_X = 4, DOT_W = 3, PV_ACC = 16 };

INLINE VF vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
INLINE VF vf_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE VF vf_add(VF a, VF b)
{
    return _mm512_add_ps(a, b);
}
INLINE VF vf_sub(VF a, VF b)
{
    return _mm512_sub_ps(a, b);
}
INLINE VF vf_mul(VF a, VF b)
{
    return _mm512_mul_ps(a, b);
}
INLINE VF vf_div(VF a, VF b)
{
    return _mm512_div_ps(a, b);
}
INLINE VF vf_sqrt(VF v)
{
    return _mm512_sqrt_ps(v);
}
INLINE VF vf_fma(VF a, VF b, VF c)
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE VF vf_max(VF a, VF b)
{
    return _mm512_max_ps(a, b);
}
INLINE VF vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void vf_store(float *p, VF v)
{
    _mm512_storeu_ps(p, v);
}
INLINE __mmask16 vf_mask(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}
INLINE VF vf_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(vf_mask(n), p);
}
INLINE void vf_store_n(float *p, VF v, size_t n)
{
    _mm512_mask_storeu_ps(p, vf_mask(n), v);
}

INLINE VF vf_held(VF v)
{
#ifndef __clang__ /* clang would not unroll a loop around this, and keeps such values in registers anyway */
    __asm__("" : "+v"(v));
#endif
    return v;
}

INLINE VF vf_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE VF vf_set1_f16(const void *p)
{
    int16_t h;
    memcpy(&h, p, sizeof h);
    return _mm512_cvtph_ps(_mm256_set1_epi16(h));
}

INLINE VF vf_load_bf16(const void *p)
{
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}

INLINE void vf_store_f16(void *p, VF v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

INLINE void vf_store_bf16(void *p, VF v)
{
    __m512i u = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i even = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    even = _mm512_mask_or_epi32(even, nan, u, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(even, 16)));
}

INLINE VF vf_codes(const void *p, const int bits)
{
    uint32_t w[2] = {0};
    memcpy(w, p, 2 * (size_t)bits);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i x = _mm512_set1_epi32((int)w[0]); /* 16 codes of 2 bits, or the first 8 of 4 */
    if (bits == 4) x = _mm512_mask_set1_epi32(x, 0xff00, (int)w[1]);
    /* with 4 bits, lanes 8 to 15 start at bit 0 again */
    __m512i shift = _mm512_and_si512(_mm512_slli_epi32(lane, bits == 2 ? 1 : 2), _mm512_set1_epi32(31));
    x = _mm512_and_si512(_mm512_srlv_epi32(x, shift), _mm512_set1_epi32((1 << bits) - 1));
    return _mm512_cvtepi32_ps(x);
}

INLINE VF vf_bytes(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

INLINE VF vf_signed_bytes(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE VF vf_e4m3(const void *p)
{
    __m256i w = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(w, _mm256_set1_epi16((short)0xbf80)));
}

INLINE void vf_store_s8(int8_t *p, VF v)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
}

INLINE float vf_sum(VF v)
{
    return _mm512_reduce_add_ps(v);
}
INLINE float vf_hmax(VF v)
{
    return _mm512_reduce_max_ps(v);
}

/* Four rounds of pairwise sums, as in a transposition. */
INLINE VF vf_sum_each(const VF v[VF_LANES])
{
    VF a[8], b[4], c[2];
    UNROLL for (int i = 0; i < 8; i++) a[i] =
        _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    UNROLL for (int i = 0; i < 4; i++)
    {
        __m512d x = _mm512_castps_pd(a[2 * i]), y = _mm512_castps_pd(a[2 * i + 1]);
        b[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    /* b[i] holds, in each 128-bit lane, a part of the sums 4i..4i+3. */
    UNROLL for (int i = 0; i < 2; i++) c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),
                                                            _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
}

/* Transposes pairs of rows, then pairs of pairs, in each 128-bit lane, then the 4 x 4 lanes. */
INLINE void vf_transpose(float *out, size_t to, const float *in, size_t from)
{
    VF a[16], b[16];
    UNROLL for (size_t i = 0; i < 16; i++) a[i] = vf_load(in + i * from);
    UNROLL for (size_t i = 0; i < 8; i++)
    {
        b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
    }
    UNROLL for (size_t i = 0; i < 8; i++)
    { /* a[i]: columns i % 4 + 4 * lane of rows i / 4 * 4 .. + 3 */
        __m512d x = _mm512_castps_pd(b[i / 2 * 4 + i % 2]), y = _mm512_castps_pd(b[i / 2 * 4 + i % 2 + 2]);
        a[i / 2 * 4 + i % 2 * 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
        a[i / 2 * 4 + i % 2 * 2 + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
    }
    UNROLL for (size_t i = 0; i < 4; i++)
    {
        VF p = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x44), q = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x44);
        VF r = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xee), s = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xee);
        vf_store(out + i * to, _mm512_shuffle_f32x4(p, q, 0x88));
        vf_store(out + (i + 4) * to, _mm512_shuffle_f32x4(p, q, 0xdd));
        vf_store(out + (i + 8) * to, _mm512_shuffle_f32x4(r, s, 0x88));
        vf_store(out + (i + 12) * to, _mm512_shuffle_f32x4(r, s, 0xdd));
    }
}

INLINE VF vf_swap(VF v, const int by)
{
    if (by <= 2) return by == 1 ? _mm512_permute_ps(v, 0xb1) : _mm512_permute_ps(v, 0x4e);
    return by == 4 ? _mm512_shuffle_f32x4(v, v, 0xb1) : _mm512_shuffle_f32x4(v, v, 0x4e);
}

INLINE VF vf_round(VF v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE VF vf_exp2i(VF n)
{
    __m512i i = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(i, 23));
}

/* See simd.h. */
INLINE VF vf_by_exp2i(VF x, VF n)
{
    return _mm512_scalef_ps(x, n);
}

INLINE VF vf_log_split(VF x, VF *m)
{
    const __m512i root = _mm512_set1_epi32(0x3f3504f3); /* sqrt(1/2) */
    __m512i i = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_sub_epi32(_mm512_set1_epi32(0x3f800000), root));
    __m512i low = _mm512_and_si512(i, _mm512_set1_epi32(0x7fffff));
    *m = _mm512_castsi512_ps(_mm512_add_epi32(low, root));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(i, 23), _mm512_set1_epi32(127)));
}

INLINE VF vf_min(VF a, VF b)
{
    return _mm512_min_ps(a, b);
}
INLINE VF vf_by_sign(VF q, VF a, VF b)
{
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(q)), a, b);
}
INLINE unsigned vf_ge(VF a, VF b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

/* Compresses to a register first: compressing to memory takes a hundred cycles on some CPUs. */
INLINE void vf_keep(float *out, unsigned set, VF v)
{
    vf_store(out, _mm512_maskz_compress_ps((__mmask16)set, v));
}

INLINE size_t vi_keep(int32_t *out, unsigned set, int32_t first)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i v = _mm512_add_epi32(lane, _mm512_set1_epi32(first));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32((__mmask16)set, v));
    return (size_t)__builtin_popcount(set);
}

INLINE uint64_t vb_ge(const unsigned char *p, unsigned char least)
{
    return _mm512_cmpge_epu8_mask(_mm512_loadu_si512(p), _mm512_set1_epi8((char)least));
}

typedef struct {
    __m512d lo, hi;
} VD;
INLINE VD vd_zero(void)
{
    return (VD){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

INLINE VD vd_add(VD s, VF v)
{
    return (VD){_mm512_add_pd(s.lo, _mm512_cvtps_pd(_mm512_castps512_ps256(v))),
                _mm512_add_pd(s.hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)))};
}

INLINE double vd_sum(VD s)
{
    return _mm512_reduce_add_pd(_mm512_add_pd(s.lo, s.hi));
}

typedef __m512i VI;
typedef __m512 VT;
INLINE VI vi_load(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}
INLINE VI vi_set1(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}
INLINE void vi_store(uint32_t *p, VI v)
{
    _mm512_storeu_si512(p, v);
}
INLINE VI vi_add_ge(VI s, VI c, VF a, VF b)
{
    return _mm512_mask_add_epi32(s, _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), s, c);
}
INLINE VI vi_add_gt(VI s, VI c, VF a, VF b)
{
    return _mm512_mask_add_epi32(s, _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), s, c);
}
INLINE VI vi_inc_less(VI s, VI a, VI b)
{
    return _mm512_mask_add_epi32(s, _mm512_cmplt_epi32_mask(a, b), s, _mm512_set1_epi32(1));
}
INLINE VI vi_shr2(VI v)
{
    return _mm512_srli_epi32(v, 2);
}
INLINE VF vt_get(VT t, VI i)
{
    return _mm512_permutevar_ps(t, i);
}

/* Products with 0 and 1 are exact, so fma rounds like the sum. */
INLINE VT vt_make(const float *w)
{
    const __m512 b0 = _mm512_setr_ps(0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1);
    const __m512 b1 = _mm512_setr_ps(0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1);
    return _mm512_fmadd_ps(_mm512_set1_ps(w[1]), b1, _mm512_mul_ps(_mm512_set1_ps(w[0]), b0));
}

#endif
