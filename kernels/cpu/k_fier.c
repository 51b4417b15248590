/* SPDX-License-Identifier: MIT */
/* One-bit keys: levels and bits of a group, and the estimates. Results do not depend on the level (ops_fier.h).
 *
 * A group's estimate is a sum over pairs of channels of one of 4 numbers, so each pair and head gets a table in a
 * register. One permutation of lanes looks up the entry for two bits of a token. A table serves the 32 tokens of a
 * block, and the words of bits are read once for all heads of the group. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/dots.h"
#include "kernels/cpu/k.h"
#include "kernels/cpu/simd_bits.h"

enum {
    BLOCK = 32,
    VECS = BLOCK / VF_LANES,
    AHEAD = 16 /* groups whose shared parts are computed together: dots_rows multiplies several rows at a time */
};

/* Estimates one block for `heads` heads: out[h * BLOCK + token]; a as in group_levels. */
INLINE void block_heads(const int heads, const uint32_t *bits, size_t d, const float *w, const float *a, float *out)
{
    VF acc[2 * VECS];
    UNROLL for (int h = 0; h < heads; h++) UNROLL for (int v = 0; v < VECS; v++) acc[h * VECS + v] =
        vf_set1(a[h * AHEAD]);
    for (size_t c = 0; c < d; c += 32) {
        size_t pairs = d - c < 32 ? (d - c) / 2 : 16;
        VI x[VECS];
        UNROLL for (int v = 0; v < VECS; v++) x[v] = vi_load(bits + c + (size_t)v * VF_LANES);
        for (size_t j = 0; j < pairs; j++) {
            UNROLL for (int h = 0; h < heads; h++)
            {
                VT t = vt_make(w + (size_t)h * d + c + 2 * j);
                UNROLL for (int v = 0; v < VECS; v++) acc[h * VECS + v] = vf_add(acc[h * VECS + v], vt_get(t, x[v]));
            }
            UNROLL for (int v = 0; v < VECS; v++) x[v] = vi_shr2(x[v]);
        }
    }
    UNROLL for (int h = 0; h < heads; h++) UNROLL for (int v = 0; v < VECS; v++)
        vf_store(out + h * BLOCK + v * VF_LANES, acc[h * VECS + v]);
}

/* Consecutive groups. Work shared by their tokens is done for all groups first: group by group it would be bound by
 * latency, and dots_rows multiplies several rows at a time. */
typedef struct {
    size_t first, end, t0, t1; /* range of groups, and the run's tokens in them */
    float shared[FIER_HEADS *
                 AHEAD]; /* [h * AHEAD + i]: common part of head h's estimates of all tokens of group first + i */
} some_groups;

/* Starts the groups of the run's tokens from t0 on. */
INLINE void groups_begin(const dtype t, const fier_run *r, size_t t0, some_groups *g)
{
    size_t d = r->head_dim, bytes = 2 * d * dtype_size(t), last = (r->t1 - 1) / r->group + 1;
    g->first = t0 / r->group;
    g->end = last < g->first + AHEAD ? last : g->first + AHEAD;
    g->t0 = t0;
    g->t1 = g->end == last ? r->t1 : g->end * r->group;
    dots_rows(false, t, r->q, r->heads, d, (const unsigned char *)r->levels + g->first * bytes, bytes, 0,
              g->end - g->first, g->shared, AHEAD);
}

/* Writes hi - lo of each channel of a group; returns the largest, at least 0. */
INLINE float group_spans(const dtype t, const fier_run *r, size_t group, float *out)
{
    size_t d = r->head_dim, at = group * 2 * d, c = 0;
    VF most = vf_zero();
    for (; c + VF_LANES <= d; c += VF_LANES) {
        VF span = vf_sub(vf_load_as(r->levels, at + d + c, t), vf_load_as(r->levels, at + c, t));
        vf_store(out + c, span);
        most = vf_max(span, most);
    }
    if (c < d) {
        VF span = vf_sub(vf_load_as_n(r->levels, at + d + c, t, d - c), vf_load_as_n(r->levels, at + c, t, d - c));
        vf_store_n(out + c, span, d - c);
        most = vf_max(span, most);
    }
    return vf_hmax(most);
}

