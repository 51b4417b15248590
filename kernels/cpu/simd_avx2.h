/* SPDX-License-Identifier: MIT */
/* AVX2 + FMA + F16C: 8 lanes, 16 registers. See simd.h. */
#ifndef KERNELS_CPU_SIMD_AVX2_H
#define KERNELS_CPU_SIMD_AVX2_H

#include <immintrin.h>

typedef __m256 VF;
enum { VF_LANES = 8, TILE_ROWS = 6, TILE_VECS = 2, DOT_X = 3, DOT_W = 1, PV_ACC = 8 };

INLINE VF vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
INLINE VF vf_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE VF vf_add(VF a, VF b)
{
    return _mm256_add_ps(a, b);
}
INLINE VF vf_sub(VF a, VF b)
{
    return _mm256_sub_ps(a, b);
}
INLINE VF vf_mul(VF a, VF b)
{
    return _mm256_mul_ps(a, b);
}
INLINE VF vf_div(VF a, VF b)
{
    return _mm256_div_ps(a, b);
}
INLINE VF vf_sqrt(VF v)
{
    return _mm256_sqrt_ps(v);
}
INLINE VF vf_fma(VF a, VF b, VF c)
{
    return _mm256_fmadd_ps(a, b, c);
}
INLINE VF vf_max(VF a, VF b)
{
    return _mm256_max_ps(a, b);
}
INLINE VF vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
INLINE void vf_store(float *p, VF v)
{
    _mm256_storeu_ps(p, v);
}

INLINE VF vf_held(VF v)
{
#ifndef __clang__ /* clang would not unroll a loop around this, and keeps such values in registers anyway */
    __asm__("" : "+x"(v));
#endif
    return v;
}

INLINE __m256i vf_mask(size_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

INLINE VF vf_load_n(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, vf_mask(n));
}
INLINE void vf_store_n(float *p, VF v, size_t n)
{
    _mm256_maskstore_ps(p, vf_mask(n), v);
}

INLINE VF vf_load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE VF vf_set1_f16(const void *p)
{
    int16_t h;
    memcpy(&h, p, sizeof h);
    return _mm256_cvtph_ps(_mm_set1_epi16(h));
}

INLINE VF vf_load_bf16(const void *p)
{
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}

INLINE void vf_store_f16(void *p, VF v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

INLINE void vf_store_bf16(void *p, VF v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i even = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    u = _mm256_srli_epi32(_mm256_blendv_epi8(even, quiet, nan), 16);
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1)));
}

INLINE VF vf_codes(const void *p, const int bits)
{
    uint32_t w = 0;
    memcpy(&w, p, (size_t)bits);
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i shift = _mm256_slli_epi32(lane, bits == 2 ? 1 : 2);
    __m256i x = _mm256_srlv_epi32(_mm256_set1_epi32((int)w), shift);
    return _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32((1 << bits) - 1)));
}

INLINE VF vf_bytes(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

INLINE VF vf_signed_bytes(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

INLINE VF vf_e4m3(const void *p)
{
    __m128i w = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);
    return _mm256_cvtph_ps(_mm_and_si128(w, _mm_set1_epi16((short)0xbf80)));
}

INLINE void vf_store_s8(int8_t *p, VF v)
{
    __m256i i = _mm256_cvtps_epi32(v);
    __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(w, w));
}

