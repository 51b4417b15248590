/* SPDX-License-Identifier: MIT */
/* Products of bytes: a part of a block of weights (ops_weights.h) times a block of x in 8 bits, for 16 rows.
 *
 *   D16                   16 sums of int32
 *   d16_start             -offset sum in each of them
 *   d16_q8, d16_q4        sums of (code - offset) x over 32 columns for mx <= INT8_X rows of x, with codes of 8 or 4
 *                         bits; x + QBLOCK_COLS i is row i, sum[i] the sum of its codes. Exact
 *   d16_half              adds the sums of code x over columns [16 half, 16 half + 16), with codes of 5 or 6 bits
 *   d16_part              sums [p * VF_LANES, (p + 1) * VF_LANES) as floats
 *   INT8_X                rows of x that share a pass over a block
 *   INT8_GEMM             level.h's qblock_gemm */
#ifndef KERNELS_CPU_SIMD_INT8_H
#define KERNELS_CPU_SIMD_INT8_H

#include "kernels/cpu/simd.h"
#include "kernels/ops_weights.h"

enum { PARTS16 = QBLOCK_ROWS / VF_LANES, BITS_8 = 1 << 8, BITS_4_TO_6 = 1 << 4 | 1 << 5 | 1 << 6 };

/* Returns the line that has the upper bits of a half's codes, which have 5 or 6 bits. */
INLINE int upper_line(const int bits, const int half)
{
    return bits == 5 ? 4 : 4 + half;
}

/* Returns how far the upper bits of line l move to the left to get to bit 4. */
INLINE int upper_shift(const int bits, const int half, const int l)
{
    return 4 - (bits == 5 ? 4 * half + l : 2 * l);
}

INLINE uint8_t upper_mask(const int bits)
{
    return bits == 5 ? 0x10 : 0x30;
}

/* Returns four neighbouring columns of x, to multiply with 4 columns of every row. */
INLINE int32_t x_quad(const int8_t *x)
{
    int32_t v;
    memcpy(&v, x, sizeof v);
    return v;
}

#if SIMD_AVX512

#define INT8_X 8
enum { INT8_GEMM = CPU_LEVEL == 3 ? BITS_8 | BITS_4_TO_6 : BITS_4_TO_6 };
typedef __m512i D16;

INLINE D16 d16_start(const int offset, int32_t sum)
{
    return offset ? _mm512_set1_epi32(-offset * sum) : _mm512_setzero_si512();
}

INLINE VF d16_part(D16 s, int p)
{
    (void)p;
    return _mm512_cvtepi32_ps(s);
}

INLINE __m512i line_of(const uint8_t *line, int l)
{
    return _mm512_loadu_si512(line + QBLOCK_LINE * l);
}

/* Returns 4 columns of 16 rows of a half. */
INLINE __m512i line_of_half(const uint8_t *line, const int bits, const int half, const int l)
{
    const int left = upper_shift(bits, half, l);
    __m512i q = line_of(line, l), up = line_of(line, upper_line(bits, half)), low = _mm512_set1_epi8(15);
    q = _mm512_and_si512(half ? _mm512_srli_epi16(q, 4) : q, low);
    up = left > 0 ? _mm512_slli_epi16(up, (unsigned)left) : _mm512_srli_epi16(up, (unsigned)-left);
    return _mm512_or_si512(q, _mm512_and_si512(up, _mm512_set1_epi8((char)upper_mask(bits))));
}

#if CPU_LEVEL == 3

/* Like d16_start, by an offset of 2^log2: cancels the offset of codes in the sums of dpbusd. */
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

