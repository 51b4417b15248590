/* SPDX-License-Identifier: MIT */
/* Products with codes for k_decode_codes.c, in bytes: VNNI and VBMI. A 16-bit number is 256 hi + lo, and the products
 * of both bytes with codes have sums of 32 bits.
 *
 * K rows are transposed so that a word holds four channels of a key, V rows so that it holds four keys of a channel. A
 * vector has 16 words, for 16 keys or 16 channels. Both are transposed once for all heads. */
#ifndef KERNELS_CPU_CODES_VBMI_H
#define KERNELS_CPU_CODES_VBMI_H

enum {
    QUADS = DECODE_BLOCK / 4,
    VECTOR = 64,                 /* bytes of a vector */
    VECTORS = SLICE / VF_LANES,  /* number of vectors of sums */
    CODE_BYTES = 1,              /* bytes of a transposed code */
    CODES = SLICE * DECODE_BLOCK /* bytes of a slice */
};

typedef struct {
    __m512i hi, lo;
} int_sums;

INLINE int_sums sums_from(int32_t x)
{
    int_sums s = {_mm512_setzero_si512(), _mm512_set1_epi32(x)};
    return s;
}

INLINE VF as_floats(int_sums s)
{
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(s.hi, 8), s.lo));
}

INLINE unsigned not_finite(VF v)
{
    return _mm512_fpclass_ps_mask(v, 0x99); /* NaN of both kinds, infinities of both signs */
}

INLINE VF size_of(VF v)
{
    return _mm512_abs_ps(v);
}

/* Returns the permutation of a slice's channels for a vector packed from four, to match transpose_keys. A word has 4 *
 * 8 / bits channels; those in the same bits of its bytes are adjacent. */
INLINE __m512i packed_at(const int bits)
{
    uint8_t at[SLICE];
    const int span = 32 / bits, each = 8 / bits;
    for (int i = 0; i < SLICE; i++) {
        int c = i / span * span + i % 4 * each + i % span / 4;
        at[i] = (uint8_t)(c % 16 / 4 * 16 + c / 16 * 4 + c % 4);
    }
    return _mm512_loadu_si512(at);
}

/* Stores the integers of a slice as bytes of hi and lo. */
INLINE void put_halves(int8_t *hi, int8_t *lo, const __m512i i[4], __m512i order)
{
    const __m512i low = _mm512_set1_epi16(255), half = _mm512_set1_epi16(128);
    __m512i a = _mm512_packs_epi32(i[0], i[1]), b = _mm512_packs_epi32(i[2], i[3]);
    __m512i l = _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low));
    a = _mm512_srai_epi16(_mm512_add_epi16(a, half), 8);
    b = _mm512_srai_epi16(_mm512_add_epi16(b, half), 8);
    _mm512_storeu_si512(hi, _mm512_permutexvar_epi8(order, _mm512_packs_epi16(a, b)));
    _mm512_storeu_si512(lo, _mm512_permutexvar_epi8(order, l));
}

/* Converts x of d channels, at most `largest`, to integers; returns their unit. */
INLINE float halve(const int bits, code_query *q, const float *x, float largest, size_t d)
{
    const __m512i order = packed_at(bits);
    VF by = vf_set1(largest < FLT_MIN * LARGEST ? 0 : LARGEST / largest);
    for (size_t c = 0; c < d; c += SLICE) {
        __m512i i[4];
        UNROLL for (int j = 0; j < 4; j++) i[j] = _mm512_cvtps_epi32(vf_mul(vf_load(x + c + j * VF_LANES), by));
        put_halves(q->hi + c, q->lo + c, i, order);
    }
    return largest / LARGEST;
}

/* Returns the integer at index c in the order of the products, which belongs to the run of channel c. */
INLINE int32_t number_of(const code_query *q, size_t c)
{
    return 256 * q->hi[c] + q->lo[c];
}

/* Load a slice of rows i and j with 4 bits, or of rows i, i + by, i + 2 by and i + 3 by with 2 bits. */
INLINE __m512i two_rows(const unsigned char *const *row, size_t i, size_t j, size_t slice)
{
    const __m256i *a = (const __m256i *)(const void *)row[i] + slice,
                  *b = (const __m256i *)(const void *)row[j] + slice;
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(a)), _mm256_loadu_si256(b), 1);
}

