/* SPDX-License-Identifier: MIT */
/* Products with codes for k_decode_codes.c, in 16 bits: AVX2, which sums pairs of products to 32 bits.
 *
 * K rows are transposed so that a word holds two channels of a key, V rows so that it holds two keys of a channel. A
 * vector has 8 words, for 8 keys or 8 channels. Both are transposed once for all heads. */
#ifndef KERNELS_CPU_CODES_AVX2_H
#define KERNELS_CPU_CODES_AVX2_H

enum {
    PAIRS = DECODE_BLOCK / 2,
    VECTOR = 32,                              /* bytes of a vector */
    VECTORS = SLICE / VF_LANES,               /* number of vectors of sums */
    CODE_BYTES = 2,                           /* bytes of a transposed code */
    CODES = SLICE * DECODE_BLOCK * CODE_BYTES /* bytes of a slice */
};

typedef struct {
    __m256i x;
} int_sums;

INLINE int_sums sums_from(int32_t x)
{
    int_sums s = {_mm256_set1_epi32(x)};
    return s;
}

INLINE VF as_floats(int_sums s)
{
    return _mm256_cvtepi32_ps(s.x);
}

INLINE __m256i load_words(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Adds products in sequence: gcc would otherwise add up products first, for which there are not enough registers. */
INLINE void add_products(int_sums *sum, __m256i a, __m256i b)
{
    sum->x = _mm256_add_epi32(sum->x, _mm256_madd_epi16(a, b));
#ifndef __clang__
    __asm__("" : "+x"(sum->x));
#endif
}

INLINE unsigned not_finite(VF v)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(vf_sub(v, v), vf_zero(), _CMP_NEQ_UQ));
}

INLINE VF size_of(VF v)
{
    return _mm256_andnot_ps(vf_set1(-0.0f), v);
}

/* Converts vectors of integers that fit 16 bits, in order. */
INLINE __m256i as_shorts(VF a, VF b)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b)), 0xd8);
}

/* Arranges 16 numbers in pairs that match transpose_words: numbers half a word of codes apart. */
INLINE __m256i in_pairs(const int bits, __m256i x)
{
    if (bits == 2) {
        __m128i a = _mm256_castsi256_si128(x), b = _mm256_extracti128_si256(x, 1);
        return _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
    }
    const __m128i by_2 = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const __m128i by_4 = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(bits == 8 ? by_2 : by_4));
}

/* Converts x of d channels, at most `largest`, to integers; returns their unit. */
INLINE float halve(const int bits, code_query *q, const float *x, float largest, size_t d)
{
    VF by = vf_set1(largest < FLT_MIN * LARGEST ? 0 : LARGEST / largest);
    for (size_t c = 0; c < d; c += 2 * VF_LANES) {
        __m256i i = as_shorts(vf_mul(vf_load(x + c), by), vf_mul(vf_load(x + c + VF_LANES), by));
        _mm256_storeu_si256((__m256i *)(void *)(q->x + c), in_pairs(bits, i));
    }
    return largest / LARGEST;
}

/* Returns the integer at index c in the order of the products, which belongs to the run of channel c. */
INLINE int32_t number_of(const code_query *q, size_t c)
{
    return q->x[c];
}

INLINE __m128i load_half(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

/* Loads 16 bytes from a into the low lane, and from b into the high one. */
INLINE __m256i two_lanes(const unsigned char *a, const unsigned char *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(a)), load_half(b), 1);
}

