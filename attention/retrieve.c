/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/retrieve.h"

#include <stddef.h>
#include <string.h>

/* ---- options ---- */

static const retrieve_kind *kind_of(const attn_spec *s)
{
    const retrieve_kind *k = s->method->kind;
    return k->of ? k->of(s) : k;
}

static retrieve_options options_of(const attn_spec *s)
{
    const retrieve_kind *k = kind_of(s);
    int64_t span = attn_value(s, "coarse", 0), keep = attn_value(s, "coarse_keep", 0);
    return (retrieve_options){.granule = k->granule ? attn_value(s, k->granule, 1) : 1,
                              .sink = attn_value(s, "force_sink", 0),
                              .recent = attn_value(s, "force_recent", 0),
                              .gqa = attn_gqa(s),
                              .p = (float)attn_value(s, "p", 0) / ATTN_FRACTION,
                              .least = attn_value(s, "min", 0),
                              .draws = attn_value(s, "calibrate", 0),
                              .sample = attn_value(s, "tail", 0),
                              .seed = attn_value(s, "tail_seed", 0),
                              .eps = certify_eps(attn_value(s, "certify", 0)),
                              .span = span,
                              .spans = span ? (keep * s->budget + span - 1) / span : 0};
}

static status check_draws(const attn_spec *s, const retrieve_options *o, err *e)
{
    char store[64];
    if (!o->draws) return ST_OK;
    kv_format_text(&s->kv, store, sizeof store);
    if (o->p == 0) return err_set(e, ST_USAGE, "%s: calibrate requires p", s->text);
    if (o->span) return err_set(e, ST_USAGE, "%s: calibrate requires the scores of all tokens; use coarse=0", s->text);
    if (o->draws == 1) return err_set(e, ST_USAGE, "%s: calibrate=1: must be 0 or at least 2", s->text);
    if (kv_has_codes(&s->kv) || kv_in_blocks(&s->kv))
        return err_set(e, ST_USAGE, "%s: calibrate over store %s: float keys are required; use f32, f16 or bf16",
                       s->text, store);
    if (s->tier.kind != KV_DEVICE)
        return err_set(e, ST_USAGE, "%s: calibrate is not supported with --kv-tier %s", s->text,
                       kv_tier_name(s->tier.kind));
    return ST_OK;
}

status retrieve_check(const attn_spec *s, err *e)
{
    const retrieve_options o = options_of(s);
    TRY(check_draws(s, &o, e));
    TRY(certify_check(s, o.eps, o.gqa, o.p > 0, e));
    if ((o.p > 0 || o.eps > 0) && o.least > s->budget)
        return err_set(e, ST_USAGE, "%s: min %lld, expected at most the budget, %lld", s->text, (long long)o.least,
                       (long long)s->budget);
    return ST_OK;
}

static const char *retrieve_alone(const attn_spec *s)
{
    return attn_gqa(s) == GQA_LAYER_VOTE
               ? "gqa=layer_vote adds the softmax of the heads of all ranks; use gqa=vote or layer_mean"
               : NULL;
}

static const void *index_of(const attn_view *v, int layer)
{
    const retrieve_kind *k = retrieve_of(v)->kind;
    const char *first;
    memcpy(&first, (const char *)v->own + k->index, sizeof first);
    return first + (size_t)layer * k->index_size;
}

retrieve_range retrieve_items(const retrieve_options *o, int64_t first, int64_t n, int64_t tail, int64_t budget)
{
    int64_t g = o->granule, items = (n + g - 1) / g, from = first / g;
    if (o->recent > 0) tail = min64(tail, max64(n - o->recent, 0) / g);
    tail = max64(tail, from);
    int64_t head = min64((o->sink + g - 1) / g, tail), forced = items - tail + max64(head - from, 0);
    return (retrieve_range){.lo = max64(head, from),
                            .hi = tail,
                            .head = head,
                            .tail = tail,
                            .k = budget - forced,
                            .most = budget,
                            .redo = n};
}

/* ---- memory ---- */

#define AT(member) offsetof(retrieve, member)