/* Returns the words of the block that contains token t. */
INLINE const uint32_t *bits_of(const fier_run *r, size_t t)
{
    return r->bits + t / BLOCK * fier_words(r->head_dim) * BLOCK;
}

/* Prefetches `blocks` blocks at a distance, since memory latency exceeds a block's work. */
INLINE void prefetch_blocks(const uint32_t *bits, size_t d, size_t blocks)
{
    enum { BYTES_AHEAD = 4096 };
    const unsigned char *p = (const unsigned char *)bits + BYTES_AHEAD;
    for (size_t i = 0; i < blocks * fier_words(d) * BLOCK * sizeof *bits; i += 64) prefetch(p + i);
}

/* Copies the estimates at out to the scores of tokens [t, end) of a block. */
INLINE void put_block(const fier_run *r, size_t t, size_t end, size_t head, const float *out)
{
    memcpy(r->score + head * r->stride + (t - r->t0), out + t % BLOCK, (end - t) * sizeof *out);
}

/* Returns the end of the tokens from t on within one group and one block. */
INLINE size_t block_end(const fier_run *r, const some_groups *g, size_t t)
{
    size_t block = (t / BLOCK + 1) * BLOCK, group = (t / r->group + 1) * r->group, end = block < group ? block : group;
    return end < g->t1 ? end : g->t1;
}

/* Computes the weights of a group's bits for each head. */
INLINE void group_weights(const fier_run *r, const float *span, float *w)
{
    size_t d = r->head_dim;
    for (size_t h = 0; h < r->heads; h++)
        for (size_t c = 0; c < d; c += VF_LANES) {
            VF v = vf_mul(vf_load_some(r->q + h * d + c, d - c), vf_load_some(span + c, d - c));
            vf_store_some(w + h * d + c, v, d - c);
        }
}

/* Estimates tokens [t, end) of one group and block. */
INLINE void block_float(const fier_run *r, const some_groups *g, const float *w, size_t t, size_t end)
{
    const float *a = g->shared + (t / r->group - g->first);
    const uint32_t *bits = bits_of(r, t);
    size_t d = r->head_dim;
    for (size_t h = 0; h < r->heads; h += 2) {
        float out[2 * BLOCK];
        if (h + 2 <= r->heads) block_heads(2, bits, d, w + h * d, a + h * AHEAD, out);
        else block_heads(1, bits, d, w + h * d, a + h * AHEAD, out);
        for (size_t k = 0; k < 2 && h + k < r->heads; k++) put_block(r, t, end, h + k, out + k * BLOCK);
    }
}

INLINE void run_as(const dtype t, const fier_run *r)
{
    float span[HEAD_DIM_MAX], w[FIER_HEADS * HEAD_DIM_MAX];
    some_groups g;
    for (size_t t0 = r->t0; t0 < r->t1; t0 = g.t1) {
        groups_begin(t, r, t0, &g);
        for (size_t i = t0, end; i < g.t1; i = end) {
            end = block_end(r, &g, i);
            if (i == t0 || i % r->group == 0) {
                group_spans(t, r, i / r->group, span);
                group_weights(r, span, w);
            }
            prefetch_blocks(bits_of(r, i), r->head_dim, 1);
            block_float(r, &g, w, i, end);
        }
    }
}

void LEVEL(k_fier_score)(const fier_run *r)
{
    if (r->type == DT_F32) run_as(DT_F32, r);
    else if (r->type == DT_F16) run_as(DT_F16, r);
    else run_as(DT_BF16, r);
}

/* ---- integers ---- */

