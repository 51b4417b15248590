/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/bounds.h"

#include "kernels/base/mem.h"

static size_t pages_of(int64_t page, int64_t n)
{
    return (size_t)((n + page - 1) / page);
}

status bounds_bytes(size_t *out, const attn_spec *s, const attn_shape *shape, int64_t page, int64_t n, err *e)
{
    size_t row = 2 * (size_t)(shape->n_kv_heads * shape->head_dim) * dtype_size(s->kv.type);
    return size_mul(out, pages_of(page, n), row, "KV plan", e);
}

status bounds_open(quest_index **out, const attn_ctx *c, int64_t page, const char *what, err *e)
{
    const attn_shape *sh = c->shape;
    size_t bytes;
    TRY(MEM_NEW(out, (size_t)sh->n_layers, e));
    TRY(bounds_bytes(&bytes, c->spec, sh, page, c->lim->n_tokens, e));
    for (int l = 0; l < sh->n_layers; l++) {
        (*out)[l] = (quest_index){.type = c->spec->kv.type,
                                  .n_kv_heads = (size_t)sh->n_kv_heads,
                                  .head_dim = (size_t)sh->head_dim,
                                  .cap = pages_of(page, c->lim->n_tokens),
                                  .page = (size_t)page};
        if (c->layers[l]) TRY(c->be->ops->alloc(c->be, &(*out)[l].bound, bytes, what, e));
    }
    return ST_OK;
}

static size_t page_bytes(const quest_index *x)
{
    return 2 * x->head_dim * dtype_size(x->type);
}

void bounds_close(quest_index *x, const attn_ctx *c)
{
    for (int l = 0; x && l < c->shape->n_layers; l++)
        if (x[l].bound.p) c->be->ops->free(c->be, x[l].bound, x[l].n_kv_heads * x[l].cap * page_bytes(&x[l]));
    mem_free(x);
}

status bounds_state(const quest_index *x, const attn_ctx *c, attn_state *v, const char *what, int layer, err *e)
{
    size_t page = page_bytes(&x[layer]), kv = x[layer].n_kv_heads, cap = x[layer].cap * page;
    const state_part part = {0, kv, cap, pages_of((int64_t)x[layer].page, c->length) * page};
    return v->rows(v, what, layer, x[layer].bound, kv * cap, &part, 1, e);
}
