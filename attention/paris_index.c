/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/paris_index.h"

#include <stddef.h>

#include "kernels/base/rng.h"
#include "kernels/ops_select.h"

/* ---- memory ---- */

static size_t tables(const attn_shape *sh)
{
    return (size_t)sh->n_kv_heads * paris_subspaces((size_t)sh->head_dim);
}

#define AT(member) (at + offsetof(paris_search, member))

void paris_declare(attn_decl *d, size_t at, const paris_options *o)
{
    const attn_shape *sh = d->shape;
    size_t kv = (size_t)sh->n_kv_heads, head = (size_t)sh->head_dim, f = sizeof(float);
    size_t dim = paris_dim(head), nb = paris_subspaces(head), layers = (size_t)sh->n_layers;
    int64_t n = d->lim->n_tokens;
    const struct {
        size_t at, item;
        int64_t n;
    } work[] = {
        {AT(sign), dim * f, (int64_t)o->rounds},
        {AT(probe), head * f, sh->n_kv_heads},
        {AT(y), dim * f, sh->n_kv_heads},
        {AT(norm), f, sh->n_kv_heads},
        {AT(bonus), PARIS_PATTERNS, (int64_t)tables(sh)},
        {AT(score), kv, n},
        {AT(cand), kv * sizeof(int32_t), n},
        {AT(final), kv * f, n},
        {AT(idx), kv * sizeof(int32_t), min64(o->k, n)},
        {AT(lists), kv * 2 * sizeof(int64_t), sh->n_layers},
    };
    decl_regions(d, MEM_INDEX, AT(id), "ids", kv, nb, n, d->n);
    decl_regions(d, MEM_INDEX, AT(code), "codes", kv, nb * PARIS_CODE, n, d->n);
    decl_layers(d, MEM_STATE, AT(count), "bucket counts", tables(sh) * PARIS_PATTERNS * sizeof(int32_t));
    decl_layers(d, MEM_STATE, AT(counted), "tokens counted", 2 * sizeof(int64_t));
    if (o->center) decl_layers(d, MEM_STATE, AT(mean), "mean of keys", kv * head * f);
    for (size_t i = 0; i < sizeof work / sizeof *work; i++)
        decl_scratch(d, work[i].at, "ParisKV's work space", work[i].item, work[i].n);
    decl_bytes(d, MEM_HOST, AT(ranges), "ParisKV's work space", layers * sizeof(paris_ranges));
    decl_bytes(d, MEM_HOST, AT(finds), "ParisKV's work space", layers * sizeof(bool));
    d->choose_lists = kv;
    d->choose_items = n;
}

#undef AT

static paris_index index_of(const attn_view *v, const paris_search *s, int layer)
{
    return (paris_index){.id = s->id[layer],
                         .code = s->code[layer],
                         .count = s->count[layer],
                         .counted = s->counted[layer],
                         .sign = s->sign,
                         .mean = s->mean ? s->mean[layer] : (buf){NULL},
                         .n_kv_heads = (size_t)v->shape->n_kv_heads,
                         .head_dim = (size_t)v->shape->head_dim,
                         .cap = (size_t)v->lim->n_tokens,
                         .rounds = s->o.rounds,
                         .alpha = s->o.alpha};
}

/* With the random signs of the rotation, doc/methods.md 0.2.9. */
void paris_open(const attn_view *v, paris_search *s, const paris_options *o)
{
    float sign[2 * PARIS_DIM_MAX];
    size_t n = o->rounds * paris_dim((size_t)v->shape->head_dim);
    rng r = {42};
    s->o = *o;
    for (size_t i = 0; i < n; i++) sign[i] = rng_next(&r) >> 63 ? -1 : 1;
    if (n > 0) v->be->ops->upload(v->be, s->sign, sign, n * sizeof *sign);
}

/* Checks the range of counted tokens, which `count` subtracts again, and the bucket counts. An empty range may begin
 * anywhere: behind a prompt of fewer tokens than `sink` it begins behind the next token. */
static status check_counts(const attn_view *v, const paris_search *s, int layer, err *e)
{
    const backend_ops *o = v->be->ops;
    int32_t count[PARIS_PATTERNS];
    int64_t range[2];
    o->download(v->be, range, s->counted[layer], sizeof range);
    if (range[1] < 0 || (range[1] > 0 && (range[0] < 0 || range[0] > v->length - range[1])))
        return state_bad("the tokens that were counted", e);
    for (size_t i = 0; i < tables(v->shape); i++) {
        int64_t sum = 0;
        o->download(v->be, count, buf_at(s->count[layer], i * sizeof count), sizeof count);
        for (size_t k = 0; k < PARIS_PATTERNS; k++) {
            if (count[k] < 0) return state_bad("a bucket count", e);
            sum += count[k];
        }
        if (sum != range[1]) return state_bad("the sum of bucket counts", e);
    }
    return ST_OK;
}

