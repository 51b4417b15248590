/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/store.h"

#include "kernels/base/mem.h"

struct kv_store {
    backend *be;
    int n_layers;
    size_t row_bytes; /* K and V of one exact row, all regions */
    kv_rows *layer;   /* [n_layers]; k.p NULL: nothing stored for this layer */
};

static size_t exact_row_bytes(const kv_format *f, const attn_shape *shape, size_t n_heads)
{
    return 2 * n_heads * (size_t)shape->head_dim * dtype_size(f->type);
}

status kv_plan_bytes(size_t *out, const kv_format *f, const attn_shape *shape, size_t n_heads, int64_t n, err *e)
{
    return size_mul(out, (size_t)n, exact_row_bytes(f, shape, n_heads), "KV plan", e);
}

static size_t half_bytes(const kv_rows *r)
{
    return r->cap * r->n_kv_heads * r->head_dim * dtype_size(r->type);
}

status kv_store_create(kv_store **out, const attn_ctx *c, size_t n_heads, const int64_t *cap, err *e)
{
    kv_store *s;
    const attn_shape *sh = c->shape;
    const backend_ops *o = c->be->ops;
    *out = NULL;
    TRY(MEM_NEW(&s, 1, e));
    *s = (kv_store){.be = c->be, .n_layers = sh->n_layers,
                    .row_bytes = exact_row_bytes(&c->spec->kv, sh, n_heads)};
    status st = MEM_NEW(&s->layer, (size_t)sh->n_layers, e);
    for (int l = 0; l < sh->n_layers && st == ST_OK; l++) {
        kv_rows *r = &s->layer[l];
        size_t bytes;
        *r = (kv_rows){.type = c->spec->kv.type, .n_kv_heads = n_heads, .head_dim = (size_t)sh->head_dim,
                       .cap = (size_t)cap[l]};
        if (cap[l] == 0) continue;
        st = size_mul(&bytes, r->cap, s->row_bytes, "KV rows", e);
        if (st == ST_OK) st = o->alloc(c->be, &r->k, half_bytes(r), "K rows", e);
        if (st == ST_OK) st = o->alloc(c->be, &r->v, half_bytes(r), "V rows", e);
    }
    if (st != ST_OK) kv_store_free(s);
    else *out = s;
    return st;
}

void kv_store_free(kv_store *s)
{
    if (!s) return;
    for (int l = 0; s->layer && l < s->n_layers; l++) {
        kv_rows *r = &s->layer[l];
        if (r->k.p) s->be->ops->free(s->be, r->k, half_bytes(r));
        if (r->v.p) s->be->ops->free(s->be, r->v, half_bytes(r));
    }
    mem_free(s->layer);
    mem_free(s);
}

void kv_store_reset(kv_store *s)
{
    (void)s;
}

bool kv_store_by_position(const kv_store *s)
{
    (void)s;
    return false;
}

const kv_rows *kv_store_rows(const kv_store *s, int layer)
{
    return &s->layer[layer];
}

void kv_store_begin(kv_store *s, const attn_ctx *c, const attn_part *p)
{
    (void)s;
    (void)c;
    (void)p;
}

void kv_store_put(kv_store *s, const attn_part *p, int layer, buf slots, size_t n_lists, buf k, buf v)
{
    s->be->ops->kv_write(s->be, &s->layer[layer], slots, n_lists, k, v, p->n_tok);
}

void kv_store_layer_end(kv_store *s, const attn_ctx *c, const attn_part *p, int layer)
{
    (void)s;
    (void)c;
    (void)p;
    (void)layer;
}

void kv_store_end(kv_store *s, const attn_ctx *c, const attn_part *p)
{
    (void)s;
    (void)c;
    (void)p;
}

bool kv_store_rewind(kv_store *s, int64_t n)
{
    (void)s;
    (void)n;
    return true;
}

size_t kv_store_bytes(const kv_store *s, int64_t n)
{
    return (size_t)n * s->row_bytes;
}

size_t kv_store_bytes_of(const kv_store *s, const int64_t *pos, int64_t n)
{
    (void)pos;
    return (size_t)n * s->row_bytes / s->layer[0].n_kv_heads;
}