static int64_t items_of(const retrieve_options *o, int64_t n_tokens)
{
    return (n_tokens + o->granule - 1) / o->granule;
}

static int64_t spans_of(const retrieve_options *o, int64_t n_tokens)
{
    return (n_tokens + o->span - 1) / o->span;
}

/* Returns the most spans of a list. */
static int64_t most_kept(const retrieve_options *o, int64_t n_tokens)
{
    return min64(o->spans, spans_of(o, n_tokens));
}

/* Returns the most score columns of a list (ops_select.h). */
static int64_t columns_of(const retrieve_options *o, int64_t n_tokens)
{
    return o->span ? most_kept(o, n_tokens) * (o->span / o->granule) : items_of(o, n_tokens);
}

static void declare_spans(attn_decl *d, const retrieve_options *o, size_t heads, size_t lists)
{
    int64_t n = d->lim->n_tokens;
    bounds_declare(d, AT(span.bounds), "span bounds", o->span, QUEST_SUM);
    decl_bytes(d, MEM_SCRATCH, AT(span.score), "scores of spans",
               (heads + lists) * (size_t)spans_of(o, n) * sizeof(float));
    decl_bytes(d, MEM_SCRATCH, AT(span.kept.span), "lists of spans", lists * (size_t)most_kept(o, n) * sizeof(int32_t));
    decl_bytes(d, MEM_SCRATCH, AT(span.kept.range), "lists of spans", lists * 2 * sizeof(int64_t));
}

static void declare_sample(attn_decl *d, size_t lists, int64_t most)
{
    size_t heads = (size_t)d->shape->n_heads;
    decl_scratch(d, AT(sample.idx), "samples", lists * sizeof(int32_t), most);
    decl_scratch(d, AT(sample.range), "samples", 2 * sizeof(int64_t), (int64_t)lists);
    decl_scratch(d, AT(sample.left), "samples", sizeof(int64_t), (int64_t)lists);
    decl_scratch(d, AT(sample.bias), "samples", heads * sizeof(float), most);
    decl_scratch(d, AT(sample.scores), "samples", heads * sizeof(float), most);
    decl_scratch(d, AT(sample.missed), "samples", 2 * sizeof(float), (int64_t)heads);
}

static void retrieve_declare(attn_decl *d)
{
    const attn_shape *sh = d->shape;
    const retrieve_kind *kind = kind_of(d->spec);
    const retrieve_options o = options_of(d->spec);
    size_t layers = (size_t)sh->n_layers, heads = (size_t)sh->n_heads, kv = (size_t)sh->n_kv_heads;
    size_t lists = gqa_lists(o.gqa, heads, kv);
    int64_t n = d->lim->n_tokens, items = items_of(&o, n);
    int64_t most = min64(kind->range(d->spec, &o, 0, n).most, n);
    d->choose_lists = lists;
    d->choose_items = o.span ? spans_of(&o, n) : items;
    if (o.span) declare_spans(d, &o, heads, lists);
    items = columns_of(&o, n);
    decl_bytes(d, MEM_HOST, AT(range), "selection", layers * sizeof(retrieve_range));
    decl_bytes(d, MEM_HOST, AT(chooses), "selection", layers * sizeof(bool));
    decl_bytes(d, MEM_SCRATCH, AT(score), "scores", (heads + lists) * (size_t)items * sizeof(float));
    if (kind->by_tokens)
        decl_bytes(d, MEM_SCRATCH, AT(token_score), "scores of tokens", heads * (size_t)n * sizeof(float));
    decl_bytes(d, MEM_SCRATCH, AT(idx), "selected slots", lists * (size_t)most * sizeof(int32_t));
    if (o.p > 0 || o.eps > 0) decl_bytes(d, MEM_SCRATCH, AT(mass), "selected slots", lists * sizeof(int64_t));
    if (o.draws) decl_bytes(d, MEM_SCRATCH, AT(slopes), "selected slots", lists * sizeof(float));
    if (o.eps > 0) certify_declare(d, AT(certify), items);
    decl_bytes(d, MEM_SCRATCH, AT(ranges), "selected slots", layers * lists * 2 * sizeof(int64_t));
    if (o.sample) declare_sample(d, lists, o.sample);
    if (o.gqa == GQA_MEAN_Q)
        decl_bytes(d, MEM_SCRATCH, AT(probe), "mean queries", kv * (size_t)sh->head_dim * sizeof(float));
}

