/* SPDX-License-Identifier: MIT */
/* Decode attention over one chunk of keys: online softmax in blocks of DECODE_BLOCK keys. A block's
 * K rows are read once for all query heads of the group, then its V rows. What a block reads from
 * memory was asked for one phase earlier (V during Q K, the next K during P V, a few lines at each
 * step): without that the kernel waits for memory and computes in turn (design: cpu-kernels 2, 3).
 * A block with code rows is widened to float first, K when it begins, V before P V, and then has the
 * bits of a block of float rows.
 *
 * Query heads are taken 4, 2 or 1 at a time with VF_LANES / heads keys: VF_LANES dot products whose
 * sums one transposition puts into a vector. Lane head * keys + key of score vector `tile` belongs to
 * key tile * keys + key. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/k.h"

enum { MAX_TILES = DECODE_BLOCK, LINE = 64 };

/* The rows of one block as they are stored, where they may be prefetched; later perhaps as float. */
typedef struct {
    const unsigned char *row[DECODE_BLOCK];
    size_t n, bytes; /* of a row that are worth asking for */
    bool coded;      /* some of them are code rows */
} block_rows;

typedef struct {
    float acc[DECODE_GROUP * HEAD_DIM_MAX]; /* [group, head_dim] */
    float top[DECODE_GROUP], sum[DECODE_GROUP];
    float q[DECODE_GROUP * HEAD_DIM_MAX];
    float p[MAX_TILES * VF_LANES]; /* scores, then weights, of the heads at work */
    block_rows k, v, next_k;
    bool widen; /* this block's rows become floats in the chunk's work area */
} decode_state;

/* Rows of block `at`; addresses behind the chunk's end are left out (n = 0). */
static void rows_of(block_rows *b, const decode_chunk *c, const row_source *from, size_t at)
{
    size_t bytes = c->head_dim * dtype_size(from->type);
    b->n = at >= c->n ? 0 : c->n - at < DECODE_BLOCK ? c->n - at : DECODE_BLOCK;
    b->bytes = bytes;
    b->coded = false;
    for (size_t i = 0; i < b->n; i++) {
        int64_t row = row_of(from, c->idx, c->first + (int64_t)(at + i));
        if (row >= 0) {
            b->row[i] = from->exact + (size_t)row * bytes;
        } else {
            b->row[i] = from->code + (size_t)(-1 - row) * from->row_bytes;
            b->bytes = from->row_bytes;
            b->coded = true;
        }
    }
}

/* The same rows as float, at `to`. */
static void widen_rows(block_rows *b, const decode_chunk *c, const row_source *from, size_t at, float *to)
{
    LEVEL(k_rows)(to, c->head_dim, from, c->idx, c->first + (int64_t)at, b->n);
    for (size_t i = 0; i < b->n; i++) b->row[i] = (const unsigned char *)(to + i * c->head_dim);
}

/* Lines [part, part + 1) / parts of rows [i0, i1). */
INLINE void prefetch_rows(const block_rows *b, size_t i0, size_t i1, size_t part, size_t parts)
{
    size_t lines = (b->bytes + LINE - 1) / LINE, l0 = lines * part / parts, l1 = lines * (part + 1) / parts;
    for (size_t i = i0; i < i1 && i < b->n; i++)
        for (size_t l = l0; l < l1; l++) prefetch(b->row[i] + l * LINE);
}

/* Scores of VF_LANES / heads keys starting at key `i` (fewer at the end of a block: the last key
 * is then repeated and its copies are masked). */
INLINE VF score_tile(const int heads, const dtype t, const float *q, size_t d, const block_rows *k, size_t i)
{
    const int keys = VF_LANES / heads;
    const unsigned char *row[VF_LANES];
    VF acc[VF_LANES];
    UNROLL for (int j = 0; j < keys; j++) row[j] = k->row[i + (size_t)j < k->n ? i + (size_t)j : k->n - 1];
    UNROLL for (int a = 0; a < VF_LANES; a++) acc[a] = vf_zero();
    size_t c = 0;
    for (; c + VF_LANES <= d; c += VF_LANES) {
        VF qv[VF_LANES];
        UNROLL for (int h = 0; h < heads; h++) qv[h] = vf_load(q + (size_t)h * d + c);
        UNROLL for (int j = 0; j < keys; j++) {
            VF kv = vf_load_as(row[j], c, t);
            UNROLL for (int h = 0; h < heads; h++) acc[h * keys + j] = vf_fma(qv[h], kv, acc[h * keys + j]);
        }
    }
    if (c < d)
        UNROLL for (int j = 0; j < keys; j++) {
            VF kv = vf_load_as_n(row[j], c, t, d - c);
            UNROLL for (int h = 0; h < heads; h++)
                acc[h * keys + j] = vf_fma(vf_load_n(q + (size_t)h * d + c, d - c), kv, acc[h * keys + j]);
        }
    return vf_sum_each(acc);
}