/* Transposes four words of 8 rows: word w of all rows is a[w]. */
INLINE void transpose_words(__m256i a[4], const unsigned char *const *row, size_t at)
{
    __m256i b[4];
    UNROLL for (int i = 0; i < 4; i++) a[i] = two_lanes(row[i] + at, row[i + 4] + at);
    UNROLL for (int i = 0; i < 2; i++)
    {
        b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++)
    {
        a[2 * i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
        a[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
    }
}

/* Returns code number i of each half word. */
INLINE __m256i codes_at(const int bits, __m256i x, int i)
{
    if (i) x = _mm256_srli_epi16(x, i * bits);
    return (i + 1) * bits < 16 ? _mm256_and_si256(x, _mm256_set1_epi16((short)((1 << bits) - 1))) : x;
}

/* Stores all codes of words, in as many vectors. */
INLINE void put_words(const int bits, uint8_t **to, __m256i x)
{
    UNROLL for (int i = 0; i < 16 / bits; i++, *to += VECTOR)
        _mm256_storeu_si256((__m256i *)(void *)*to, codes_at(bits, x, i));
}

INLINE void transpose_keys(const int bits, uint8_t *to, const block_rows *k, size_t slices, prefetcher *other)
{
    const size_t span = (size_t)(32 / bits), words = slices * SLICE / span; /* channels of a word */
    for (size_t t = 0; t < TILES; t++) {
        prefetch_next(other);
        for (size_t w = 0; w < words; w += 4) {
            uint8_t *out = to + (w * span / 2 * TILES + t) * VECTOR;
            __m256i a[4];
            transpose_words(a, k->row + t * TILE, w * sizeof(int32_t));
            UNROLL for (size_t i = 0; i < 4; i++) UNROLL for (size_t j = 0; j < span / 2; j++, out += TILES * VECTOR)
                _mm256_storeu_si256((__m256i *)(void *)out, codes_at(bits, a[i], (int)j));
        }
    }
}

/* Returns the first key of pair p of a block, in the order of `weigh`. */
INLINE size_t key_of(size_t p)
{
    return p / 8 * 16 + p % 2 * 2 + p / 2 % 2 * 8 + p / 4 % 2 * 4;
}

/* Transposes V. Lane 0 of each vector has channels of the slice's first run, lane 1 of its second one: channel_at. */
INLINE void transpose_values(const int bits, uint8_t *to, const block_rows *v, size_t slices, prefetcher *other)
{
    const size_t run = (size_t)(ROW_BLOCK * bits / 8), words = run / 16; /* bytes of a run; vectors of words */
    for (size_t s = 0; s < slices; s++)
        for (size_t p = 0; p < PAIRS; p++) {
            if (p % (PAIRS / TRANSPOSE_PREFETCHES) == 0) prefetch_next(other);
            const unsigned char *x = v->row[key_of(p)] + 2 * s * run, *y = v->row[key_of(p) + 1] + 2 * s * run;
            if (bits == 2) {
                __m128i a = load_half(x), b = load_half(y);
                put_words(2, &to, _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b)));
            }
            UNROLL for (size_t i = 0; i < words; i++)
            {
                __m256i a = two_lanes(x + 16 * i, x + run + 16 * i), b = two_lanes(y + 16 * i, y + run + 16 * i);
                put_words(bits, &to, _mm256_unpacklo_epi16(a, b));
                put_words(bits, &to, _mm256_unpackhi_epi16(a, b));
            }
        }
}

/* Returns the channel of word w of vector j of a slice's sums. */
INLINE size_t channel_at(int bits, size_t j, size_t w)
{
    const size_t n = (size_t)(16 / bits); /* codes of half a word */
    return w / 4 * ROW_BLOCK + j / n * 4 * n + w % 4 * n + j % n;
}

/* Converts two f16 numbers of each of 8 rows to floats. */
INLINE void two_numbers(VF *first, VF *second, const uint32_t *h)
{
    __m256i x = load_words(h);
    x = _mm256_packus_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0xffff)), _mm256_srli_epi32(x, 16));
    x = _mm256_permute4x64_epi64(x, 0xd8);
    *first = _mm256_cvtph_ps(_mm256_castsi256_si128(x));
    *second = _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1));
}

/* Returns a mask of the TILE numbers outside [first, first + n). */
INLINE unsigned outside(const int32_t *x, int32_t first, int32_t n)
{
    __m256i at = _mm256_sub_epi32(load_words(x), _mm256_set1_epi32(first));
    __m256i in = _mm256_cmpeq_epi32(_mm256_min_epu32(at, _mm256_set1_epi32(n - 1)), at);
    return 0xff ^ (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(in));
}

