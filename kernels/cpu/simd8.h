/* SPDX-License-Identifier: MIT */
/* Eight floats at every level, for formats with blocks of 8 whose order of summation must not depend on the level.
 * v8_sum is ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)); v8_sums computes four of them.
 * v8_codes: lane j is table[bits [3j, 3j + 3) of the 3 bytes at bins], negated if bit j of id is 0; also reads the
 * byte before bins. v8_bf16: all lanes are the number at p.
 * b8_sums(out, x, nb, table): out[i] is the sum over b < nb of table[256 b + x[i nb + b]], modulo 256, for the rows
 * i < B8_ROWS; nb is a multiple of 8. B8_ROWS is 0 at levels without it.
 * P8: the V8 of two tokens in one vector, at levels with SIMD_VBMI. p8_set(p): both are the V8 at p; p8_add, p8_mul;
 * p8_codes(v, table, a, b): v[0..7] are the v8_codes times the v8_bf16 of 8 blocks of the tokens a and b; also reads
 * the 8 bytes before bins. p8_sums: v8_sum of the two tokens of v0, then of v1, times `by`. */
#ifndef KERNELS_CPU_SIMD8_H
#define KERNELS_CPU_SIMD8_H

#include "kernels/cpu/simd.h"
#include "kernels/half.h"

#if SIMD_AVX

#include <immintrin.h>

typedef __m256 V8;
INLINE V8 v8_set1(float x)
{
    return _mm256_set1_ps(x);
}
INLINE V8 v8_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
INLINE void v8_store(float *p, V8 v)
{
    _mm256_storeu_ps(p, v);
}
INLINE V8 v8_add(V8 a, V8 b)
{
    return _mm256_add_ps(a, b);
}
INLINE V8 v8_mul(V8 a, V8 b)
{
    return _mm256_mul_ps(a, b);
}
INLINE V8 v8_sub(V8 a, V8 b)
{
    return _mm256_sub_ps(a, b);
}
INLINE V8 v8_max(V8 a, V8 b)
{
    return _mm256_max_ps(a, b);
}
INLINE V8 v8_min(V8 a, V8 b)
{
    return _mm256_min_ps(a, b);
}
INLINE V8 v8_round(V8 v)
{
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE float v8_sum(V8 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Adds lanes l and l + 4 of each, then transposes; the first step of the transposition adds lanes l and l + 2. */
INLINE void v8_sums(float out[4], const V8 v[4])
{
    __m128 h[4];
    UNROLL for (int i = 0; i < 4; i++) h[i] = _mm_add_ps(_mm256_castps256_ps128(v[i]), _mm256_extractf128_ps(v[i], 1));
    __m128 a = _mm_add_ps(_mm_unpacklo_ps(h[0], h[1]), _mm_unpackhi_ps(h[0], h[1]));
    __m128 b = _mm_add_ps(_mm_unpacklo_ps(h[2], h[3]), _mm_unpackhi_ps(h[2], h[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a)));
}

INLINE V8 v8_bf16(const unsigned char *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_set1_epi16((short)h), 16));
}

INLINE V8 v8_codes(const float table[8], unsigned char id, const unsigned char *bins)
{
    const __m256i up = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24), sign = _mm256_set1_epi32(INT32_MIN);
    const __m256i shift = _mm256_setr_epi32(8, 11, 14, 17, 20, 23, 26, 29);
    int32_t w;
    memcpy(&w, bins - 1, 4);
    /* vpermps uses only the lowest 3 bits of an index */
    V8 c = _mm256_permutevar8x32_ps(_mm256_xor_ps(_mm256_loadu_ps(table), _mm256_castsi256_ps(sign)),
                                    _mm256_srlv_epi32(_mm256_set1_epi32(w), shift));
    __m256i bit = _mm256_and_si256(_mm256_sllv_epi32(_mm256_set1_epi8((char)id), up), sign);
    return _mm256_xor_ps(c, _mm256_castsi256_ps(bit));
}

#if !SIMD_VBMI
enum { B8_ROWS = 32 };

