/* SPDX-License-Identifier: MIT */
/* Products of bytes: a block of weights (ops_weights.h) times a block of x in 8 bits, for 16 rows.
 *
 *   D16                   16 sums of int32
 *   d16_sums              sums of (code - offset) x over the 32 columns of a block for mx <= INT8_X rows of x;
 *                         x + QBLOCK_COLS i is row i, sum[i] the sum of its codes. Exact. d16_q8, d16_q4: of one type.
 *   d16_part              sums [p * VF_LANES, (p + 1) * VF_LANES) as floats
 *   INT8_X                rows of x that share a pass over a block
 *   INT8_GEMM_Q8, _Q4     level.h's q8_gemm, q4_gemm */
#ifndef KERNELS_CPU_SIMD_INT8_H
#define KERNELS_CPU_SIMD_INT8_H

#include "kernels/cpu/simd.h"
#include "kernels/ops_weights.h"

enum { PARTS16 = QBLOCK_ROWS / VF_LANES };

/* Four neighbouring columns of x, to be multiplied by 4 columns of every row. */
INLINE int32_t x_quad(const int8_t *x)
{
    int32_t v;
    memcpy(&v, x, sizeof v);
    return v;
}

#if SIMD_AVX512

#define INT8_X 8
enum { INT8_GEMM_Q8 = CPU_LEVEL == 3, INT8_GEMM_Q4 = 1 };
typedef __m512i D16;

INLINE VF d16_part(D16 s, int p)
{
    (void)p;
    return _mm512_cvtepi32_ps(s);
}

INLINE __m512i line_of(const uint8_t *line, int l)
{
    return _mm512_loadu_si512(line + QBLOCK_LINE * l);
}

#if CPU_LEVEL == 3

/* What dpbusd starts with, so that the offset of codes is gone in the end: -2^log2 sum. */
INLINE __m512i less_offset(const int32_t *sum, unsigned log2)
{
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(_mm512_set1_epi32(*sum), log2));
}

INLINE void d16_q8(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    UNROLL for (int i = 0; i < mx; i++) s[i] = less_offset(sum + i, 7);
    UNROLL for (int l = 0; l < 8; l++)
    {
        __m512i w = line_of(line, l);
        UNROLL for (int i = 0; i < mx; i++) s[i] =
            _mm512_dpbusd_epi32(s[i], w, _mm512_set1_epi32(x_quad(x + QBLOCK_COLS * i + 4 * l)));
    }
}

/* High halves stay where they are, 16 times too large, and are summed apart. */
INLINE void d16_q4(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    const __m512i low = _mm512_set1_epi8(15);
    D16 high[INT8_X];
    UNROLL for (int i = 0; i < mx; i++)
    {
        s[i] = less_offset(sum + i, 3);
        high[i] = _mm512_setzero_si512();
    }
    UNROLL for (int l = 0; l < 4; l++)
    {
        __m512i q = line_of(line, l), w0 = _mm512_and_si512(q, low), w1 = _mm512_andnot_si512(low, q);
        UNROLL for (int i = 0; i < mx; i++)
        {
            const int8_t *xi = x + QBLOCK_COLS * i + 4 * l;
            s[i] = _mm512_dpbusd_epi32(s[i], w0, _mm512_set1_epi32(x_quad(xi)));
            high[i] = _mm512_dpbusd_epi32(high[i], w1, _mm512_set1_epi32(x_quad(xi + 16)));
        }
    }
    UNROLL for (int i = 0; i < mx; i++) s[i] = _mm512_add_epi32(s[i], _mm512_srai_epi32(high[i], 4));
}

#else

/* A sum, before anything that is added to it later is made: the compiler would otherwise make all of a block's
 * products first, for which there are no registers. */
INLINE __m512i sum_now(__m512i s)
{
#ifndef __clang__
    __asm__("" : "+v"(s));
#endif
    return s;
}

/* As AVX2 below; what vpsignb does there is a subtraction under a mask. */
INLINE void d16_q8(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    const __m512i ones = _mm512_set1_epi16(1), flip = _mm512_set1_epi8(-128), zero = _mm512_setzero_si512();
    (void)sum;
    UNROLL for (int i = 0; i < mx; i++) s[i] = zero;
    UNROLL for (int l = 0; l < 8; l++)
    {
        __m512i w = _mm512_xor_si512(line_of(line, l), flip);
        UNROLL for (int i = 0; i < mx; i++)
        {
            __m512i xv = _mm512_set1_epi32(x_quad(x + QBLOCK_COLS * i + 4 * l));
            __m512i signed_w = _mm512_mask_sub_epi8(w, _mm512_movepi8_mask(xv), zero, w);
            __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(xv), signed_w);
            s[i] = sum_now(_mm512_add_epi32(s[i], _mm512_madd_epi16(pairs, ones)));
        }
    }
}

