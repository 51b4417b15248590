/* SPDX-License-Identifier: MIT */
/* Tier of rows in host memory with copies of some on the device. On a CPU there are no copies. */
#include "config.h"

#include "attention/method.h"
#include "attention/store_impl.h"
#include "kernels/base/mem.h"

/* Returns the largest power of two that is at most n; 0 if n < 1. */
static int64_t power_below(int64_t n)
{
    int64_t p = n > 0;
    while (p > 0 && p <= n / 2) p *= 2;
    return p;
}

/* Returns the sizes of a layer's device copies in rows per head; none for quantized stores. More slots than tokens
 * would be useless. */
static kv_near near_sizes(const row_tier *t)
{
    kv_near p = {.first = 0};
    const kv_format *f = &t->spec->kv;
    int64_t cap = t->lim->n_tokens;
    if (kv_has_codes(f)) return p;
    size_t row = kv_plain_bytes(f, (size_t)t->shape->n_kv_heads, (size_t)t->shape->head_dim, 1);
    size_t slots = t->spec->tier.cache / (size_t)t->n / row;
    p.first = min64(t->first, cap);
    int64_t rest = cap - p.first, newest = min64(t->newest, rest);
    /* The window is rounded up, so that every token that is always attended has a slot. */
    p.window = newest > 0 ? 2 * power_below(newest - 1) : 0;
    if (newest == 1) p.window = 1;
    p.slots = power_below(slots < (size_t)rest ? (int64_t)slots : rest);
    return p;
}

static size_t half_bytes(const row_tier *t, const kv_near *n)
{
    return (size_t)t->shape->n_kv_heads * (size_t)(n->first + n->window + n->slots) *
           kv_row_bytes(t->spec->kv.type, (size_t)t->shape->head_dim);
}

static size_t tag_bytes(const row_tier *t, const kv_near *n)
{
    return (size_t)t->shape->n_kv_heads * (size_t)n->slots * sizeof(int32_t);
}

static status open_layer(row_tier *t, kv_near *n, err *e)
{
    const backend_ops *o = t->be->ops;
    TRY(o->alloc(t->be, &n->k, half_bytes(t, n), "near K rows", e));
    TRY(o->alloc(t->be, &n->v, half_bytes(t, n), "near V rows", e));
    if (n->window) TRY(o->alloc(t->be, &n->ring, (size_t)n->window * sizeof(int32_t), "near rows", e));
    if (n->slots == 0) return ST_OK;
    TRY(o->alloc(t->be, &n->tag, tag_bytes(t, n), "near rows", e));
    if (!t->claim.p) TRY(o->alloc(t->be, &t->claim, tag_bytes(t, n), "near rows", e));
    n->claim = t->claim;
    return ST_OK;
}

/* True if the float rows of a quantized store are in device memory. */
static bool float_rows_near(const row_tier *t)
{
    return kv_has_codes(&t->spec->kv) && t->lim->prompt > 0;
}

static status host_open(row_tier *t, err *e)
{
    if (!t->be->ops->host->bring) return ST_OK;
    TRY(t->be->ops->alloc(t->be, &t->moved, NEAR_KINDS * sizeof(uint64_t), "counters", e));
    TRY(MEM_NEW(&t->near, (size_t)t->shape->n_layers, e));
    for (int l = 0; l < t->shape->n_layers; l++) {
        if (!t->layers[l]) continue;
        t->near[l] = near_sizes(t);
        t->near[l].count = t->moved;
        t->near[l].exact = float_rows_near(t);
        if (!kv_has_codes(&t->spec->kv)) TRY(open_layer(t, &t->near[l], e));
    }
    return ST_OK;
}

static void host_close(row_tier *t)
{
    const backend_ops *o = t->be->ops;
    for (int l = 0; t->near && l < t->shape->n_layers; l++) {
        const kv_near *n = &t->near[l];
        if (n->k.p) o->free(t->be, n->k, half_bytes(t, n));
        if (n->v.p) o->free(t->be, n->v, half_bytes(t, n));
        if (n->ring.p) o->free(t->be, n->ring, (size_t)n->window * sizeof(int32_t));
        if (n->tag.p) o->free(t->be, n->tag, tag_bytes(t, n));
        if (t->claim.p && n->slots) o->free(t->be, t->claim, tag_bytes(t, n)), t->claim.p = NULL;
    }
    if (t->moved.p) o->free(t->be, t->moved, NEAR_KINDS * sizeof(uint64_t));
    mem_free(t->near);
}

static void host_plan(const row_tier *t, attn_bytes *part, size_t *slow)
{
    const kv_format *f = &t->spec->kv;
    const size_t n = (size_t)t->n, heads = (size_t)t->shape->n_kv_heads;
    size_t row = kv_plain_bytes(f, heads, (size_t)t->shape->head_dim, 1), near = 0;
    *slow += part->kv;
    part->kv = 0;
    if (!t->lim->at_once) return;
    if (float_rows_near(t)) {
        near = n * (size_t)kv_float_rows(f, t->lim->prompt, t->lim->n_tokens) * row;
        *slow -= near;
    } else if (!kv_has_codes(f)) {
        kv_near p = near_sizes(t);
        near = n * (size_t)(p.first + p.window + p.slots) * row;
        part->scratch += n * (size_t)p.window * sizeof(int32_t) + (n + 1) * tag_bytes(t, &p);
    }
    part->kv = near;
}

static bool in_host(const row_tier *t, bool plain)
{
    return !(plain && t->near && float_rows_near(t));
}

static status host_add(row_tier *t, kv_rows *r, int layer, err *e)
{
    (void)e;
    if (t->near) r->near = &t->near[layer];
    return ST_OK;
}

const row_tier_kind row_tier_host = {
    .open = host_open, .close = host_close, .plan = host_plan, .in_host = in_host, .add = host_add};