INLINE __m512i four_rows(const unsigned char *const *row, size_t i, size_t by, size_t slice)
{
    const __m128i *p[4];
    UNROLL for (size_t l = 0; l < 4; l++) p[l] = (const __m128i *)(const void *)row[i + l * by] + slice;
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128(p[0]));
    x = _mm512_inserti32x4(x, _mm_loadu_si128(p[1]), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128(p[2]), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128(p[3]), 3);
}

/* Transposes words within lanes: word w of a[0] to a[3] goes to a[w]. */
INLINE void transpose_lanes(__m512i a[4])
{
    __m512i b[4];
    UNROLL for (int i = 0; i < 2; i++)
    {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++)
    {
        a[2 * i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[2 * i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    }
}

/* Transposes 16 rows of 16 words: word w of all rows goes to to + w * TILES * VECTOR. */
INLINE void transpose_words(uint8_t *to, __m512i a[TILE])
{
    __m512i b[TILE];
    UNROLL for (int i = 0; i < 8; i++)
    {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i++)
    { /* words i % 4 + 4 * lane of rows i / 4 * 4 .. + 3 */
        a[i / 2 * 4 + i % 2 * 2] = _mm512_unpacklo_epi64(b[i / 2 * 4 + i % 2], b[i / 2 * 4 + i % 2 + 2]);
        a[i / 2 * 4 + i % 2 * 2 + 1] = _mm512_unpackhi_epi64(b[i / 2 * 4 + i % 2], b[i / 2 * 4 + i % 2 + 2]);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        __m512i p = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x44), q = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x44);
        __m512i r = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xee), t = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xee);
        _mm512_storeu_si512(to + (i + 0) * TILES * VECTOR, _mm512_shuffle_i32x4(p, q, 0x88));
        _mm512_storeu_si512(to + (i + 4) * TILES * VECTOR, _mm512_shuffle_i32x4(p, q, 0xdd));
        _mm512_storeu_si512(to + (i + 8) * TILES * VECTOR, _mm512_shuffle_i32x4(r, t, 0x88));
        _mm512_storeu_si512(to + (i + 12) * TILES * VECTOR, _mm512_shuffle_i32x4(r, t, 0xdd));
    }
}

/* Stores the codes of a word in 8 / bits vectors, each with the codes in the same bits of its bytes. */
INLINE void put_word(const int bits, uint8_t *to, __m512i x)
{
    const __m512i low = _mm512_set1_epi8((char)((1 << bits) - 1));
    UNROLL for (int i = 0; i < 8 / bits; i++, to += TILES * VECTOR)
        _mm512_storeu_si512(to, _mm512_and_si512(_mm512_srli_epi32(x, (unsigned)(i * bits)), low));
}

INLINE void transpose_tile(const int bits, uint8_t *to, const unsigned char *const *row, size_t slice)
{
    enum { WORD = TILES * VECTOR };
    __m512i x[TILE];
    if (bits == 8) {
        UNROLL for (int i = 0; i < TILE; i++) x[i] = _mm512_loadu_si512(row[i] + slice * SLICE);
        transpose_words(to, x);
    } else if (bits == 4) {
        UNROLL for (size_t i = 0; i < 8; i++) x[i] = two_rows(row, i / 4 * 8 + i % 4, i / 4 * 8 + i % 4 + 4, slice);
        transpose_lanes(x);
        transpose_lanes(x + 4);
        UNROLL for (int w = 0; w < 4; w++)
        {
            put_word(4, to + 2 * w * WORD, _mm512_shuffle_i32x4(x[w], x[4 + w], 0x88));
            put_word(4, to + 2 * (w + 4) * WORD, _mm512_shuffle_i32x4(x[w], x[4 + w], 0xdd));
        }
    } else {
        UNROLL for (size_t i = 0; i < 4; i++) x[i] = four_rows(row, i, 4, slice);
        transpose_lanes(x);
        UNROLL for (int w = 0; w < 4; w++) put_word(2, to + 4 * w * WORD, x[w]);
    }
}

