/* SPDX-License-Identifier: MIT */
/* Attention by tiles (tile.h), shared by prompts (k_prefill_tiles.c) and decode (k_decode_tiles.c): packed rows,
 * scores, softmax and values of one or two tiles of queries against PREFILL_KEYS entries.
 *
 * Operands are sums of two bf16 numbers, which hold f16 rows exactly and 16 bits of other rows, queries and weights. Of
 * the products, hi hi, hi lo and lo hi (rows first) are taken, in this order for each 32 channels or keys. bf16 rows
 * have no lo; products with a lo of 0 would have the same bits. A word pairs numbers i and i + 16 of 32, of rows and
 * queries alike, so that packing needs no shuffles.
 *
 * Both products have the query in the tile's column: scores [key][query] = K q^T, values [channel][query] = V^T w.
 * So the softmax needs no operation across lanes and a query's sums depend only on its own numbers. */
#ifndef KERNELS_CPU_TILE_ATTEND_H
#define KERNELS_CPU_TILE_ATTEND_H

#include <float.h>
#include <math.h>

#include "kernels/cpu/prefill.h"
#include "kernels/cpu/tile.h"

enum { STEPS = PREFILL_KEYS / STEP };

/* Layout of a key tile's work space (key_work):
 *   k     [STEPS][dim_pad / STEP][parts][2][tile of keys by channels]; parts: lo only if rows have it
 *   v     [dim_pad / STEP][STEPS][parts][2][tile of channels by keys]
 *   rows  [STEP][dim_pad]
 *   s     [2][PREFILL_KEYS][TILE_SIDE] scores, then weights [2][STEPS][hi, lo][tile of keys by queries] */

/* Packs 32 keys to K's step. */
INLINE void pack_k(const int parts, const key_work *w, size_t step)
{
    size_t panel = (size_t)parts * PAIR;
    float *k = w->k + step * (w->dim_pad / STEP) * panel;
    for (size_t i = 0; i < STEP; i++)
        for (size_t c = 0; c < w->dim_pad; c += STEP) {
            const float *row = w->rows + i * w->dim_pad + c;
            float *to = k + c / STEP * panel + i * TILE_SIDE;
            split(to, parts == 2 ? to + PAIR : NULL, row, row + TILE_SIDE);
        }
}

/* Packs 32 keys to V's step. */
INLINE void pack_v(const int parts, const key_work *w, size_t step)
{
    float t[2][TILE_WORDS];
    size_t panel = (size_t)parts * PAIR;
    for (size_t c = 0; c < w->dim_pad; c += TILE_SIDE) {
        float *to = w->v + (c / STEP * STEPS + step) * panel + c % STEP * TILE_SIDE;
        for (size_t i = 0; i < TILE_SIDE; i++) {
            const float *row = w->rows + i * w->dim_pad + c;
            split(t[0] + i * TILE_SIDE, parts == 2 ? t[1] + i * TILE_SIDE : NULL, row, row + TILE_SIDE * w->dim_pad);
        }
        for (int p = 0; p < parts; p++) transpose(to + p * PAIR, TILE_SIDE, t[p], TILE_SIDE, TILE_SIDE, TILE_SIDE);
    }
}

/* Packs entries [tile, tile + PREFILL_KEYS) of K and V; entries outside the list become zero. */
INLINE void pack_tile(const int parts, const prefill_block *b, const key_work *w, int64_t tile)
{
    for (size_t step = 0; step < STEPS; step++) {
        int64_t first = tile + (int64_t)(step * STEP);
        memset(w->rows, 0, STEP * w->dim_pad * sizeof *w->rows);
        read_entries(w->rows, w->dim_pad, b, &b->v, first, STEP);
        pack_v(parts, w, step);
        read_entries(w->rows, w->dim_pad, b, &b->k, first, STEP);
        pack_k(parts, w, step);
    }
}

/* Packs 16 rows of q in place to [dim_pad / STEP][hi, lo][tile of channels by queries]. */
INLINE void pack_q(float *q, const key_work *w)
{
    transpose(w->rows, TILE_SIDE, q, w->dim_pad, TILE_SIDE, w->dim_pad);
    for (size_t c = 0; c < w->dim_pad; c++) {
        float *to = q + c / STEP * PAIR + c % STEP * TILE_SIDE;
        const float *row = w->rows + c * TILE_SIDE;
        if (c % STEP < TILE_SIDE) split(to, to + TILE_WORDS, row, row + TILE_SIDE * TILE_SIDE);
    }
}

