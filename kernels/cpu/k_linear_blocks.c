/* SPDX-License-Identifier: MIT */
/* Weights in blocks times x in 8 bits (ops_weights.h): decode and, if bytes are multiplied fast enough, prompts. Sums
 * within a part of a block are integers. Parts are added in order, with one fused multiply-add for each scale and for
 * the minimum, so the bits of a row of x do not depend on other rows. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/k.h"
#include "kernels/cpu/simd_int8.h"

enum {
    AHEAD = 2048,            /* bytes, as in k_linear.c */
    LINE = 64,               /* bytes of a cache line */
    PANEL_BYTES = 192 * 1024 /* groups that stay in L2 while all rows of x pass */
};

/* ---- x ---- */

/* half: sum of the first half of the codes */
static void round_block(int8_t *code, float *scale, int32_t *sum, int32_t *half, const float x[QBLOCK_COLS])
{
    VF most = vf_zero(), odd = vf_zero(), total = vf_zero();
    for (int c = 0; c < QBLOCK_COLS; c += VF_LANES) {
        VF v = vf_load(x + c);
        most = vf_max(most, vf_max(v, vf_sub(vf_zero(), v)));
        odd = vf_add(odd, vf_sub(v, v)); /* NaN if an element is not finite */
    }
    float a = vf_hmax(most), none = vf_sum(odd);
    bool zero = none != 0 || a < 0x1p-100f;
    *scale = zero ? none : a / 127;
    *sum = *half = 0;
    if (zero) {
        memset(code, 0, QBLOCK_COLS);
        return;
    }
    VF by = vf_set1(127 / a);
    for (int c = 0; c < QBLOCK_COLS; c += VF_LANES) {
        VF v = vf_round(vf_mul(vf_load(x + c), by));
        vf_store_s8(code + c, v);
        total = vf_add(total, v);
        if (c + VF_LANES == QBLOCK_COLS / 2) *half = (int32_t)vf_sum(total);
    }
    *sum = (int32_t)vf_sum(total);
}

/* Rows of x are stored in tiles of at most INT8_X rows and nearly equal size. Within a tile, the rows of each block are
 * adjacent, so a pass over a tile reads memory sequentially. The last tile may have fewer rows. */
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
        round_block(out->code + at * QBLOCK_COLS, out->scale + at, out->sum + at, out->half + at, in);
    }
}

/* ---- the product ---- */

/* Prefetching during a pass over weights. A single tile of x prefetches its own data. Tiles that share a panel prefetch
 * the next panel, each for every `every`-th block from number `start` on, which spreads memory traffic evenly. */
typedef struct {
    size_t ahead, every, start; /* bytes; blocks */
} prefetch_plan;

static prefetch_plan prefetch_plan_of(size_t tile, size_t tiles, size_t panel_bytes)
{
    return tiles == 1 ? (prefetch_plan){AHEAD, 1, 0} : (prefetch_plan){panel_bytes, tiles, tile};
}

/* Returns the factors of sum k of a part, d or d s; `factors` are the bytes before the part's codes. */
INLINE VF scales_of(const dtype t, const unsigned char *head, const unsigned char *factors, const int k, int p)
{
    VF d = vf_load_f16(head + 2 * VF_LANES * p);
    if (qblock_kind_of(t).scales == 0) return d;
    return vf_mul(d, vf_signed_bytes(factors + QBLOCK_ROWS * k + VF_LANES * p));
}

/* Returns the minima of a part, m or m t. */
INLINE VF minima_of(const dtype t, const unsigned char *head, const unsigned char *factors, int p)
{
    const int scales = qblock_kind_of(t).scales;
    VF m = vf_load_f16(head + QBLOCK_SCALES + 2 * VF_LANES * p);
    return scales ? vf_mul(m, vf_signed_bytes(factors + QBLOCK_ROWS * scales + VF_LANES * p)) : m;
}

/* Returns sums [p * VF_LANES, (p + 1) * VF_LANES) of code - z, from those of code and the sum of x. Exact. */
INLINE VF less_zero(const dtype t, const unsigned char *head, D16 s, int p, int32_t sum)
{
    VF v = d16_part(s, p);
    if (!qblock_kind_of(t).zero) return v;
    return vf_sub(v, vf_mul(vf_bytes(head + QBLOCK_SCALES + VF_LANES * p), vf_set1((float)sum)));
}

