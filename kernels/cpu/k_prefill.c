/* SPDX-License-Identifier: MIT */
/* Prompt attention: key tiles in the outer loop, query rows in the inner one, online softmax. A key tile's K and V are
 * widened and packed once into panels of TILE_VECS vectors, which serve all query rows of the block. PREFILL_ROWS rows
 * pass over a panel while it is in L1. Key tiles start at multiples of PREFILL_KEYS entries of the list (without a
 * list: slots). So a query processes the same tiles in the same order in any chunk, and its lanes never mix with those
 * of another query: its bits depend on nothing else.
 *
 * Products are in float32, or, if the block allows it and the level supports it (simd_pairs.h), of pairs of bf16
 * numbers: q and k along the channels, weights and v along the keys. `per` is the number of values a lane then holds;
 * panels and rows of q and of weights shrink accordingly. Scores, their softmax and all sums are float32 in both
 * cases. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/prefill.h"
#include "kernels/cpu/simd_pairs.h"

enum { PANEL = TILE_VECS * VF_LANES, SUPER = PREFILL_ROWS / TILE_ROWS * TILE_ROWS };

static const float LN2 = 0.693147181f, LOG2E = 1.44269504f;

/* Layout of a key tile's work space (key_work):
 *   k       [PREFILL_KEYS / PANEL][head_dim / per][PANEL]
 *   v       [dim_pad / PANEL][PREFILL_KEYS / per][PANEL]
 *   rows    [PANEL][dim_pad]
 *   s       [PREFILL_ROWS][PREFILL_KEYS]
 *   factor  [PREFILL_ROWS] */

/* Returns the lanes for n numbers. */
INLINE size_t lanes_of(const int per, size_t n)
{
    return per == 2 ? (n + 1) / 2 : n;
}

/* Converts a row of n numbers, padded to pairs of vectors, to pairs in place. */
INLINE void pair_row(float *row, size_t n, float by)
{
    VF f = vf_set1(by);
    for (size_t c = 0; c < n; c += 2 * VF_LANES)
        vf_store(row + c / 2, vp_pack(vf_mul(vf_load(row + c), f), vf_mul(vf_load(row + c + VF_LANES), f)));
}

/* Packs w->rows to V's entries [p, p + PANEL) of a tile. */
INLINE void pack_v(const int per, const key_work *w, size_t p)
{
    for (size_t i = 0; i < PANEL; i += (size_t)per)
        for (size_t c = 0; c < w->dim_pad; c += VF_LANES) {
            const float *row = w->rows + i * w->dim_pad + c;
            float *v = w->v + c / PANEL * PANEL * (PREFILL_KEYS / per) + (p + i) / (size_t)per * PANEL + c % PANEL;
            vf_store(v, per == 2 ? vp_join(vf_load(row), vf_load(row + w->dim_pad)) : vf_load(row));
        }
}

/* Packs w->rows, transposed, to a panel of K, padded with zeros to a whole vector. */
INLINE void pack_k(const int per, const key_work *w, float *k, size_t d)
{
    for (size_t j = 0; j < PANEL && per == 2; j++) pair_row(w->rows + j * w->dim_pad, d, 1);
    for (size_t c = 0; c < lanes_of(per, d); c += VF_LANES)
        for (size_t j = 0; j < PANEL; j += VF_LANES)
            vf_transpose(k + c * PANEL + j, PANEL, w->rows + j * w->dim_pad + c, w->dim_pad);
}

/* Packs entries [tile, tile + PREFILL_KEYS) of K and V; entries outside the list become zero. */
INLINE void pack_tile(const int per, const prefill_block *b, const key_work *w, int64_t tile)
{
    for (size_t p = 0; p < PREFILL_KEYS; p += PANEL) {
        memset(w->rows, 0, PANEL * w->dim_pad * sizeof *w->rows);
        read_entries(w->rows, w->dim_pad, b, &b->v, tile + (int64_t)p, PANEL);
        pack_v(per, w, p);
        read_entries(w->rows, w->dim_pad, b, &b->k, tile + (int64_t)p, PANEL);
        pack_k(per, w, w->k + p * lanes_of(per, b->head_dim), b->head_dim);
    }
}

/* out[r][0..PANEL) (+)= a[r][0..n) . panel [n][PANEL] for TILE_ROWS rows. factor NULL: overwrites out. */
INLINE void tile_product(const int per, float *out, size_t out_stride, const float *a, size_t a_stride,
                         const float *panel, size_t n, const float *factor)
{
    VF acc[TILE_ROWS][TILE_VECS];
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t j = 0; j < TILE_VECS; j++) acc[r][j] =
        factor ? vf_mul(vf_load(out + r * out_stride + j * VF_LANES), vf_set1(factor[r])) : vf_zero();
    for (size_t i = 0; i < n; i++) {
        VF v[TILE_VECS];
        UNROLL for (size_t j = 0; j < TILE_VECS; j++) v[j] = vf_load(panel + i * PANEL + j * VF_LANES);
        UNROLL for (size_t r = 0; r < TILE_ROWS; r++)
        {
            VF x = vf_set1(a[r * a_stride + i]);
            UNROLL for (size_t j = 0; j < TILE_VECS; j++) acc[r][j] =
                per == 2 ? vp_dot(x, v[j], acc[r][j]) : vf_fma(x, v[j], acc[r][j]);
        }
    }
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t j = 0; j < TILE_VECS; j++)
        vf_store(out + r * out_stride + j * VF_LANES, acc[r][j]);
}

