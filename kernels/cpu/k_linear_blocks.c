/* SPDX-License-Identifier: MIT */
/* Weights in blocks times x in 8 bits, as ops_weights.h defines it: decode and, where bytes are
 * multiplied fast enough, prompts. Within a block sums are integers; blocks are added in their order,
 * one fused multiply-add each, so a row of x has the same bits in any company. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/k.h"
#include "kernels/cpu/simd_int8.h"

enum {
    AHEAD = 2048,            /* bytes, as in k_linear.c */
    LINE = 64,               /* of a cache */
    PANEL_BYTES = 192 * 1024 /* groups that stay in L2 while all rows of x pass */
};

/* ---- x ---- */

static void round_block(int8_t *code, float *scale, int32_t *sum, const float x[QBLOCK_COLS])
{
    VF most = vf_zero(), odd = vf_zero(), total = vf_zero();
    for (int c = 0; c < QBLOCK_COLS; c += VF_LANES) {
        VF v = vf_load(x + c);
        most = vf_max(most, vf_max(v, vf_sub(vf_zero(), v)));
        odd = vf_add(odd, vf_sub(v, v)); /* NaN where something is not finite */
    }
    float a = vf_hmax(most), none = vf_sum(odd);
    bool zero = none != 0 || a < 0x1p-100f;
    *scale = zero ? none : a / 127;
    *sum = 0;
    if (zero) {
        memset(code, 0, QBLOCK_COLS);
        return;
    }
    VF by = vf_set1(127 / a);
    for (int c = 0; c < QBLOCK_COLS; c += VF_LANES) {
        VF v = vf_round(vf_mul(vf_load(x + c), by));
        vf_store_s8(code + c, v);
        total = vf_add(total, v);
    }
    *sum = (int32_t)vf_sum(total);
}

/* Rows of x lie in tiles of INT8_X, in which each block has its rows side by side: a pass over a tile goes
 * straight through memory. The last tile may have fewer rows. */
static size_t tile_rows_at(const x8_rows *x, size_t r)
{
    size_t from = r / INT8_X * INT8_X;
    return x->n - from < INT8_X ? x->n - from : INT8_X;
}

void LEVEL(k_round_x)(const x8_rows *out, size_t r, const float *x, size_t cols, size_t b0, size_t b1)
{
    size_t in_tile = r % INT8_X, first = (r - in_tile) * out->blocks + in_tile, rows = tile_rows_at(out, r);
    for (size_t b = b0; b < b1; b++) {
        size_t at = first + b * rows, from = b * QBLOCK_COLS;
        float last[QBLOCK_COLS] = {0};
        const float *in = x + from;
        if (cols - from < QBLOCK_COLS) in = memcpy(last, in, (cols - from) * sizeof *in);
        round_block(out->code + at * QBLOCK_COLS, out->scale + at, out->sum + at, in);
    }
}

/* ---- the product ---- */

/* acc[g][i] = 16 rows of group g times row i of the tile x of mx rows. */
INLINE void tile_sums(const int mx, const int mg, const dtype t, const unsigned char *w, size_t group, const x8_rows *x,
                      VF acc[INT8_G][INT8_X][PARTS16])
{
    const size_t bytes = qblock_bytes(t);
    UNROLL for (int g = 0; g < mg; g++) UNROLL for (int i = 0; i < mx; i++) UNROLL for (int p = 0; p < PARTS16; p++)
        acc[g][i][p] = vf_zero();
    for (size_t b = 0; b < x->blocks; b++, w += bytes) {
        D16 s[INT8_G][INT8_X];
        const float *scale = x->scale + b * mx;
        UNROLL for (int g = 0; g < mg; g++) UNROLL for (size_t c = 0; c < bytes; c += LINE)
            prefetch(w + (size_t)g * group + AHEAD + c);
        d16_sums(mx, mg, t, s, w + QBLOCK_SCALES, group, x->code + b * mx * QBLOCK_COLS, x->sum + b * mx);
        UNROLL for (int g = 0; g < mg; g++) UNROLL for (int p = 0; p < PARTS16; p++)
        {
            VF d = vf_load_f16(w + (size_t)g * group + 2 * VF_LANES * p);
            UNROLL for (int i = 0; i < mx; i++) acc[g][i][p] =
                vf_fma(vf_mul(d, vf_set1(scale[i])), d16_part(s[g][i], p), acc[g][i][p]);
        }
    }
}

typedef struct {
    float *out;
    size_t out_stride;
    x8_rows x; /* of the tile */
    const weight *w, *bias;
    size_t g0, g1;
} span;

/* Groups [g, g + mg). */
INLINE void span_groups(const int mx, const int mg, const dtype t, const span *s, size_t g)
{
    size_t rows = s->w->rows, group = qblock_group_bytes(t, s->w->cols);
    VF acc[INT8_G][INT8_X][PARTS16];
    tile_sums(mx, mg, t, s->w->p.p + g * group, group, &s->x, acc);
    UNROLL for (int j = 0; j < mg * PARTS16; j++)
    {
        size_t r = g * QBLOCK_ROWS + (size_t)j * VF_LANES;
        if (r >= rows) break;
        VF bias = s->bias->p.p ? vf_load_some_as(s->bias->p.p, r, s->bias->type, rows - r) : vf_zero();
        UNROLL for (int i = 0; i < mx; i++) vf_store_some(s->out + (size_t)i * s->out_stride + r,
                                                          vf_add(acc[j / PARTS16][i][j % PARTS16], bias), rows - r);
    }
}

/* One row of x reads memory, in which one stream is faster than two. */
INLINE void span_tile(const int mx, const dtype t, const span *s)
{
    const int mg = mx > 1 ? INT8_G : 1;
    size_t g = s->g0;
    for (; g + (size_t)mg <= s->g1; g += (size_t)mg) span_groups(mx, mg, t, s, g);
    for (; mg > 1 && g < s->g1; g++) span_groups(mx, 1, t, s, g);
}

INLINE void span_any(const dtype t, const span *s, size_t mx)
{
    switch (mx) {
    case 1: span_tile(1, t, s); break;
    case 2: span_tile(2, t, s); break;
#if INT8_X > 3
    case 3: span_tile(3, t, s); break;
#endif
#if INT8_X > 4
    case 4: span_tile(4, t, s); break;
#endif
#if INT8_X > 5
    case 5: span_tile(5, t, s); break;
#endif
#if INT8_X > 6
    case 6: span_tile(6, t, s); break;
    case 7: span_tile(7, t, s); break;
#endif
    default: span_tile(INT8_X, t, s); break;
    }
}

static x8_rows tile_of(const x8_rows *x, size_t i)
{
    size_t at = i * x->blocks;
    return (x8_rows){x->code + at * QBLOCK_COLS, x->scale + at, x->sum + at, tile_rows_at(x, i), x->blocks};
}

void LEVEL(k_linear_qblocks)(float *out, size_t out_stride, const x8_rows *x, const weight *w, const weight *bias,
                             size_t g0, size_t g1)
{
    size_t panel = PANEL_BYTES / qblock_group_bytes(w->type, w->cols) / INT8_G * INT8_G;
    if (panel < INT8_G) panel = INT8_G;
    if (x->n <= INT8_X) panel = g1 - g0;
    for (size_t g = g0; g < g1; g += panel)
        for (size_t i = 0; i < x->n; i += INT8_X) {
            span s = {out + i * out_stride, out_stride, tile_of(x, i), w, bias, g, g + panel < g1 ? g + panel : g1};
            if (w->type == DT_Q8) span_any(DT_Q8, &s, s.x.n);
            else span_any(DT_Q4, &s, s.x.n);
        }
}