enum { QUADS = HEAD_DIM_MAX / 4, P_ROW = QUADS * DI_COPIES, INT8_HEADS = 4, INT8_VECS = 2 };
enum { INT8_BLOCKS = SIMD_AVX512 ? 2 : 1 }; /* blocks that share the loads of queries, as registers allow */

/* The heads' queries as quads, and their largest elements divided by 127. */
typedef struct {
    int32_t p[FIER_HEADS * P_ROW];
    float step[FIER_HEADS];
} int8_queries;

/* The spans of some groups in the same form. */
typedef struct {
    int32_t u[AHEAD * QUADS];
    float step[AHEAD];
} int8_spans;

INLINE float largest(const float *x, size_t n)
{
    VF most = vf_zero();
    for (size_t c = 0; c < n; c += VF_LANES) {
        VF v = vf_load_some(x + c, n - c);
        most = vf_max(vf_max(v, vf_sub(vf_zero(), v)), most);
    }
    return vf_hmax(most);
}

/* Converts x [n], which has room for whole words, to quads. */
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
        float most = largest(x, r->head_dim);
        q->step[h] = most / 127;
        quads_of_row(p, x, r->head_dim, most, -127);
        for (size_t i = 0; i < 8 * fier_words(r->head_dim); i++)
            for (size_t k = 0; k < DI_COPIES; k++) q->p[h * P_ROW + i * DI_COPIES + k] = p[i];
    }
}

INLINE void spans_begin(const dtype t, const fier_run *r, const some_groups *g, int8_spans *s)
{
    float span[AHEAD][HEAD_DIM_MAX], most[AHEAD];
    size_t n = g->end - g->first;
    for (size_t i = 0; i < n; i++) most[i] = group_spans(t, r, g->first + i, span[i]);
    for (size_t i = 0; i < n; i++) {
        s->step[i] = most[i] / 127;
        quads_of_row(s->u + i * QUADS, span[i], r->head_dim, most[i], 0);
    }
}

/* Factors and offsets for the words of a block. */
typedef struct {
    const int32_t *u;
    const float *a; /* a[h * AHEAD] */
    float step;
} int8_group;

INLINE int8_group int8_group_of(const fier_run *r, const some_groups *g, const int8_spans *s, size_t t)
{
    size_t i = t / r->group - g->first;
    return (int8_group){s->u + i * QUADS, g->shared + i, s->step[i]};
}

/* Estimates `blocks` consecutive blocks for the `heads` heads from h0 on: out[h * stride + token]. */
INLINE void block_int8(const int heads, const int blocks, const uint32_t *bits, size_t words, const int8_group *g,
                       const int8_queries *q, size_t h0, float *out, size_t stride)
{
    const int32_t *p = q->p + h0 * P_ROW;
    for (int v = 0; v < VECS; v += INT8_VECS) {
        DI s[INT8_HEADS * INT8_BLOCKS * INT8_VECS];
        UNROLL for (int i = 0; i < heads * blocks * INT8_VECS; i++) s[i] = di_zero();
        for (size_t w = 0; w < words; w++)
            UNROLL for (int j = 0; j < 8; j++) UNROLL for (int i = 0; i < blocks * INT8_VECS; i++)
            {
                size_t b = (size_t)(i / INT8_VECS), line = (b * words + w) * BLOCK;
                VI x = vi_load(bits + line + (size_t)(v + i % INT8_VECS) * VF_LANES);
                DI e = di_take(x, j, g[b].u[8 * w + (size_t)j]);
                UNROLL for (int h = 0; h < heads; h++)
                {
                    DI *sum = &s[h * blocks * INT8_VECS + i];
                    *sum = di_dot(*sum, e, p + (size_t)h * P_ROW + (8 * w + (size_t)j) * DI_COPIES);
                }
            }
        UNROLL for (int h = 0; h < heads; h++) UNROLL for (int i = 0; i < blocks * INT8_VECS; i++)
        {
            const int8_group *x = g + i / INT8_VECS;
            VF scale = vf_set1(x->step * q->step[h0 + (size_t)h]), a = vf_set1(x->a[(h0 + (size_t)h) * AHEAD]);
            vf_store(out + (size_t)h * stride + (i / INT8_VECS) * BLOCK + (v + i % INT8_VECS) * VF_LANES,
                     vf_add(a, vf_mul(di_floats(s[h * blocks * INT8_VECS + i]), scale)));
        }
    }
}

