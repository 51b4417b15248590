/* SPDX-License-Identifier: MIT */
/* One-bit keys: levels and bits of a group, and the estimates. Bits do not depend on the level (ops_fier.h).
 *
 * A group's estimate is a sum over pairs of channels of one of 4 numbers, so that each pair and head gets
 * a table in a register; two bits of a token look its entry up with one permutation of lanes. A table
 * serves the 32 tokens of a block, the words of bits are read once for all heads of the group. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/dots.h"
#include "kernels/cpu/k.h"

enum { BLOCK = 32, VECS = BLOCK / VF_LANES };

/* One block for `heads` heads: out[h * BLOCK + token]. */
INLINE void block_heads(const int heads, const uint32_t *bits, size_t d, const float *w, const float *a,
                        float *out)
{
    VF acc[2 * VECS];
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int v = 0; v < VECS; v++) acc[h * VECS + v] = vf_set1(a[h]);
    for (size_t c = 0; c < d; c += 32) {
        size_t pairs = d - c < 32 ? (d - c) / 2 : 16;
        VI x[VECS];
        UNROLL for (int v = 0; v < VECS; v++) x[v] = vi_load(bits + c + (size_t)v * VF_LANES);
        for (size_t j = 0; j < pairs; j++) {
            UNROLL for (int h = 0; h < heads; h++) {
                VT t = vt_make(w + (size_t)h * d + c + 2 * j);
                UNROLL for (int v = 0; v < VECS; v++)
                    acc[h * VECS + v] = vf_add(acc[h * VECS + v], vt_get(t, x[v]));
            }
            UNROLL for (int v = 0; v < VECS; v++) x[v] = vi_shr2(x[v]);
        }
    }
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int v = 0; v < VECS; v++) vf_store(out + h * BLOCK + v * VF_LANES, acc[h * VECS + v]);
}

typedef struct {
    float lo[HEAD_DIM_MAX], span[HEAD_DIM_MAX];
    float w[FIER_HEADS * HEAD_DIM_MAX];
    float a[FIER_HEADS];
} group_work;

/* Levels of one group, and what they weigh for each head. */
INLINE void group_begin(const dtype t, const fier_run *r, size_t group, group_work *g)
{
    size_t d = r->head_dim, at = group * 2 * d;
    for (size_t c = 0; c < d; c += VF_LANES) {
        size_t left = d - c;
        VF lo = vf_load_some_as(r->levels, at + c, t, left);
        VF hi = vf_load_some_as(r->levels, at + d + c, t, left);
        vf_store_some(g->lo + c, lo, left);
        vf_store_some(g->span + c, vf_sub(hi, lo), left);
    }
    for (size_t h = 0; h < r->heads; h++)
        for (size_t c = 0; c < d; c += VF_LANES) {
            VF w = vf_mul(vf_load_some(r->q + h * d + c, d - c), vf_load_some(g->span + c, d - c));
            vf_store_some(g->w + h * d + c, w, d - c);
        }
    dots_rows(false, DT_F32, r->q, r->heads, d, g->lo, 0, 0, 1, g->a, 1);
}

INLINE void run_as(const dtype t, const fier_run *r)
{
    size_t d = r->head_dim;
    group_work g;
    for (size_t t0 = r->t0, end; t0 < r->t1; t0 = end) {
        end = (t0 / r->group + 1) * r->group;
        if (end > r->t1) end = r->t1;
        group_begin(t, r, t0 / r->group, &g);
        for (size_t b = t0 / BLOCK; b * BLOCK < end; b++) {
            const uint32_t *bits = r->bits + b * fier_words(d) * BLOCK;
            size_t from = b * BLOCK < t0 ? t0 : b * BLOCK, to = (b + 1) * BLOCK < end ? (b + 1) * BLOCK : end;
            for (size_t h = 0; h < r->heads; h += 2) {
                float out[2 * BLOCK];
                if (h + 2 <= r->heads) block_heads(2, bits, d, g.w + h * d, g.a + h, out);
                else block_heads(1, bits, d, g.w + h * d, g.a + h, out);
                for (size_t k = 0; k < 2 && h + k < r->heads; k++)
                    memcpy(r->score + (h + k) * r->stride + from, out + k * BLOCK + from % BLOCK,
                           (to - from) * sizeof *out);
            }
        }
    }
}

