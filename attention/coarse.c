/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/coarse.h"

#include "attention/bounds.h"
#include "kernels/base/mem.h"

/* The state of a layer in ops memory, in i64 elements. */
enum {
    C_N,              /* choose_job's n over groups: their end, first candidate, end of the candidates */
    C_TAIL = C_N + 3, /* groups from here on are kept whatever their score */
    C_K,              /* groups to take beside those */
    C_PLACES,         /* n of the places: unused, 0, their end */
    C_KEPT = C_PLACES + 3, /* groups that a list gets: for the host, as the next one */
    C_HEAD,                /* groups before it are kept too */
    C_COUNT
};

struct coarse {
    attn_ctx base; /* its length is not kept up */
    coarse_rule rule;
    gqa_mode gqa;
    quest_index *index; /* [n_layers] */
    int64_t per, cap;   /* items of a group; groups at most */
    size_t n_lists;
    int64_t *host; /* [n_layers][C_COUNT] */
    buf state;     /* the same */
    buf score;     /* f32 [n_heads][cap], and combined ones [n_lists][cap] behind them */
    buf idx, range;
    item_groups groups; /* of the layer at work */
};

coarse_rule coarse_rule_of(int64_t tokens, int64_t keep, int64_t budget, int64_t granule)
{
    int64_t groups = tokens ? (keep * budget + tokens - 1) / tokens : 0;
    return (coarse_rule){.tokens = tokens, .keep = groups, .granule = granule};
}

static int64_t groups_of(const coarse_rule *r, int64_t n_tokens)
{
    return (n_tokens + r->tokens - 1) / r->tokens;
}

/* Groups of a list. */
static int64_t most_kept(const coarse_rule *r, int64_t n_tokens)
{
    int64_t all = groups_of(r, n_tokens);
    return r->keep < all ? r->keep : all;
}

int64_t coarse_places(const coarse_rule *r, int64_t n_tokens)
{
    return most_kept(r, n_tokens) * (r->tokens / r->granule);
}

typedef struct {
    size_t state, score, idx, range;
} sizes;

static sizes sizes_of(const coarse_rule *r, const attn_shape *sh, int64_t n_tokens, gqa_mode gqa)
{
    size_t heads = (size_t)sh->n_heads, lists = gqa_lists(gqa, heads, (size_t)sh->n_kv_heads);
    return (sizes){.state = (size_t)sh->n_layers * C_COUNT * sizeof(int64_t),
                   .score = (heads + lists) * (size_t)groups_of(r, n_tokens) * sizeof(float),
                   .idx = lists * (size_t)most_kept(r, n_tokens) * sizeof(int32_t),
                   .range = lists * 2 * sizeof(int64_t)};
}

size_t coarse_scratch(const coarse_rule *r, const attn_shape *sh, int64_t n_tokens, gqa_mode gqa)
{
    sizes z = sizes_of(r, sh, n_tokens, gqa);
    return z.state + z.score + z.idx + z.range;
}

status coarse_create(coarse **out, const attn_ctx *base, const coarse_rule *rule, gqa_mode gqa, err *e)
{
    coarse *c;
    backend *be = base->be;
    const backend_ops *o = be->ops;
    const attn_shape *sh = base->shape;
    sizes z = sizes_of(rule, sh, base->lim->n_tokens, gqa);
    *out = NULL;
    TRY(MEM_NEW(&c, 1, e));
    *c = (coarse){.base = *base,
                  .rule = *rule,
                  .gqa = gqa,
                  .per = rule->tokens / rule->granule,
                  .cap = groups_of(rule, base->lim->n_tokens),
                  .n_lists = gqa_lists(gqa, (size_t)sh->n_heads, (size_t)sh->n_kv_heads)};
    status st = mem_alloc((void **)&c->host, z.state, 1, "groups: host state", e);
    if (st == ST_OK) st = o->alloc(be, &c->state, z.state, "groups: state", e);
    if (st == ST_OK) st = o->alloc(be, &c->score, z.score, "groups: scores", e);
    if (st == ST_OK) st = o->alloc(be, &c->idx, z.idx, "groups: lists", e);
    if (st == ST_OK) st = o->alloc(be, &c->range, z.range, "groups: lists", e);
    if (st == ST_OK) st = bounds_open(&c->index, base, rule->tokens, "groups: bounds", e);
    if (st == ST_OK) st = attn_choose_reserve(base, c->n_lists, c->cap, e);
    if (st != ST_OK) {
        coarse_free(c);
        return st;
    }
    c->groups = (item_groups){.group = c->idx,
                              .range = c->range,
                              .n_lists = c->n_lists,
                              .stride = (size_t)most_kept(rule, base->lim->n_tokens),
                              .per = c->per,
                              .n_max = most_kept(rule, base->lim->n_tokens)};
    *out = c;
    return ST_OK;
}