INLINE void transpose_keys(const int bits, uint8_t *to, const block_rows *k, size_t slices, prefetcher *other)
{
    for (size_t t = 0; t < TILES; t++) {
        prefetch_next(other);
        for (size_t s = 0; s < slices; s++)
            transpose_tile(bits, to + (s * TILE * TILES + t) * VECTOR, k->row + t * TILE, s);
    }
}

/* Loads a slice of a row of V as bytes. */
INLINE __m512i values_of(const int bits, const unsigned char *row, size_t slice)
{
    const unsigned char *p = row + slice * SLICE * (size_t)bits / 8;
    if (bits == 8) return _mm512_loadu_si512(p);
    if (bits == 4) {
        __m512i x = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)p));
        x = _mm512_srlv_epi64(x, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4));
        return _mm512_and_si512(x, _mm512_set1_epi8(15));
    }
    const __m512i eight = _mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1);
    const __m512i at = _mm512_broadcast_i64x4(
        _mm256_set_epi64x(0x3e3c3a3836343230, 0x2e2c2a2826242220, 0x1e1c1a1816141210, 0x0e0c0a0806040200));
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)p));
    x = _mm512_multishift_epi64_epi8(at, _mm512_permutexvar_epi64(eight, x));
    return _mm512_and_si512(x, _mm512_set1_epi8(3));
}

/* Returns the channel of word w of vector j of a slice's sums. */
INLINE size_t channel_at(int bits, size_t j, size_t w)
{
    size_t lane = w / 4, i = 4 * j + w % 4; /* index of bytes in the order of values_of */
    return bits == 4 ? lane % 2 * ROW_BLOCK + 2 * i + lane / 2 : lane * TILE + i;
}

/* Transposes V. Word 4 l + w of vector j: byte 4 j + w of lane l, of 4 keys. */
INLINE void transpose_values(const int bits, uint8_t *to, const block_rows *v, size_t slices, prefetcher *other)
{
    for (size_t s = 0; s < slices; s++)
        for (size_t g = 0; g < QUADS; g++, to += 4 * VECTOR) {
            if (g % (QUADS / TRANSPOSE_PREFETCHES) == 0) prefetch_next(other);
            __m512i x[4];
            UNROLL for (size_t i = 0; i < 4; i++) x[i] = values_of(bits, v->row[4 * g + i], s);
            __m512i a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
            __m512i c = _mm512_unpacklo_epi8(x[2], x[3]), d = _mm512_unpackhi_epi8(x[2], x[3]);
            _mm512_storeu_si512(to, _mm512_unpacklo_epi16(a, c));
            _mm512_storeu_si512(to + VECTOR, _mm512_unpackhi_epi16(a, c));
            _mm512_storeu_si512(to + 2 * VECTOR, _mm512_unpacklo_epi16(b, d));
            _mm512_storeu_si512(to + 3 * VECTOR, _mm512_unpackhi_epi16(b, d));
        }
}

/* Converts two f16 numbers of each of 16 rows to floats. */
INLINE void two_numbers(VF *first, VF *second, const uint32_t *h)
{
    __m512i x = _mm512_loadu_si512(h);
    *first = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
    *second = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
}

/* Returns a mask of the TILE numbers outside [first, first + n). */
INLINE unsigned outside(const int32_t *x, int32_t first, int32_t n)
{
    __m512i at = _mm512_sub_epi32(_mm512_loadu_si512(x), _mm512_set1_epi32(first));
    return _mm512_cmpge_epu32_mask(at, _mm512_set1_epi32(n));
}

/* Adds products of `n` channels of all tiles, from element `from` of the queries on; `per` neighbouring tiles share a
 * query. */
INLINE void add_keys(const int per, int_sums sum[TILES], const uint8_t *k, const code_query *const q[TILES],
                     size_t from, size_t n)
{
    for (size_t end = from + n; from < end; from += 4, k += TILES * VECTOR) {
        __m512i qh = _mm512_setzero_si512(), ql = qh;
        UNROLL for (int t = 0; t < TILES; t++)
        {
            int32_t word[2];
            __m512i x = _mm512_loadu_si512(k + t * VECTOR);
            if (t % per == 0) {
                memcpy(word, q[t]->hi + from, 4);
                memcpy(word + 1, q[t]->lo + from, 4);
                qh = _mm512_set1_epi32(word[0]);
                ql = _mm512_set1_epi32(word[1]);
            }
            sum[t].hi = _mm512_dpbusd_epi32(sum[t].hi, x, qh);
            sum[t].lo = _mm512_dpbusd_epi32(sum[t].lo, x, ql);
        }
    }
}