/* High halves are not shifted, so they are 16 times too large and are summed separately. */
INLINE void d16_q4(const int mx, const int offset, D16 s[INT8_X], const uint8_t *line, const int8_t *x,
                   const int32_t *sum)
{
    const __m512i low = _mm512_set1_epi8(15);
    D16 high[INT8_X];
    UNROLL for (int i = 0; i < mx; i++)
    {
        s[i] = offset ? less_offset(sum + i, 3) : _mm512_setzero_si512();
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

INLINE void d16_half(const int mx, const int bits, const int half, D16 s[INT8_X], const uint8_t *line, const int8_t *x)
{
    UNROLL for (int l = 0; l < 4; l++)
    {
        __m512i w = line_of_half(line, bits, half, l);
        UNROLL for (int i = 0; i < mx; i++) s[i] =
            _mm512_dpbusd_epi32(s[i], w, _mm512_set1_epi32(x_quad(x + QBLOCK_COLS * i + 16 * half + 4 * l)));
    }
}

#else

/* Fixes the order of additions: the compiler would otherwise compute all products of a block first, for which there are
 * not enough registers. */
INLINE __m512i sum_now(__m512i s)
{
#ifndef __clang__
    __asm__("" : "+v"(s));
#endif
    return s;
}

/* Like AVX2 below, with a masked subtraction in place of vpsignb. */
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

INLINE void d16_q4(const int mx, const int offset, D16 s[INT8_X], const uint8_t *line, const int8_t *x,
                   const int32_t *sum)
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
        _mm512_add_epi32(_mm512_madd_epi16(s[i], ones), d16_start(offset, sum[i]));
}

/* 16 bits suffice for 4 lines of 5 bits, 4 * 2 * 31 * 127, and for 2 lines of 6 bits. */
INLINE void d16_half(const int mx, const int bits, const int half, D16 s[INT8_X], const uint8_t *line, const int8_t *x)
{
    const __m512i ones = _mm512_set1_epi16(1);
    __m512i pairs[INT8_X];
    UNROLL for (int l = 0; l < 4; l++)
    {
        __m512i w = line_of_half(line, bits, half, l);
        UNROLL for (int i = 0; i < mx; i++)
        {
            __m512i p = _mm512_maddubs_epi16(w, _mm512_set1_epi32(x_quad(x + QBLOCK_COLS * i + 16 * half + 4 * l)));
            pairs[i] = l == 0 || (bits == 6 && l == 2) ? p : sum_now(_mm512_add_epi16(pairs[i], p));
            if (l == 3 || (bits == 6 && l == 1)) s[i] = _mm512_add_epi32(s[i], _mm512_madd_epi16(pairs[i], ones));
        }
    }
}

#endif

#elif CPU_LEVEL == 1

#define INT8_X 4
enum { INT8_GEMM = BITS_8 | BITS_4_TO_6 };
typedef struct {
    __m256i r[2];
} D16;

INLINE VF d16_part(D16 s, int p)
{
    return _mm256_cvtepi32_ps(s.r[p]);
}

INLINE D16 d16_start(const int offset, int32_t sum)
{
    __m256i v = offset ? _mm256_set1_epi32(-offset * sum) : _mm256_setzero_si256();
    return (D16){{v, v}};
}

INLINE __m256i half_line(const uint8_t *line, int l, int h)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(line + QBLOCK_LINE * l + 32 * h));
}

/* Returns 4 columns of 8 rows of a half of the columns. */
INLINE __m256i half_line_of_half(const uint8_t *line, const int bits, const int half, const int l, int h)
{
    const int left = upper_shift(bits, half, l);
    __m256i q = half_line(line, l, h), up = half_line(line, upper_line(bits, half), h), low = _mm256_set1_epi8(15);
    q = _mm256_and_si256(half ? _mm256_srli_epi16(q, 4) : q, low);
    up = left > 0 ? _mm256_slli_epi16(up, left) : _mm256_srli_epi16(up, -left);
    return _mm256_or_si256(q, _mm256_and_si256(up, _mm256_set1_epi8((char)upper_mask(bits))));
}

/* Fixes the order of additions: the compiler would otherwise compute all products of a block first, for which there are
 * not enough registers. */
INLINE __m256i sum_now(__m256i s)
{
#ifndef __clang__
    __asm__("" : "+x"(s));
#endif
    return s;
}

/* vpmaddubsw saturates at 16 bits: 2 * 255 * 127 would not fit, 2 * 128 * 127 does. Hence |x| is unsigned and w
 * signed. */
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

/* 16 bits suffice for a whole block: 8 * 2 * 15 * 127. */
INLINE void d16_q4(const int mx, const int offset, D16 s[INT8_X], const uint8_t *line, const int8_t *x,
                   const int32_t *sum)
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
        D16 start = d16_start(offset, sum[i]);
        UNROLL for (int h = 0; h < 2; h++) s[i].r[h] = _mm256_add_epi32(_mm256_madd_epi16(s[i].r[h], ones), start.r[h]);
    }
}

