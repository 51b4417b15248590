/* SPDX-License-Identifier: MIT */
/* Statistics, weights and probes of prompt windows; products with block representatives (ops_block.h). */
#include "config.h"

#include "kernels/cpu/k.h"

/* Computes the window's mean and deviations in two passes, then merges them with those of earlier rows (Chan). A
 * vector's column of a window is in L1 during the second pass. */
void LEVEL(k_moments)(float *mean, float *m2, size_t before, const float *x, size_t n, size_t dim, size_t c0, size_t c1)
{
    double all = (double)(before + n);
    VF by_n = vf_set1((float)(1 / (double)n)), part = vf_set1((float)((double)n / all));
    VF cross = vf_set1((float)((double)before * (double)n / all));
    for (size_t c = c0; c < c1; c += VF_LANES) {
        size_t left = c1 - c;
        VF sum = vf_zero(), dev = vf_zero();
        VF old = before ? vf_load_some(mean + c, left) : vf_zero();
        VF old_dev = before ? vf_load_some(m2 + c, left) : vf_zero();
        for (size_t i = 0; i < n; i++) sum = vf_add(sum, vf_load_some(x + i * dim + c, left));
        VF mid = vf_mul(sum, by_n);
        for (size_t i = 0; i < n; i++) {
            VF d = vf_sub(vf_load_some(x + i * dim + c, left), mid);
            dev = vf_fma(d, d, dev);
        }
        VF delta = vf_sub(mid, old);
        dev = vf_add(old_dev, vf_fma(vf_mul(delta, delta), cross, dev));
        vf_store_some(mean + c, vf_fma(delta, part, old), left);
        vf_store_some(m2 + c, dev, left);
    }
}

float LEVEL(k_activation)(const float *x, const float *mean, const float *inverse, size_t dim)
{
    VF acc[2] = {vf_zero(), vf_zero()};
    for (size_t c = 0, a = 0; c < dim; c += VF_LANES, a ^= 1) {
        VF d = vf_sub(vf_load_some(x + c, dim - c), vf_load_some(mean + c, dim - c));
        acc[a] = vf_fma(vf_mul(d, d), vf_load_some(inverse + c, dim - c), acc[a]);
    }
    return vf_sum(vf_add(acc[0], acc[1]));
}

void LEVEL(k_mix)(float *out, const float *weights, const float *x, size_t n, size_t dim, size_t c0, size_t c1)
{
    for (size_t c = c0; c < c1; c += VF_LANES) {
        VF acc = vf_zero();
        for (size_t i = 0; i < n; i++) acc = vf_fma(vf_set1(weights[i]), vf_load_some(x + i * dim + c, c1 - c), acc);
        vf_store_some(out + c, acc, c1 - c);
    }
}

INLINE void dot_norm_as(float out[2], const float *x, const void *y, const dtype t, size_t n)
{
    enum { ACC = 4, AHEAD = 4096 }; /* the data after y is usually the next row */
    VF dot[ACC], norm[ACC];
    size_t c = 0, es = dtype_size(t);
    UNROLL for (int a = 0; a < ACC; a++) dot[a] = norm[a] = vf_zero();
    for (; c + ACC * VF_LANES <= n; c += ACC * VF_LANES) {
        for (size_t b = 0; b < ACC * VF_LANES * es; b += 64) prefetch((const char *)y + c * es + AHEAD + b);
        UNROLL for (int a = 0; a < ACC; a++)
        {
            size_t e = c + (size_t)a * VF_LANES;
            VF v = vf_load_as(y, e, t);
            dot[a] = vf_fma(v, vf_load(x + e), dot[a]);
            norm[a] = vf_fma(v, v, norm[a]);
        }
    }
    for (; c < n; c += VF_LANES) {
        VF v = vf_load_some_as(y, c, t, n - c);
        dot[0] = vf_fma(v, vf_load_some(x + c, n - c), dot[0]);
        norm[0] = vf_fma(v, v, norm[0]);
    }
    out[0] = vf_sum(vf_add(vf_add(dot[0], dot[1]), vf_add(dot[2], dot[3])));
    out[1] = vf_sum(vf_add(vf_add(norm[0], norm[1]), vf_add(norm[2], norm[3])));
}

void LEVEL(k_dot_norm)(float out[2], const float *x, const void *y, dtype t, size_t n)
{
    if (t == DT_F32) dot_norm_as(out, x, y, DT_F32, n);
    else if (t == DT_F16) dot_norm_as(out, x, y, DT_F16, n);
    else dot_norm_as(out, x, y, DT_BF16, n);
}