INLINE VF larger(VF a, VF b)
{
    return _mm512_range_ps(a, b, 11); /* by absolute value */
}

/* Bytes of weights times scales of the two runs of a slice: [0] of keys 0 to 31, [1] of the others. Word 4 l + w of
 * each: keys 16 (w % 2) + 4 l .. + 3 of run w / 2. */
typedef struct {
    __m512i hi[2], lo[2];
    float unit; /* unit, derived from the largest weight */
} slice_weights;

INLINE void weigh(slice_weights *x, const VF e[TILES], const float *b0, const float *b1)
{
    VF w[2][TILES], most[2];
    UNROLL for (int r = 0; r < 2; r++)
    {
        UNROLL for (int t = 0; t < TILES; t++) w[r][t] = vf_mul(e[t], vf_load((r ? b1 : b0) + t * TILE));
        most[r] = larger(larger(w[r][0], w[r][1]), larger(w[r][2], w[r][3]));
    }
    const float largest = vf_hmax(larger(most[0], most[1]));
    const VF by = vf_set1(largest < FLT_MIN * LARGEST ? 0 : LARGEST / largest), half = vf_set1(128);
    UNROLL for (int i = 0; i < 2; i++)
    {
        __m512i u[2];
        UNROLL for (int r = 0; r < 2; r++) u[r] = _mm512_packs_epi32(
            _mm512_cvtps_epi32(vf_fma(w[r][2 * i], by, half)), _mm512_cvtps_epi32(vf_fma(w[r][2 * i + 1], by, half)));
        const __m512i low = _mm512_set1_epi16(255);
        __m512i lo = _mm512_packus_epi16(_mm512_and_si512(u[0], low), _mm512_and_si512(u[1], low));
        x->hi[i] = _mm512_packs_epi16(_mm512_srai_epi16(u[0], 8), _mm512_srai_epi16(u[1], 8));
        x->lo[i] = _mm512_xor_si512(lo, _mm512_set1_epi8(-128));
    }
    x->unit = largest / LARGEST;
}

/* Broadcasts the words of four keys to the channels of both runs, in the order of values_of. */
INLINE __m512i of_quad(const int bits, __m512i x, int g)
{
    const int w = 4 * (g % 4) + g / 4, a = w, b = bits == 4 ? w + 2 : w, c = bits == 4 ? w : w + 2, d = w + 2;
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d), x);
}

/* Computes the sums of the block for a slice, in the order of transpose_values. */
INLINE void sum_slice(const int bits, int_sums sum[VECTORS], const uint8_t *v, const slice_weights *w)
{
    UNROLL for (int j = 0; j < 4; j++) sum[j] = sums_from(0);
    UNROLL for (int i = 0; i < 2; i++) UNROLL for (int g = 0; g < QUADS / 2; g++, v += 4 * VECTOR)
    {
        __m512i xh = of_quad(bits, w->hi[i], g), xl = of_quad(bits, w->lo[i], g);
        UNROLL for (int j = 0; j < 4; j++)
        {
            __m512i x = _mm512_loadu_si512(v + j * VECTOR);
            sum[j].hi = _mm512_dpbusd_epi32(sum[j].hi, x, xh);
            sum[j].lo = _mm512_dpbusd_epi32(sum[j].lo, x, xl);
        }
    }
}

/* Sums the weights, in lanes of both runs: see weights_of. */
INLINE int_sums sum_of_weights(const slice_weights *w)
{
    const __m512i one = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    int_sums s = {_mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, one, w->hi[0]), one, w->hi[1]),
                  _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, one, w->lo[0]), one, w->lo[1])};
    return s;
}

/* Returns the sum of the weights of run r of block rows. */
INLINE float weights_of(const float rest[CODE_RUNS][VF_LANES], size_t r)
{
    float sum = 0;
    for (size_t i = 0; i < VF_LANES; i++)
        if (i / 2 % 2 == r % 2) sum += rest[r / 2][i];
    return sum;
}

#endif