/* ---- parts of a step ---- */

static retrieve *own(const selection *s)
{
    return retrieve_of(s->t->v);
}

static score_job score_of(const selection *s, const void *index)
{
    return (score_job){.index = index,
                       .q = s->q,
                       .n_heads = s->n_heads,
                       .score = s->raw,
                       .stride = s->list.stride,
                       .items = s->scored,
                       .spans = s->list.spans,
                       .scale = s->t->v->shape->scale,
                       .read = attn_index_read(s->t->v)};
}

static score_job rank_of(const selection *s)
{
    return score_of(s, index_of(s->t->v, s->layer));
}

static combine_job combine_of(const selection *s)
{
    const choose_job *l = &s->list;
    return (combine_job){l->score,      s->raw,        l->stride,     s->n_heads,           l->n_lists,
                         s->columns.lo, s->columns.hi, own(s)->o.gqa, s->t->v->shape->scale};
}

/* Returns the selection of spans that overlap a selection's candidates. */
static selection span_selection(const selection *s)
{
    const retrieve *r = own(s);
    const span_level *c = &r->span;
    int64_t lo = s->list.items.lo, hi = s->list.items.hi, first = lo / c->per;
    int64_t end = hi > lo ? (hi - 1) / c->per + 1 : first, kept = min64(end - first, r->o.spans);
    bool ends = kept > 2; /* force both ends only if others remain */
    item_range spans = {end, first, end};
    int64_t head = ends && first == 0, tail = ends ? end - 1 : end;
    buf combined = buf_at(c->score, s->n_heads * (size_t)c->most * sizeof(float));
    return (selection){.t = s->t,
                       .layer = s->layer,
                       .q = s->q,
                       .n_heads = s->n_heads,
                       .raw = c->score,
                       .scored = spans,
                       .columns = spans,
                       .list = {.score = s->n_heads == r->n_lists ? c->score : combined,
                                .items = spans,
                                .head = head,
                                .tail = tail,
                                .k = kept - head - (end - tail),
                                .n_lists = r->n_lists,
                                .stride = (size_t)c->most,
                                .granule = 1,
                                .most = c->most,
                                .idx_stride = (int64_t)c->kept.stride,
                                .idx = c->kept.span,
                                .range = c->kept.range}};
}

/* Chooses the best spans of the candidates. Sets list.spans, valid until the next call, and the columns of their items.
 */
static void choose_spans(selection *s, size_t n)
{
    score_job score[ATTN_MAX_TASKS];
    combine_job combine[ATTN_MAX_TASKS];
    choose_job choose[ATTN_MAX_TASKS];
    const attn_view *v = s->t->v;
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        const span_level *c = &own(&s[i])->span;
        const selection spans = span_selection(&s[i]);
        int64_t all = spans.scored.hi - spans.scored.lo, kept = min64(all, own(&s[i])->o.spans);
        choose[i] = spans.list;
        s[i].list.spans = &c->kept;
        s[i].columns = (item_range){.hi = kept * c->per};
        if (kept == all) continue; /* all spans, regardless of scores */
        score[m] = score_of(&spans, &c->bounds.index[s[i].layer]);
        combine[m++] = combine_of(&spans);
    }
    if (m > 0) v->be->ops->quest->score(v->be, score, m);
    if (m > 0 && s->n_heads != own(s)->n_lists) v->be->ops->select->combine(v->be, combine, m);
    attn_choose(v, choose, n);
}

static void score_items(selection *s, size_t n)
{
    score_job jobs[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) jobs[i] = rank_of(&s[i]);
    own(s)->ops->score(s->t->v->be, jobs, n);
}