/* Adds the products of the two tiles a of the last dot_pairs, in registers 4 and 5, with other tiles b. One tile b goes
 * to register 7, and that of dot_pairs stays in register 6. */
INLINE void dot_same_a(tile_unit *u, const int tiles, const float *b0, const float *b1)
{
    if (tiles == 1) {
        TILE_LOAD(u, 7, b0);
        TILE_DOT(u, 0, 4, 7);
        TILE_DOT(u, 1, 5, 7);
        return;
    }
    TILE_LOAD(u, 6, b0);
    TILE_DOT(u, 0, 4, 6);
    TILE_DOT(u, 1, 5, 6);
    TILE_LOAD(u, 7, b1);
    TILE_DOT(u, 2, 4, 7);
    TILE_DOT(u, 3, 5, 7);
}

/* Then adds the products of other tiles a with the tiles b of dot_pairs. */
INLINE void dot_same_b(tile_unit *u, const int tiles, const float *a, const float *b0, const float *b1)
{
    if (tiles == 2) {
        dot_pairs(u, tiles, a, b0, b1);
        return;
    }
    TILE_LOAD(u, 4, a);
    TILE_DOT(u, 0, 4, 6);
    TILE_LOAD(u, 5, a + TILE_WORDS);
    TILE_DOT(u, 1, 5, 6);
}

/* Operands of multiply: out[t], two tiles each, (+)= a times b[t] over n steps. a: [n][parts][2] tiles, b[t]:
 * [n][hi, lo] tiles. */
typedef struct {
    float *out[2];
    const float *a, *b[2];
    size_t n;
} tile_product;

/* tiles: of queries, 1 or 2, as in the following functions. A result has the same bits for both. */
INLINE void multiply(tile_unit *u, const int parts, const int tiles, const tile_product *p, const bool add)
{
    const float *a = p->a, *b0 = p->b[0], *b1 = p->b[1];
    sums_load(u, tiles, p->out, add);
    for (size_t i = 0; i < p->n; i++, a += parts * PAIR, b0 += PAIR, b1 += PAIR) {
        dot_pairs(u, tiles, a, b0, b1);
        dot_same_a(u, tiles, b0 + TILE_WORDS, b1 + TILE_WORDS);
        if (parts == 2) dot_same_b(u, tiles, a + PAIR, b0, b1);
    }
    sums_store(u, tiles, p->out);
}

/* Sets the scores [n][TILE_SIDE] of each query outside [lo, hi) - tile to -INFINITY. */
INLINE void mask(float *s, int64_t n, const int64_t *lo, const int64_t *hi, int64_t tile)
{
    for (size_t q = 0; q < TILE_SIDE; q++) {
        for (int64_t i = 0; i < lo[q] - tile && i < n; i++) s[i * TILE_SIDE + (int64_t)q] = -INFINITY;
        for (int64_t i = hi[q] > tile ? hi[q] - tile : 0; i < n; i++) s[i * TILE_SIDE + (int64_t)q] = -INFINITY;
    }
}

/* Converts n scores of VF_LANES queries to exp(score - top); true if a top has changed. A query without a visible key
 * so far keeps top = -INFINITY, sum = 0. */
INLINE bool softmax_lanes(float *s, size_t n, float *top, float *sum, float *factor)
{
    VF old = vf_load(top), m[4], total[4];
    UNROLL for (size_t j = 0; j < 4; j++)
    {
        m[j] = vf_load(s + j * TILE_SIDE);
        total[j] = vf_zero();
    }
    for (size_t i = 4; i < n; i += 4)
        UNROLL for (size_t j = 0; j < 4; j++) m[j] = vf_max(m[j], vf_load(s + (i + j) * TILE_SIDE));
    VF now = vf_max(old, vf_max(vf_max(m[0], m[1]), vf_max(m[2], m[3])));
    VF base = vf_max(vf_set1(-FLT_MAX), now), by = vf_exp_down(vf_sub(old, base));
    for (size_t i = 0; i < n; i += 4) UNROLL for (size_t j = 0; j < 4; j++)
        {
            VF e = vf_exp_down(vf_sub(vf_load(s + (i + j) * TILE_SIDE), base));
            vf_store(s + (i + j) * TILE_SIDE, e);
            total[j] = vf_add(total[j], e);
        }
    total[0] = vf_add(vf_add(total[0], total[1]), vf_add(total[2], total[3]));
    vf_store(sum, vf_fma(vf_load(sum), by, total[0]));
    vf_store(top, now);
    vf_store(factor, by);
    return vf_ge(old, now) != (1u << VF_LANES) - 1;
}