INLINE void block_int8_heads(size_t heads, const int blocks, const uint32_t *bits, size_t words, const int8_group *g,
                             const int8_queries *q, size_t h0, float *out, size_t stride)
{
    if (heads >= 4) block_int8(4, blocks, bits, words, g, q, h0, out, stride);
    else if (heads == 3) block_int8(3, blocks, bits, words, g, q, h0, out, stride);
    else if (heads == 2) block_int8(2, blocks, bits, words, g, q, h0, out, stride);
    else block_int8(1, blocks, bits, words, g, q, h0, out, stride);
}

/* Estimates INT8_BLOCKS blocks, or the part [t, end) of one. */
INLINE void blocks_int8(const fier_run *r, const some_groups *g, const int8_spans *s, const int8_queries *q, size_t t,
                        size_t end)
{
    const uint32_t *bits = bits_of(r, t);
    size_t words = fier_words(r->head_dim);
    int8_group x[INT8_BLOCKS];
    bool whole = end - t == INT8_BLOCKS * BLOCK;
    for (size_t b = 0; b < (whole ? INT8_BLOCKS : 1); b++) x[b] = int8_group_of(r, g, s, t + b * BLOCK);
    prefetch_blocks(bits, r->head_dim, whole ? INT8_BLOCKS : 1);
    for (size_t h = 0; h < r->heads; h += INT8_HEADS) {
        float part[INT8_HEADS * BLOCK], *out = r->score + h * r->stride + (t - r->t0);
        if (whole) {
            block_int8_heads(r->heads - h, INT8_BLOCKS, bits, words, x, q, h, out, r->stride);
            continue;
        }
        block_int8_heads(r->heads - h, 1, bits, words, x, q, h, part, BLOCK);
        for (size_t k = 0; k < INT8_HEADS && h + k < r->heads; k++) put_block(r, t, end, h + k, part + k * BLOCK);
    }
}

INLINE void run_int8_as(const dtype t, const fier_run *r)
{
    enum { WHOLE = INT8_BLOCKS * BLOCK };
    int8_queries q;
    int8_spans s;
    some_groups g;
    queries_begin(r, &q);
    for (size_t t0 = r->t0; t0 < r->t1; t0 = g.t1) {
        groups_begin(t, r, t0, &g);
        spans_begin(t, r, &g, &s);
        for (size_t i = t0, end; i < g.t1; i = end) {
            bool whole = r->group % BLOCK == 0 && i % BLOCK == 0 && i + WHOLE <= g.t1;
            end = whole ? i + WHOLE : block_end(r, &g, i);
            blocks_int8(r, &g, &s, &q, i, end);
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

void LEVEL(k_fier_levels)(float *z, float *lo, float *hi, const float *x, size_t m, size_t d)
{
    for (size_t c = 0; c < d; c += VF_LANES) {
        size_t left = d - c;
        VF least = vf_load_some(x + c, left), most = least;
        for (size_t i = 0; i < m; i++) {
            VF v = vf_load_some(x + i * d + c, left);
            least = vf_min(v, least);
            most = vf_max(v, most);
        }
        vf_store_some(z + c, vf_mul(vf_set1(0.5f), vf_add(least, most)), left);
        vf_store_some(lo + c, least, left);
        vf_store_some(hi + c, most, left);
    }
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
        word[c] = bits; /* the words of a block are 32 tokens apart */
    }
}
