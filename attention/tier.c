/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/method.h"
#include "attention/store_impl.h"
#include "kernels/base/mem.h"

static row_tier describe(const attn_spec *s, const attn_shape *shape, const attn_limits *lim, const bool *layers,
                         backend *be)
{
    static const row_tier_kind *const kinds[] = {[KV_HOST] = &row_tier_host, [KV_DISK] = &row_tier_disk};
    attn_regions r = attn_regions_of(s);
    row_tier t = {.kind = kinds[s->tier.kind],
                  .be = be,
                  .spec = s,
                  .shape = shape,
                  .lim = lim,
                  .layers = layers,
                  .first = r.first,
                  .newest = max64(r.newest, s->tier.window),
                  .flush = max64(s->tier.window / 2, TIER_PAGE)};
    for (int l = 0; l < shape->n_layers; l++) t.n += layers[l];
    return t;
}

status row_tier_open(row_tier **out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                     const bool *layers, backend *be, err *e)
{
    row_tier t = describe(s, shape, lim, layers, be);
    *out = NULL;
    if (!t.kind || t.n == 0) return ST_OK;
    TRY(MEM_NEW(out, 1, e));
    **out = t;
    status st = t.kind->open(*out, e);
    if (st == ST_OK) return ST_OK;
    row_tier_close(*out);
    *out = NULL;
    return st;
}

void row_tier_close(row_tier *t)
{
    if (!t) return;
    t->kind->close(t);
    mem_free(t);
}

void row_tier_plan(attn_bytes *part, size_t *slow, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                   const bool *layers)
{
    row_tier t = describe(s, shape, lim, layers, NULL);
    if (t.kind) t.kind->plan(&t, part, slow);
}

static bool in_host(const row_tier *t, bool plain)
{
    return t && t->kind->in_host && t->kind->in_host(t, plain);
}

status row_tier_alloc(const row_tier *t, backend *be, buf *out, size_t bytes, bool plain, const char *what, err *e)
{
    return (in_host(t, plain) ? be->ops->host->alloc : be->ops->alloc)(be, out, bytes, what, e);
}

void row_tier_free(const row_tier *t, backend *be, buf b, size_t bytes, bool plain)
{
    (in_host(t, plain) ? be->ops->host->free : be->ops->free)(be, b, bytes);
}

void row_tier_before_read(backend *be, const attn_job *jobs, size_t n, bool decode)
{
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].rows.tier) be->ops->tier->need(be, &jobs[i]);
        if (jobs[i].rows.near && decode) be->ops->host->bring(be, &jobs[i]);
    }
}

tier_counts row_tier_counts(const row_tier *t)
{
    tier_counts c = {0};
    if (t && t->files) t->be->ops->tier->counts(t->files, &c);
    return c;
}

buf row_tier_moved(const row_tier *t)
{
    return t ? t->moved : (buf){NULL};
}

size_t row_tier_far_bytes(const kv_format *f, const attn_shape *shape, const attn_limits *lim)
{
    size_t d = (size_t)shape->head_dim, heads = (size_t)shape->n_kv_heads, sum = 0;
    int64_t group = kv_code_group(f);
    if (!kv_has_codes(f)) return kv_plain_bytes(f, heads, d, 1);
    for (int h = 0; h < KV_HALVES; h++) sum += kv_half_bytes(f, d, h, group, group) / (size_t)group;
    return heads * sum + (lim->prompt > 0 ? 0 : kv_plain_bytes(f, heads, d, 1));
}
