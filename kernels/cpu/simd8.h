/* SPDX-License-Identifier: MIT */
/* Eight floats at every level, for formats in blocks of 8 whose order of summation may not depend on the level.
 * v8_sum is ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)).
 * v8_codes: lane j is table[bits [3j, 3j + 3) of bins], negated where bit j of id is 0. */
#ifndef KERNELS_CPU_SIMD8_H
#define KERNELS_CPU_SIMD8_H

#include "kernels/cpu/simd.h"

#if CPU_LEVEL > 0

#include <immintrin.h>

typedef __m256 V8;
INLINE V8 v8_set1(float x) { return _mm256_set1_ps(x); }
INLINE V8 v8_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v8_store(float *p, V8 v) { _mm256_storeu_ps(p, v); }
INLINE V8 v8_add(V8 a, V8 b) { return _mm256_add_ps(a, b); }
INLINE V8 v8_mul(V8 a, V8 b) { return _mm256_mul_ps(a, b); }
INLINE V8 v8_sub(V8 a, V8 b) { return _mm256_sub_ps(a, b); }
INLINE V8 v8_max(V8 a, V8 b) { return _mm256_max_ps(a, b); }
INLINE V8 v8_min(V8 a, V8 b) { return _mm256_min_ps(a, b); }
INLINE V8 v8_round(V8 v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

INLINE float v8_sum(V8 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

INLINE V8 v8_codes(const float table[8], uint32_t id, uint32_t bins)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i shift = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);
    /* vpermps looks at the lowest 3 bits of an index only */
    V8 c = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), _mm256_srlv_epi32(_mm256_set1_epi32((int)bins), shift));
    __m256i bit = _mm256_srlv_epi32(_mm256_set1_epi32((int)~id), lane);
    return _mm256_xor_ps(c, _mm256_castsi256_ps(_mm256_slli_epi32(bit, 31)));
}

#else

typedef struct {
    VF lo, hi;
} V8;
INLINE V8 v8_set1(float x) { return (V8){vf_set1(x), vf_set1(x)}; }
INLINE V8 v8_load(const float *p) { return (V8){vf_load(p), vf_load(p + 4)}; }
INLINE V8 v8_add(V8 a, V8 b) { return (V8){vf_add(a.lo, b.lo), vf_add(a.hi, b.hi)}; }
INLINE V8 v8_mul(V8 a, V8 b) { return (V8){vf_mul(a.lo, b.lo), vf_mul(a.hi, b.hi)}; }
INLINE V8 v8_sub(V8 a, V8 b) { return (V8){vf_sub(a.lo, b.lo), vf_sub(a.hi, b.hi)}; }
INLINE V8 v8_max(V8 a, V8 b) { return (V8){vf_max(a.lo, b.lo), vf_max(a.hi, b.hi)}; }
INLINE V8 v8_min(V8 a, V8 b) { return (V8){vf_min(a.lo, b.lo), vf_min(a.hi, b.hi)}; }
INLINE V8 v8_round(V8 v) { return (V8){vf_round(v.lo), vf_round(v.hi)}; }
INLINE float v8_sum(V8 v) { return vf_sum(vf_add(v.lo, v.hi)); }

INLINE void v8_store(float *p, V8 v)
{
    vf_store(p, v.lo);
    vf_store(p + 4, v.hi);
}

INLINE V8 v8_codes(const float table[8], uint32_t id, uint32_t bins)
{
    float f[8];
    for (int j = 0; j < 8; j++) f[j] = id >> j & 1 ? table[bins >> 3 * j & 7] : -table[bins >> 3 * j & 7];
    return v8_load(f);
}

#endif

#endif
