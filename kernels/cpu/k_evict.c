/* SPDX-License-Identifier: MIT */
/* Column sums of attention weights: the second pass over Q K, tiled like prompt attention. A weight's bits depend on
 * its query and key only, and queries are added one by one, so sums depend neither on tiles nor on the division of a
 * prompt into chunks. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/k.h"

enum { PANEL = TILE_VECS * VF_LANES };

/* Packs rows [PREFILL_KEYS][head_dim] to panels [PREFILL_KEYS / PANEL][head_dim][PANEL]. */
static void pack(float *panels, const float *rows, size_t d)
{
    for (size_t i = 0; i < PREFILL_KEYS; i += PANEL)
        for (size_t c = 0; c < d; c++)
            for (size_t j = 0; j < PANEL; j++) panels[i * d + c * PANEL + j] = rows[(i + j) * d + c];
}

/* out[r][0..PANEL) = row[r] . panel [d][PANEL] for TILE_ROWS rows. */
INLINE void dot_tile(float *out, const float *const *row, const float *panel, size_t d)
{
    VF acc[TILE_ROWS][TILE_VECS];
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t j = 0; j < TILE_VECS; j++) acc[r][j] = vf_zero();
    for (size_t c = 0; c < d; c++) {
        VF k[TILE_VECS];
        UNROLL for (size_t j = 0; j < TILE_VECS; j++) k[j] = vf_load(panel + c * PANEL + j * VF_LANES);
        UNROLL for (size_t r = 0; r < TILE_ROWS; r++)
        {
            VF x = vf_set1(row[r][c]);
            UNROLL for (size_t j = 0; j < TILE_VECS; j++) acc[r][j] = vf_fma(x, k[j], acc[r][j]);
        }
    }
    UNROLL for (size_t r = 0; r < TILE_ROWS; r++) UNROLL for (size_t j = 0; j < TILE_VECS; j++)
        vf_store(out + r * PREFILL_KEYS + j * VF_LANES, acc[r][j]);
}

/* total = total (+ or max) exp(s * scale - lse) over the keys [lo, hi). */
INLINE void add_weights(float *total, float *s, float scale, float lse, size_t lo, size_t hi, bool max)
{
    VF a = vf_set1(scale), b = vf_set1(-lse);
    for (size_t i = 0; i < PREFILL_KEYS; i += VF_LANES) vf_store(s + i, vf_exp(vf_fma(vf_load(s + i), a, b)));
    for (size_t i = 0; i < lo; i++) s[i] = 0;
    for (size_t i = hi; i < PREFILL_KEYS; i++) s[i] = 0;
    for (size_t i = 0; i < PREFILL_KEYS; i += VF_LANES) {
        VF x = vf_load(total + i), w = vf_load(s + i);
        vf_store(total + i, max ? vf_max(x, w) : vf_add(x, w));
    }
}

/* Adds the weights of tokens [t0, t0 + n) for the heads of kv head `kv` to total [n][PREFILL_KEYS]. */
static void weigh(const colsum_tile *b, size_t kv, size_t t0, size_t n, float *s, float *total)
{
    size_t d = b->head_dim, rows = n * b->per_kv;
    const float *panels = b->work + kv * PREFILL_KEYS * d;
    for (size_t r = 0; r < rows; r += TILE_ROWS) {
        const float *row[TILE_ROWS];
        for (size_t i = 0; i < TILE_ROWS; i++) {
            size_t at = r + i < rows ? r + i : rows - 1;
            row[i] = b->q + ((t0 + at / b->per_kv) * b->n_heads + kv * b->per_kv + at % b->per_kv) * d;
        }
        for (size_t p = 0; p < PREFILL_KEYS; p += PANEL) dot_tile(s + r * PREFILL_KEYS + p, row, panels + p * d, d);
    }
    for (size_t r = 0; r < rows; r++) {
        size_t t = t0 + r / b->per_kv;
        float lse = b->lse[t * b->n_heads + kv * b->per_kv + r % b->per_kv];
        if (lse == -INFINITY || b->lo[t] >= b->hi[t]) continue;
        add_weights(total + (t - t0) * PREFILL_KEYS, s + r * PREFILL_KEYS, b->scale, lse, b->lo[t], b->hi[t], b->max);
    }
}

static bool any_sees(const colsum_tile *b, size_t t0, size_t n)
{
    for (size_t t = t0; t < t0 + n; t++)
        if (b->lo[t] < b->hi[t]) return true;
    return false;
}

void LEVEL(k_colsum)(const colsum_tile *b)
{
    size_t d = b->head_dim, step = b->per_kv < COLSUM_ROWS ? COLSUM_ROWS / b->per_kv : 1;
    float *s = b->work + b->n_kv * PREFILL_KEYS * d, *total = s + colsum_rows(b->per_kv) * PREFILL_KEYS;
    VF factor = vf_set1(b->factor);
    for (size_t kv = 0; kv < b->n_kv; kv++) pack(b->work + kv * PREFILL_KEYS * d, b->k + kv * PREFILL_KEYS * d, d);
    for (size_t t0 = 0; t0 < b->n_tok; t0 += step) {
        size_t n = b->n_tok - t0 < step ? b->n_tok - t0 : step;
        if (!any_sees(b, t0, n)) continue;
        memset(total, 0, n * PREFILL_KEYS * sizeof *total);
        for (size_t kv = 0; kv < b->n_kv; kv++) weigh(b, kv, t0, n, s, total);
        for (size_t t = 0; t < n; t++)
            for (size_t i = 0; i < PREFILL_KEYS; i += VF_LANES) {
                VF w = vf_mul(vf_load(total + t * PREFILL_KEYS + i), factor);
                vf_store(b->sum + i, vf_add(vf_load(b->sum + i), w));
            }
    }
}

void LEVEL(k_weigh)(const weigh_run *w)
{
    for (size_t i = 0; i < w->n; i += VF_LANES) {
        size_t left = w->n - i;
        VF total = vf_zero();
        for (size_t h = 0; h < w->heads; h++) {
            if (w->lse[h] == -INFINITY) continue;
            VF x = vf_exp(vf_sub(vf_load_some(w->score + h * w->stride + i, left), vf_set1(w->lse[h])));
            total = w->max ? vf_max(total, x) : vf_add(total, x);
        }
        total = vf_mul(total, vf_set1(w->factor));
        if (w->add) total = vf_add(vf_load_some(w->sum + i, left), total);
        vf_store_some(w->sum + i, total, left);
    }
}