/* 16 bits suffice for 4 lines of 5 bits, 4 * 2 * 31 * 127, and for 2 lines of 6 bits. */
INLINE void d16_half(const int mx, const int bits, const int half, D16 s[INT8_X], const uint8_t *line, const int8_t *x)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i pairs[INT8_X];
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int l = 0; l < 4; l++)
    {
        __m256i w = half_line_of_half(line, bits, half, l, h);
        UNROLL for (int i = 0; i < mx; i++)
        {
            __m256i p = _mm256_maddubs_epi16(w, _mm256_set1_epi32(x_quad(x + QBLOCK_COLS * i + 16 * half + 4 * l)));
            pairs[i] = l == 0 || (bits == 6 && l == 2) ? p : sum_now(_mm256_add_epi16(pairs[i], p));
            if (l == 3 || (bits == 6 && l == 1))
                s[i].r[h] = _mm256_add_epi32(s[i].r[h], _mm256_madd_epi16(pairs[i], ones));
        }
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

INLINE D16 d16_start(const int offset, int32_t sum)
{
    int32x4_t v = vdupq_n_s32(-offset * sum);
    return (D16){{v, v, v, v}};
}

/* Loads four rows of a line. */
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

/* Returns 4 columns of 4 rows of a half of the columns. */
INLINE int8x16_t quarter_of_half(const uint8_t *line, const int bits, const int half, const int l, int h)
{
    const int8x16_t left = vdupq_n_s8((int8_t)upper_shift(bits, half, l));
    uint8x16_t q = quarter_line(line, l, h), up = quarter_line(line, upper_line(bits, half), h);
    up = vandq_u8(vshlq_u8(up, left), vdupq_n_u8(upper_mask(bits)));
    return vreinterpretq_s8_u8(vorrq_u8(vreinterpretq_u8_s8(half ? high_half(q) : low_half(q)), up));
}

#if CPU_LEVEL == 5

#define INT8_X 4
enum { INT8_GEMM = BITS_8 | BITS_4_TO_6 };

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

INLINE void d16_q4(const int mx, const int offset, D16 s[INT8_X], const uint8_t *line, const int8_t *x,
                   const int32_t *sum)
{
    UNROLL for (int i = 0; i < mx; i++) s[i] = d16_start(offset, sum[i]);
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

INLINE void d16_half(const int mx, const int bits, const int half, D16 s[INT8_X], const uint8_t *line, const int8_t *x)
{
    UNROLL for (int l = 0; l < 4; l++) UNROLL for (int h = 0; h < 4; h++)
    {
        int8x16_t w = quarter_of_half(line, bits, half, l, h);
        UNROLL for (int i = 0; i < mx; i++) s[i].r[h] =
            vdotq_s32(s[i].r[h], w, x_quads(x + QBLOCK_COLS * i + 16 * half + 4 * l));
    }
}

#else

/* Counted in instructions per product, q8 gains nothing over float32, q4 half. */
#define INT8_X 2
enum { INT8_GEMM = BITS_4_TO_6 };

/* 16 bits hold two products, 2 * 128 * 127. Then sums of two columns each, two a row. */
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

/* 16 bits suffice for a whole block: 8 * 15 * 127. */
INLINE void d16_q4(const int mx, const int offset, D16 s[INT8_X], const uint8_t *line, const int8_t *x,
                   const int32_t *sum)
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
        s[i] = d16_start(offset, sum[i]);
        UNROLL for (int h = 0; h < 4; h++)
        {
            int32x4_t two = vpaddq_s32(vpaddlq_s16(four[i][2 * h]), vpaddlq_s16(four[i][2 * h + 1]));
            s[i].r[h] = vaddq_s32(two, s[i].r[h]);
        }
    }
}

/* 16 bits suffice for 4 lines: 4 * 63 * 127. */
INLINE void d16_half(const int mx, const int bits, const int half, D16 s[INT8_X], const uint8_t *line, const int8_t *x)
{
    UNROLL for (int h = 0; h < 4; h++)
    {
        int16x8_t a[INT8_X][2];
        UNROLL for (int i = 0; i < mx; i++) a[i][0] = a[i][1] = vdupq_n_s16(0);
        UNROLL for (int l = 0; l < 4; l++)
        {
            int8x16_t w = quarter_of_half(line, bits, half, l, h);
            UNROLL for (int i = 0; i < mx; i++)
            {
                int8x16_t xi = x_quads(x + QBLOCK_COLS * i + 16 * half + 4 * l);
                a[i][0] = vmlal_s8(a[i][0], vget_low_s8(w), vget_low_s8(xi));
                a[i][1] = vmlal_high_s8(a[i][1], w, xi);
            }
        }
        UNROLL for (int i = 0; i < mx; i++) s[i].r[h] =
            vaddq_s32(s[i].r[h], vpaddq_s32(vpaddlq_s16(a[i][0]), vpaddlq_s16(a[i][1])));
    }
}