/* Maximum or sum of the lanes of each head, in order of the lanes. */
INLINE void lanes_of_heads(const int heads, VF v, bool sum, float out[VF_LANES])
{
    const int keys = VF_LANES / heads;
    float l[VF_LANES];
    vf_store(l, v);
    for (int h = 0; h < heads; h++) {
        float x = l[h * keys];
        for (int j = 1; j < keys; j++) {
            float y = l[h * keys + j];
            x = sum ? x + y : x > y ? x : y;
        }
        out[h] = x;
    }
}

INLINE VF spread_heads(const int heads, const float *x)
{
    float l[VF_LANES];
    for (int i = 0; i < VF_LANES; i++) l[i] = x[i / (VF_LANES / heads)];
    return vf_load(l);
}

/* Turns the block's scores into weights; updates top and sum; factor[h] rescales what was summed. */
INLINE void softmax_block(const int heads, float *p, size_t n, float *top, float *sum, float *factor)
{
    const size_t keys = (size_t)(VF_LANES / heads), tiles = (n + keys - 1) / keys;
    for (size_t i = n; i < tiles * keys; i++)
        for (size_t h = 0; h < (size_t)heads; h++) p[(tiles - 1) * VF_LANES + h * keys + i % keys] = -INFINITY;
    VF m = vf_load(p);
    for (size_t i = 1; i < tiles; i++) m = vf_max(m, vf_load(p + i * VF_LANES));
    float new_top[VF_LANES], block_sum[VF_LANES];
    lanes_of_heads(heads, m, false, new_top);
    for (int h = 0; h < heads; h++)
        if (!(new_top[h] > top[h])) new_top[h] = top[h];
    VF mv = spread_heads(heads, new_top), old = spread_heads(heads, top), total = vf_zero();
    for (size_t i = 0; i < tiles; i++) {
        VF e = vf_exp(vf_sub(vf_load(p + i * VF_LANES), mv));
        vf_store(p + i * VF_LANES, e);
        total = vf_add(total, e);
    }
    float f[VF_LANES];
    lanes_of_heads(heads, total, true, block_sum);
    vf_store(f, vf_exp(vf_sub(old, mv))); /* exp(-inf) = 0 for the first block */
    for (size_t h = 0; h < (size_t)heads; h++) {
        factor[h] = f[h * keys];
        sum[h] = sum[h] * factor[h] + block_sum[h];
        top[h] = new_top[h];
    }
}

/* acc[h][c..] = acc * factor + sum over the block's keys of weight * v, for `vecs` vectors. n_tail:
 * lanes of a partial vector (then vecs is 1), 0 for full ones. */
INLINE void values_tile(const int heads, const int vecs, const dtype t, const decode_state *s, float *acc,
                        size_t d, size_t c, size_t n_tail, const float *factor, size_t part, size_t parts)
{
    const int keys = VF_LANES / heads;
    VF a[PV_ACC];
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int j = 0; j < vecs; j++) {
            const float *from = acc + (size_t)h * d + c + (size_t)j * VF_LANES;
            a[h * vecs + j] = vf_mul(n_tail ? vf_load_n(from, n_tail) : vf_load(from), vf_set1(factor[h]));
        }
    for (size_t i = 0; i < s->v.n; i++) {
        prefetch_rows(&s->next_k, i, i + 1, part, parts);
        VF v[PV_ACC];
        UNROLL for (int j = 0; j < vecs; j++) {
            size_t e = c + (size_t)j * VF_LANES;
            v[j] = n_tail ? vf_load_as_n(s->v.row[i], e, t, n_tail) : vf_load_as(s->v.row[i], e, t);
        }
        const float *w = s->p + i / (size_t)keys * VF_LANES + i % (size_t)keys;
        UNROLL for (int h = 0; h < heads; h++) {
            VF wv = vf_set1(w[h * keys]);
            UNROLL for (int j = 0; j < vecs; j++) a[h * vecs + j] = vf_fma(wv, v[j], a[h * vecs + j]);
        }
    }
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int j = 0; j < vecs; j++) {
            float *to = acc + (size_t)h * d + c + (size_t)j * VF_LANES;
            if (n_tail) vf_store_n(to, a[h * vecs + j], n_tail);
            else vf_store(to, a[h * vecs + j]);
        }
}