/* Scores items directly as votes, so that no `combine` is needed. */
static void score_votes(selection *s, size_t n)
{
    score_job jobs[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) {
        jobs[i] = rank_of(&s[i]);
        jobs[i].votes = s[i].list.score;
    }
    own(s)->ops->score(s->t->v->be, jobs, n);
}

static void score_tokens(selection *s, size_t n)
{
    score_job tokens[ATTN_MAX_TASKS];
    page_reduce_job reduce[ATTN_MAX_TASKS];
    const attn_view *v = s->t->v;
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = own(&s[i]);
        score_job *j = &tokens[i];
        *j = rank_of(&s[i]);
        j->score = r->token_score;
        j->stride = (size_t)s[i].t->v->lim->n_tokens;
        j->items.lo *= r->o.granule;
        j->items.hi = min64(j->items.hi * r->o.granule, j->items.n_slots);
        reduce[i] = (page_reduce_job){.out = s[i].raw,
                                      .stride = s[i].list.stride,
                                      .in = j->score,
                                      .in_stride = j->stride,
                                      .n_heads = j->n_heads,
                                      .items = s[i].scored,
                                      .granule = r->o.granule};
    }
    own(s)->ops->score(v->be, tokens, n);
    v->be->ops->select->page_reduce(v->be, reduce, n);
}

/* Computes error bounds of scores by the store's keys. */
static void bound_scores(selection *s, size_t n)
{
    score_job jobs[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) {
        jobs[i] = rank_of(&s[i]);
        jobs[i].score = own(&s[i])->certify.error;
        jobs[i].read = (buf){NULL};
    }
    s->t->v->be->ops->certify->bound(s->t->v->be, jobs, n);
}

/* Computes slopes of exact scores over estimates. */
static void find_slopes(selection *s, size_t n)
{
    slope_job jobs[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = own(&s[i]);
        jobs[i] = (slope_job){.q = s[i].q,
                              .score = s[i].raw,
                              .n_heads = s[i].n_heads,
                              .n_lists = r->n_lists,
                              .stride = r->n_columns,
                              .rows = *kv_store_rows(s[i].t->v->store, s[i].layer),
                              .items = s[i].list.items,
                              .count = (size_t)r->o.draws,
                              .seed = (uint64_t)r->o.seed,
                              .layer = s[i].layer,
                              .slope = r->slopes,
                              .read = attn_index_read(s[i].t->v)};
    }
    s->t->v->be->ops->select->slope(s->t->v->be, jobs, n);
}

static void combine_scores(selection *s, size_t n)
{
    combine_job jobs[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) jobs[i] = combine_of(&s[i]);
    s->t->v->be->ops->select->combine(s->t->v->be, jobs, n);
}

/* Counts the items per list that hold the fraction p. */
static void count_mass(selection *s, size_t n)
{
    mass_job jobs[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = own(&s[i]);
        const choose_job *l = &s[i].list;
        jobs[i] = (mass_job){.score = l->score,
                             .n_lists = l->n_lists,
                             .stride = l->stride,
                             .items = l->items,
                             .spans = l->spans,
                             .scale = r->scale,
                             .p = r->o.p,
                             .least = (r->o.least + r->o.granule - 1) / r->o.granule,
                             .most = max64(l->k, 0),
                             .slope = r->slopes,
                             .k = l->budget};
    }
    s->t->v->be->ops->select->mass(s->t->v->be, jobs, n);
}

/* Counts the items per list that certify it. */
static void count_certified(selection *s, size_t n)
{
    certify_job jobs[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = own(&s[i]);
        const choose_job *l = &s[i].list;
        size_t heads = s[i].n_heads;
        jobs[i] = (certify_job){.score = s[i].raw,
                                .error = r->certify.error,
                                .order = l->score,
                                .n_heads = heads,
                                .n_lists = l->n_lists,
                                .stride = l->stride,
                                .first = l->first,
                                .items = l->items,
                                .scale = s[i].t->v->shape->scale,
                                .eps = r->certify.eps,
                                .least = r->o.least,
                                .most = max64(l->k, 0),
                                .k = l->budget,
                                .bound = buf_at(r->certify.bound, (size_t)s[i].layer * heads * sizeof(float)),
                                .counts = r->certify.counts};
    }
    s->t->v->be->ops->certify->choose(s->t->v->be, jobs, n);
}

