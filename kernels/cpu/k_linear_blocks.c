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

/* Rows of x lie in tiles of at most INT8_X, of nearly the same number of rows, in which each block has its rows side by
 * side: a pass over a tile goes straight through memory. The last tile may have fewer rows. */
static size_t tiles_of(const x8_rows *x)
{
    return (x->n + INT8_X - 1) / INT8_X;
}

static size_t tile_rows(const x8_rows *x)
{
    return (x->n + tiles_of(x) - 1) / tiles_of(x);
}

void LEVEL(k_round_x)(const x8_rows *out, size_t r, const float *x, size_t cols, size_t b0, size_t b1)
{
    size_t in_tile = r % tile_rows(out), from_row = r - in_tile, rows = tile_rows(out);
    size_t first = from_row * out->blocks + in_tile;
    if (rows > out->n - from_row) rows = out->n - from_row;
    for (size_t b = b0; b < b1; b++) {
        size_t at = first + b * rows, from = b * QBLOCK_COLS;
        float last[QBLOCK_COLS] = {0};
        const float *in = x + from;
        if (cols - from < QBLOCK_COLS) in = memcpy(last, in, (cols - from) * sizeof *in);
        round_block(out->code + at * QBLOCK_COLS, out->scale + at, out->sum + at, in);
    }
}

/* ---- the product ---- */

/* Memory's part of a pass over weights. A single tile of x asks for what it reads soon itself. Tiles that share a panel
 * ask for the next panel, each for every `every`-th block from number `turn` on, so that memory works as evenly as the
 * products do. */
typedef struct {
    size_t ahead, every, turn; /* bytes; blocks */
} asked;

static asked asked_of(size_t tile, size_t tiles, size_t panel_bytes)
{
    return tiles == 1 ? (asked){AHEAD, 1, 0} : (asked){panel_bytes, tiles, tile};
}

/* acc[i] = 16 rows of a group times row i of the tile x of mx rows. */
INLINE void tile_sums(const int mx, const dtype t, const unsigned char *w, const x8_rows *x, const asked *a,
                      VF acc[INT8_X][PARTS16])
{
    const size_t bytes = qblock_bytes(t);
    size_t due = a->turn;
    UNROLL for (int i = 0; i < mx; i++) UNROLL for (int p = 0; p < PARTS16; p++) acc[i][p] = vf_zero();
    for (size_t b = 0; b < x->blocks; b++, w += bytes) {
        D16 s[INT8_X];
        const float *scale = x->scale + b * mx;
        if (b == due) {
            UNROLL for (size_t c = 0; c < bytes; c += LINE) prefetch(w + a->ahead + c);
            due += a->every;
        }
        d16_sums(mx, t, s, w + QBLOCK_SCALES, x->code + b * mx * QBLOCK_COLS, x->sum + b * mx);
        UNROLL for (int p = 0; p < PARTS16; p++)
        {
            VF d = vf_load_f16(w + 2 * VF_LANES * p);
            UNROLL for (int i = 0; i < mx; i++) acc[i][p] =
                vf_fma(vf_mul(d, vf_set1(scale[i])), d16_part(s[i], p), acc[i][p]);
        }
    }
}

typedef struct {
    float *out;
    size_t out_stride;
    x8_rows x; /* of the tile */
    const weight *w, *bias;
    size_t g0, g1;
    asked ask;
} span;

INLINE void span_group(const int mx, const dtype t, const span *s, size_t g)
{
    size_t rows = s->w->rows;
    VF acc[INT8_X][PARTS16];
    tile_sums(mx, t, s->w->p.p + g * qblock_group_bytes(t, s->w->cols), &s->x, &s->ask, acc);
    UNROLL for (int p = 0; p < PARTS16; p++)
    {
        size_t r = g * QBLOCK_ROWS + (size_t)p * VF_LANES;
        if (r >= rows) break;
        VF bias = s->bias->p.p ? vf_load_some_as(s->bias->p.p, r, s->bias->type, rows - r) : vf_zero();
        UNROLL for (int i = 0; i < mx; i++)
            vf_store_some(s->out + (size_t)i * s->out_stride + r, vf_add(acc[i][p], bias), rows - r);
    }
}

INLINE void span_tile(const int mx, const dtype t, const span *s)
{
    for (size_t g = s->g0; g < s->g1; g++) span_group(mx, t, s, g);
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

static x8_rows tile_of(const x8_rows *x, size_t tile)
{
    size_t i = tile * tile_rows(x), at = i * x->blocks, left = x->n - i, rows = tile_rows(x);
    return (x8_rows){x->code + at * QBLOCK_COLS, x->scale + at, x->sum + at, left < rows ? left : rows, x->blocks};
}

void LEVEL(k_linear_qblocks)(float *out, size_t out_stride, const x8_rows *x, const weight *w, const weight *bias,
                             size_t g0, size_t g1)
{
    const size_t tiles = tiles_of(x), group = qblock_group_bytes(w->type, w->cols);
    size_t panel = PANEL_BYTES / group;
    if (panel == 0) panel = 1;
    if (tiles == 1) panel = g1 - g0;
    for (size_t g = g0; g < g1; g += panel)
        for (size_t i = 0; i < tiles; i++) {
            span s = {.out = out + i * tile_rows(x) * out_stride,
                      .out_stride = out_stride,
                      .x = tile_of(x, i),
                      .w = w,
                      .bias = bias,
                      .g0 = g,
                      .g1 = g + panel < g1 ? g + panel : g1,
                      .ask = asked_of(i, tiles, panel * group)};
            if (w->type == DT_Q8) span_any(DT_Q8, &s, s.x.n);
            else span_any(DT_Q4, &s, s.x.n);
        }
}