void coarse_free(coarse *c)
{
    if (!c) return;
    backend *be = c->base.be;
    sizes z = sizes_of(&c->rule, c->base.shape, c->base.lim->n_tokens, c->gqa);
    const struct {
        buf b;
        size_t bytes;
    } all[] = {{c->state, z.state}, {c->score, z.score}, {c->idx, z.idx}, {c->range, z.range}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].b.p) be->ops->free(be, all[i].b, all[i].bytes);
    bounds_close(c->index, &c->base);
    mem_free(c->host);
    mem_free(c);
}

void coarse_begin(coarse *c, int layer, int64_t lo, int64_t hi)
{
    int64_t *s = c->host + layer * C_COUNT, first = lo / c->per, end = hi > lo ? (hi - 1) / c->per + 1 : first;
    int64_t kept = end - first < c->rule.keep ? end - first : c->rule.keep;
    bool ends = kept > 2; /* that leaves a choice */
    s[C_N] = s[C_N + 2] = end;
    s[C_N + 1] = first;
    s[C_HEAD] = ends && first == 0;
    s[C_TAIL] = ends ? end - 1 : end;
    s[C_K] = kept - s[C_HEAD] - (end - s[C_TAIL]);
    s[C_PLACES] = s[C_PLACES + 1] = 0;
    s[C_PLACES + 2] = kept * c->per;
    s[C_KEPT] = kept;
}

void coarse_upload(coarse *c)
{
    c->base.be->ops->upload(c->base.be, c->state, c->host, (size_t)c->base.shape->n_layers * C_COUNT * sizeof(int64_t));
}

void coarse_add(coarse *c, int layer, buf pos, buf k, size_t n)
{
    c->base.be->ops->quest->add(c->base.be, &c->index[layer], pos, k, n);
}

static buf at(const coarse *c, int layer, int i)
{
    return buf_at(c->state, (size_t)(layer * C_COUNT + i) * sizeof(int64_t));
}

buf coarse_range(const coarse *c, int layer)
{
    return at(c, layer, C_PLACES);
}

/* Combined scores of the layer's groups. */
static buf score_groups(coarse *c, int layer, buf q, size_t n_heads)
{
    backend *be = c->base.be;
    size_t stride = (size_t)c->cap;
    buf n = at(c, layer, C_N), out = buf_at(c->score, (size_t)c->base.shape->n_heads * stride * sizeof(float));
    be->ops->quest->score(be, c->score, stride, q, n_heads, &c->index[layer], n, c->cap, c->rule.max_channel,
                          attn_index_read(&c->base));
    if (n_heads == c->n_lists) return c->score;
    be->ops->select->combine(be, out, c->score, stride, n_heads, c->n_lists, n, c->cap, c->gqa, c->base.shape->scale);
    return out;
}

const item_groups *coarse_choose(coarse *c, int layer, buf q, size_t n_heads)
{
    const int64_t *s = c->host + layer * C_COUNT;
    bool all = s[C_KEPT] == s[C_N + 2] - s[C_N + 1]; /* whatever their scores */
    choose_job j = {.score = all ? c->score : score_groups(c, layer, q, n_heads),
                    .n = at(c, layer, C_N),
                    .tail = at(c, layer, C_TAIL),
                    .head = s[C_HEAD],
                    .k = at(c, layer, C_K),
                    .n_k = 1,
                    .n_lists = c->n_lists,
                    .stride = (size_t)c->cap,
                    .granule = 1,
                    .n_items_max = c->cap,
                    .idx_stride = (int64_t)c->groups.stride,
                    .idx = c->idx,
                    .range = c->range};
    attn_choose(&c->base, &j);
    return &c->groups;
}

void coarse_redo(coarse *c, int layer, const kv_rows *rows, int64_t n)
{
    c->base.be->ops->quest->redo(c->base.be, &c->index[layer], rows, n);
}

status coarse_state(const coarse *c, const attn_ctx *base, attn_state *v, int layer, err *e)
{
    return bounds_state(c->index, base, v, "group bounds", layer, e);
}
