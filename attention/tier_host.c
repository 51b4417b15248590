/* SPDX-License-Identifier: MIT */
/* Rows in the host's memory: what the device holds of them. */
#include "config.h"

#include "attention/store_impl.h"
#include "kernels/base/mem.h"

/* The largest power of two that is at most n; 0: none is. */
static int64_t power_below(int64_t n)
{
    int64_t p = n > 0;
    while (p > 0 && p <= n / 2) p *= 2;
    return p;
}

/* Rows of a layer and head on the device, of exact rows for `cap` slots. */
static kv_near near_sizes(const attn_spec *s, const attn_shape *shape, int64_t cap, const bool *layers)
{
    row_tier t;
    kv_near p = {.first = 0};
    size_t row = kv_exact_bytes(&s->kv, (size_t)shape->n_kv_heads, (size_t)shape->head_dim, 1);
    size_t slots = s->tier.cache / (size_t)row_tier_count(layers, shape->n_layers) / row;
    row_tier_regions(&t, s);
    p.first = t.first < cap ? t.first : cap;
    int64_t rest = cap - p.first, newest = t.newest < rest ? t.newest : rest;
    /* All that is always attended has a slot: rounded up, and more than there are slots need none. */
    p.window = newest > 0 ? 2 * power_below(newest - 1) : 0;
    if (newest == 1) p.window = 1;
    p.slots = power_below(slots < (size_t)rest ? (int64_t)slots : rest);
    return p;
}

static size_t half_bytes(const row_tier *p, const kv_near *n)
{
    return p->n_heads * (size_t)(n->first + n->window + n->slots) * p->row_bytes;
}

static size_t tag_bytes(const row_tier *p, const kv_near *n)
{
    return p->n_heads * (size_t)n->slots * sizeof(int32_t);
}

static status open_layer(row_tier *p, kv_near *n, err *e)
{
    const backend_ops *o = p->be->ops;
    TRY(o->alloc(p->be, &n->k, half_bytes(p, n), "near K rows", e));
    TRY(o->alloc(p->be, &n->v, half_bytes(p, n), "near V rows", e));
    if (n->window) TRY(o->alloc(p->be, &n->ring, (size_t)n->window * sizeof(int32_t), "near rows", e));
    if (n->slots == 0) return ST_OK;
    TRY(o->alloc(p->be, &n->tag, tag_bytes(p, n), "near rows", e));
    if (!p->claim.p) TRY(o->alloc(p->be, &p->claim, tag_bytes(p, n), "near rows", e));
    n->claim = p->claim;
    return ST_OK;
}

status host_open(row_tier *p, const attn_spec *s, const attn_shape *shape, const attn_limits *lim, const bool *layers,
                 err *e)
{
    kv_near sizes = {.first = 0};
    p->n_heads = (size_t)shape->n_kv_heads;
    p->row_bytes = kv_row_bytes(s->kv.type, (size_t)shape->head_dim);
    p->exact_near = kv_has_codes(&s->kv) && lim->prompt > 0;
    TRY(p->be->ops->alloc(p->be, &p->moved, NEAR_KINDS * sizeof(uint64_t), "counters", e));
    TRY(MEM_NEW(&p->near, (size_t)shape->n_layers, e));
    if (!kv_has_codes(&s->kv)) sizes = near_sizes(s, shape, lim->n_tokens, layers);
    sizes.count = p->moved;
    sizes.exact = p->exact_near;
    for (int l = 0; l < shape->n_layers; l++) {
        if (!layers[l]) continue;
        p->near[l] = sizes;
        if (!kv_has_codes(&s->kv)) TRY(open_layer(p, &p->near[l], e));
    }
    return ST_OK;
}

void host_close(row_tier *p)
{
    const backend_ops *o = p->be->ops;
    for (int l = 0; p->near && l < p->n_layers; l++) {
        const kv_near *n = &p->near[l];
        if (n->k.p) o->free(p->be, n->k, half_bytes(p, n));
        if (n->v.p) o->free(p->be, n->v, half_bytes(p, n));
        if (n->ring.p) o->free(p->be, n->ring, (size_t)n->window * sizeof(int32_t));
        if (n->tag.p) o->free(p->be, n->tag, tag_bytes(p, n));
        if (p->claim.p && n->slots) o->free(p->be, p->claim, tag_bytes(p, n)), p->claim.p = NULL;
    }
    if (p->moved.p) o->free(p->be, p->moved, NEAR_KINDS * sizeof(uint64_t));
    mem_free(p->near);
}

void host_plan(attn_bytes *part, size_t *slow, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
               const bool *layers)
{
    const kv_format *f = &s->kv;
    size_t row = kv_exact_bytes(f, (size_t)shape->n_kv_heads, (size_t)shape->head_dim, 1), near = 0;
    size_t n = (size_t)row_tier_count(layers, shape->n_layers), all = part->kv;
    *slow += all;
    part->kv = 0;
    if (!lim->at_once) return;
    if (kv_has_codes(f) && lim->prompt > 0) {
        near = n * (size_t)kv_exact_rows(f, lim->prompt, lim->n_tokens) * row;
        *slow -= near;
    } else if (!kv_has_codes(f)) {
        kv_near p = near_sizes(s, shape, lim->n_tokens, layers);
        near = n * (size_t)(p.first + p.window + p.slots) * row;
        part->scratch += n * (size_t)(p.window + shape->n_kv_heads * p.slots) * sizeof(int32_t);
        part->scratch += (size_t)(shape->n_kv_heads * p.slots) * sizeof(int32_t);
    }
    part->kv = near;
}
