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
#include "kernels/cpu/simd_bits.h"

enum {
    BLOCK = 32,
    VECS = BLOCK / VF_LANES,
    AHEAD = 16 /* groups whose shared parts are made together: dots_rows multiplies several rows at a time */
};

/* One block for `heads` heads: out[h * BLOCK + token]; a as in group_levels. */
INLINE void block_heads(const int heads, const uint32_t *bits, size_t d, const float *w, const float *a,
                        float *out)
{
    VF acc[2 * VECS];
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int v = 0; v < VECS; v++) acc[h * VECS + v] = vf_set1(a[h * AHEAD]);
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
    float span[HEAD_DIM_MAX], most; /* the largest span, 0 where none is */
    float shared[FIER_HEADS * AHEAD];
    size_t first, end; /* groups that `shared` has */
    const float *a;    /* a[h * AHEAD]: what all tokens of the group have in head h's estimate */
} group_levels;

/* Levels of one group; called for ascending groups. */
INLINE void group_begin(const dtype t, const fier_run *r, size_t group, group_levels *g)
{
    size_t d = r->head_dim, at = group * 2 * d, c = 0;
    VF most = vf_zero();
    if (group >= g->end) {
        size_t last = (r->t1 - 1) / r->group + 1, bytes = 2 * d * dtype_size(t);
        g->first = group;
        g->end = last < group + AHEAD ? last : group + AHEAD;
        dots_rows(false, t, r->q, r->heads, d, (const unsigned char *)r->levels + group * bytes, bytes, 0,
                  g->end - group, g->shared, AHEAD);
    }
    g->a = g->shared + (group - g->first);
    for (; c + VF_LANES <= d; c += VF_LANES) {
        VF span = vf_sub(vf_load_as(r->levels, at + d + c, t), vf_load_as(r->levels, at + c, t));
        vf_store(g->span + c, span);
        most = vf_max(span, most);
    }
    if (c < d) {
        VF span = vf_sub(vf_load_as_n(r->levels, at + d + c, t, d - c), vf_load_as_n(r->levels, at + c, t, d - c));
        vf_store_n(g->span + c, span, d - c);
        most = vf_max(span, most);
    }
    g->most = vf_hmax(most);
}

/* Tokens of a group in one block. */
typedef struct {
    size_t from, to;
    const uint32_t *bits; /* of the block */
} block_run;

INLINE block_run block_of(const fier_run *r, size_t block, size_t t0, size_t t1)
{
    size_t first = block * BLOCK, end = first + BLOCK;
    return (block_run){first < t0 ? t0 : first, end < t1 ? end : t1,
                       r->bits + block * fier_words(r->head_dim) * BLOCK};
}

/* Lines of the words of a block some blocks on: memory's answer takes longer than a block's work. */
INLINE void prefetch_block(const block_run *b, size_t d)
{
    enum { BLOCKS_AHEAD = 8 };
    size_t words = fier_words(d) * BLOCK;
    for (size_t w = 0; w < words; w += 16) prefetch(b->bits + BLOCKS_AHEAD * words + w);
}

INLINE void put_block(const fier_run *r, const block_run *b, size_t head, const float *out)
{
    memcpy(r->score + head * r->stride + b->from, out + b->from % BLOCK, (b->to - b->from) * sizeof *out);
}

/* What the bits of a group weigh for each head. */
INLINE void group_weights(const fier_run *r, const group_levels *g, float *w)
{
    size_t d = r->head_dim;
    for (size_t h = 0; h < r->heads; h++)
        for (size_t c = 0; c < d; c += VF_LANES) {
            VF v = vf_mul(vf_load_some(r->q + h * d + c, d - c), vf_load_some(g->span + c, d - c));
            vf_store_some(w + h * d + c, v, d - c);
        }
}