/* True if scores of lists differ from the raw scores. */
static bool combines(const attn_view *v, const retrieve *r)
{
    gqa_mode gqa = r->o.gqa;
    if (gqa == GQA_LAYER_MEAN || gqa == GQA_LAYER_CONCAT) return true; /* other ranks have more heads */
    return gqa != GQA_PER_Q && gqa != GQA_MEAN_Q && (size_t)v->shape->n_heads > r->n_lists;
}

static void set_parts(const attn_view *v, retrieve *r)
{
    const retrieve_options *o = &r->o;
    bool combined = combines(v, r), votes = combined && (o->gqa == GQA_VOTE || o->gqa == GQA_LAYER_VOTE);
    bool direct = votes && o->gqa == GQA_VOTE && r->kind->votes && !o->span && !o->draws;
    r->spans = o->span ? choose_spans : NULL;
    r->rank = r->kind->by_tokens ? score_tokens : direct ? score_votes : score_items;
    r->bound = o->eps > 0 ? bound_scores : NULL;
    r->slope = o->draws ? find_slopes : NULL;
    r->combine = combined && !direct ? combine_scores : NULL;
    r->count = o->p > 0 ? count_mass : o->eps > 0 ? count_certified : NULL;
    r->combined = combined;
    r->scale = votes ? 1 : v->shape->scale;
}

static void reset_spans(const attn_view *v, retrieve *r)
{
    span_level *c = &r->span;
    int64_t n = v->lim->n_tokens;
    c->per = r->o.span / r->o.granule;
    c->most = spans_of(&r->o, n);
    c->kept.n_lists = r->n_lists;
    c->kept.per = c->per;
    c->kept.n_max = most_kept(&r->o, n);
    c->kept.stride = (size_t)c->kept.n_max;
    bounds_reset(&c->bounds, v, r->o.span, QUEST_SUM);
}

void retrieve_reset(attn_view *v)
{
    retrieve *r = retrieve_of(v);
    const attn_shape *sh = v->shape;
    int64_t n = v->lim->n_tokens;
    r->kind = kind_of(v->spec);
    r->o = options_of(v->spec);
    memcpy(&r->ops, (const char *)v->be->ops + r->kind->ops, sizeof r->ops);
    r->items = items_of(&r->o, n);
    r->n_columns = (size_t)columns_of(&r->o, n);
    r->n_lists = gqa_lists(r->o.gqa, (size_t)sh->n_heads, (size_t)sh->n_kv_heads);
    r->idx_stride = (size_t)min64(r->kind->range(v->spec, &r->o, 0, n).most, n);
    set_parts(v, r);
    certify_reset(&r->certify, v, r->o.eps);
    if (r->o.span) reset_spans(v, r);
}

/* ---- a forward ---- */

/* True if the step selects in a layer that sees `seen` tokens. With a certificate it always selects, since fewer tokens
 * than the budget may suffice. */
static bool chooses(const attn_view *v, const attn_part *p, int64_t seen)
{
    const retrieve *r = retrieve_of(v);
    bool all = seen <= v->spec->budget && !v->spec->forced && r->o.eps == 0;
    return !(p->flags & ATTN_PROMPT) && !all && (!r->kind->ready || r->kind->ready(v));
}

void retrieve_begin(attn_view *v, const attn_part *p)
{
    retrieve *r = retrieve_of(v);
    int64_t n = v->length + (int64_t)p->n_tok;
    for (int l = 0; l < v->shape->n_layers; l++) {
        int64_t seen = attn_visible(v->shape, l, n);
        r->range[l] = r->kind->range(v->spec, &r->o, n - seen, n);
        r->chooses[l] = v->layers[l] && chooses(v, p, seen);
    }
}

