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
    bounds_declare(d, AT(bounds), "span bounds", r->tokens, QUEST_SUM);
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
    bounds_reset(&c->bounds, v, rule->tokens, QUEST_SUM);
}

/* The choice of the spans in which a selection's candidates lie; combined scores lie behind the raw ones. */
static selection spans_of_selection(const coarse *c, const selection *s)
{
    int64_t lo = s->list.items.lo, hi = s->list.items.hi, first = lo / c->per;
    int64_t end = hi > lo ? (hi - 1) / c->per + 1 : first, kept = min64(end - first, c->rule.keep);
    bool ends = kept > 2; /* that leaves a choice */
    item_range spans = {end, first, end};
    int64_t head = ends && first == 0, tail = ends ? end - 1 : end;
    buf behind = buf_at(c->score, s->n_heads * (size_t)c->cap * sizeof(float));
    return (selection){.t = s->t,
                       .layer = s->layer,
                       .q = s->q,
                       .n_heads = s->n_heads,
                       .raw = c->score,
                       .scored = spans,
                       .columns = spans,
                       .list = {.score = s->n_heads == c->n_lists ? c->score : behind,
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
                                .range = c->range}};
}

void coarse_choose(coarse *const *c, selection *s, size_t n)
{
    score_job score[ATTN_TOGETHER];
    combine_job combine[ATTN_TOGETHER];
    choose_job choose[ATTN_TOGETHER];
    const attn_view *v = s->t->v;
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        const selection spans = spans_of_selection(c[i], &s[i]);
        int64_t all = spans.scored.hi - spans.scored.lo, kept = min64(all, c[i]->rule.keep);
        choose[i] = spans.list;
        s[i].list.spans = &c[i]->spans;
        s[i].columns = (item_range){.hi = kept * c[i]->per};
        if (kept == all) continue; /* all, whatever their scores */
        score[m] = selection_score(&spans, &c[i]->bounds.index[s[i].layer]);
        combine[m++] = selection_combine(&spans, c[i]->gqa);
    }
    if (m > 0) v->be->ops->quest->score(v->be, score, m);
    if (m > 0 && s->n_heads != c[0]->n_lists) v->be->ops->select->combine(v->be, combine, m);
    attn_choose(v, choose, n);
}
