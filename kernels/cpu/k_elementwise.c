/* SPDX-License-Identifier: MIT */
/* Norm, rotation, activation and conversions. Tails use the same vector operations as full vectors (vf_load_n), so that
 * a value does not depend on its position in a vector. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/k.h"

static float sum_squares(const float *x, size_t n)
{
    enum { ACC = 4 };
    VF acc[ACC];
    size_t c = 0;
    UNROLL for (int a = 0; a < ACC; a++) acc[a] = vf_zero();
    for (; c + ACC * VF_LANES <= n; c += ACC * VF_LANES) UNROLL for (int a = 0; a < ACC; a++)
        {
            VF v = vf_load(x + c + (size_t)a * VF_LANES);
            acc[a] = vf_fma(v, v, acc[a]);
        }
    for (; c < n; c += VF_LANES) {
        VF v = vf_load_some(x + c, n - c);
        acc[0] = vf_fma(v, v, acc[0]);
    }
    return vf_sum(vf_add(vf_add(acc[0], acc[1]), vf_add(acc[2], acc[3])));
}

INLINE void norm_rows(float *out, const float *x, const void *w, const dtype t, size_t n, size_t dim, float eps)
{
    for (size_t r = 0; r < n; r++, x += dim, out += dim) {
        double mean = (double)sum_squares(x, dim) / (double)dim;
        VF scale = vf_set1((float)(1 / sqrt(mean + (double)eps)));
        for (size_t c = 0; c < dim; c += VF_LANES) {
            VF v = vf_mul(vf_load_some(x + c, dim - c), scale);
            vf_store_some(out + c, vf_mul(v, vf_load_some_as(w, c, t, dim - c)), dim - c);
        }
    }
}

void LEVEL(k_rmsnorm)(float *out, const float *x, const void *w, dtype wt, size_t n, size_t dim, float eps)
{
    if (wt == DT_F32) norm_rows(out, x, w, DT_F32, n, dim, eps);
    else if (wt == DT_F16) norm_rows(out, x, w, DT_F16, n, dim, eps);
    else norm_rows(out, x, w, DT_BF16, n, dim, eps);
}

/* silu(g) = g / (1 + exp(-g)); for large -g the quotient is g / 2.4e38, effectively zero. */
void LEVEL(k_swiglu)(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t c = 0; c < n; c += VF_LANES) {
        VF g = vf_load_some(gate + c, n - c), u = vf_load_some(up + c, n - c);
        VF den = vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), g)));
        vf_store_some(out + c, vf_mul(vf_div(g, den), u), n - c);
    }
}

void LEVEL(k_gate)(float *x, const float *gate, size_t n)
{
    for (size_t c = 0; c < n; c += VF_LANES) {
        VF g = vf_load_some(gate + c, n - c);
        VF den = vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), g)));
        vf_store_some(x + c, vf_div(vf_load_some(x + c, n - c), den), n - c);
    }
}

void LEVEL(k_add)(float *x, const float *y, size_t n)
{
    for (size_t c = 0; c < n; c += VF_LANES)
        vf_store_some(x + c, vf_add(vf_load_some(x + c, n - c), vf_load_some(y + c, n - c)), n - c);
}

void LEVEL(k_scale)(float *out, const float *in, float by, size_t n)
{
    for (size_t c = 0; c < n; c += VF_LANES)
        vf_store_some(out + c, vf_mul(vf_load_some(in + c, n - c), vf_set1(by)), n - c);
}

/* Splits the table's pairs (cos, sin) once per token, for all its heads. */
static void rope_token(float *out, const float *x, const float *table, size_t h0, size_t h1, size_t dim, size_t half)
{
    float cs[HEAD_DIM_MAX / 2], sn[HEAD_DIM_MAX / 2];
    for (size_t c = 0; c < half; c++) {
        cs[c] = table[2 * c];
        sn[c] = table[2 * c + 1];
    }
    for (size_t h = h0; h < h1; h++) {
        const float *in = x + h * dim;
        float *o = out + h * dim;
        for (size_t c = 0; c < half; c += VF_LANES) {
            size_t left = half - c;
            VF a = vf_load_some(in + c, left), b = vf_load_some(in + half + c, left);
            VF co = vf_load_some(cs + c, left), si = vf_load_some(sn + c, left);
            vf_store_some(o + c, vf_sub(vf_mul(a, co), vf_mul(b, si)), left);
            vf_store_some(o + half + c, vf_add(vf_mul(b, co), vf_mul(a, si)), left);
        }
        for (size_t c = 2 * half; c < dim && o != in; c++) o[c] = in[c];
    }
}

void LEVEL(k_rope)(float *out, const float *x, const float *table, size_t heads, size_t dim, size_t half, size_t r0,
                   size_t r1)
{
    while (r0 < r1) {
        size_t token = r0 / heads, h0 = r0 % heads, left = r1 - r0;
        size_t h1 = heads - h0 < left ? heads : h0 + left, at = token * heads * dim;
        rope_token(out + at, x + at, table + token * 2 * half, h0, h1, dim, half);
        r0 += h1 - h0;
    }
}

INLINE void widen_as(float *out, const void *in, const dtype t, size_t n)
{
    for (size_t c = 0; c < n; c += VF_LANES) vf_store_some(out + c, vf_load_some_as(in, c, t, n - c), n - c);
}

void LEVEL(k_widen)(float *out, const void *in, dtype t, size_t n)
{
    if (t == DT_F32) memcpy(out, in, 4 * n);
    else if (t == DT_F16) widen_as(out, in, DT_F16, n);
    else widen_as(out, in, DT_BF16, n);
}

INLINE void narrow_as(void *out, const float *in, const dtype t, size_t n)
{
    size_t c = 0;
    for (; c + VF_LANES <= n; c += VF_LANES) vf_store_as(out, c, vf_load(in + c), t);
    if (c < n) vf_store_as_n(out, c, vf_load_n(in + c, n - c), t, n - c);
}

void LEVEL(k_narrow)(void *out, const float *in, dtype t, size_t n)
{
    if (t == DT_F32) memcpy(out, in, 4 * n);
    else if (t == DT_F16) narrow_as(out, in, DT_F16, n);
    else narrow_as(out, in, DT_BF16, n);
}

/* Reads two streams half the block apart, prefetched 2 KB ahead: a single stream reads 5-10 % less. */
float LEVEL(k_read_sum)(const void *p, size_t bytes)
{
    enum { ACC = 4, AHEAD = 2048 };
    const float *a = p, *b = a + bytes / 8;
    VF s[2 * ACC];
    UNROLL for (int i = 0; i < 2 * ACC; i++) s[i] = vf_zero();
    for (size_t c = 0; c < bytes / 8; c += ACC * VF_LANES) {
        for (size_t line = 0; line < ACC * VF_LANES; line += 16) {
            prefetch((const char *)(a + c + line) + AHEAD);
            prefetch((const char *)(b + c + line) + AHEAD);
        }
        UNROLL for (size_t i = 0; i < ACC; i++)
        {
            s[i] = vf_add(s[i], vf_load(a + c + i * VF_LANES));
            s[ACC + i] = vf_add(s[ACC + i], vf_load(b + c + i * VF_LANES));
        }
    }
    UNROLL for (int i = 1; i < 2 * ACC; i++) s[0] = vf_add(s[0], s[i]);
    return vf_sum(s[0]);
}
