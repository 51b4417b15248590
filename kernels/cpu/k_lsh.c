/* SPDX-License-Identifier: MIT */
/* Hashes, and biases of samples. Results do not depend on the level. */
#include "config.h"

#include <float.h>

#include "kernels/cpu/k.h"

/* Returns the signs of 16 numbers, some of which may be ignored. NaN counts as not positive. */
INLINE unsigned signs(const float *x)
{
    unsigned m = 0;
    UNROLL for (int i = 0; i < 16; i += VF_LANES) m |= vf_ge(vf_load(x + i), vf_set1(FLT_TRUE_MIN)) << i;
    return m;
}

void LEVEL(k_lsh_codes)(uint16_t *code, const float *dot, size_t stride, size_t n, size_t bits)
{
    const unsigned all = (1u << bits) - 1;
    const size_t end = (n - 1) * stride + bits;
    for (size_t i = 0; i < n; i++) {
        const float *x = dot + i * stride;
        float last[16] = {0};
        bool whole = i * stride + 16 <= end;
        if (!whole) memcpy(last, x, bits * sizeof *x);
        code[i] = (uint16_t)(signs(whole ? x : last) & all);
    }
}

enum { EACH = 32 }; /* cosines processed in parallel, because their chains are long */

/* Rounds twice, even if the compiler could fuse the operations. */
INLINE double line(double y, double x, double add)
{
    double product = y * x;
    return product + add;
}

/* Computes 1 - arc cosine / pi of cosines in [-1, 1], to 1e-8. Source: Abramowitz and Stegun, 4.4.46. */
INLINE void closeness(double p[EACH], const float cosine[EACH])
{
    float root[EACH];
    for (int i = 0; i < EACH; i += VF_LANES) {
        VF x = vf_load(cosine + i);
        vf_store(root + i, vf_sqrt(vf_sub(vf_set1(1), vf_max(x, vf_sub(vf_zero(), x)))));
    }
    for (int i = 0; i < EACH; i++) {
        double x = (double)(cosine[i] < 0 ? -cosine[i] : cosine[i]), y = line(-.0012624911, x, .0066700901);
        y = line(line(y, x, -.0170881256), x, .0308918810);
        y = line(line(y, x, -.0501743046), x, .0889789874);
        y = line(line(y, x, -.2145988016), x, 1.5707963050);
        y = y * (double)root[i] * 0.31830988618379067;
        p[i] = cosine[i] < 0 ? y : 1 - y;
    }
}

/* Computes lsh_bias for each of EACH cosines. */
INLINE void biases(float x[EACH], size_t bits, size_t tables)
{
    double p[EACH], u[EACH], power[EACH], none[EACH];
    for (int i = 0; i < EACH; i += VF_LANES) vf_store(x + i, vf_min(vf_max(vf_load(x + i), vf_set1(-1)), vf_set1(1)));
    closeness(p, x);
    for (int i = 0; i < EACH; i++) u[i] = none[i] = 1;
    for (size_t b = 0; b < bits; b++)
        for (int i = 0; i < EACH; i++) u[i] *= p[i];
    for (int i = 0; i < EACH; i++) power[i] = 1 - u[i];
    for (size_t n = tables - 1; n > 0; n /= 2) {
        for (int i = 0; i < EACH && n % 2; i++) none[i] *= power[i];
        for (int i = 0; i < EACH; i++) power[i] *= power[i];
    }
    for (int i = 0; i < EACH; i++) {
        double miss = line((double)tables, u[i], 1 - u[i]) * none[i];
        x[i] = (float)(1 - miss + 1e-4);
    }
    for (int i = 0; i < EACH; i += VF_LANES) vf_store(x + i, vf_sub(vf_zero(), vf_log(vf_load(x + i))));
}

void LEVEL(k_lsh_bias)(float *out, const float *cosine, size_t n, size_t bits, size_t tables)
{
    for (size_t i = 0; i < n; i += EACH) {
        float x[EACH] = {0};
        size_t some = n - i < EACH ? n - i : EACH;
        memcpy(x, cosine + i, some * sizeof *x);
        biases(x, bits, tables);
        memcpy(out + i, x, some * sizeof *x);
    }
}
