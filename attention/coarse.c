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

static buf combined(const coarse *c, const score_job *j)
{
    return j->n_heads == c->n_lists ? c->score : buf_at(c->score, j->n_heads * (size_t)c->cap * sizeof(float));
}

/* Scores of spans, combined. */
static void score_spans(coarse *const *c, const attn_view *v, score_job *jobs, size_t n)
{
    const backend_ops *o = v->be->ops;
    combine_job combine[ATTN_TOGETHER];
    if (n == 0) return;
    o->quest->score(v->be, jobs, n);
    if (jobs->n_heads == c[0]->n_lists) return;
    for (size_t i = 0; i < n; i++)
        combine[i] =
            (combine_job){combined(c[i], &jobs[i]), c[i]->score,      jobs[i].stride, jobs[i].n_heads, c[i]->n_lists,
                          jobs[i].items.lo,         jobs[i].items.hi, c[i]->gqa,      v->shape->scale};
    o->select->combine(v->be, combine, n);
}

static choose_job choice_of(const coarse *c, item_range spans, int64_t kept, buf score)
{
    bool ends = kept > 2; /* that leaves a choice */
    int64_t head = ends && spans.lo == 0, tail = ends ? spans.hi - 1 : spans.hi;
    return (choose_job){.score = score,
                        .items = spans,
                        .head = head,
                        .tail = tail,
                        .k = kept - head - (spans.hi - tail),
                        .n_lists = c->n_lists,
                        .stride = (size_t)c->cap,
                        .granule = 1,
                        .most = c->cap,
                        .idx_stride = (int64_t)c->spans.stride,
                        .idx = c->idx,
                        .range = c->range};
}

void coarse_choose(coarse *const *c, const attn_view *v, int layer, score_job *jobs, item_range *columns, size_t n)
{
    coarse *scored[ATTN_TOGETHER];
    score_job score[ATTN_TOGETHER];
    choose_job choose[ATTN_TOGETHER];
    size_t n_scored = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t lo = jobs[i].items.lo, hi = jobs[i].items.hi, first = lo / c[i]->per;
        int64_t end = hi > lo ? (hi - 1) / c[i]->per + 1 : first, kept = min64(end - first, c[i]->rule.keep);
        item_range spans = {end, first, end};
        choose[i] = choice_of(c[i], spans, kept, combined(c[i], &jobs[i]));
        columns[i] = (item_range){.hi = kept * c[i]->per};
        jobs[i].spans = &c[i]->spans;
        if (kept == end - first) continue; /* all, whatever their scores */
        score[n_scored] = (score_job){.index = &c[i]->bounds.index[layer],
                                      .q = jobs[i].q,
                                      .n_heads = jobs[i].n_heads,
                                      .score = c[i]->score,
                                      .stride = (size_t)c[i]->cap,
                                      .items = spans,
                                      .read = jobs[i].read};
        scored[n_scored++] = c[i];
    }
    score_spans(scored, v, score, n_scored);
    attn_choose(v, choose, n);
}