void LEVEL(k_fier_score)(const fier_run *r)
{
    if (r->type == DT_F32) run_as(DT_F32, r);
    else if (r->type == DT_F16) run_as(DT_F16, r);
    else run_as(DT_BF16, r);
}

/* Means of the keys below z and of the others. */
static void two_means(float *z, float *lo, float *hi, const float *x, size_t m, size_t d)
{
    for (size_t c = 0; c < d; c++) {
        float sum[2] = {0}, count[2] = {0};
        for (size_t i = 0; i < m; i++) {
            int upper = x[i * d + c] >= z[c];
            sum[upper] += x[i * d + c];
            count[upper] += 1;
        }
        lo[c] = sum[count[0] == 0] / count[count[0] == 0];
        hi[c] = sum[count[1] != 0] / count[count[1] != 0];
    }
}

void LEVEL(k_fier_levels)(float *z, float *lo, float *hi, const float *x, size_t m, size_t d, fier_levels how)
{
    for (size_t c = 0; c < d; c += VF_LANES) {
        size_t left = d - c;
        VF first = vf_load_some(x + c, left), least = first, most = first, sum = vf_zero(), dev = vf_zero();
        for (size_t i = 0; i < m; i++) {
            VF v = vf_load_some(x + i * d + c, left);
            least = vf_min(v, least);
            most = vf_max(v, most);
            sum = vf_add(sum, v);
        }
        VF mid = vf_mul(vf_set1(0.5f), vf_add(least, most)), n = vf_set1((float)m);
        if (how == FIER_MAD) {
            mid = vf_div(sum, n);
            for (size_t i = 0; i < m; i++) {
                VF v = vf_sub(vf_load_some(x + i * d + c, left), mid);
                dev = vf_add(dev, vf_max(v, vf_sub(vf_zero(), v)));
            }
            dev = vf_div(dev, n);
            least = vf_sub(mid, dev);
            most = vf_add(mid, dev);
        }
        vf_store_some(z + c, mid, left);
        vf_store_some(lo + c, least, left);
        vf_store_some(hi + c, most, left);
    }
    if (how == FIER_TWO_MEAN) two_means(z, lo, hi, x, m, d);
}

void LEVEL(k_fier_bits)(uint32_t *word, const float *z, const float *x, size_t d)
{
    for (size_t c = 0; c < d; c += 32) {
        uint32_t bits = 0;
        size_t end = d - c < 32 ? d - c : 32;
        for (size_t i = 0; i < end; i += VF_LANES) {
            size_t left = end - i;
            uint32_t m = vf_ge(vf_load_some(x + c + i, left), vf_load_some(z + c + i, left));
            if (left < VF_LANES) m &= ((uint32_t)1 << left) - 1;
            bits |= m << i;
        }
        word[c] = bits; /* words of a block are 32 tokens apart */
    }
}

void LEVEL(k_quest_add)(void *bound, const float *k, size_t d, dtype t, bool anew)
{
    for (size_t c = 0; c < d; c += VF_LANES) {
        size_t left = d - c;
        VF v = vf_load_some(k + c, left), top = v, low = v;
        if (!anew && left >= VF_LANES) {
            top = vf_max(v, vf_load_as(bound, c, t));
            low = vf_min(v, vf_load_as(bound, d + c, t));
        } else if (!anew) {
            top = vf_max(v, vf_load_as_n(bound, c, t, left));
            low = vf_min(v, vf_load_as_n(bound, d + c, t, left));
        }
        if (left >= VF_LANES) {
            vf_store_as(bound, c, top, t);
            vf_store_as(bound, d + c, low, t);
        } else {
            vf_store_as_n(bound, c, top, t, left);
            vf_store_as_n(bound, d + c, low, t, left);
        }
    }
}
