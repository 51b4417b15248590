/* SPDX-License-Identifier: MIT */
/* What the device holds of rows that lie in the host's memory. */
#include "config.h"

#include "attention/store_impl.h"
#include "attention/tier.h"
#include "kernels/base/mem.h"

struct kv_nears {
    backend *be;
    int n_layers;
    size_t n_heads, row_bytes;
    buf claim; /* one for all layers */
    kv_near *layer;
};

static size_t half_bytes(const kv_nears *s, const kv_near *n)
{
    return s->n_heads * (size_t)(n->first + n->window + n->slots) * s->row_bytes;
}

static size_t tag_bytes(const kv_nears *s, const kv_near *n)
{
    return s->n_heads * (size_t)n->slots * sizeof(int32_t);
}

static status create_layer(kv_nears *s, kv_near *n, err *e)
{
    const backend_ops *o = s->be->ops;
    TRY(o->alloc(s->be, &n->k, half_bytes(s, n), "near K rows", e));
    TRY(o->alloc(s->be, &n->v, half_bytes(s, n), "near V rows", e));
    if (n->window) TRY(o->alloc(s->be, &n->ring, (size_t)n->window * sizeof(int32_t), "near rows", e));
    if (n->slots == 0) return ST_OK;
    TRY(o->alloc(s->be, &n->tag, tag_bytes(s, n), "near rows", e));
    if (!s->claim.p) TRY(o->alloc(s->be, &s->claim, tag_bytes(s, n), "near rows", e));
    n->claim = s->claim;
    return ST_OK;
}

status kv_nears_create(kv_nears **out, const attn_ctx *c, size_t n_heads, int64_t cap, err *e)
{
    kv_nears *s;
    const kv_format *f = &c->spec->kv;
    near_places p = {0};
    *out = NULL;
    TRY(MEM_NEW(&s, 1, e));
    *s = (kv_nears){.be = c->be, .n_layers = c->shape->n_layers, .n_heads = n_heads,
                    .row_bytes = (size_t)c->shape->head_dim * dtype_size(f->type)};
    if (!kv_has_codes(f)) p = attn_near_places(c->spec, c->shape, cap, c->layers);
    status st = MEM_NEW(&s->layer, (size_t)s->n_layers, e);
    for (int l = 0; l < s->n_layers && st == ST_OK; l++) {
        if (!c->layers[l]) continue;
        s->layer[l] = (kv_near){.count = c->moved, .first = p.first, .window = p.window, .slots = p.slots,
                                .exact = kv_exact_near(f)};
        if (!kv_has_codes(f)) st = create_layer(s, &s->layer[l], e);
    }
    if (st != ST_OK) kv_nears_free(s);
    else *out = s;
    return st;
}

void kv_nears_free(kv_nears *s)
{
    if (!s) return;
    const backend_ops *o = s->be->ops;
    for (int l = 0; s->layer && l < s->n_layers; l++) {
        const kv_near *n = &s->layer[l];
        if (n->k.p) o->free(s->be, n->k, half_bytes(s, n));
        if (n->v.p) o->free(s->be, n->v, half_bytes(s, n));
        if (n->ring.p) o->free(s->be, n->ring, (size_t)n->window * sizeof(int32_t));
        if (n->tag.p) o->free(s->be, n->tag, tag_bytes(s, n));
        if (s->claim.p && n->slots) o->free(s->be, s->claim, tag_bytes(s, n)), s->claim.p = NULL;
    }
    mem_free(s->layer);
    mem_free(s);
}

const kv_near *kv_nears_layer(const kv_nears *s, int layer)
{
    return &s->layer[layer];
}