/* Transposes 32 rows of 8 bytes, 4 to a vector: byte 16 l + 8 h + j of r[b] is byte b of row 4 j + 2 l + h. */
INLINE void b8_columns(__m256i r[8])
{
    __m256i a[8], b[8], c[8];
    UNROLL for (int i = 0; i < 4; i++)
    {
        a[i] = _mm256_unpacklo_epi8(r[2 * i], r[2 * i + 1]);
        a[4 + i] = _mm256_unpackhi_epi8(r[2 * i], r[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        b[2 * i] = _mm256_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int i = 0; i < 2; i++)
    {
        c[4 * h + 2 * i] = _mm256_unpacklo_epi32(b[4 * h + i], b[4 * h + 2 + i]);
        c[4 * h + 2 * i + 1] = _mm256_unpackhi_epi32(b[4 * h + i], b[4 * h + 2 + i]);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        r[2 * i] = _mm256_unpacklo_epi64(c[i], c[4 + i]);
        r[2 * i + 1] = _mm256_unpackhi_epi64(c[i], c[4 + i]);
    }
}

/* Looks up entries x of a table of 256 bytes: the lower 4 bits in 16 parts of it, then the upper ones select the
 * part. */
INLINE __m256i b8_entries(const unsigned char *table, __m256i x)
{
    const __m256i low = _mm256_set1_epi8(15);
    __m256i t[16], at = _mm256_and_si256(x, low);
    UNROLL for (int n = 8, bit = 3; n > 0; n /= 2, bit--)
    {
        __m256i m = _mm256_slli_epi16(x, bit); /* moves the selecting bit to a byte's sign */
        UNROLL for (int i = 0; i < n; i++)
        {
            UNROLL for (int k = 0; k < 2 && n == 8; k++)
            {
                const void *part = table + 32 * i + 16 * k;
                t[2 * i + k] = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(part)), at);
            }
            t[i] = _mm256_blendv_epi8(t[2 * i], t[2 * i + 1], m);
        }
    }
    return t[0];
}

/* Loads 4 rows of 8 bytes, nb apart. */
INLINE __m256i b8_rows(const unsigned char *x, size_t nb)
{
    __m128i r[4];
    if (nb == 8) return _mm256_loadu_si256((const __m256i *)(const void *)x);
    UNROLL for (size_t i = 0; i < 4; i++) r[i] = _mm_loadl_epi64((const __m128i *)(const void *)(x + i * nb));
    return _mm256_set_m128i(_mm_unpacklo_epi64(r[2], r[3]), _mm_unpacklo_epi64(r[0], r[1]));
}

INLINE void b8_sums(unsigned char out[32], const unsigned char *x, size_t nb, const unsigned char *table)
{
    __m256i sum = _mm256_setzero_si256(), r[8];
    for (size_t b = 0; b < nb; b += 8) {
        UNROLL for (size_t i = 0; i < 8; i++) r[i] = b8_rows(x + 4 * i * nb + b, nb);
        b8_columns(r);
        UNROLL for (size_t i = 0; i < 8; i++) sum = _mm256_add_epi8(sum, b8_entries(table + 256 * (b + i), r[i]));
    }
    /* restores the order of rows */
    const __m256i pairs = _mm256_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15, 0, 8, 1, 9, 2, 10, 3,
                                           11, 4, 12, 5, 13, 6, 14, 7, 15);
    sum = _mm256_shuffle_epi8(sum, pairs);
    __m128i lo = _mm256_castsi256_si128(sum), hi = _mm256_extracti128_si256(sum, 1);
    _mm_storeu_si128((__m128i *)(void *)out, _mm_unpacklo_epi16(lo, hi));
    _mm_storeu_si128((__m128i *)(void *)(out + 16), _mm_unpackhi_epi16(lo, hi));
}

#endif

#elif SIMD_NEON

typedef VF V8;
INLINE V8 v8_set1(float x)
{
    return vf_set1(x);
}
INLINE V8 v8_load(const float *p)
{
    return vf_load(p);
}
INLINE void v8_store(float *p, V8 v)
{
    vf_store(p, v);
}
INLINE V8 v8_add(V8 a, V8 b)
{
    return vf_add(a, b);
}
INLINE V8 v8_mul(V8 a, V8 b)
{
    return vf_mul(a, b);
}
INLINE V8 v8_sub(V8 a, V8 b)
{
    return vf_sub(a, b);
}
INLINE V8 v8_max(V8 a, V8 b)
{
    return vf_max(a, b);
}
INLINE V8 v8_min(V8 a, V8 b)
{
    return vf_min(a, b);
}
INLINE V8 v8_round(V8 v)
{
    return vf_round(v);
}
INLINE float v8_sum(V8 v)
{
    return vf_sum(v);
}

