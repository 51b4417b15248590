/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/budget.h"

#include "kernels/base/mem.h"

struct attn_budget {
    backend *be;
    bool pooled;
    int n_layers; /* of the model */
    int *rank;    /* [n_layers] place of a layer among those that share */
    size_t max_windows, n_windows;
    int64_t nominal;   /* as uploaded */
    entropy_pool pool; /* its buffers lie in state, sum and theta */
    buf state;         /* i64: bounds [2], count, nominal, k [n_layers], pools [max_windows] */
    buf sum, theta;
    int64_t *host; /* [max_windows] for uploads */
};

enum { S_BOUND, S_COUNT = 2, S_NOMINAL, S_K };

static size_t state_bytes(int n_layers, size_t n_windows)
{
    return (S_K + (size_t)n_layers + n_windows) * sizeof(int64_t);
}

static size_t sum_bytes(int n_layers)
{
    return (size_t)n_layers * sizeof(double);
}

static size_t theta_bytes(int n_layers, size_t n_windows)
{
    return n_windows * (size_t)n_layers * sizeof(float);
}

size_t attn_budget_bytes(const attn_shape *shape, size_t n_windows)
{
    return state_bytes(shape->n_layers, n_windows) + sum_bytes(shape->n_layers) +
           theta_bytes(shape->n_layers, n_windows);
}

static buf at(const attn_budget *b, size_t i)
{
    return buf_at(b->state, i * sizeof(int64_t));
}

status attn_budget_create(attn_budget **out, const attn_ctx *c, int64_t pool, size_t n_windows,
                          err *e)
{
    attn_budget *b;
    const backend_ops *o = c->be->ops;
    int n = c->shape->n_layers;
    size_t used = 0;
    *out = NULL;
    TRY(MEM_NEW(&b, 1, e));
    *b = (attn_budget){
        .be = c->be, .pooled = pool == POOL_ENTROPY, .n_layers = n, .max_windows = n_windows};
    status st = MEM_NEW(&b->rank, (size_t)n, e);
    if (st == ST_OK) st = MEM_NEW(&b->host, n_windows, e);
    if (st == ST_OK) st = o->alloc(c->be, &b->state, state_bytes(n, n_windows), "budgets", e);
    if (st == ST_OK) st = o->alloc(c->be, &b->sum, sum_bytes(n), "budgets", e);
    if (st == ST_OK) st = o->alloc(c->be, &b->theta, theta_bytes(n, n_windows), "budgets", e);
    if (st != ST_OK) {
        attn_budget_free(b);
        return st;
    }
    for (int l = 0; l < n; l++) {
        b->rank[l] = (int)used;
        used += c->layers[l];
    }
    b->pool = (entropy_pool){.theta = b->theta,
                             .sum = b->sum,
                             .count = at(b, S_COUNT),
                             .pool = at(b, S_K + (size_t)n),
                             .bound = at(b, S_BOUND),
                             .n_layers = used};
    *out = b;
    return ST_OK;
}

void attn_budget_free(attn_budget *b)
{
    if (!b) return;
    const backend_ops *o = b->be->ops;
    if (b->state.p) o->free(b->be, b->state, state_bytes(b->n_layers, b->max_windows));
    if (b->sum.p) o->free(b->be, b->sum, sum_bytes(b->n_layers));
    if (b->theta.p) o->free(b->be, b->theta, theta_bytes(b->n_layers, b->max_windows));
    mem_free(b->rank);
    mem_free(b->host);
    mem_free(b);
}

void attn_budget_reset(attn_budget *b)
{
    const int64_t zero = 0;
    const double none = 0;
    b->be->ops->upload(b->be, at(b, S_COUNT), &zero, sizeof zero);
    for (size_t l = 0; l < b->pool.n_layers; l++)
        b->be->ops->upload(b->be, buf_at(b->sum, l * sizeof none), &none, sizeof none);
}

status attn_budget_state(attn_budget *b, attn_state *v, err *e)
{
    int64_t count;
    double sum;
    TRY(v->mem(v, "entropies", -1, b->sum, b->pool.n_layers * sizeof sum, e));
    TRY(v->mem(v, "number of entropies", -1, at(b, S_COUNT), sizeof count, e));
    b->be->ops->download(b->be, &count, at(b, S_COUNT), sizeof count);
    TRY(state_within("number of entropies", count, 0, (int64_t)1 << 50, e));
    for (size_t l = 0; l < b->pool.n_layers; l++) {
        b->be->ops->download(b->be, &sum, buf_at(b->sum, l * sizeof sum), sizeof sum);
        if (!(sum >= 0 && sum < 1e300)) return state_bad("an entropy is not a number", e);
    }
    return ST_OK;
}

/* Bounds: methods.md 9.7, 32 and 92 for the default 46. */
void attn_budget_open(attn_budget *b, int64_t nominal, size_t n_windows)
{
    const backend_ops *o = b->be->ops;
    b->n_windows = b->pooled ? n_windows : 0;
    if (nominal != b->nominal) {
        int64_t bound[2] = {nominal * 7 / 10, attn_budget_most(POOL_ENTROPY, nominal)};
        o->upload(b->be, at(b, S_BOUND), bound, sizeof bound);
        o->upload(b->be, at(b, S_NOMINAL), &nominal, sizeof nominal);
        b->nominal = nominal;
    }
    for (size_t w = 0; w < b->n_windows; w++) b->host[w] = (int64_t)b->pool.n_layers * nominal;
    if (b->n_windows) o->upload(b->be, b->pool.pool, b->host, b->n_windows * sizeof *b->host);
}

buf attn_budget_take(attn_budget *b, int layer, size_t window, const item_scores *s, float scale)
{
    if (window >= b->n_windows) return at(b, S_NOMINAL);
    buf k = at(b, S_K + (size_t)layer);
    b->be->ops->block->take(b->be, &b->pool, window, (size_t)b->rank[layer], s, scale, k);
    return k;
}

void attn_budget_close(attn_budget *b)
{
    if (b->n_windows) b->be->ops->block->close_pools(b->be, &b->pool, b->n_windows);
    b->n_windows = 0;
}
