/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/bounds.h"

#include <stddef.h>

static int64_t pages_of(int64_t page, int64_t n)
{
    return (n + page - 1) / page;
}

void bounds_declare(attn_decl *d, size_t at, const char *name, int64_t page, quest_how how)
{
    size_t dim = (size_t)d->shape->head_dim, kv = (size_t)d->shape->n_kv_heads;
    size_t rows = quest_rows(&(quest_index){.how = how});
    decl_regions(d, MEM_INDEX, at + offsetof(page_bounds, bound), name, kv,
                 rows * dim * dtype_size(kv_number_type(&d->spec->kv)), pages_of(page, d->lim->n_tokens),
                 pages_of(page, d->n));
    if (how == QUEST_MEAN)
        decl_layers(d, MEM_INDEX, at + offsetof(page_bounds, sum), "page sums", kv * dim * sizeof(float));
    decl_bytes(d, MEM_HOST, at + offsetof(page_bounds, index), name, (size_t)d->shape->n_layers * sizeof(quest_index));
}

void bounds_reset(page_bounds *b, const attn_view *v, int64_t page, quest_how how)
{
    for (int l = 0; l < v->shape->n_layers; l++)
        b->index[l] = (quest_index){.bound = b->bound[l],
                                    .type = kv_number_type(&v->spec->kv),
                                    .n_kv_heads = (size_t)v->shape->n_kv_heads,
                                    .head_dim = (size_t)v->shape->head_dim,
                                    .cap = (size_t)pages_of(page, v->lim->n_tokens),
                                    .page = (size_t)page,
                                    .how = how,
                                    .sum = how == QUEST_MEAN ? b->sum[l] : (buf){NULL}};
}