#endif

#else

#define INT8_X 2
enum { INT8_GEMM = 0 };
typedef struct {
    int32_t r[QBLOCK_ROWS];
} D16;

INLINE VF d16_part(D16 s, int p)
{
    const int32_t *r = s.r + p * VF_LANES;
    return (VF){(float)r[0], (float)r[1], (float)r[2], (float)r[3]};
}

INLINE D16 d16_start(const int offset, int32_t sum)
{
    D16 s;
    for (int r = 0; r < QBLOCK_ROWS; r++) s.r[r] = -offset * sum;
    return s;
}

/* Adds a line of 4 columns of every row. */
INLINE void d16_add(D16 *s, const uint8_t *line, const int8_t *x)
{
    for (int r = 0; r < QBLOCK_ROWS; r++)
        s->r[r] += line[4 * r] * x[0] + line[4 * r + 1] * x[1] + line[4 * r + 2] * x[2] + line[4 * r + 3] * x[3];
}

INLINE void d16_q8(const int mx, D16 s[INT8_X], const uint8_t *line, const int8_t *x, const int32_t *sum)
{
    for (int i = 0; i < mx; i++) s[i] = d16_start(128, sum[i]);
    for (int l = 0; l < 8; l++)
        for (int i = 0; i < mx; i++) d16_add(&s[i], line + QBLOCK_LINE * l, x + QBLOCK_COLS * i + 4 * l);
}

INLINE void d16_q4(const int mx, const int offset, D16 s[INT8_X], const uint8_t *line, const int8_t *x,
                   const int32_t *sum)
{
    for (int i = 0; i < mx; i++) s[i] = d16_start(offset, sum[i]);
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

INLINE void d16_half(const int mx, const int bits, const int half, D16 s[INT8_X], const uint8_t *line, const int8_t *x)
{
    const uint8_t *upper = line + QBLOCK_LINE * upper_line(bits, half);
    for (int l = 0; l < 4; l++, line += QBLOCK_LINE) {
        const int left = upper_shift(bits, half, l);
        uint8_t w[QBLOCK_LINE];
        for (int c = 0; c < QBLOCK_LINE; c++) {
            int up = left > 0 ? upper[c] << left : upper[c] >> -left;
            w[c] = (uint8_t)((line[c] >> (4 * half) & 15) | (up & upper_mask(bits)));
        }
        for (int i = 0; i < mx; i++) d16_add(&s[i], w, x + QBLOCK_COLS * i + 16 * half + 4 * l);
    }
}

#endif

/* Returns the number of sums of a part: one for each scale of a row, or one. */
INLINE int d16_count(const dtype t)
{
    return qblock_kind_of(t).scales == 2 ? 2 : 1;
}

/* Sums of (code - offset) x for mx rows of x: over all 32 columns, or with two sums over 16 columns for each k. half[i]
 * is the sum of the first 16 codes of row i. */
INLINE void d16_sums(const int mx, const dtype t, const int k, D16 s[INT8_X], const uint8_t *line, const int8_t *x,
                     const int32_t *sum, const int32_t *half)
{
    const qblock_kind kind = qblock_kind_of(t);
    const bool both = d16_count(t) == 1;
    if (kind.bits == 8) {
        d16_q8(mx, s, line, x, sum);
    } else if (kind.bits == 4) {
        d16_q4(mx, kind.offset, s, line, x, sum);
    } else {
        UNROLL for (int i = 0; i < mx; i++) s[i] = d16_start(kind.offset, both ? sum[i]
                                                                          : k  ? sum[i] - half[i]
                                                                               : half[i]);
        if (both || k == 0) d16_half(mx, kind.bits, 0, s, line, x);
        if (both || k == 1) d16_half(mx, kind.bits, 1, s, line, x);
    }
}

#endif