INLINE float32x4_t quad_codes(uint8x16x2_t table, uint32_t not_id, uint32_t bins)
{
    static const int32_t right[4] = {0, -3, -6, -9}, left[4] = {31, 30, 29, 28};
    uint32x4_t bin = vandq_u32(vshlq_u32(vdupq_n_u32(bins), vld1q_s32(right)), vdupq_n_u32(7));
    uint32x4_t sign = vandq_u32(vshlq_u32(vdupq_n_u32(not_id), vld1q_s32(left)), vdupq_n_u32(0x80000000));
    uint32x4_t c = vreinterpretq_u32_u8(vqtbl2q_u8(table, bytes_of_words(bin)));
    return vreinterpretq_f32_u32(veorq_u32(c, sign));
}

INLINE void v8_sums(float out[4], const V8 v[4])
{
    float32x4_t h[4];
    UNROLL for (int i = 0; i < 4; i++) h[i] = vaddq_f32(v[i].lo, v[i].hi);
    vst1q_f32(out, quad_sums(h[0], h[1], h[2], h[3]));
}

INLINE V8 v8_bf16(const unsigned char *p)
{
    return v8_set1(bf16_to_f32((uint16_t)(p[0] | p[1] << 8)));
}

INLINE V8 v8_codes(const float table[8], unsigned char byte, const unsigned char *bytes)
{
    uint32_t id = byte, bins = bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16;
    uint8x16x2_t t = {{vreinterpretq_u8_f32(vld1q_f32(table)), vreinterpretq_u8_f32(vld1q_f32(table + 4))}};
    return (V8){quad_codes(t, ~id, bins), quad_codes(t, ~id >> 4, bins >> 12)};
}

#else

typedef struct {
    VF lo, hi;
} V8;
INLINE V8 v8_set1(float x)
{
    return (V8){vf_set1(x), vf_set1(x)};
}
INLINE V8 v8_load(const float *p)
{
    return (V8){vf_load(p), vf_load(p + 4)};
}
INLINE V8 v8_add(V8 a, V8 b)
{
    return (V8){vf_add(a.lo, b.lo), vf_add(a.hi, b.hi)};
}
INLINE V8 v8_mul(V8 a, V8 b)
{
    return (V8){vf_mul(a.lo, b.lo), vf_mul(a.hi, b.hi)};
}
INLINE V8 v8_sub(V8 a, V8 b)
{
    return (V8){vf_sub(a.lo, b.lo), vf_sub(a.hi, b.hi)};
}
INLINE V8 v8_max(V8 a, V8 b)
{
    return (V8){vf_max(a.lo, b.lo), vf_max(a.hi, b.hi)};
}
INLINE V8 v8_min(V8 a, V8 b)
{
    return (V8){vf_min(a.lo, b.lo), vf_min(a.hi, b.hi)};
}
INLINE V8 v8_round(V8 v)
{
    return (V8){vf_round(v.lo), vf_round(v.hi)};
}
INLINE float v8_sum(V8 v)
{
    return vf_sum(vf_add(v.lo, v.hi));
}

INLINE void v8_store(float *p, V8 v)
{
    vf_store(p, v.lo);
    vf_store(p + 4, v.hi);
}

INLINE void v8_sums(float out[4], const V8 v[4])
{
    for (int i = 0; i < 4; i++) out[i] = v8_sum(v[i]);
}

INLINE V8 v8_bf16(const unsigned char *p)
{
    return v8_set1(bf16_to_f32((uint16_t)(p[0] | p[1] << 8)));
}

INLINE V8 v8_codes(const float table[8], unsigned char id, const unsigned char *bins)
{
    float f[8];
    uint32_t w = bins[0] | (uint32_t)bins[1] << 8 | (uint32_t)bins[2] << 16;
    for (int j = 0; j < 8; j++) f[j] = id >> j & 1 ? table[w >> 3 * j & 7] : -table[w >> 3 * j & 7];
    return v8_load(f);
}

#endif

#if SIMD_VBMI
#include "kernels/cpu/simd8_vbmi.h"
#elif !SIMD_AVX
enum { B8_ROWS = 0 };

INLINE void b8_sums(unsigned char out[32], const unsigned char *x, size_t nb, const unsigned char *table)
{
    (void)out, (void)x, (void)nb, (void)table;
}
#endif

#endif