INLINE void d16_q4(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    const __m512i ones = _mm512_set1_epi16(1), low = _mm512_set1_epi8(15);
    UNROLL for (int i = 0; i < mx; i++) s[i] = _mm512_setzero_si512();
    UNROLL for (int l = 0; l < 4; l++)
    {
        __m512i q = line_of(line, l), w0 = _mm512_and_si512(q, low);
        __m512i w1 = _mm512_and_si512(_mm512_srli_epi16(q, 4), low);
        UNROLL for (int i = 0; i < mx; i++)
        {
            const int8_t *xi = x + QBLOCK_COLS * i + 4 * l;
            s[i] = sum_now(_mm512_add_epi16(s[i], _mm512_maddubs_epi16(w0, _mm512_set1_epi32(x_quad(xi)))));
            s[i] = sum_now(_mm512_add_epi16(s[i], _mm512_maddubs_epi16(w1, _mm512_set1_epi32(x_quad(xi + 16)))));
        }
    }
    UNROLL for (int i = 0; i < mx; i++) s[i] =
        _mm512_add_epi32(_mm512_madd_epi16(s[i], ones), _mm512_set1_epi32(-8 * sum[i]));
}

#endif

#elif CPU_LEVEL == 1

#define INT8_X 4
enum { INT8_GEMM_Q8 = 1, INT8_GEMM_Q4 = 1 };
typedef struct {
    __m256i r[2];
} D16;

INLINE VF d16_part(D16 s, int p)
{
    return _mm256_cvtepi32_ps(s.r[p]);
}

INLINE __m256i half_line(const uint8_t *line, int l, int h)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(line + QBLOCK_LINE * l + 32 * h));
}

/* A sum, before anything that is added to it later is made: the compiler would otherwise make all of a block's
 * products first, for which there are no registers. */
INLINE __m256i sum_now(__m256i s)
{
#ifndef __clang__
    __asm__("" : "+x"(s));
#endif
    return s;
}

/* vpmaddubsw saturates at 16 bits: 2 * 255 * 127 would not fit, 2 * 128 * 127 does. Hence |x| without
 * and w with a sign. */
INLINE void d16_q8(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    const __m256i ones = _mm256_set1_epi16(1), flip = _mm256_set1_epi8(-128);
    (void)sum;
    UNROLL for (int i = 0; i < mx; i++) s[i].r[0] = s[i].r[1] = _mm256_setzero_si256();
    UNROLL for (int l = 0; l < 8; l++)
    {
        __m256i w[2];
        UNROLL for (int h = 0; h < 2; h++) w[h] = _mm256_xor_si256(half_line(line, l, h), flip);
        UNROLL for (int i = 0; i < mx; i++)
        {
            __m256i xv = _mm256_set1_epi32(x_quad(x + QBLOCK_COLS * i + 4 * l)), xa = _mm256_abs_epi8(xv);
            UNROLL for (int h = 0; h < 2; h++)
            {
                __m256i pairs = _mm256_maddubs_epi16(xa, _mm256_sign_epi8(w[h], xv));
                s[i].r[h] = sum_now(_mm256_add_epi32(s[i].r[h], _mm256_madd_epi16(pairs, ones)));
            }
        }
    }
}

/* Here 16 bits hold all of a block: 8 * 2 * 15 * 127. */
INLINE void d16_q4(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
    UNROLL for (int i = 0; i < mx; i++) s[i].r[0] = s[i].r[1] = _mm256_setzero_si256();
    UNROLL for (int l = 0; l < 4; l++) UNROLL for (int h = 0; h < 2; h++)
    {
        __m256i q = half_line(line, l, h), w0 = _mm256_and_si256(q, low);
        __m256i w1 = _mm256_and_si256(_mm256_srli_epi16(q, 4), low);
        UNROLL for (int i = 0; i < mx; i++)
        {
            const int8_t *xi = x + QBLOCK_COLS * i + 4 * l;
            __m256i *a = &s[i].r[h];
            *a = sum_now(_mm256_add_epi16(*a, _mm256_maddubs_epi16(w0, _mm256_set1_epi32(x_quad(xi)))));
            *a = sum_now(_mm256_add_epi16(*a, _mm256_maddubs_epi16(w1, _mm256_set1_epi32(x_quad(xi + 16)))));
        }
    }
    UNROLL for (int i = 0; i < mx; i++)
    {
        __m256i offset = _mm256_set1_epi32(-8 * sum[i]);
        UNROLL for (int h = 0; h < 2; h++) s[i].r[h] = _mm256_add_epi32(_mm256_madd_epi16(s[i].r[h], ones), offset);
    }
}