/* Nothing is counted. */
static void clear_counts(const attn_view *v, const paris_search *s, int layer)
{
    static const int32_t none[PARIS_PATTERNS];
    for (size_t i = 0; i < tables(v->shape); i++)
        v->be->ops->upload(v->be, buf_at(s->count[layer], i * sizeof none), none, sizeof none);
    v->be->ops->upload(v->be, s->counted[layer], none, 2 * sizeof(int64_t));
}

status paris_walk(attn_view *v, paris_search *s, attn_state *state, err *e)
{
    status st = attn_walk(v, state, e);
    for (int l = 0; l < v->shape->n_layers && state->load && st == ST_OK; l++)
        if (v->layers[l]) st = check_counts(v, s, l, e);
    /* What was damaged is not to be subtracted from. */
    for (int l = 0; l < v->shape->n_layers && state->load && st != ST_OK; l++)
        if (v->layers[l]) clear_counts(v, s, l);
    return st;
}

/* ---- a forward ---- */

/* Row of the tables of rho and beta (doc/methods.md 8.3). */
static int table_row(int64_t n)
{
    return n < 5000 ? 0 : n < 10000 ? 1 : n < 30000 ? 2 : 3;
}

/* Tokens to rerank of n indexed ones, to find k. */
static int64_t candidates(const paris_search *s, int64_t n, int64_t k)
{
    static const int64_t table[] = {50, 25, 20, 10};
    int64_t beta = s->o.beta ? s->o.beta : table[table_row(n)];
    return min64(max64((n * beta + 99) / 100, k), n);
}

/* Limits of the levels of a search among n tokens; one level is the widest. */
static void set_limits(const paris_search *s, int64_t n, int64_t limit[PARIS_LEVELS])
{
    static const int64_t table[] = {50, 30, 25, 20}, tau[PARIS_LEVELS] = {5, 15, 30, 50, 75, 100};
    int64_t rho = s->o.rho ? s->o.rho : table[table_row(n)];
    for (size_t i = 0; i < s->o.n_levels; i++)
        limit[i] = (n * rho * tau[PARIS_LEVELS - s->o.n_levels + i] + 9999) / 10000;
}

void paris_encode(const attn_view *v, const paris_search *s, int layer, const kv_rows *rows, bool mean)
{
    const paris_ops *o = v->be->ops->paris;
    const paris_index x = index_of(v, s, layer);
    const paris_ranges *r = &s->ranges[layer];
    if (mean && x.mean.p) o->mean(v->be, &x, rows, r->mean);
    if (r->encode.n > 0) o->encode(v->be, &x, rows, r->encode);
}

void paris_count(const attn_view *v, const paris_search *s, int layer)
{
    const paris_index x = index_of(v, s, layer);
    v->be->ops->paris->count(v->be, &x, s->ranges[layer].next, attn_index_read(v));
}

attn_seg paris_find(const attn_view *v, const paris_search *s, int layer, const kv_rows *rows, buf q)
{
    const attn_shape *sh = v->shape;
    const paris_ops *o = v->be->ops->paris;
    const paris_index x = index_of(v, s, layer);
    const paris_ranges *r = &s->ranges[layer];
    size_t kv = x.n_kv_heads, stride = (size_t)min64(s->o.k, v->lim->n_tokens);
    int64_t m = candidates(s, r->index.n, r->k);
    buf probe = q, read = attn_index_read(v), lists = buf_at(s->lists, (size_t)layer * kv * 2 * sizeof(int64_t));
    if ((size_t)sh->n_heads > kv) {
        probe = s->probe;
        v->be->ops->select->mean_heads(v->be, probe, q, 1, (size_t)sh->n_heads, kv, x.head_dim);
    }
    o->query(v->be, s->y, s->norm, probe, kv, &x);
    o->count(v->be, &x, r->index, read);
    paris_job j = {.x = &x,
                   .y = s->y,
                   .norm = s->norm,
                   .n_levels = s->o.n_levels,
                   .range = r->index,
                   .m = m,
                   .bonus = s->bonus,
                   .score = s->score,
                   .cand = s->cand,
                   .est = s->final,
                   .read = read};
    set_limits(s, r->index.n, j.limit);
    o->search(v->be, &j);
    attn_choose(v,
                &(choose_job){.score = s->final,
                              .items = {m, 0, m},
                              .tail = m,
                              .k = r->k,
                              .n_lists = kv,
                              .stride = x.cap,
                              .granule = 1,
                              .most = m,
                              .idx_stride = (int64_t)stride,
                              .idx = s->idx,
                              .range = lists},
                1);
    o->resolve(v->be, s->idx, stride, lists, kv, s->cand, x.cap);
    return (attn_seg){.rows = rows, .range = lists, .idx = s->idx, .n_lists = kv, .idx_stride = stride, .n_max = r->k};
}
