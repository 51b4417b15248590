/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/store.h"

#include "kernels/base/mem.h"

size_t kv_row_bytes(size_t n_kv_heads, size_t head_dim, dtype type)
{
    return 2 * n_kv_heads * head_dim * dtype_size(type);
}

static size_t half_bytes(const kv_rows *r)
{
    return r->cap * r->n_kv_heads * r->head_dim * dtype_size(r->type);
}

status kv_store_init(kv_store *s, backend *be, int n_layers, size_t n_kv_heads, size_t head_dim,
                     dtype type, const int64_t *cap, err *e)
{
    *s = (kv_store){.be = be, .n_layers = n_layers};
    status st = MEM_NEW(&s->layer, (size_t)n_layers, e);
    if (st != ST_OK) return st;
    for (int l = 0; l < n_layers && st == ST_OK; l++) {
        kv_rows *r = &s->layer[l];
        size_t bytes;
        *r = (kv_rows){
            .type = type, .n_kv_heads = n_kv_heads, .head_dim = head_dim, .cap = (size_t)cap[l]};
        if (cap[l] == 0) continue;
        st = size_mul(&bytes, r->cap, kv_row_bytes(n_kv_heads, head_dim, type), "KV rows", e);
        if (st == ST_OK) st = be->ops->alloc(be, &r->k, half_bytes(r), "K rows", e);
        if (st == ST_OK) st = be->ops->alloc(be, &r->v, half_bytes(r), "V rows", e);
    }
    if (st != ST_OK) kv_store_free(s);
    return st;
}

void kv_store_free(kv_store *s)
{
    for (int l = 0; s->layer && l < s->n_layers; l++) {
        kv_rows *r = &s->layer[l];
        if (r->k.p) s->be->ops->free(s->be, r->k, half_bytes(r));
        if (r->v.p) s->be->ops->free(s->be, r->v, half_bytes(r));
    }
    mem_free(s->layer);
    s->layer = NULL;
}
