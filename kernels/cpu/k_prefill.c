/* SPDX-License-Identifier: MIT */
/* Prompt attention: key tiles outside, query rows inside, online softmax, everything in float32.
 * A key tile's K and V are widened and packed once into panels of TILE_VECS vectors and serve all
 * query rows of the block; PREFILL_ROWS rows pass over a panel while it lies in L1. Key tiles start at
 * multiples of PREFILL_KEYS entries of the list (without one: slots), so a query meets the same tiles in
 * the same order whatever chunk it came in, and its lanes never mix with another query's: its bits
 * depend on nothing else. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/k.h"

enum { PANEL = TILE_VECS * VF_LANES, SUPER = PREFILL_ROWS / TILE_ROWS * TILE_ROWS };

/* Work space of a key tile; see prefill_work_floats. */
typedef struct {
    float *k;      /* [PREFILL_KEYS / PANEL][head_dim][PANEL] */
    float *v;      /* [dim_pad / PANEL][PREFILL_KEYS][PANEL] */
    float *rows;   /* [PANEL][dim_pad] rows on their way into k */
    float *s;      /* [PREFILL_ROWS][PREFILL_KEYS] scores, then weights */
    float *factor; /* [PREFILL_ROWS] */
    size_t dim_pad;
} tile_work;

/* Entries [first, first + PANEL) to w->rows as float; rows outside the list are left as they are. */
static void panel_rows(const prefill_block *b, const tile_work *w, const row_source *from, int64_t first)
{
    int64_t lo = first > b->list_lo ? first : b->list_lo;
    int64_t hi = first + PANEL < b->list_hi ? first + PANEL : b->list_hi;
    if (lo >= hi) return;
    LEVEL(k_rows)(w->rows + (size_t)(lo - first) * w->dim_pad, w->dim_pad, from, b->idx, lo, (size_t)(hi - lo));
}

/* Entries [tile, tile + PREFILL_KEYS) of K and V; what is not in the list becomes zero. */
static void pack_tile(const prefill_block *b, const tile_work *w, int64_t tile)
{
    size_t d = b->head_dim;
    for (size_t p = 0; p < PREFILL_KEYS; p += PANEL) {
        float *k = w->k + p * d;
        memset(w->rows, 0, PANEL * w->dim_pad * sizeof *w->rows);
        panel_rows(b, w, &b->v, tile + (int64_t)p);
        for (size_t i = 0; i < PANEL; i++)
            for (size_t c = 0; c < w->dim_pad; c += PANEL)
                memcpy(w->v + c * PREFILL_KEYS + (p + i) * PANEL, w->rows + i * w->dim_pad + c, PANEL * sizeof *w->v);
        panel_rows(b, w, &b->k, tile + (int64_t)p);
        for (size_t c = 0; c < d; c++)
            for (size_t j = 0; j < PANEL; j++) k[c * PANEL + j] = w->rows[j * w->dim_pad + c];
    }
}

/* out[r][0..PANEL) (+)= a[r][0..n) . panel [n][PANEL] for TILE_ROWS rows. factor NULL: no old value. */
INLINE void tile_product(float *out, size_t out_stride, const float *a, size_t a_stride, const float *panel,
                         size_t n, const float *factor)
{
    VF acc[TILE_ROWS][TILE_VECS];
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++)
        UNROLL for (size_t j = 0; j < TILE_VECS; j++)
            acc[r][j] = factor ? vf_mul(vf_load(out + r * out_stride + j * VF_LANES), vf_set1(factor[r])) : vf_zero();
    for (size_t i = 0; i < n; i++) {
        VF v[TILE_VECS];
        UNROLL for (size_t j = 0; j < TILE_VECS; j++) v[j] = vf_load(panel + i * PANEL + j * VF_LANES);
        UNROLL for (size_t r = 0; r < TILE_ROWS; r++) {
            VF x = vf_set1(a[r * a_stride + i]);
            UNROLL for (size_t j = 0; j < TILE_VECS; j++) acc[r][j] = vf_fma(x, v[j], acc[r][j]);
        }
    }
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++)
        UNROLL for (size_t j = 0; j < TILE_VECS; j++) vf_store(out + r * out_stride + j * VF_LANES, acc[r][j]);
}

/* Scores of a row outside [lo, hi) become -INFINITY. */
static void mask_row(float *s, int64_t tile, int64_t lo, int64_t hi)
{
    int64_t a = lo - tile, b = hi - tile;
    for (int64_t i = 0; i < PREFILL_KEYS; i++)
        if (i < a || i >= b) s[i] = -INFINITY;
}