/* Sets the scores of a row outside [lo, hi) to -INFINITY; n scores. */
static void mask_row(float *s, int64_t n, int64_t lo, int64_t hi)
{
    for (int64_t i = 0; i < lo && i < n; i++) s[i] = -INFINITY;
    for (int64_t i = hi > 0 ? hi : 0; i < n; i++) s[i] = -INFINITY;
}

/* e^x for x <= 0, or 2^x with pairs, whose q includes the factor log2 e. */
INLINE VF power(const int per, VF x)
{
    return per == 2 ? vp_exp2(x) : vf_exp_down(x);
}

/* Converts n scores of one row to weights. A row without a visible key so far keeps top = -INFINITY, sums = 0. Most
 * tiles have no new maximum and need no operation across lanes. A lane adds its keys in order, so zeros of invisible
 * keys do not change the sum, wherever they are. */
INLINE void softmax_row(const int per, float *s, size_t n, float *top, float *sum, float *factor)
{
    VF m = vf_load(s), total = vf_zero();
    for (size_t i = VF_LANES; i < n; i += VF_LANES) m = vf_max(m, vf_load(s + i));
    *factor = 1;
    if (vf_ge(m, vf_set1(*top))) {
        float now = vf_hmax(m), f[VF_LANES];
        vf_store(f, power(per, vf_set1(*top - (now == -INFINITY ? 0 : now))));
        *factor = f[0];
        *top = now;
    }
    m = vf_set1(*top == -INFINITY ? 0 : *top);
    for (size_t i = 0; i < n; i += 2 * VF_LANES) {
        VF a = power(per, vf_sub(vf_load(s + i), m)), b = power(per, vf_sub(vf_load(s + i + VF_LANES), m));
        total = vf_add(vf_add(total, a), b);
        if (per == 2) vf_store(s + i / 2, vp_pack(a, b));
        else {
            vf_store(s + i, a);
            vf_store(s + i + VF_LANES, b);
        }
    }
    vf_store(sum, vf_fma(vf_load(sum), vf_set1(*factor), total));
}

/* Processes rows [r0, r0 + n) against the packed tile at `tile`; used: number of its keys that any of them sees. */
INLINE void attend_rows(const int per, const prefill_block *b, const key_work *w, size_t r0, size_t n, int64_t tile,
                        size_t used)
{
    size_t d = b->head_dim, pad = w->dim_pad, steps = lanes_of(per, d);
    size_t whole = (used + PANEL - 1) / PANEL * PANEL; /* keys in whole panels */
    const float *q = b->q + r0 * pad;
    for (size_t p = 0; p < whole; p += PANEL)
        for (size_t r = 0; r < n; r += TILE_ROWS)
            tile_product(per, w->s + r * PREFILL_KEYS + p, PREFILL_KEYS, q + r * pad, pad, w->k + p * steps, steps,
                         NULL);
    for (size_t r = 0; r < n; r++) {
        float *s = w->s + r * PREFILL_KEYS;
        int64_t lo = b->lo[r0 + r] - tile, hi = b->hi[r0 + r] - tile;
        if (lo > 0 || hi < (int64_t)whole) mask_row(s, (int64_t)whole, lo, hi);
        softmax_row(per, s, whole, b->top + r0 + r, b->sum + (r0 + r) * VF_LANES, w->factor + r);
    }
    for (size_t c = 0; c < d; c += PANEL)
        for (size_t r = 0; r < n; r += TILE_ROWS)
            tile_product(per, b->acc + (r0 + r) * pad + c, pad, w->s + r * PREFILL_KEYS, PREFILL_KEYS,
                         w->v + c * (PREFILL_KEYS / per), lanes_of(per, used), w->factor + r);
}

/* Processes all key tiles that any row sees. */
INLINE void attend_block(const int per, const prefill_block *b, const key_work *w)
{
    int64_t lo, hi;
    rows_see(b, 0, b->n_rows, &lo, &hi);
    if (lo >= hi) return;
    for (int64_t tile = lo / PREFILL_KEYS * PREFILL_KEYS; tile < hi; tile += PREFILL_KEYS) {
        pack_tile(per, b, w, tile);
        for (size_t r = 0; r < b->n_rows; r += SUPER) {
            size_t n = b->n_rows - r < SUPER ? b->n_rows - r : SUPER;
            int64_t from, to;
            rows_see(b, r, n, &from, &to);
            if (from >= tile + PREFILL_KEYS || to <= tile) continue;
            attend_rows(per, b, w, r, n, tile, to - tile < PREFILL_KEYS ? (size_t)(to - tile) : PREFILL_KEYS);
        }
    }
}

/* Separate functions, so that the compiler can use all registers. */
static __attribute__((noinline)) void attend_floats(const prefill_block *b, const key_work *w)
{
    attend_block(1, b, w);
}

static __attribute__((noinline)) void attend_pairs(const prefill_block *b, const key_work *w)
{
    for (size_t r = 0; r < b->n_rows; r++) pair_row(b->q + r * w->dim_pad, b->head_dim, LOG2E);
    attend_block(2, b, w);
    for (size_t r = 0; r < b->n_rows; r++) b->top[r] *= LN2;
}

void LEVEL(k_prefill)(const prefill_block *b)
{
    key_work w = begin_block(b);
    if (HAS_PAIRS && b->rounded) attend_pairs(b, &w);
    else attend_floats(b, &w);
    for (size_t r = 0; r < b->n_rows; r++) b->sum[r] = vf_sum(vf_load(b->sum + r * VF_LANES));
}
