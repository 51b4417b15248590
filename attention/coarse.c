/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/coarse.h"

#include <stddef.h>

#define AT(member) (at + offsetof(coarse, member))

coarse_rule coarse_rule_of(const attn_spec *s, int64_t granule)
{
    int64_t tokens = attn_value(s, "coarse", 0), keep = attn_value(s, "coarse_keep", 0);
    return (coarse_rule){
        .tokens = tokens, .keep = tokens ? (keep * s->budget + tokens - 1) / tokens : 0, .granule = granule};
}

static int64_t spans_of(const coarse_rule *r, int64_t n_tokens)
{
    return (n_tokens + r->tokens - 1) / r->tokens;
}

/* Spans of a list. */
static int64_t most_kept(const coarse_rule *r, int64_t n_tokens)
{
    return min64(r->keep, spans_of(r, n_tokens));
}

int64_t coarse_places(const coarse_rule *r, int64_t n_tokens)
{
    return most_kept(r, n_tokens) * (r->tokens / r->granule);
}

void coarse_declare(attn_decl *d, size_t at, const coarse_rule *r, gqa_mode gqa)
{
    size_t heads = (size_t)d->shape->n_heads, lists = gqa_lists(gqa, heads, (size_t)d->shape->n_kv_heads);
    int64_t n = d->lim->n_tokens, spans = spans_of(r, n);
    bounds_declare(d, AT(bounds), "span bounds", r->tokens);
    decl_bytes(d, MEM_SCRATCH, AT(score), "scores of spans", (heads + lists) * (size_t)spans * sizeof(float));
    decl_bytes(d, MEM_SCRATCH, AT(idx), "lists of spans", lists * (size_t)most_kept(r, n) * sizeof(int32_t));
    decl_bytes(d, MEM_SCRATCH, AT(range), "lists of spans", lists * 2 * sizeof(int64_t));
    d->choose_items = max64(d->choose_items, spans);
}

void coarse_reset(coarse *c, const attn_view *v, const coarse_rule *rule, gqa_mode gqa)
{
    int64_t n = v->lim->n_tokens;
    c->rule = *rule;
    c->gqa = gqa;
    c->per = rule->tokens / rule->granule;
    c->cap = spans_of(rule, n);
    c->n_lists = gqa_lists(gqa, (size_t)v->shape->n_heads, (size_t)v->shape->n_kv_heads);
    c->spans = (item_spans){.span = c->idx,
                            .range = c->range,
                            .n_lists = c->n_lists,
                            .stride = (size_t)most_kept(rule, n),
                            .per = c->per,
                            .n_max = most_kept(rule, n)};
    bounds_reset(&c->bounds, v, rule->tokens);
}

/* Combined scores of the spans [lo, hi). */
static buf score_spans(coarse *c, const attn_view *v, int layer, item_range spans, buf q, size_t n_heads)
{
    backend *be = v->be;
    size_t stride = (size_t)c->cap;
    buf out = buf_at(c->score, (size_t)v->shape->n_heads * stride * sizeof(float));
    be->ops->quest->score(be,
                          &(score_job){.index = &c->bounds.index[layer],
                                       .q = q,
                                       .n_heads = n_heads,
                                       .score = c->score,
                                       .stride = stride,
                                       .items = spans,
                                       .read = attn_index_read(v)},
                          1);
    if (n_heads == c->n_lists) return c->score;
    be->ops->select->combine(
        be, &(combine_job){out, c->score, stride, n_heads, c->n_lists, spans.lo, spans.hi, c->gqa, v->shape->scale}, 1);
    return out;
}

const item_spans *coarse_choose(coarse *c, const attn_view *v, int layer, item_range items, buf q, size_t n_heads,
                                int64_t *places)
{
    int64_t first = items.lo / c->per, end = items.hi > items.lo ? (items.hi - 1) / c->per + 1 : first;
    int64_t kept = min64(end - first, c->rule.keep);
    bool ends = kept > 2; /* that leaves a choice */
    item_range spans = {end, first, end};
    int64_t head = ends && first == 0, tail = ends ? end - 1 : end;
    bool all = kept == end - first; /* whatever their scores */
    attn_choose(v, &(choose_job){.score = all ? c->score : score_spans(c, v, layer, spans, q, n_heads),
                                 .items = spans,
                                 .head = head,
                                 .tail = tail,
                                 .k = kept - head - (end - tail),
                                 .n_lists = c->n_lists,
                                 .stride = (size_t)c->cap,
                                 .granule = 1,
                                 .most = c->cap,
                                 .idx_stride = (int64_t)c->spans.stride,
                                 .idx = c->idx,
                                 .range = c->range});
    *places = kept * c->per;
    return &c->spans;
}
