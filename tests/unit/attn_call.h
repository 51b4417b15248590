/* SPDX-License-Identifier: MIT */
/* Attention calls with random data of a given shape, for tests that compare a backend with ref. */
#ifndef TESTS_UNIT_ATTN_CALL_H
#define TESTS_UNIT_ATTN_CALL_H

#include "kernels/ops_codes.h"
#include "tests/unit/ops_util.h"

static backend *ref; /* set by the test */

/* One attention call with all of its data. */
typedef struct {
    attn_job job;
    float *q, *out, *lse;
    void *k, *v;
    int64_t *range, *qpos, kpos;
    int32_t *idx, *at;
    void *codes[4]; /* of K, V, then their pairs */
    int32_t *k_at, *v_at;
    uint64_t read[READ_KINDS];
} call;

typedef struct {
    size_t n_tok, kv_heads, group, dim, n, n_lists;
    dtype type;
    bool idx, pos;
    int64_t band;
    bool at; /* each entry has a position of its own */
    int bits;
    bool by_token;
    bool rounded;
} shape;

enum { CODE_GROUP = 16, CODE_RUN = 32 };

/* Codes for two rows of three of K and three of five of V, in other places than their exact rows. */
static UNUSED_OK void call_codes(call *c, const shape *s, size_t cap)
{
    size_t code_cap = (cap + CODE_GROUP - 1) / CODE_GROUP * CODE_GROUP, n = s->kv_heads * code_cap;
    kv_codes codes = {.bits = s->bits, .by_token = s->by_token, .cap = code_cap, .group = CODE_GROUP, .run = CODE_RUN};
    size_t row = codes_row_bytes(&codes, s->dim), v_pair = 4 * n * codes_runs(&codes, s->dim);
    size_t sizes[4] = {n * row, n * row, s->by_token ? v_pair : 4 * n / CODE_GROUP * s->dim, v_pair};
    int64_t *src = xmalloc(8 * code_cap);
    for (size_t i = 0; i < 4; i++) c->codes[i] = xmalloc(sizes[i]);
    memset(c->codes[0], 0, sizes[0]);
    memset(c->codes[1], 0, sizes[1]);
    c->k_at = xmalloc(4 * cap);
    c->v_at = xmalloc(4 * cap);
    for (size_t i = 0; i < code_cap; i++) src[i] = (int64_t)(i * 3 % cap);
    for (size_t i = 0; i < cap; i++) {
        int32_t code = (int32_t)(s->n % 2 ? i : (i * 5 + 3) % cap), exact = (int32_t)((i + 1) % cap);
        c->k_at[i] = i / 7 % 3 < 2 ? -1 - code : exact;
        c->v_at[i] = i / 3 % 5 < 3 ? -1 - code : exact;
    }
    codes.k = at(c->codes[0]);
    codes.v = at(c->codes[1]);
    codes.k_pair = at(c->codes[2]);
    codes.v_pair = at(c->codes[3]);
    codes.k_at = at(c->k_at);
    codes.v_at = at(c->v_at);
    c->job.rows.codes = codes;
    ref->ops->codes->encode_k(ref, &c->job.rows, at(src), 0, code_cap);
    ref->ops->codes->encode_v(ref, &c->job.rows, at(src), 0, code_cap);
    free(src);
}

/* Lists start at different entries; the last one is empty when there are several. */
static UNUSED_OK call call_make(rng *r, shape s)
{
    call c = {0};
    size_t heads = s.kv_heads * s.group, lists = s.n_lists ? s.n_lists : 1, cap = s.n + 70;
    c.q = random_f32(r, s.n_tok * heads * s.dim);
    c.out = xmalloc(4 * s.n_tok * heads * s.dim);
    c.lse = xmalloc(4 * s.n_tok * heads);
    c.k = random_as(r, s.kv_heads * cap * s.dim, s.type);
    c.v = random_as(r, s.kv_heads * cap * s.dim, s.type);
    c.range = xmalloc(16 * lists);
    c.qpos = xmalloc(8 * s.n_tok);
    size_t stride = s.n + 24; /* a list begins at entry 22 at most */
    if (s.idx) c.idx = xmalloc(4 * lists * stride);
    for (size_t l = 0; l < lists; l++) {
        bool empty = lists > 1 && l + 1 == lists;
        size_t first = s.idx ? l % 5 : l % 3 * 11, n = empty ? 0 : s.n - l % 7 % s.n;
        c.range[2 * l] = (int64_t)first;
        c.range[2 * l + 1] = (int64_t)n;
        for (size_t i = 0; s.idx && i < stride; i++) c.idx[l * stride + i] = (int32_t)(i + (i * i) % 3 + i / 9);
        for (size_t i = 0; s.idx && i < stride; i++)
            if (c.idx[l * stride + i] >= (int32_t)cap) c.idx[l * stride + i] = (int32_t)cap - 1;
    }
    if (s.at) c.at = xmalloc(4 * lists * stride);
    for (size_t i = 0; s.at && i < lists * stride; i++) {
        size_t l = i / stride, e = i % stride;
        c.at[i] = (int32_t)(1000 + e + (e + l) / 3);
    }
    c.kpos = 1000;
    /* queries at the end of the stored keys; the first ones may see none */
    for (size_t t = 0; t < s.n_tok; t++) c.qpos[t] = 1000 + (int64_t)s.n - (int64_t)s.n_tok + (int64_t)t;
    c.job = (attn_job){.n_tok = s.n_tok, .n_heads = heads, .n_lists = lists, .idx_stride = stride,
                       .n_max = (int64_t)s.n, .band = s.band, .scale = 3 / sqrtf((float)s.dim)};
    c.job.rounded = s.rounded;
    if (s.rounded) c.job.scale /= 3; /* scores of variance 1 */
    c.job.rows = (kv_rows){at(c.k), at(c.v), s.type, s.kv_heads, s.dim, cap, {0}, NULL, NULL};
    c.job.q = at(c.q);
    c.job.out = at(c.out);
    c.job.lse = at(c.lse);
    c.job.range = at(c.range);
    if (s.idx) c.job.idx = at(c.idx);
    c.job.qpos = at(c.qpos);
    if (s.at) c.job.at = at(c.at);
    if (s.bits) call_codes(&c, &s, cap);
    return c;
}

/* kpos lies in the call, so its address is taken where the call has come to rest. */
static UNUSED_OK void call_place(call *c, shape s)
{
    if (s.pos) c->job.kpos = at(&c->kpos);
}

static UNUSED_OK void call_free(call *c)
{
    free(c->q), free(c->out), free(c->lse), free(c->k), free(c->v), free(c->range), free(c->qpos), free(c->idx);
    free(c->at), free(c->k_at), free(c->v_at);
    for (size_t i = 0; i < 4; i++) free(c->codes[i]);
}

#endif