static void retrieve_append(const attn_task *t, size_t n, int layer)
{
    index_add_job index[ATTN_MAX_TASKS], bounds[ATTN_MAX_TASKS];
    const attn_view *v = t->v;
    const retrieve *r = retrieve_of(v);
    full_append(t, n, layer);
    if (r->kind->stored) return;
    for (size_t i = 0; i < n; i++) {
        const attn_task *x = &t[i];
        index[i] = (index_add_job){index_of(x->v, layer), x->p.first, x->k, x->p.n_tok};
        bounds[i] = index[i];
        if (r->spans) bounds[i].index = &retrieve_of(x->v)->span.bounds.index[layer];
    }
    r->ops->add(v->be, index, n);
    if (r->spans) v->be->ops->quest->add(v->be, bounds, n);
}

/* Returns the selection of a step of one sequence. Queues the mean queries if gqa=mean_q. */
static selection selection_of(const attn_task *t, int layer)
{
    const attn_view *v = t->v;
    const retrieve *r = retrieve_of(v);
    const attn_shape *sh = v->shape;
    const retrieve_range *a = &r->range[layer];
    size_t heads = (size_t)sh->n_heads, kv = (size_t)sh->n_kv_heads;
    int64_t n = t->p.first + (int64_t)t->p.n_tok;
    buf combined = buf_at(r->score, heads * r->n_columns * sizeof(float));
    selection s = {.t = t,
                   .layer = layer,
                   .q = t->q,
                   .n_heads = heads,
                   .raw = r->score,
                   .list = {.score = r->combined ? combined : r->score,
                            .n_lists = r->n_lists,
                            .stride = r->n_columns,
                            .items = {n, a->lo, a->hi},
                            .head = a->head,
                            .tail = a->tail,
                            .k = a->k,
                            .budget = r->count ? r->mass : (buf){NULL},
                            .each = r->count,
                            .granule = r->o.granule,
                            .most = r->items,
                            .idx_stride = (int64_t)r->idx_stride,
                            .idx = r->idx,
                            .range = buf_at(r->ranges, (size_t)layer * r->n_lists * 2 * sizeof(int64_t))}};
    s.list.first = n - attn_visible(sh, layer, n);
    s.scored = s.columns = s.list.items;
    if (r->bound) s.scored = (item_range){n, s.list.first, n}; /* all tokens that the step sees */
    if (r->o.gqa == GQA_MEAN_Q) {
        v->be->ops->select->mean_heads(v->be, r->probe, t->q, 1, heads, kv, (size_t)sh->head_dim);
        s.q = r->probe;
        s.n_heads = kv;
    }
    if (r->kind->stored) kv_need(v->be, kv_store_rows(v->store, layer), s.scored.lo, s.scored.hi);
    return s;
}

/* Adds a segment with a sample of the unattended tokens to n selections, which have one segment. */
static void add_samples(const attn_task *const *t, size_t n, int layer)
{
    tail_sample_job jobs[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = retrieve_of(t[i]->v);
        attn_sel *sel = t[i]->sel;
        size_t most = (size_t)r->o.sample;
        jobs[i] = (tail_sample_job){.of = attn_seg_job(t[i]->v, &sel->seg[0]),
                                    .n = t[i]->p.first + (int64_t)t[i]->p.n_tok,
                                    .rows = most,
                                    .bias = r->sample.bias,
                                    .seed = (uint64_t)r->o.seed,
                                    .layer = layer,
                                    .idx = r->sample.idx,
                                    .range = r->sample.range,
                                    .left = r->sample.left};
        jobs[i].of.n_tok = 1;
        sel->seg[sel->n_seg++] = (attn_seg){.rows = sel->seg[0].rows,
                                            .range = r->sample.range,
                                            .idx = r->sample.idx,
                                            .n_lists = jobs[i].of.n_lists,
                                            .idx_stride = most,
                                            .n_max = r->o.sample,
                                            .scores = r->sample.scores,
                                            .score_stride = most,
                                            .bias = r->sample.bias,
                                            .bias_stride = most,
                                            .left = r->sample.left,
                                            .missed = r->sample.missed};
    }
    t[0]->v->be->ops->tail->sample(t[0]->v->be, jobs, n);
}