INLINE void run_as(const dtype t, const fier_run *r)
{
    size_t d = r->head_dim;
    group_levels g = {.end = 0};
    float w[FIER_HEADS * HEAD_DIM_MAX];
    for (size_t t0 = r->t0, end; t0 < r->t1; t0 = end) {
        end = (t0 / r->group + 1) * r->group;
        if (end > r->t1) end = r->t1;
        group_begin(t, r, t0 / r->group, &g);
        group_weights(r, &g, w);
        for (size_t i = t0 / BLOCK; i * BLOCK < end; i++) {
            block_run b = block_of(r, i, t0, end);
            prefetch_block(&b, d);
            for (size_t h = 0; h < r->heads; h += 2) {
                float out[2 * BLOCK];
                if (h + 2 <= r->heads) block_heads(2, b.bits, d, w + h * d, g.a + h * AHEAD, out);
                else block_heads(1, b.bits, d, w + h * d, g.a + h * AHEAD, out);
                for (size_t k = 0; k < 2 && h + k < r->heads; k++) put_block(r, &b, h + k, out + k * BLOCK);
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

/* ---- whole numbers ---- */

enum { QUADS = HEAD_DIM_MAX / 4, P_ROW = QUADS * DI_COPIES, INT8_HEADS = 4, INT8_VECS = 2 };

/* The heads' queries as quads, and their largest elements. */
typedef struct {
    int32_t p[FIER_HEADS * P_ROW];
    float most[FIER_HEADS];
} int8_queries;

INLINE float largest(const float *x, size_t n)
{
    VF most = vf_zero();
    for (size_t c = 0; c < n; c += VF_LANES) {
        VF v = vf_load_some(x + c, n - c);
        most = vf_max(vf_max(v, vf_sub(vf_zero(), v)), most);
    }
    return vf_hmax(most);
}

/* x [n] with room for whole words, as quads. */
INLINE void quads_of_row(int32_t *out, float *x, size_t n, float most, float least)
{
    size_t words = fier_words(n);
    for (size_t c = n; c < words * 32; c++) x[c] = 0;
    for (size_t w = 0; w < words; w++) quads_of(out + 8 * w, x + 32 * w, 127 / most, least);
}

static void queries_begin(const fier_run *r, int8_queries *q)
{
    float x[HEAD_DIM_MAX];
    int32_t p[QUADS];
    for (size_t h = 0; h < r->heads; h++) {
        memcpy(x, r->q + h * r->head_dim, r->head_dim * sizeof *x);
        q->most[h] = largest(x, r->head_dim);
        quads_of_row(p, x, r->head_dim, q->most[h], -127);
        for (size_t i = 0; i < 8 * fier_words(r->head_dim); i++)
            for (size_t k = 0; k < DI_COPIES; k++) q->p[h * P_ROW + i * DI_COPIES + k] = p[i];
    }
}

/* One block for `heads` heads: out[h * stride + token]. */
INLINE void block_int8(const int heads, const uint32_t *bits, size_t words, const int32_t *u, const int32_t *p,
                       const float *a, const float *scale, float *out, size_t stride)
{
    for (int v = 0; v < VECS; v += INT8_VECS) {
        const uint32_t *x = bits + v * VF_LANES;
        DI s[INT8_HEADS * INT8_VECS];
        UNROLL for (int i = 0; i < heads * INT8_VECS; i++) s[i] = di_zero();
        for (size_t w = 0; w < words; w++)
            UNROLL for (int j = 0; j < 8; j++)
                UNROLL for (int k = 0; k < INT8_VECS; k++) {
                    DI e = di_take(vi_load(x + w * BLOCK + (size_t)k * VF_LANES), j, u[8 * w + (size_t)j]);
                    UNROLL for (int h = 0; h < heads; h++)
                        s[h * INT8_VECS + k] =
                            di_dot(s[h * INT8_VECS + k], e, p + (size_t)h * P_ROW + (8 * w + (size_t)j) * DI_COPIES);
                }
        UNROLL for (int h = 0; h < heads; h++)
            UNROLL for (int k = 0; k < INT8_VECS; k++)
                vf_store(out + (size_t)h * stride + (size_t)(v + k) * VF_LANES,
                         vf_add(vf_set1(a[h * AHEAD]), vf_mul(di_floats(s[h * INT8_VECS + k]), vf_set1(scale[h]))));
    }
}

INLINE void block_int8_heads(size_t heads, const uint32_t *bits, size_t words, const int32_t *u, const int32_t *p,
                             const float *a, const float *scale, float *out, size_t stride)
{
    if (heads >= 4) block_int8(4, bits, words, u, p, a, scale, out, stride);
    else if (heads == 3) block_int8(3, bits, words, u, p, a, scale, out, stride);
    else if (heads == 2) block_int8(2, bits, words, u, p, a, scale, out, stride);
    else block_int8(1, bits, words, u, p, a, scale, out, stride);
}

INLINE void run_int8_as(const dtype t, const fier_run *r)
{
    size_t words = fier_words(r->head_dim);
    int8_queries q;
    group_levels g = {.end = 0};
    int32_t u[QUADS];
    float scale[FIER_HEADS];
    queries_begin(r, &q);
    for (size_t t0 = r->t0, end; t0 < r->t1; t0 = end) {
        end = (t0 / r->group + 1) * r->group;
        if (end > r->t1) end = r->t1;
        group_begin(t, r, t0 / r->group, &g);
        quads_of_row(u, g.span, r->head_dim, g.most, 0);
        for (size_t h = 0; h < r->heads; h++) scale[h] = (g.most / 127) * (q.most[h] / 127);
        for (size_t i = t0 / BLOCK; i * BLOCK < end; i++) {
            block_run b = block_of(r, i, t0, end);
            prefetch_block(&b, r->head_dim);
            for (size_t h = 0; h < r->heads; h += INT8_HEADS) {
                float part[INT8_HEADS * BLOCK], *out = r->score + h * r->stride + b.from;
                bool all = b.to - b.from == BLOCK;
                block_int8_heads(r->heads - h, b.bits, words, u, q.p + h * P_ROW, g.a + h * AHEAD, scale + h,
                                 all ? out : part, all ? r->stride : BLOCK);
                for (size_t k = 0; k < INT8_HEADS && h + k < r->heads && !all; k++)
                    put_block(r, &b, h + k, part + k * BLOCK);
            }
        }
    }
}

void LEVEL(k_fier_score_int8)(const fier_run *r)
{
    if (r->type == DT_F32) run_int8_as(DT_F32, r);
    else if (r->type == DT_F16) run_int8_as(DT_F16, r);
    else run_int8_as(DT_BF16, r);
}

/* ---- levels and bits ---- */

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