#elif SIMD_NEON

typedef struct {
    int32x4_t r[4];
} D16;

INLINE VF d16_part(D16 s, int p)
{
    return (VF){vcvtq_f32_s32(s.r[2 * p]), vcvtq_f32_s32(s.r[2 * p + 1])};
}

/* Four rows of a line. */
INLINE uint8x16_t quarter_line(const uint8_t *line, int l, int h)
{
    return vld1q_u8(line + QBLOCK_LINE * l + 16 * h);
}

INLINE int8x16_t signed_line(const uint8_t *line, int l, int h)
{
    return vreinterpretq_s8_u8(veorq_u8(quarter_line(line, l, h), vdupq_n_u8(128)));
}

INLINE int8x16_t low_half(uint8x16_t q)
{
    return vreinterpretq_s8_u8(vandq_u8(q, vdupq_n_u8(15)));
}
INLINE int8x16_t high_half(uint8x16_t q)
{
    return vreinterpretq_s8_u8(vshrq_n_u8(q, 4));
}
INLINE int8x16_t x_quads(const int8_t *x)
{
    return vreinterpretq_s8_s32(vdupq_n_s32(x_quad(x)));
}

#if CPU_LEVEL == 5

#define INT8_X 4
enum { INT8_GEMM_Q8 = 1, INT8_GEMM_Q4 = 1 };

INLINE void d16_q8(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    (void)sum;
    UNROLL for (int i = 0; i < mx; i++) UNROLL for (int h = 0; h < 4; h++) s[i].r[h] = vdupq_n_s32(0);
    UNROLL for (int l = 0; l < 8; l++)
    {
        int8x16_t w[4];
        UNROLL for (int h = 0; h < 4; h++) w[h] = signed_line(line, l, h);
        UNROLL for (int i = 0; i < mx; i++)
        {
            int8x16_t xv = x_quads(x + QBLOCK_COLS * i + 4 * l);
            UNROLL for (int h = 0; h < 4; h++) s[i].r[h] = vdotq_s32(s[i].r[h], w[h], xv);
        }
    }
}

INLINE void d16_q4(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    UNROLL for (int i = 0; i < mx; i++) UNROLL for (int h = 0; h < 4; h++) s[i].r[h] = vdupq_n_s32(-8 * sum[i]);
    UNROLL for (int l = 0; l < 4; l++) UNROLL for (int h = 0; h < 4; h++)
    {
        uint8x16_t q = quarter_line(line, l, h);
        int8x16_t w0 = low_half(q), w1 = high_half(q);
        UNROLL for (int i = 0; i < mx; i++)
        {
            const int8_t *xi = x + QBLOCK_COLS * i + 4 * l;
            s[i].r[h] = vdotq_s32(s[i].r[h], w0, x_quads(xi));
            s[i].r[h] = vdotq_s32(s[i].r[h], w1, x_quads(xi + 16));
        }
    }
}

#else

/* By instructions a product, q8 gains nothing over float32, q4 half. */
#define INT8_X 2
enum { INT8_GEMM_Q8 = 0, INT8_GEMM_Q4 = 1 };

/* 16 bits hold two products, 2 * 128 * 127; then sums of two columns each, two a row. */
INLINE void d16_q8(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    int32x4_t two[INT8_X][8];
    (void)sum;
    UNROLL for (int i = 0; i < mx; i++) UNROLL for (int h = 0; h < 8; h++) two[i][h] = vdupq_n_s32(0);
    UNROLL for (int l = 0; l < 8; l += 2)
    {
        int8x16_t x0[INT8_X], x1[INT8_X];
        UNROLL for (int i = 0; i < mx; i++)
        {
            x0[i] = x_quads(x + QBLOCK_COLS * i + 4 * l);
            x1[i] = x_quads(x + QBLOCK_COLS * i + 4 * l + 4);
        }
        UNROLL for (int h = 0; h < 4; h++)
        {
            int8x16_t w0 = signed_line(line, l, h), w1 = signed_line(line, l + 1, h);
            UNROLL for (int i = 0; i < mx; i++)
            {
                int16x8_t lo = vmull_s8(vget_low_s8(w0), vget_low_s8(x0[i])), hi = vmull_high_s8(w0, x0[i]);
                lo = vmlal_s8(lo, vget_low_s8(w1), vget_low_s8(x1[i]));
                two[i][2 * h] = vpadalq_s16(two[i][2 * h], lo);
                two[i][2 * h + 1] = vpadalq_s16(two[i][2 * h + 1], vmlal_high_s8(hi, w1, x1[i]));
            }
        }
    }
    UNROLL for (int i = 0; i < mx; i++) UNROLL for (int h = 0; h < 4; h++) s[i].r[h] =
        vpaddq_s32(two[i][2 * h], two[i][2 * h + 1]);
}

