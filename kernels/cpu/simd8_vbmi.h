/* SPDX-License-Identifier: MIT */
/* The parts of simd8.h that permute the bytes of 512 bits. */
#ifndef KERNELS_CPU_SIMD8_VBMI_H
#define KERNELS_CPU_SIMD8_VBMI_H

enum { B8_ROWS = 64 };

/* Loads 8 rows of 8 bytes, nb apart. */
INLINE __m512i b8_rows(const unsigned char *x, size_t nb)
{
    const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    uint64_t r[8];
    if (nb == 8) return _mm512_loadu_si512(x);
    if (nb == 16) {
        __m512i a = _mm512_maskz_loadu_epi64(0x55, x), b = _mm512_maskz_loadu_epi64(0x55, x + 64);
        return _mm512_permutex2var_epi64(a, even, b);
    }
    UNROLL for (size_t i = 0; i < 8; i++) memcpy(&r[i], x + i * nb, 8);
    return _mm512_loadu_si512(r);
}

/* Transposes 64 rows of 8 bytes, 8 to a vector: byte 16 l + 8 h + j of r[b] is byte b of row 8 j + 2 l + h. */
INLINE void b8_columns(__m512i r[8])
{
    __m512i a[8], b[8];
    UNROLL for (int i = 0; i < 4; i++)
    {
        a[i] = _mm512_unpacklo_epi8(r[2 * i], r[2 * i + 1]);
        a[4 + i] = _mm512_unpackhi_epi8(r[2 * i], r[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        b[2 * i] = _mm512_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int i = 0; i < 2; i++)
    {
        a[4 * h + 2 * i] = _mm512_unpacklo_epi32(b[4 * h + i], b[4 * h + 2 + i]);
        a[4 * h + 2 * i + 1] = _mm512_unpackhi_epi32(b[4 * h + i], b[4 * h + 2 + i]);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        r[2 * i] = _mm512_unpacklo_epi64(a[i], a[4 + i]);
        r[2 * i + 1] = _mm512_unpackhi_epi64(a[i], a[4 + i]);
    }
}

/* Looks up entries x of a table of 256 bytes: one in each half of it, then the highest bit selects the half. */
INLINE __m512i b8_entries(const unsigned char *table, __m512i x)
{
    __m512i lo = _mm512_permutex2var_epi8(_mm512_loadu_si512(table), x, _mm512_loadu_si512(table + 64));
    __m512i hi = _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), x, _mm512_loadu_si512(table + 192));
    return _mm512_mask_mov_epi8(lo, _mm512_movepi8_mask(x), hi);
}

INLINE void b8_sums(unsigned char out[B8_ROWS], const unsigned char *x, size_t nb, const unsigned char *table)
{
    __m512i sum = _mm512_setzero_si512(), r[8];
    for (size_t b = 0; b < nb; b += 8) {
        UNROLL for (size_t i = 0; i < 8; i++) r[i] = b8_rows(x + 8 * i * nb + b, nb);
        b8_columns(r);
        UNROLL for (size_t i = 0; i < 8; i++) sum = _mm512_add_epi8(sum, b8_entries(table + 256 * (b + i), r[i]));
    }
    /* restores the order of rows: byte 8 j + k is byte 8 k + j */
    const __m512i column = _mm512_set1_epi64(0x3830282018100800);
    const __m512i row =
        _mm512_setr_epi64(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303, 0x0404040404040404,
                          0x0505050505050505, 0x0606060606060606, 0x0707070707070707);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi8(_mm512_add_epi8(column, row), sum));
}

typedef __m512 P8;
INLINE P8 p8_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE P8 p8_set(const float *p)
{
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
}
INLINE P8 p8_add(P8 a, P8 b)
{
    return _mm512_add_ps(a, b);
}
INLINE P8 p8_mul(P8 a, P8 b)
{
    return _mm512_mul_ps(a, b);
}

/* 8 blocks of a token. */
typedef struct {
    const unsigned char *id, *weight, *bins;
} p8_code;

/* Returns nibbles: byte 8 b + j has the bin of element j of block b, plus 8 if it is positive, in the lower 4 bits. */
INLINE __m512i p8_nibbles(p8_code c)
{
    const __m512i spread =
        _mm512_setr_epi64(0x0a0908, 0x0d0c0b, 0x100f0e, 0x131211, 0x161514, 0x191817, 0x1c1b1a, 0x1f1e1d);
    const __m512i shift = _mm512_set1_epi64(0x15120f0c09060300);
    uint64_t positive;
    memcpy(&positive, c.id, 8);
    __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)(c.bins - 8));
    __m512i bin = _mm512_permutexvar_epi8(spread, _mm512_castsi256_si512(bytes)); /* 3 bytes of a block each */
    bin = _mm512_multishift_epi64_epi8(shift, bin);
    return _mm512_or_si512(_mm512_and_si512(bin, _mm512_set1_epi8(7)), _mm512_maskz_set1_epi8(positive, 8));
}

/* Decodes two tokens. Byte k of lane j of a vector is the nibble of element j of block k, so that shifts move each
 * block to the lowest bits, which the look-up reads; pairs of weights likewise. */
INLINE void p8_codes(P8 v[8], const float table[8], p8_code a, p8_code b)
{
    const __m512i lane = _mm512_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606,
                                           0x07070707, 0x40404040, 0x41414141, 0x42424242, 0x43434343, 0x44444444,
                                           0x45454545, 0x46464646, 0x47474747);
    const __m512i token = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    __m256 t = _mm256_loadu_ps(table), minus = _mm256_xor_ps(t, _mm256_set1_ps(-0.0f));
    __m512 centre = _mm512_insertf32x8(_mm512_castps256_ps512(minus), t, 1);
    __m128i wa = _mm_loadu_si128((const __m128i *)(const void *)a.weight);
    __m128i wb = _mm_loadu_si128((const __m128i *)(const void *)b.weight);
    __m512i w = _mm512_castsi256_si512(_mm256_set_m128i(wb, wa)), na = p8_nibbles(a), nb = p8_nibbles(b);
    UNROLL for (int i = 0; i < 8; i += 4)
    {
        __m512i block = _mm512_set1_epi32(0x18100800 + 8 * i * 0x01010101);
        __m512i at = _mm512_permutex2var_epi8(na, _mm512_add_epi8(lane, block), nb);
        UNROLL for (int k = 0; k < 4; k++)
        {
            __m512i two = _mm512_permutexvar_epi32(_mm512_add_epi32(token, _mm512_set1_epi32((i + k) / 2)), w);
            two = k % 2 ? _mm512_and_si512(two, _mm512_set1_epi32((int)0xffff0000)) : _mm512_slli_epi32(two, 16);
            __m512 c = _mm512_permutexvar_ps(k ? _mm512_srli_epi32(at, 8 * k) : at, centre);
            v[i + k] = _mm512_mul_ps(_mm512_castsi512_ps(two), c);
        }
    }
}

INLINE void p8_sums(float out[4], P8 v0, P8 v1, float by)
{
    __m512 h = _mm512_add_ps(_mm512_shuffle_f32x4(v0, v1, 0x88), _mm512_shuffle_f32x4(v0, v1, 0xdd));
    h = _mm512_add_ps(h, _mm512_permute_ps(h, 0x4e));
    h = _mm512_add_ps(h, _mm512_permute_ps(h, 0xb1));
    __m128 sums = _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, h));
    _mm_storeu_ps(out, _mm_mul_ps(_mm_set1_ps(by), sums));
}

#endif
