/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <stddef.h>

#include "attention/budget.h"

#define AT(member) (at + offsetof(attn_budget, member))

void budget_declare(attn_decl *d, size_t at, mem_kind kind)
{
    size_t n = (size_t)d->shape->n_layers, i64 = sizeof(int64_t);
    decl_bytes(d, kind, AT(sum), "entropies", n * sizeof(double));
    decl_bytes(d, kind, AT(count), "number of entropies", i64);
    decl_bytes(d, MEM_SCRATCH, AT(theta), "budgets", n * sizeof(float));
    decl_bytes(d, MEM_SCRATCH, AT(pools), "budgets", i64);
    decl_bytes(d, MEM_SCRATCH, AT(k), "budgets", n * i64);
    decl_bytes(d, MEM_HOST, AT(rank), "budgets", n * sizeof(int));
}

void budget_reset(attn_budget *b, const attn_view *v, int64_t pool)
{
    const int64_t zero = 0;
    const double none = 0;
    size_t used = 0;
    for (int l = 0; l < v->shape->n_layers; l++) {
        b->rank[l] = (int)used;
        used += v->layers[l];
    }
    b->be = v->be;
    b->pooled = pool == POOL_ENTROPY;
    b->open = false;
    b->pool = (entropy_pool){.theta = b->theta, .sum = b->sum, .count = b->count, .pool = b->pools, .n_layers = used};
    b->be->ops->upload(b->be, b->count, &zero, sizeof zero);
    for (size_t l = 0; l < used; l++) b->be->ops->upload(b->be, buf_at(b->sum, l * sizeof none), &none, sizeof none);
}

status budget_check(const attn_budget *b, err *e)
{
    int64_t count;
    double sum;
    b->be->ops->download(b->be, &count, b->count, sizeof count);
    TRY(state_within("number of entropies", count, 0, (int64_t)1 << 50, e));
    for (size_t l = 0; l < b->pool.n_layers; l++) {
        b->be->ops->download(b->be, &sum, buf_at(b->sum, l * sizeof sum), sizeof sum);
        if (!(sum >= 0 && sum < 1e300)) return state_bad("an entropy is not a number", e);
    }
    return ST_OK;
}

/* Bounds: methods.md 9.7, 32 and 92 for the default 46. */
void budget_open(attn_budget *b, int64_t nominal, bool shared)
{
    int64_t all = (int64_t)b->pool.n_layers * nominal;
    b->open = b->pooled && shared;
    b->pool.least = nominal * 7 / 10;
    b->pool.most = budget_most(POOL_ENTROPY, nominal);
    if (b->open) b->be->ops->upload(b->be, b->pools, &all, sizeof all);
}

buf budget_take(attn_budget *b, int layer, buf score, item_range n)
{
    if (!b->open) return (buf){NULL};
    buf k = buf_at(b->k, (size_t)layer * sizeof(int64_t));
    b->be->ops->block->take(b->be, &b->pool, (size_t)b->rank[layer], score, n, k);
    return k;
}

void budget_close(attn_budget *b)
{
    if (b->open) b->be->ops->block->close_pool(b->be, &b->pool);
    b->open = false;
}