INLINE __m256i pair_at(const int16_t *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
}

/* Adds products of `n` channels of all tiles, from element `from` of the queries on; `per` neighbouring tiles share a
 * query. */
INLINE void add_keys(const int per, int_sums sum[TILES], const uint8_t *k, const code_query *const q[TILES],
                     size_t from, size_t n)
{
    enum { STEPS = 4 };
    for (const size_t end = from + n; from < end; from += 2 * STEPS)
        UNROLL for (size_t i = from; i < from + 2 * STEPS; i += 2, k += TILES * VECTOR)
        {
            __m256i x = _mm256_setzero_si256();
            UNROLL for (int t = 0; t < TILES; t++)
            {
                if (t % per == 0) x = pair_at(q[t]->x + i);
                add_products(&sum[t], x, load_words(k + t * VECTOR));
            }
        }
}

/* Weights times scales of the two runs of a slice: lane 0 of each vector has pairs of the first run, lane 1 the same
 * pairs of the second. */
typedef struct {
    __m256i x[PAIRS / 4];
    float unit; /* unit, derived from the largest weight */
} slice_weights;

INLINE void weigh(slice_weights *x, const VF e[TILES], const float *b0, const float *b1)
{
    VF most = vf_zero();
    UNROLL for (int t = 0; t < TILES; t++)
    {
        most = vf_max(most, size_of(vf_mul(e[t], vf_load(b0 + t * TILE))));
        most = vf_max(most, size_of(vf_mul(e[t], vf_load(b1 + t * TILE))));
    }
    const float largest = vf_hmax(most);
    const VF by = vf_set1(largest < FLT_MIN * LARGEST ? 0 : LARGEST / largest);
    UNROLL for (int t = 0; t < TILES; t += 2)
    {
        __m256i w[2];
        UNROLL for (int r = 0; r < 2; r++)
        {
            const float *b = (r ? b1 : b0) + t * TILE;
            w[r] = _mm256_packs_epi32(_mm256_cvtps_epi32(vf_mul(vf_mul(e[t], vf_load(b)), by)),
                                      _mm256_cvtps_epi32(vf_mul(vf_mul(e[t + 1], vf_load(b + TILE)), by)));
        }
        x->x[t] = _mm256_permute2x128_si256(w[0], w[1], 0x20);
        x->x[t + 1] = _mm256_permute2x128_si256(w[0], w[1], 0x31);
    }
    x->unit = largest / LARGEST;
}

/* Computes the sums of the block for a slice, in the order of transpose_values. */
INLINE void sum_slice(const int bits, int_sums sum[VECTORS], const uint8_t *v, const slice_weights *w)
{
    (void)bits;
    UNROLL for (int j = 0; j < VECTORS; j++) sum[j] = sums_from(0);
    for (size_t p = 0; p < PAIRS / 4; p++) {
        const __m256i x[4] = {_mm256_shuffle_epi32(w->x[p], 0), _mm256_shuffle_epi32(w->x[p], 0x55),
                              _mm256_shuffle_epi32(w->x[p], 0xaa), _mm256_shuffle_epi32(w->x[p], 0xff)};
        UNROLL for (int i = 0; i < 4; i++, v += VECTORS * VECTOR) UNROLL for (int j = 0; j < VECTORS; j++)
            add_products(&sum[j], x[i], load_words(v + j * VECTOR));
    }
}

/* Sums the weights, in lanes of both runs: see weights_of. */
INLINE int_sums sum_of_weights(const slice_weights *w)
{
    int_sums s = sums_from(0);
    UNROLL for (int p = 0; p < PAIRS / 4; p++) add_products(&s, w->x[p], _mm256_set1_epi16(1));
    return s;
}

/* Returns the sum of the weights of run r of block rows. */
INLINE float weights_of(const float rest[CODE_RUNS][VF_LANES], size_t r)
{
    float sum = 0;
    for (size_t i = r % 2 * 4; i < r % 2 * 4 + 4; i++) sum += rest[r / 2][i];
    return sum;
}

#endif
