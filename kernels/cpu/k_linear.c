/* SPDX-License-Identifier: MIT */
/* x w^T directly from the stored weights. The decode GEMV (bound by reading w) and the built-in GEMM are one kernel
 * with different register tiles. Each output is DOT_ACC vector sums over columns c, c + DOT_ACC * VF_LANES, ..., added
 * in a fixed tree, so its bits do not depend on tile size, panel or thread. */
#include "config.h"

#include "kernels/cpu/k.h"
#include "kernels/half.h"

enum {
    AHEAD = 2048,            /* bytes; the best prefetch distance measured (design: cpu-kernels 1) */
    PANEL_BYTES = 192 * 1024 /* w rows that stay in L2 while all rows of x pass */
};

INLINE VF dot_sum(const VF acc[DOT_ACC])
{
    VF s = acc[0];
    UNROLL for (int a = 1; a < DOT_ACC; a++) s = vf_add(s, acc[a]);
    return s;
}

/* out[i][j] = x row i . w row j for mx rows of x and mw rows of w, all of k columns. */
INLINE void dot_tile(const int mx, const int mw, const dtype t, const float *x, const unsigned char *w, size_t k,
                     float out[DOT_X][DOT_W])
{
    enum { STEP = DOT_ACC * VF_LANES };
    VF acc[DOT_X][DOT_W][DOT_ACC];
    size_t c = 0;
    UNROLL for (int i = 0; i < mx; i++) UNROLL for (int j = 0; j < mw; j++) UNROLL for (int a = 0; a < DOT_ACC; a++)
        acc[i][j][a] = vf_zero();
    for (; c + STEP <= k; c += STEP) {
        UNROLL for (int j = 0; j < mw; j++) prefetch(w + ((size_t)j * k + c) * dtype_size(t) + AHEAD);
        UNROLL for (int a = 0; a < DOT_ACC; a++)
        {
            size_t at = c + (size_t)a * VF_LANES;
            VF wv[DOT_W];
            UNROLL for (int j = 0; j < mw; j++) wv[j] = vf_load_as(w, (size_t)j * k + at, t);
            UNROLL for (int i = 0; i < mx; i++)
            {
                VF xv = vf_load(x + (size_t)i * k + at);
                UNROLL for (int j = 0; j < mw; j++) acc[i][j][a] = vf_fma(xv, wv[j], acc[i][j][a]);
            }
        }
    }
    UNROLL for (int a = 0; a < DOT_ACC; a++)
    {
        size_t at = c + (size_t)a * VF_LANES;
        if (at >= k) break;
        size_t left = k - at;
        UNROLL for (int j = 0; j < mw; j++)
        {
            size_t e = (size_t)j * k + at;
            VF wv = left >= VF_LANES ? vf_load_as(w, e, t) : vf_load_as_n(w, e, t, left);
            UNROLL for (int i = 0; i < mx; i++)
            {
                const float *p = x + (size_t)i * k + at;
                VF xv = left >= VF_LANES ? vf_load(p) : vf_load_n(p, left);
                acc[i][j][a] = vf_fma(xv, wv, acc[i][j][a]);
            }
        }
    }
    UNROLL for (int i = 0; i < mx; i++) UNROLL for (int j = 0; j < mw; j++) out[i][j] = vf_sum(dot_sum(acc[i][j]));
}

static float bias_at(const weight *bias, size_t r)
{
    uint16_t h;
    float f;
    if (bias->type == DT_F32) {
        memcpy(&f, bias->p.p + 4 * r, 4);
        return f;
    }
    memcpy(&h, bias->p.p + 2 * r, 2);
    return bias->type == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

typedef struct {
    float *out;
    size_t out_stride;
    const float *x;
    const weight *w, *bias;
    size_t r0, r1;
} span;

INLINE void span_tile(const int mx, const int mw, const dtype t, const span *s, size_t r)
{
    float dots[DOT_X][DOT_W];
    size_t k = s->w->cols;
    dot_tile(mx, mw, t, s->x, s->w->p.p + r * k * dtype_size(t), k, dots);
    for (int j = 0; j < mw; j++) {
        float b = s->bias->p.p ? bias_at(s->bias, r + (size_t)j) : 0;
        for (int i = 0; i < mx; i++) s->out[(size_t)i * s->out_stride + r + (size_t)j] = dots[i][j] + b;
    }
}

/* Multiplies mx rows of x with the rows of w in the span. A single row of x (decode) reads w's rows one by one: a
 * contiguous stream a thread reaches 93-95 % of the memory bandwidth, two streams 4 KB apart only 70 %. */
INLINE void span_rows(const int mx, const dtype t, const span *s)
{
    size_t r = s->r0;
    for (; mx > 1 && r + DOT_W <= s->r1; r += DOT_W) span_tile(mx, DOT_W, t, s, r);
    for (; r < s->r1; r++) span_tile(mx, 1, t, s, r);
}

INLINE void span_any(const dtype t, const span *s, size_t mx)
{
    switch (mx) {
    case 1: span_rows(1, t, s); break;
    case 2: span_rows(2, t, s); break;
    case 3: span_rows(DOT_X < 3 ? DOT_X : 3, t, s); break;
    default: span_rows(DOT_X, t, s); break;
    }
}

void LEVEL(k_linear)(float *out, size_t out_stride, const float *x, size_t n, const weight *w, const weight *bias,
                     size_t r0, size_t r1)
{
    size_t k = w->cols, panel = PANEL_BYTES / (k * dtype_size(w->type) + 1) / DOT_W * DOT_W;
    if (panel < DOT_W) panel = DOT_W;
    if (n <= DOT_X) panel = r1 - r0;
    for (size_t p = r0; p < r1; p += panel)
        for (size_t i = 0; i < n; i += DOT_X) {
            size_t mx = n - i < DOT_X ? n - i : DOT_X;
            span s = {out + i * out_stride, out_stride, x + i * k, w, bias, p, p + panel < r1 ? p + panel : r1};
            if (w->type == DT_F32) span_any(DT_F32, &s, mx);
            else if (w->type == DT_F16) span_any(DT_F16, &s, mx);
            else span_any(DT_BF16, &s, mx);
        }
}