/* Block `at` for query heads [h0, h0 + heads): one of the group's passes over it. */
INLINE void block_heads(const int heads, const dtype t, const decode_chunk *c, decode_state *s, size_t at, size_t h0)
{
    enum { KEYS_MAX = VF_LANES };
    const size_t keys = (size_t)(VF_LANES / heads), d = c->head_dim;
    const int vecs = PV_ACC / heads;
    const bool first = h0 == 0, last = h0 + (size_t)heads == c->group;
    float factor[KEYS_MAX];
    for (size_t i = 0; i < s->k.n; i += keys) {
        if (first) prefetch_rows(&s->v, i, i + keys, 0, 1);
        vf_store(s->p + i / keys * VF_LANES, score_tile(heads, t, s->q + h0 * d, d, &s->k, i));
    }
    for (size_t h = 0; c->scores && h < (size_t)heads; h++)
        for (size_t i = 0; i < s->k.n; i++)
            c->scores[(h0 + h) * c->score_stride + at + i] = s->p[i / keys * VF_LANES + h * keys + i % keys];
    if (first && s->widen) widen_rows(&s->v, c, &c->v, at, c->work + DECODE_BLOCK * d);
    softmax_block(heads, s->p, s->k.n, s->top + h0, s->sum + h0, factor);
    size_t wide = (size_t)vecs * VF_LANES, ch = 0, part = 0;
    size_t parts = last ? d / wide + d % wide / VF_LANES + (d % VF_LANES != 0) : 0;
    float *acc = s->acc + h0 * d;
    /* parts = 0: nothing is prefetched because the block list is then empty */
    size_t keep = s->next_k.n;
    if (!last) s->next_k.n = 0;
    if (!parts) parts = 1;
    for (; ch + wide <= d; ch += wide) values_tile(heads, vecs, t, s, acc, d, ch, 0, factor, part++, parts);
    for (; ch + VF_LANES <= d; ch += VF_LANES) values_tile(heads, 1, t, s, acc, d, ch, 0, factor, part++, parts);
    if (ch < d) values_tile(heads, 1, t, s, acc, d, ch, d - ch, factor, part, parts);
    s->next_k.n = keep;
}

INLINE void block_as(const dtype t, const decode_chunk *c, decode_state *s, size_t at)
{
    size_t h = 0, g = c->group;
    for (; h + 4 <= g && VF_LANES >= 4; h += 4) block_heads(4, t, c, s, at, h);
    if (h + 2 <= g) {
        block_heads(2, t, c, s, at, h);
        h += 2;
    }
    if (h < g) block_heads(1, t, c, s, at, h);
}

void LEVEL(k_decode)(const decode_chunk *c)
{
    decode_state s;
    size_t d = c->head_dim, g = c->group;
    for (size_t i = 0; i < g; i++) {
        s.top[i] = -INFINITY;
        s.sum[i] = 0;
    }
    memset(s.acc, 0, g * d * sizeof *s.acc);
    LEVEL(k_scale)(s.q, c->q, c->scale, g * d);
    rows_of(&s.k, c, &c->k, 0);
    for (size_t at = 0; at < c->n; at += DECODE_BLOCK) {
        rows_of(&s.v, c, &c->v, at);
        rows_of(&s.next_k, c, &c->k, at + DECODE_BLOCK);
        s.widen = s.k.coded || s.v.coded;
        if (s.widen) widen_rows(&s.k, c, &c->k, at, c->work);
        dtype t = s.widen ? DT_F32 : c->k.type;
        if (t == DT_F32) block_as(DT_F32, c, &s, at);
        else if (t == DT_F16) block_as(DT_F16, c, &s, at);
        else block_as(DT_BF16, c, &s, at);
        s.k = s.next_k;
    }
    memcpy(c->acc, s.acc, g * d * sizeof *s.acc);
    memcpy(c->top, s.top, g * sizeof *s.top);
    memcpy(c->sum, s.sum, g * sizeof *s.sum);
}

/* Source: methods.md 0.2.10 (flash-decoding's split and merge). */
void LEVEL(k_merge)(float *out, float *lse, const float *acc, const float *top, const float *sum,
                    size_t n_parts, size_t acc_stride, size_t stat_stride, size_t dim)
{
    float max = -INFINITY, total = 0;
    for (size_t i = 0; i < n_parts; i++)
        if (top[i * stat_stride] > max) max = top[i * stat_stride];
    memset(out, 0, dim * sizeof *out);
    for (size_t i = 0; i < n_parts; i++) {
        float t = top[i * stat_stride], w[VF_LANES];
        if (t == -INFINITY) continue; /* its row may hold anything */
        vf_store(w, vf_exp(vf_set1(t - max)));
        total += w[0] * (sum ? sum[i * stat_stride] : 1);
        const float *a = acc + i * acc_stride;
        for (size_t c = 0; c < dim; c += VF_LANES) {
            size_t left = dim - c;
            if (left >= VF_LANES) vf_store(out + c, vf_fma(vf_set1(w[0]), vf_load(a + c), vf_load(out + c)));
            else vf_store_n(out + c, vf_fma(vf_set1(w[0]), vf_load_n(a + c, left), vf_load_n(out + c, left)), left);
        }
    }
    if (lse) *lse = total > 0 ? max + logf(total) : -INFINITY;
    if (!(total == 0)) LEVEL(k_scale)(out, out, 1 / total, dim);
}