/* Here 16 bits hold all of a block: 8 * 15 * 127. */
INLINE void d16_q4(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    int16x8_t four[INT8_X][8];
    UNROLL for (int i = 0; i < mx; i++) UNROLL for (int h = 0; h < 8; h++) four[i][h] = vdupq_n_s16(0);
    UNROLL for (int l = 0; l < 4; l++) UNROLL for (int h = 0; h < 4; h++)
    {
        uint8x16_t q = quarter_line(line, l, h);
        int8x16_t w0 = low_half(q), w1 = high_half(q);
        UNROLL for (int i = 0; i < mx; i++)
        {
            const int8_t *xi = x + QBLOCK_COLS * i + 4 * l;
            int8x16_t x0 = x_quads(xi), x1 = x_quads(xi + 16);
            int16x8_t *a = &four[i][2 * h];
            a[0] = vmlal_s8(a[0], vget_low_s8(w0), vget_low_s8(x0));
            a[1] = vmlal_high_s8(a[1], w0, x0);
            a[0] = vmlal_s8(a[0], vget_low_s8(w1), vget_low_s8(x1));
            a[1] = vmlal_high_s8(a[1], w1, x1);
        }
    }
    UNROLL for (int i = 0; i < mx; i++)
    {
        int32x4_t offset = vdupq_n_s32(-8 * sum[i]);
        UNROLL for (int h = 0; h < 4; h++)
        {
            int32x4_t two = vpaddq_s32(vpaddlq_s16(four[i][2 * h]), vpaddlq_s16(four[i][2 * h + 1]));
            s[i].r[h] = vaddq_s32(two, offset);
        }
    }
}

#endif

#else

#define INT8_X 2
enum { INT8_GEMM_Q8 = 0, INT8_GEMM_Q4 = 0 };
typedef struct {
    int32_t r[QBLOCK_ROWS];
} D16;

INLINE VF d16_part(D16 s, int p)
{
    const int32_t *r = s.r + p * VF_LANES;
    return (VF){(float)r[0], (float)r[1], (float)r[2], (float)r[3]};
}

INLINE void d16_start(const int mx, D16 s[INT8_X], int offset, const int32_t *sum)
{
    for (int i = 0; i < mx; i++)
        for (int r = 0; r < QBLOCK_ROWS; r++) s[i].r[r] = -offset * sum[i];
}

/* A line of 4 columns of every row. */
INLINE void d16_add(D16 *s, const uint8_t *line, const int8_t *x)
{
    for (int r = 0; r < QBLOCK_ROWS; r++)
        s->r[r] += line[4 * r] * x[0] + line[4 * r + 1] * x[1] + line[4 * r + 2] * x[2] + line[4 * r + 3] * x[3];
}

INLINE void d16_q8(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    d16_start(mx, s, 128, sum);
    for (int l = 0; l < 8; l++)
        for (int i = 0; i < mx; i++) d16_add(&s[i], line + QBLOCK_LINE * l, x + QBLOCK_COLS * i + 4 * l);
}

INLINE void d16_q4(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    d16_start(mx, s, 8, sum);
    for (int l = 0; l < 4; l++, line += QBLOCK_LINE) {
        uint8_t low[QBLOCK_LINE], high[QBLOCK_LINE];
        for (int c = 0; c < QBLOCK_LINE; c++) {
            low[c] = line[c] & 15;
            high[c] = line[c] >> 4;
        }
        for (int i = 0; i < mx; i++) {
            const int8_t *xi = x + QBLOCK_COLS * i + 4 * l;
            d16_add(&s[i], low, xi);
            d16_add(&s[i], high, xi + 16);
        }
    }
}

#endif

INLINE void d16_sums(const int mx, const dtype t, D16 s[INT8_X], const uint8_t *line, const int8_t *x,
                     const int32_t *sum)
{
    if (t == DT_Q8) d16_q8(mx, s, line, x, sum);
    else d16_q4(mx, s, line, x, sum);
}

#endif
