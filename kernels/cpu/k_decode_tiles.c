/* SPDX-License-Identifier: MIT */
/* Decode attention of a few queries of one sequence by tiles (tile_attend.h): heads of up to two tiles of queries share
 * the packed rows. Key tiles start at multiples of PREFILL_KEYS entries from the chunk's first on. So a query's bits
 * depend neither on the other queries nor on their number. */
#include "config.h"

#include "kernels/cpu/tile_attend.h"

_Static_assert((int)DECODE_TILE_HEADS == (int)PAIR_ROWS, "the heads of two tiles");

/* A chunk as a block of query rows, padded to whole tiles. */
typedef struct {
    prefill_block b;
    key_work w;
    int64_t lo[PAIR_ROWS], hi[PAIR_ROWS];
    float top[PAIR_ROWS];
} tile_chunk;

/* Returns the query that row r belongs to. */
INLINE const decode_query *query_of(const decode_chunk *c, size_t r)
{
    return &c->of[r / c->group];
}

static void open_chunk(tile_chunk *t, const decode_chunk *c)
{
    size_t d = c->head_dim, pad = prefill_dim_pad(d), heads = c->n_queries * c->group, most = 0;
    size_t rows = heads <= TILE_SIDE ? TILE_SIDE : PAIR_ROWS;
    float *work = (float *)(void *)(((uintptr_t)c->work + 63) / 64 * 64);
    t->b = (prefill_block){.lo = t->lo, .hi = t->hi, .k = c->k, .v = c->v, .idx = c->idx, .n_rows = rows};
    t->b.head_dim = d;
    t->b.work = work;
    t->b.q = work + prefill_work_floats(d);
    t->b.acc = t->b.q + PAIR_ROWS * pad;
    t->b.sum = t->b.acc + PAIR_ROWS * pad;
    t->b.top = t->top;
    memset(t->b.q, 0, rows * pad * sizeof *t->b.q);
    for (size_t r = 0; r < rows; r++) {
        t->lo[r] = t->hi[r] = c->first;
        if (r >= heads) continue;
        const decode_query *of = query_of(c, r);
        t->hi[r] += (int64_t)of->n;
        if (of->n > most) most = of->n;
        LEVEL(k_scale)(t->b.q + r * pad, of->q + r % c->group * d, c->scale, d);
    }
    t->b.list_lo = c->first;
    t->b.list_hi = c->first + (int64_t)most;
    t->w = begin_block(&t->b);
    for (size_t r = 0; r < rows; r += TILE_SIDE) pack_q(t->b.q + r * pad, &t->w);
}

/* Adds the biases to the scores of n entries from number `at` of the chunk on, and copies the scores that a query asks
 * for. */
static void bias_and_scores(const decode_chunk *c, const key_work *w, size_t at, size_t n)
{
    for (size_t r = 0; r < c->n_queries * c->group; r++) {
        const decode_query *of = query_of(c, r);
        size_t own = r % c->group, seen = of->n > at ? of->n - at : 0;
        float *s = scores_of(w, r / TILE_SIDE) + r % TILE_SIDE;
        if (!of->bias && !of->scores) continue;
        for (size_t i = 0; i < n && i < seen; i++) {
            if (of->bias) s[i * TILE_SIDE] += of->bias[own * c->bias_stride + at + i];
            if (of->scores) of->scores[own * c->score_stride + at + i] = s[i * TILE_SIDE];
        }
    }
}

INLINE void attend_chunk(const int parts, const int tiles, const decode_chunk *c, const tile_chunk *t)
{
    tile_unit u;
    int64_t end = t->b.list_hi;
    tile_begin(&u);
    for (int64_t tile = c->first; tile < end; tile += PREFILL_KEYS) {
        size_t n = end - tile < PREFILL_KEYS ? (size_t)(end - tile) : PREFILL_KEYS;
        pack_tile(parts, &t->b, &t->w, tile);
        score_rows(&u, parts, tiles, &t->b, &t->w, 0, n);
        bias_and_scores(c, &t->w, (size_t)(tile - c->first), n);
        value_rows(&u, parts, tiles, &t->b, &t->w, 0, tile, n);
    }
    tile_end(&u);
}

/* Separate functions, so that parts and tiles are constants in each. */
#define ATTEND(parts, tiles)                                                                                           \
    static __attribute__((noinline)) void attend_##parts##_##tiles(const decode_chunk *c, const tile_chunk *t)         \
    {                                                                                                                  \
        attend_chunk(parts, tiles, c, t);                                                                              \
    }
ATTEND(1, 1)
ATTEND(1, 2)
ATTEND(2, 1)
ATTEND(2, 2)

static void attend(const decode_chunk *c)
{
    static void (*const by[2][2])(const decode_chunk *, const tile_chunk *) = {{attend_1_1, attend_1_2},
                                                                               {attend_2_1, attend_2_2}};
    tile_chunk t;
    open_chunk(&t, c);
    by[c->k.type == DT_F16][t.b.n_rows == PAIR_ROWS](c, &t);
    for (size_t r = 0; r < t.b.n_rows; r += TILE_SIDE) unpack_acc(t.b.acc + r * t.w.dim_pad, &t.w);
    for (size_t r = 0; r < c->n_queries * c->group; r++) {
        const decode_query *of = query_of(c, r);
        size_t own = r % c->group;
        of->sum[own] = t.b.sum[r];
        of->top[own] = isnan(t.b.sum[r]) ? NAN : t.top[r]; /* a part with -INFINITY would be skipped */
        memcpy(of->acc + own * c->head_dim, t.b.acc + r * t.w.dim_pad, c->head_dim * sizeof *of->acc);
    }
}

/* True if the V rows that only some queries see are finite, so that a weight of 0 hides them from the others. */
static bool ends_finite(const decode_chunk *c)
{
    size_t least = c->of[0].n, most = least;
    float row[HEAD_DIM_MAX];
    for (size_t i = 1; i < c->n_queries; i++) {
        if (c->of[i].n < least) least = c->of[i].n;
        if (c->of[i].n > most) most = c->of[i].n;
    }
    bool finite = true;
    for (size_t i = least; i < most && finite; i++) {
        LEVEL(k_rows)(row, c->head_dim, &c->v, c->idx, c->first + (int64_t)i, 1);
        finite = LEVEL(k_finite)(row, c->head_dim);
    }
    return finite;
}

void TILES(k_decode)(const decode_chunk *c)
{
    if (ends_finite(c)) {
        attend(c);
        return;
    }
    for (size_t i = 0; i < c->n_queries; i++) {
        decode_chunk one = *c;
        one.of[0] = c->of[i];
        one.n_queries = 1;
        attend(&one);
    }
}