/* Converts the scores of a tile's queries to packed weights and rescales acc [dim_pad][TILE_SIDE]. */
INLINE void softmax_tile(float *s, size_t n, float *top, float *sum, float *acc, size_t dim_pad)
{
    float factor[TILE_SIDE];
    bool grown = false;
    for (size_t q = 0; q < TILE_SIDE; q += VF_LANES) grown |= softmax_lanes(s + q, n, top + q, sum + q, factor + q);
    for (size_t c = 0; grown && c < dim_pad; c++)
        for (size_t q = 0; q < TILE_SIDE; q += VF_LANES) {
            float *a = acc + c * TILE_SIDE + q;
            vf_store(a, vf_mul(vf_load(a), vf_load(factor + q)));
        }
    for (size_t i = 0; i < n; i++, s += TILE_SIDE)
        if (i % STEP < TILE_SIDE) split(s, s + TILE_WORDS, s, s + TILE_WORDS);
}

/* Returns the steps that cover n keys. */
INLINE size_t steps_of(size_t n)
{
    return (n + STEP - 1) / STEP;
}

/* Returns the scores of tile t of queries: [PREFILL_KEYS][TILE_SIDE]. */
INLINE float *scores_of(const key_work *w, size_t t)
{
    return w->s + t * PREFILL_KEYS * TILE_SIDE;
}

/* Computes the scores of query rows from r0 on with the first n packed keys. */
INLINE void score_rows(tile_unit *u, const int parts, const int tiles, const prefill_block *b, const key_work *w,
                       size_t r0, size_t n)
{
    size_t pad = w->dim_pad, panels = pad / STEP;
    const float *q = b->q + r0 * pad;
    for (size_t i = 0; i < steps_of(n); i++) {
        float *s = w->s + i * PAIR;
        tile_product p = {{s, s + PREFILL_KEYS * TILE_SIDE},
                          w->k + i * panels * (size_t)parts * PAIR,
                          {q, q + (tiles - 1) * TILE_SIDE * pad},
                          panels};
        multiply(u, parts, tiles, &p, false);
    }
}

/* Converts these scores to weights and adds the values of the keys, which begin at entry `tile`. */
INLINE void value_rows(tile_unit *u, const int parts, const int tiles, const prefill_block *b, const key_work *w,
                       size_t r0, int64_t tile, size_t n)
{
    size_t pad = w->dim_pad, steps = steps_of(n);
    float *acc = b->acc + r0 * pad;
    for (size_t t = 0; t < (size_t)tiles; t++) {
        size_t r = r0 + t * TILE_SIDE;
        mask(scores_of(w, t), (int64_t)(steps * STEP), b->lo + r, b->hi + r, tile);
        softmax_tile(scores_of(w, t), steps * STEP, b->top + r, b->sum + r, b->acc + r * pad, pad);
    }
    for (size_t c = 0; c < pad / STEP; c++) {
        float *to = acc + c * PAIR;
        tile_product p = {{to, to + (tiles - 1) * TILE_SIDE * pad},
                          w->v + c * STEPS * (size_t)parts * PAIR,
                          {scores_of(w, 0), scores_of(w, (size_t)tiles - 1)},
                          steps};
        multiply(u, parts, tiles, &p, true);
    }
}

/* Converts the sums of 16 rows from [dim_pad][TILE_SIDE] to [TILE_SIDE][dim_pad], in place. */
INLINE void unpack_acc(float *acc, const key_work *w)
{
    memcpy(w->rows, acc, TILE_SIDE * w->dim_pad * sizeof *w->rows);
    transpose(acc, w->dim_pad, w->rows, TILE_SIDE, w->dim_pad, TILE_SIDE);
}

#endif