static void select_best(const attn_task *const *t, size_t n, int layer)
{
    const retrieve *r = retrieve_of(t[0]->v);
    const retrieve_part parts[] = {r->spans, r->rank, r->bound, r->slope, r->combine, r->count};
    selection s[ATTN_MAX_TASKS];
    choose_job choose[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) s[i] = selection_of(t[i], layer);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i]) parts[i](s, n);
    for (size_t i = 0; i < n; i++) choose[i] = s[i].list;
    attn_choose(t[0]->v, choose, n);
    for (size_t i = 0; i < n; i++) {
        const choose_job *l = &s[i].list;
        attn_sel *sel = t[i]->sel;
        sel->head = min64(l->head * l->granule, l->items.n_slots);
        sel->tail = min64(l->tail * l->granule, l->items.n_slots);
        sel->attended = 0;
        sel->seg[0] = (attn_seg){.rows = kv_store_rows(t[i]->v->store, layer),
                                 .range = l->range,
                                 .idx = l->idx,
                                 .n_lists = l->n_lists,
                                 .idx_stride = (size_t)l->idx_stride,
                                 .n_max = l->idx_stride};
    }
    if (r->o.sample && t[0]->v->shape->window[layer] == 0) add_samples(t, n, layer);
}

static void retrieve_select(const attn_task *t, size_t n, int layer)
{
    const attn_task *best[ATTN_MAX_TASKS];
    size_t n_best = 0;
    full_select(t, n, layer);
    for (size_t i = 0; i < n; i++) {
        int64_t seen = attn_visible(t[i].v->shape, layer, t[i].p.first + (int64_t)t[i].p.n_tok);
        if (chooses(t[i].v, &t[i].p, seen)) best[n_best++] = &t[i];
    }
    if (n_best > 0) select_best(best, n_best, layer);
}

static void retrieve_end(attn_view *v, const attn_part *p)
{
    const retrieve *r = retrieve_of(v);
    if (!(p->flags & ATTN_PROMPT)) attn_count_lists(v, r->ranges, r->n_lists, r->chooses);
}

/* ---- between forwards ---- */

const char *retrieve_rewind(attn_view *v, int64_t n)
{
    retrieve *r = retrieve_of(v);
    if (n == v->length) return NULL;
    int64_t from = r->kind->range(v->spec, &r->o, 0, n).redo, span = r->o.span;
    if (span) from = min64(from, n / span * span);
    if (kv_store_coded_in(v->store, from, n)) return "keys that the index needs again are quantized";
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    for (int l = 0; l < v->shape->n_layers; l++) {
        const kv_rows *rows = kv_store_rows(v->store, l);
        if (!v->layers[l] || r->kind->stored) continue;
        kv_need(v->be, rows, from, n);
        r->ops->redo(v->be, index_of(v, l), rows, n);
        if (span) v->be->ops->quest->redo(v->be, &r->span.bounds.index[l], rows, n);
    }
    return NULL;
}

/* The saved byte `pooled` is 0; earlier versions had a pool of budgets. */
status retrieve_state(attn_view *v, attn_state *s, err *e)
{
    uint8_t pooled = 0;
    TRY(STATE_HOST(s, "pooled", &pooled, e));
    TRY(attn_walk(v, s, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}

static const attn_certify *retrieve_certifies(const attn_view *v)
{
    const retrieve *r = retrieve_of(v);
    return r->bound ? &r->certify : NULL;
}

const attn_family attn_retrieve = {
    .size = sizeof(retrieve),
    .uses = USES(select),
    .retrieves = true,
    .drafts = true,
    .alone = retrieve_alone,
    .hooks = {.declare = retrieve_declare,
              .reset = retrieve_reset,
              .begin = retrieve_begin,
              .append = retrieve_append,
              .select = retrieve_select,
              .end = retrieve_end,
              .rewind = retrieve_rewind,
              .state = retrieve_state,
              .certifies = retrieve_certifies},
};
