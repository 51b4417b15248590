/* SPDX-License-Identifier: MIT */
/* Stores of rows and attention jobs over them, with random data, for tables of ops. */
#ifndef TESTS_UNIT_OP_ATTN_H
#define TESTS_UNIT_OP_ATTN_H

#include "kernels/ops_codes.h"
#include "kernels/ops_rows.h"
#include "tests/unit/op_table.h"

enum { CODE_GROUP = 16, CODE_RUN = 32 };
enum { ONE_LIST, LIST_PER_KV, LIST_PER_HEAD };
enum { SEEN_ALL, SEEN_KPOS, SEEN_AT }; /* entries without positions, with consecutive ones, or each with its own */

/* bits 0: exact rows. Rows quantized by token have zero points. */
typedef struct {
    size_t n_tok, kv, group, dim, n;
    dtype type;
    int lists, seen, bits;
    bool idx, by_token, rounded, tiles;
    int64_t band;
} op_shape;

static UNUSED_OK size_t op_lists(const op_shape *s)
{
    return s->lists == ONE_LIST ? 1 : s->lists == LIST_PER_KV ? s->kv : s->kv * s->group;
}

/* Returns pairs (a, b) for which codes give numbers of about the rows' size. */
static UNUSED_OK buf op_pairs(op_run *x, size_t n_pairs, size_t dim, bool by_channel, bool zero_point, int bits)
{
    uint16_t *h = xmalloc(4 * n_pairs);
    float top = (float)((1 << bits) - 1);
    for (size_t i = 0; i < n_pairs; i++) {
        float most = rng_float(&x->r), a = zero_point ? rintf(top / 2 + most) : -most, b = 2 * most / top;
        size_t at = by_channel ? i / dim * 2 * dim + i % dim : 2 * i;
        h[at] = f32_to_f16(a);
        h[at + (by_channel ? dim : 1)] = f32_to_f16(b);
    }
    buf out = op_in(x, h, 4 * n_pairs);
    free(h);
    return out;
}

/* Returns n rows of any type. Block rows have random codes, and scales for which they give numbers of about that
 * size. */
static UNUSED_OK buf op_held(op_run *x, size_t n, size_t dim, dtype type)
{
    if (!dtype_in_qblocks(type)) return op_as(x, n * dim, type);
    size_t row = kv_row_bytes(type, dim), codes = row_code_bytes(type, dim);
    unsigned char *p = xmalloc(n * row);
    for (size_t i = 0; i < n * row; i++) p[i] = (unsigned char)rng_next(&x->r);
    for (size_t i = 0; i < n; i++)
        for (size_t at = i * row + codes; at < (i + 1) * row; at += 2) {
            uint16_t d = f32_to_f16(rng_float(&x->r) / (float)qblock_offset(type));
            memcpy(p + at, &d, sizeof d);
        }
    buf out = op_in(x, p, n * row);
    free(p);
    return out;
}

/* Returns a store of kv heads and cap slots. Block rows are rotated in both halves, in one, or in none. In a quantized
 * store two of three rows of K and three of five of V are quantized, with other indices than their exact rows. */