INLINE float vf_sum(VF v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Three rounds of pairwise sums, as in a transposition. */
INLINE VF vf_sum_each(const VF v[VF_LANES])
{
    VF a[4], b[2];
    UNROLL for (int i = 0; i < 4; i++) a[i] =
        _mm256_add_ps(_mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    UNROLL for (int i = 0; i < 2; i++)
    {
        __m256d x = _mm256_castps_pd(a[2 * i]), y = _mm256_castps_pd(a[2 * i + 1]);
        b[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    }
    return _mm256_add_ps(_mm256_permute2f128_ps(b[0], b[1], 0x20), _mm256_permute2f128_ps(b[0], b[1], 0x31));
}

INLINE float vf_hmax(VF v)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

INLINE VF vf_swap(VF v, const int by)
{
    if (by == 4) return _mm256_permute2f128_ps(v, v, 1);
    return by == 1 ? _mm256_permute_ps(v, 0xb1) : _mm256_permute_ps(v, 0x4e);
}

INLINE VF vf_round(VF v)
{
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE VF vf_exp2i(VF n)
{
    __m256i i = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(i, 23));
}

INLINE VF vf_log_split(VF x, VF *m)
{
    const __m256i root = _mm256_set1_epi32(0x3f3504f3); /* sqrt(1/2) */
    __m256i i = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_sub_epi32(_mm256_set1_epi32(0x3f800000), root));
    __m256i low = _mm256_and_si256(i, _mm256_set1_epi32(0x7fffff));
    *m = _mm256_castsi256_ps(_mm256_add_epi32(low, root));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(i, 23), _mm256_set1_epi32(127)));
}

INLINE VF vf_min(VF a, VF b)
{
    return _mm256_min_ps(a, b);
}
INLINE VF vf_by_sign(VF q, VF a, VF b)
{
    return _mm256_blendv_ps(a, b, q);
}
INLINE unsigned vf_ge(VF a, VF b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}

INLINE uint32_t half_ge(const unsigned char *p, unsigned char least)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i m = _mm256_cmpeq_epi8(_mm256_max_epu8(x, _mm256_set1_epi8((char)least)), x);
    return (uint32_t)_mm256_movemask_epi8(m);
}

INLINE uint64_t vb_ge(const unsigned char *p, unsigned char least)
{
    return half_ge(p, least) | (uint64_t)half_ge(p + 32, least) << 32;
}

typedef struct {
    __m256d lo, hi;
} VD;
INLINE VD vd_zero(void)
{
    return (VD){_mm256_setzero_pd(), _mm256_setzero_pd()};
}

INLINE VD vd_add(VD s, VF v)
{
    return (VD){_mm256_add_pd(s.lo, _mm256_cvtps_pd(_mm256_castps256_ps128(v))),
                _mm256_add_pd(s.hi, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)))};
}

INLINE double vd_sum(VD s)
{
    __m256d a = _mm256_add_pd(s.lo, s.hi);
    __m128d b = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(b, _mm_unpackhi_pd(b, b)));
}

typedef __m256i VI;
typedef __m256 VT;
INLINE VI vi_load(const uint32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
INLINE VI vi_set1(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}
INLINE void vi_store(uint32_t *p, VI v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}
INLINE VI vi_add_ge(VI s, VI c, VF a, VF b)
{
    return _mm256_add_epi32(s, _mm256_and_si256(c, _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GE_OQ))));
}
INLINE VI vi_add_gt(VI s, VI c, VF a, VF b)
{
    return _mm256_add_epi32(s, _mm256_and_si256(c, _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ))));
}
INLINE VI vi_inc_less(VI s, VI a, VI b)
{
    return _mm256_sub_epi32(s, _mm256_cmpgt_epi32(b, a));
}
INLINE VI vi_shr2(VI v)
{
    return _mm256_srli_epi32(v, 2);
}
INLINE VF vt_get(VT t, VI i)
{
    return _mm256_permutevar_ps(t, i);
} /* permutes within 128 bits, twice as fast as across */

/* Products with 0 and 1 are exact, so fma rounds like the sum. */
INLINE VT vt_make(const float *w)
{
    const __m256 b0 = _mm256_setr_ps(0, 1, 0, 1, 0, 1, 0, 1), b1 = _mm256_setr_ps(0, 0, 1, 1, 0, 0, 1, 1);
    return _mm256_fmadd_ps(_mm256_broadcast_ss(w + 1), b1, _mm256_mul_ps(_mm256_broadcast_ss(w), b0));
}

#endif