/* Scores to weights of one row. A row without a visible key yet keeps top = -INFINITY, sum = 0. */
static void softmax_row(float *s, float *top, float *sum, float *factor)
{
    VF m = vf_load(s), total = vf_zero();
    for (size_t i = VF_LANES; i < PREFILL_KEYS; i += VF_LANES) m = vf_max(m, vf_load(s + i));
    float now = vf_hmax(m), f[VF_LANES];
    if (!(now > *top)) now = *top;
    VF mv = vf_set1(now == -INFINITY ? 0 : now);
    for (size_t i = 0; i < PREFILL_KEYS; i += VF_LANES) {
        VF e = vf_exp(vf_sub(vf_load(s + i), mv));
        vf_store(s + i, e);
        total = vf_add(total, e);
    }
    vf_store(f, vf_exp(vf_sub(vf_set1(*top), mv)));
    *factor = f[0];
    *sum = *sum * f[0] + vf_sum(total);
    *top = now;
}

/* Rows [r0, r0 + n) against the packed tile at `tile`; used: keys of it that any of them sees. */
static void attend_rows(const prefill_block *b, const tile_work *w, size_t r0, size_t n, int64_t tile, size_t used)
{
    size_t d = b->head_dim;
    for (size_t p = 0; p < PREFILL_KEYS; p += PANEL)
        for (size_t r = 0; r < n && p < used; r += TILE_ROWS)
            tile_product(w->s + r * PREFILL_KEYS + p, PREFILL_KEYS, b->q + (r0 + r) * d, d, w->k + p * d, d, NULL);
    for (size_t r = 0; r < n; r++) {
        float *s = w->s + r * PREFILL_KEYS;
        int64_t lo = b->lo[r0 + r], hi = b->hi[r0 + r];
        if (lo > tile || hi < tile + PREFILL_KEYS) mask_row(s, tile, lo, hi);
        softmax_row(s, b->top + r0 + r, b->sum + r0 + r, w->factor + r);
    }
    for (size_t c = 0; c < d; c += PANEL)
        for (size_t r = 0; r < n; r += TILE_ROWS)
            tile_product(b->acc + (r0 + r) * w->dim_pad + c, w->dim_pad, w->s + r * PREFILL_KEYS, PREFILL_KEYS,
                         w->v + c * PREFILL_KEYS, used, w->factor + r);
}

/* Entries that rows [r0, r0 + n) see together; lo >= hi: none. */
static void rows_see(const prefill_block *b, size_t r0, size_t n, int64_t *lo, int64_t *hi)
{
    *lo = INT64_MAX;
    *hi = INT64_MIN;
    for (size_t r = r0; r < r0 + n; r++) {
        if (b->lo[r] >= b->hi[r]) continue;
        if (b->lo[r] < *lo) *lo = b->lo[r];
        if (b->hi[r] > *hi) *hi = b->hi[r];
    }
}

void LEVEL(k_prefill)(const prefill_block *b)
{
    size_t pad = prefill_dim_pad(b->head_dim);
    tile_work w = {.dim_pad = pad};
    w.k = b->work;
    w.v = w.k + PREFILL_KEYS * pad;
    w.rows = w.v + PREFILL_KEYS * pad;
    w.s = w.rows + HEAD_DIM_PAD * pad;
    w.factor = w.s + PREFILL_ROWS * PREFILL_KEYS;
    for (size_t r = 0; r < b->n_rows; r++) {
        b->top[r] = -INFINITY;
        b->sum[r] = 0;
    }
    memset(b->acc, 0, b->n_rows * pad * sizeof *b->acc);
    int64_t lo, hi;
    rows_see(b, 0, b->n_rows, &lo, &hi);
    if (lo >= hi) return;
    for (int64_t tile = lo / PREFILL_KEYS * PREFILL_KEYS; tile < hi; tile += PREFILL_KEYS) {
        pack_tile(b, &w, tile);
        for (size_t r = 0; r < b->n_rows; r += SUPER) {
            size_t n = b->n_rows - r < SUPER ? b->n_rows - r : SUPER;
            int64_t from, to;
            rows_see(b, r, n, &from, &to);
            if (from >= tile + PREFILL_KEYS || to <= tile) continue;
            attend_rows(b, &w, r, n, tile, to - tile < PREFILL_KEYS ? (size_t)(to - tile) : PREFILL_KEYS);
        }
    }
}