static UNUSED_OK kv_rows op_rows(op_run *x, size_t kv, size_t dim, size_t cap, dtype type, int bits, bool by_token)
{
    kv_rows r = {.type = type, .n_kv_heads = kv, .head_dim = dim, .cap = cap};
    r.rotated = dtype_in_qblocks(type) ? cap % 4 : 0;
    r.k = op_held(x, kv * cap, dim, type);
    r.v = op_held(x, kv * cap, dim, type);
    if (!bits) return r;
    size_t code_cap = (cap + CODE_GROUP - 1) / CODE_GROUP * CODE_GROUP, n = kv * code_cap;
    bool zero = by_token && cap % 2; /* the other half as in hf2:zero=float */
    kv_codes c = {
        .bits = bits, .by_token = by_token, .zero_point = zero, .cap = code_cap, .group = CODE_GROUP, .run = CODE_RUN};
    size_t bytes = n * codes_row_bytes(&c, dim), runs = codes_runs(&c, dim);
    unsigned char *code = xmalloc(bytes);
    int32_t *k_at = xmalloc(4 * cap), *v_at = xmalloc(4 * cap);
    for (int half = 0; half < 2; half++) {
        for (size_t i = 0; i < bytes; i++) code[i] = (unsigned char)rng_next(&x->r);
        *(half ? &c.v : &c.k) = op_in(x, code, bytes);
    }
    for (size_t i = 0; i < cap; i++) {
        int32_t row = (int32_t)(cap % 2 ? i : (i * 5 + 3) % cap), exact = (int32_t)((i + 1) % cap);
        k_at[i] = i / 7 % 3 < 2 ? -1 - row : exact;
        v_at[i] = i / 3 % 5 < 3 ? -1 - row : exact;
    }
    c.k_pair = op_pairs(x, by_token ? n * runs : n / CODE_GROUP * dim, dim, !by_token, zero, bits);
    c.v_pair = op_pairs(x, n * runs, dim, false, zero, bits);
    c.k_at = op_in(x, k_at, 4 * cap);
    c.v_at = op_in(x, v_at, 4 * cap);
    r.codes = c;
    free(code), free(k_at), free(v_at);
    return r;
}

/* Returns a job without results. Lists start at different entries, and the last of several is empty. Queries are at the
 * end of the keys, so that the first may see none. */
static UNUSED_OK attn_job op_attn(op_run *x, const op_shape *s)
{
    size_t heads = s->kv * s->group, lists = op_lists(s), cap = s->n + 70, stride = s->n + 24;
    int64_t *range = xmalloc(16 * lists), *qpos = xmalloc(8 * s->n_tok);
    int32_t *idx = xmalloc(4 * lists * stride), *at = xmalloc(4 * lists * stride);
    for (size_t l = 0; l < lists; l++) {
        range[2 * l] = (int64_t)(s->idx ? l % 5 : l % 3 * 11);
        range[2 * l + 1] = lists > 1 && l + 1 == lists ? 0 : (int64_t)(s->n - l % 7 % s->n);
        for (size_t i = 0; i < stride; i++) {
            size_t slot = i + (i * i) % 3 + i / 9;
            idx[l * stride + i] = (int32_t)(slot < cap ? slot : cap - 1);
            at[l * stride + i] = (int32_t)(1000 + i + (i + l) / 3);
        }
    }
    for (size_t t = 0; t < s->n_tok; t++) qpos[t] = 1000 + (int64_t)s->n - (int64_t)s->n_tok + (int64_t)t;
    attn_job j = {.n_tok = s->n_tok,
                  .n_heads = heads,
                  .n_lists = lists,
                  .idx_stride = stride,
                  .n_max = (int64_t)s->n,
                  .band = s->band,
                  .scale = (s->rounded ? 1 : 3) / sqrtf((float)s->dim),
                  .rounded = s->rounded,
                  .tiles = s->tiles};
    j.rows = op_rows(x, s->kv, s->dim, cap, s->type, s->bits, s->by_token);
    j.q = op_floats(x, s->n_tok * heads * s->dim);
    if (!s->idx && lists == 1 && s->n % 2) j.first = range[0], j.n_max = range[1]; /* known to the host */
    else j.range = op_in(x, range, 16 * lists);
    if (s->idx) j.idx = op_in(x, idx, 4 * lists * stride);
    j.qpos = op_in(x, qpos, 8 * s->n_tok);
    j.masked = s->seen == SEEN_KPOS;
    j.kpos = 1000;
    if (s->seen == SEEN_AT) j.at = op_in(x, at, 4 * lists * stride);
    free(range), free(qpos), free(idx), free(at);
    return j;
}

#endif