/* Adds a part with E4M3 codes: sums over even and over odd columns, times d and the scale of x. */
INLINE void add_floats(const int mx, VF acc[INT8_X][PARTS16], const unsigned char *head, const unsigned char *part,
                       const int8_t *x, const float *scale)
{
    float wide[INT8_X][QBLOCK_COLS];
    VF s[INT8_X][PARTS16][2];
    UNROLL for (int i = 0; i < mx; i++)
    {
        UNROLL for (int c = 0; c < QBLOCK_COLS; c += VF_LANES)
            vf_store(wide[i] + c, vf_signed_bytes(x + QBLOCK_COLS * i + c));
        UNROLL for (int p = 0; p < PARTS16; p++) s[i][p][0] = s[i][p][1] = vf_zero();
    }
    UNROLL for (int c = 0; c < QBLOCK_COLS; c++) UNROLL for (int p = 0; p < PARTS16; p++)
    {
        VF w = vf_e4m3(part + QBLOCK_ROWS * c + VF_LANES * p);
        UNROLL for (int i = 0; i < mx; i++) s[i][p][c % 2] = vf_fma(w, vf_set1(wide[i][c]), s[i][p][c % 2]);
    }
    UNROLL for (int p = 0; p < PARTS16; p++)
    {
        VF d = vf_load((const float *)(const void *)(head + sizeof(float) * VF_LANES * (size_t)p));
        UNROLL for (int i = 0; i < mx; i++) acc[i][p] =
            vf_fma(vf_mul(d, vf_set1(256 * scale[i])), vf_add(s[i][p][0], s[i][p][1]), acc[i][p]);
    }
}

/* acc[i] = 16 rows of a group times row i of the tile x of mx rows. */
INLINE void tile_sums(const int mx, const dtype t, const unsigned char *w, const x8_rows *x, const prefetch_plan *a,
                      VF acc[INT8_X][PARTS16])
{
    const size_t bytes = qblock_part_bytes(t), parts = qblock_cols(t) / QBLOCK_COLS;
    size_t due = a->start;
    UNROLL for (int i = 0; i < mx; i++) UNROLL for (int p = 0; p < PARTS16; p++) acc[i][p] = vf_zero();
    for (size_t b = 0; b < x->blocks; b++) {
        D16 s[INT8_X];
        const unsigned char *head = w + b / parts * qblock_bytes(t);
        const unsigned char *part = head + qblock_head_bytes(t) + b % parts * bytes;
        const float *scale = x->scale + b * mx;
        const int32_t *sum = x->sum + b * mx;
        if (b == due) {
            UNROLL for (size_t c = 0; c < bytes; c += LINE) prefetch(part + a->ahead + c);
            due += a->every;
        }
        if (qblock_kind_of(t).floats) {
            add_floats(mx, acc, head, part, x->code + b * mx * QBLOCK_COLS, scale);
            continue;
        }
        UNROLL for (int k = 0; k < d16_count(t); k++)
        {
            d16_sums(mx, t, k, s, part + qblock_factor_bytes(t), x->code + b * mx * QBLOCK_COLS, sum, x->half + b * mx);
            UNROLL for (int p = 0; p < PARTS16; p++)
            {
                VF d = scales_of(t, head, part, k, p);
                UNROLL for (int i = 0; i < mx; i++) acc[i][p] =
                    vf_fma(vf_mul(d, vf_set1(scale[i])), less_zero(t, head, s[i], p, sum[i]), acc[i][p]);
            }
        }
        if (!qblock_kind_of(t).minimum) continue;
        UNROLL for (int p = 0; p < PARTS16; p++)
        {
            VF m = minima_of(t, head, part, p);
            UNROLL for (int i = 0; i < mx; i++) acc[i][p] = vf_fma(m, vf_set1(scale[i] * (float)sum[i]), acc[i][p]);
        }
    }
}

typedef struct {
    float *out;
    size_t out_stride;
    x8_rows x; /* rows of the tile */
    const weight *w, *bias;
    size_t g0, g1;
    prefetch_plan plan;
} span;

INLINE void span_group(const int mx, const dtype t, const span *s, size_t g)
{
    size_t rows = s->w->rows;
    VF acc[INT8_X][PARTS16];
    tile_sums(mx, t, s->w->p.p + g * qblock_group_bytes(t, s->w->cols), &s->x, &s->plan, acc);
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

static void span_type(const span *s)
{
    switch (s->w->type) {
    case DT_Q8: span_any(DT_Q8, s, s->x.n); break;
    case DT_Q4: span_any(DT_Q4, s, s->x.n); break;
    case DT_Q4Z: span_any(DT_Q4Z, s, s->x.n); break;
    case DT_Q4K: span_any(DT_Q4K, s, s->x.n); break;
    case DT_Q5K: span_any(DT_Q5K, s, s->x.n); break;
    case DT_Q6K: span_any(DT_Q6K, s, s->x.n); break;
    case DT_FP8: span_any(DT_FP8, s, s->x.n); break;
    case DT_Q4G: span_any(DT_Q4G, s, s->x.n); break;
    default: span_any(DT_Q4G32, s, s->x.n); break;
    }
}

static x8_rows tile_of(const x8_rows *x, size_t tile)
{
    size_t i = tile * tile_rows(x), at = i * x->blocks, left = x->n - i, rows = tile_rows(x);
    return (x8_rows){.code = x->code + at * QBLOCK_COLS,
                     .scale = x->scale + at,
                     .sum = x->sum + at,
                     .half = x->half + at,
                     .n = left < rows ? left : rows,
                     .blocks = x->blocks};
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
                      .plan = prefetch_plan_of(i, tiles, panel * group)};
            span_type(&s);
        }
}
