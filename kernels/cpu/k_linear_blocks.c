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

static void round_block(int8_t *code, float *scale, int32_t *sum, const float x[QUANT_COLS])
{
    VF most = vf_zero(), odd = vf_zero(), total = vf_zero();
    for (int c = 0; c < QUANT_COLS; c += VF_LANES) {
        VF v = vf_load(x + c);
        most = vf_max(most, vf_max(v, vf_sub(vf_zero(), v)));
        odd = vf_add(odd, vf_sub(v, v)); /* NaN where something is not finite */
    }
    float a = vf_hmax(most), none = vf_sum(odd);
    bool zero = none != 0 || a < 0x1p-100f;
    *scale = zero ? none : a / 127;
    *sum = 0;
    if (zero) {
        memset(code, 0, QUANT_COLS);
        return;
    }
    VF by = vf_set1(127 / a);
    for (int c = 0; c < QUANT_COLS; c += VF_LANES) {
        VF v = vf_round(vf_mul(vf_load(x + c), by));
        vf_store_s8(code + c, v);
        total = vf_add(total, v);
    }
    *sum = (int32_t)vf_sum(total);
}

void LEVEL(k_round_x)(const x8_rows *out, size_t r, const float *x, size_t cols, size_t b0, size_t b1)
{
    for (size_t b = b0; b < b1; b++) {
        size_t at = r * out->blocks + b, from = b * QUANT_COLS;
        float last[QUANT_COLS] = {0};
        const float *in = x + from;
        if (cols - from < QUANT_COLS) in = memcpy(last, in, (cols - from) * sizeof *in);
        round_block(out->code + at * QUANT_COLS, out->scale + at, out->sum + at, in);
    }
}

/* ---- the product ---- */

/* acc[i] = a group's 16 rows times row i of x, for mx rows from row 0 of x on. */
INLINE void group_tile(const int mx, const dtype t, const unsigned char *group, const x8_rows *x,
                       VF acc[INT8_X][PARTS16])
{
    const size_t bytes = quant_block_bytes(t), stride = x->blocks * QUANT_COLS;
    UNROLL for (int i = 0; i < mx; i++)
        UNROLL for (int p = 0; p < PARTS16; p++) acc[i][p] = vf_zero();
    for (size_t b = 0; b < x->blocks; b++, group += bytes) {
        D16 s[INT8_X];
        UNROLL for (size_t c = 0; c < bytes; c += LINE) prefetch(group + AHEAD + c);
        if (t == DT_Q8)
            d16_q8(mx, s, group + QUANT_SCALES, x->code + b * QUANT_COLS, stride, x->sum + b, x->blocks);
        else d16_q4(mx, s, group + QUANT_SCALES, x->code + b * QUANT_COLS, stride, x->sum + b, x->blocks);
        UNROLL for (int i = 0; i < mx; i++) {
            VF by = vf_set1(x->scale[(size_t)i * x->blocks + b]);
            UNROLL for (int p = 0; p < PARTS16; p++) {
                VF d = vf_load_f16(group + 2 * VF_LANES * p);
                acc[i][p] = vf_fma(vf_mul(d, by), d16_part(s[i], p), acc[i][p]);
            }
        }
    }
}

typedef struct {
    float *out;
    size_t out_stride;
    x8_rows x; /* from the first row of the tile on */
    const weight *w, *bias;
    size_t g0, g1;
} span;

INLINE void span_tile(const int mx, const dtype t, const span *s)
{
    size_t rows = s->w->rows, bytes = quant_group_bytes(t, s->w->cols);
    for (size_t g = s->g0; g < s->g1; g++) {
        VF acc[INT8_X][PARTS16];
        group_tile(mx, t, s->w->p.p + g * bytes, &s->x, acc);
        UNROLL for (int p = 0; p < PARTS16; p++) {
            size_t r = g * QUANT_ROWS + (size_t)p * VF_LANES;
            if (r >= rows) break;
            VF bias = s->bias->p.p ? vf_load_some_as(s->bias->p.p, r, s->bias->type, rows - r) : vf_zero();
            UNROLL for (int i = 0; i < mx; i++)
                vf_store_some(s->out + (size_t)i * s->out_stride + r, vf_add(acc[i][p], bias), rows - r);
        }
    }
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
    case 5: span_tile(5, t, s); break;
    case 6: span_tile(6, t, s); break;
    case 7: span_tile(7, t, s); break;
#endif
    default: span_tile(INT8_X, t, s); break;
    }
}

static x8_rows rows_from(const x8_rows *x, size_t i)
{
    size_t at = i * x->blocks;
    return (x8_rows){x->code + at * QUANT_COLS, x->scale + at, x->sum + at, x->blocks};
}

void LEVEL(k_linear_blocks)(float *out, size_t out_stride, const x8_rows *x, size_t n, const weight *w,
                            const weight *bias, size_t g0, size_t g1)
{
    size_t panel = PANEL_BYTES / quant_group_bytes(w->type, w->cols);
    if (panel < 1 || n <= INT8_X) panel = n <= INT8_X ? g1 - g0 : 1;
    for (size_t g = g0; g < g1; g += panel)
        for (size_t i = 0; i < n; i += INT8_X) {
            size_t mx = n - i < INT8_X ? n - i : INT8_X;
            span s = {out + i * out_stride, out_stride, rows_from(x, i), w, bias, g, g + panel < g1 ? g + panel : g1};
            if (w->type == DT_Q8) span_any(DT_Q8, &s, mx);
            else span_any(DT_Q4, &s, mx);
        }
}
