/* SPDX-License-Identifier: MIT */
/* Passes over the numbers of draw.h. Sums are in double: they decide fractions down to 2^-24. */
#include "config.h"

#include <float.h>

#include "kernels/cpu/k.h"

enum { TWO = 2 * VF_LANES };

bool LEVEL(k_finite)(const float *x, size_t n)
{
    VF a = vf_zero(), b = a; /* x - x is 0, or NaN if x is not finite */
    size_t i = 0;
    for (; i + TWO <= n; i += TWO) {
        VF v = vf_load(x + i), w = vf_load(x + i + VF_LANES);
        a = vf_add(a, vf_sub(v, v));
        b = vf_add(b, vf_sub(w, w));
    }
    for (; i < n; i += VF_LANES) {
        VF v = vf_load_some(x + i, n - i);
        a = vf_add(a, vf_sub(v, v));
    }
    return vf_sum(vf_add(a, b)) == 0;
}

float LEVEL(k_clamp)(float *x, size_t n)
{
    const VF most = vf_set1(FLT_MAX), least = vf_set1(-FLT_MAX);
    VF top = least;
    for (size_t i = 0; i < n; i += VF_LANES) {
        /* + 0: comparisons use the sign of a difference, which fails for -0 and 0 */
        VF v = vf_add(vf_min(vf_max(vf_load_some(x + i, n - i), least), most), vf_zero());
        vf_store_some(x + i, v, n - i);
        if (n - i >= VF_LANES) top = vf_max(v, top);
    }
    float best = vf_hmax(top);
    for (size_t i = n / VF_LANES * VF_LANES; i < n; i++)
        if (x[i] > best) best = x[i];
    return best;
}

INLINE double sum_part(const float *p, size_t n)
{
    VD s = vd_zero();
    if (n >= DRAW_PART) {
        UNROLL for (int c = 0; c < DRAW_PART; c += VF_LANES) s = vd_add(s, vf_load(p + c));
    } else {
        for (size_t c = 0; c < n; c += VF_LANES) s = vd_add(s, vf_load_some(p + c, n - c));
    }
    return vd_sum(s);
}

void LEVEL(k_part_sums)(double *sum, const float *p, size_t n)
{
    for (size_t i = 0; i < n; i += DRAW_PART) *sum++ = sum_part(p + i, n - i);
}

/* 2^(by * (x - top)) to 2^-21 for x near top, limited by the rounding of the exponent; 0 below 2^-126. Source of the
 * polynomial: Cephes, exp2f.c. */
INLINE VF mass_of(VF x, VF top, VF by)
{
    VF t = vf_max(vf_mul(vf_sub(x, top), by), vf_set1(-127)), n = vf_round(t), f = vf_sub(t, n);
    VF y = vf_fma(vf_set1(1.535336188319500e-4f), f, vf_set1(1.339887440266574e-3f));
    y = vf_fma(y, f, vf_set1(9.618437357674640e-3f));
    y = vf_fma(y, f, vf_set1(5.550332471162809e-2f));
    y = vf_fma(y, f, vf_set1(2.402264791363012e-1f));
    y = vf_fma(y, f, vf_set1(6.931472028550421e-1f));
    return vf_mul(vf_fma(y, f, vf_set1(1.0f)), vf_exp2i(n));
}

void LEVEL(k_masses)(float *p, double *sum, const float *x, size_t n, float top, float by)
{
    const VF t = vf_set1(top), b = vf_set1(by);
    size_t i = 0;
    for (; i + DRAW_PART <= n; i += DRAW_PART) {
        VD s = vd_zero();
        UNROLL for (int c = 0; c < DRAW_PART; c += VF_LANES)
        {
            VF v = mass_of(vf_load(x + i + c), t, b);
            vf_store(p + i + c, v);
            s = vd_add(s, v);
        }
        *sum++ = vd_sum(s);
    }
    if (i == n) return;
    for (size_t c = i; c < n; c += VF_LANES) vf_store_some(p + c, mass_of(vf_load_some(x + c, n - c), t, b), n - c);
    *sum = sum_part(p + i, n - i);
}

typedef int32_t int4 __attribute__((vector_size(16)));

/* Writes base + i for every bit i of `lanes` in ascending order, followed by up to 3 extra numbers. Branch-free, since
 * the set of lanes is unpredictable. */
INLINE size_t put_lanes(int32_t *out, unsigned lanes, size_t base)
{
    static const int4 place[16] = {{0}, {0},    {1},    {0, 1},    {2},    {0, 2},    {1, 2},    {0, 1, 2},
                                   {3}, {0, 3}, {1, 3}, {0, 1, 3}, {2, 3}, {0, 2, 3}, {1, 2, 3}, {0, 1, 2, 3}};
    static const uint8_t bits[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    size_t count = 0;
    UNROLL for (int l = 0; l < VF_LANES; l += 4)
    {
        unsigned four = lanes >> l & 15;
        int4 at = place[four] + (int32_t)(base + (size_t)l);
        memcpy(out + count, &at, sizeof at);
        count += bits[four];
    }
    return count;
}

/* Splits one vector; w: its masses. */
INLINE size_t split_lanes(int32_t *idx, size_t i, VF a, VF w, VF lo, VF hi, VD *above, VD *from)
{
    *above = vd_add(*above, vf_by_sign(vf_sub(hi, a), vf_zero(), w));
    *from = vd_add(*from, vf_by_sign(vf_sub(a, lo), w, vf_zero()));
    return put_lanes(idx, vf_ge(a, lo) & vf_ge(hi, a), i);
}

size_t LEVEL(k_split)(int32_t *idx, double sum[2], const float *x, const float *p, size_t n, float lo, float hi)
{
    size_t count = 0, i = 0;
    VD above = vd_zero(), from = vd_zero();
    const VF least = vf_set1(lo + 0.0f), most = vf_set1(hi + 0.0f); /* see k_clamp */
    for (; i + TWO <= n; i += TWO) {
        VF a = vf_load(x + i), b = vf_load(x + i + VF_LANES);
        if (!vf_ge(vf_max(a, b), least)) continue; /* few tokens of a vocabulary are likely */
        VF v = p ? vf_load(p + i) : vf_set1(1), w = p ? vf_load(p + i + VF_LANES) : v;
        count += split_lanes(idx + count, i, a, v, least, most, &above, &from);
        count += split_lanes(idx + count, i + VF_LANES, b, w, least, most, &above, &from);
    }
    sum[0] = vd_sum(above);
    sum[1] = vd_sum(from);
    for (; i < n; i++) {
        double w = p ? (double)p[i] : 1;
        if (x[i] > hi) sum[0] += w;
        if (x[i] < lo) continue;
        sum[1] += w;
        idx[count] = (int32_t)i;
        count += x[i] <= hi;
    }
    return count;
}
