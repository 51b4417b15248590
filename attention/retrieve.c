/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/retrieve.h"

#include <stddef.h>
#include <string.h>

static const char *retrieve_alone(const attn_spec *s)
{
    return attn_gqa(s) == GQA_LAYER_VOTE
               ? "the shares of all heads' softmax that gqa=layer_vote adds; use gqa=vote or layer_mean"
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
    return (retrieve_range){.lo = max64(head, from), .hi = tail, .head = head, .tail = tail, .k = budget - forced};
}

/* ---- memory ---- */

#define AT(member) offsetof(retrieve, member)

static void retrieve_declare(attn_decl *d)
{
    const attn_shape *sh = d->shape;
    const retrieve_kind *kind = retrieve_kind_of(d->spec);
    const retrieve_options o = retrieve_options_of(d->spec);
    size_t layers = (size_t)sh->n_layers, heads = (size_t)sh->n_heads, kv = (size_t)sh->n_kv_heads;
    size_t lists = gqa_lists(o.gqa, heads, kv);
    int64_t n = d->lim->n_tokens, items = (n + o.granule - 1) / o.granule;
    int64_t most = min64(kind->range(d->spec, &o, 0, n).most, n);
    d->choose_lists = lists;
    if (o.coarse.tokens) coarse_declare(d, AT(coarse), &o.coarse, o.gqa);
    else d->choose_items = items;
    if (o.coarse.tokens) items = coarse_places(&o.coarse, n);
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
    tail_declare(d, AT(tail), lists, o.sample);
    if (o.gqa == GQA_MEAN_Q)
        decl_bytes(d, MEM_SCRATCH, AT(probe), "mean queries", kv * (size_t)sh->head_dim * sizeof(float));
}

/* ---- parts of a step ---- */

static retrieve *own(const selection *s)
{
    return retrieve_of(s->t->v);
}

static void choose_spans(selection *s, size_t n)
{
    coarse *spans[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) spans[i] = &own(&s[i])->coarse;
    coarse_choose(spans, s, n);
}

static void score_items(selection *s, size_t n)
{
    score_job jobs[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) jobs[i] = selection_score(&s[i], index_of(s[i].t->v, s[i].layer));
    own(s)->ops->score(s->t->v->be, jobs, n);
}

/* Scores that are votes already: `combine` has nothing to do. */
static void score_votes(selection *s, size_t n)
{
    score_job jobs[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) {
        jobs[i] = selection_score(&s[i], index_of(s[i].t->v, s[i].layer));
        jobs[i].votes = s[i].list.score;
    }
    own(s)->ops->score(s->t->v->be, jobs, n);
}

/* Scores by an index of tokens. */
static void score_tokens(selection *s, size_t n)
{
    score_job tokens[ATTN_TOGETHER];
    page_reduce_job reduce[ATTN_TOGETHER];
    const attn_view *v = s->t->v;
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = own(&s[i]);
        score_job *j = &tokens[i];
        *j = selection_score(&s[i], index_of(s[i].t->v, s[i].layer));
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

static void bound_scores(selection *s, size_t n)
{
    const attn_certify *c[ATTN_TOGETHER];
    score_job jobs[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) {
        c[i] = &own(&s[i])->certify;
        jobs[i] = selection_score(&s[i], index_of(s[i].t->v, s[i].layer));
    }
    certify_errors(c, s->t->v->be, jobs, n);
}

/* How exact scores follow the estimates. */
static void find_slopes(selection *s, size_t n)
{
    slope_job jobs[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = own(&s[i]);
        jobs[i] = (slope_job){.q = s[i].q,
                              .score = s[i].raw,
                              .n_heads = s[i].n_heads,
                              .n_lists = r->n_lists,
                              .stride = r->places,
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
    combine_job jobs[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) jobs[i] = selection_combine(&s[i], own(s)->o.gqa);
    s->t->v->be->ops->select->combine(s->t->v->be, jobs, n);
}

/* How many items hold p. */
static void count_mass(selection *s, size_t n)
{
    mass_job jobs[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = own(&s[i]);
        jobs[i] = selection_mass(&s[i].list, r->scale, r->o.p, (r->o.least + r->o.granule - 1) / r->o.granule);
        jobs[i].slope = r->slopes;
    }
    s->t->v->be->ops->select->mass(s->t->v->be, jobs, n);
}

/* How many items certify their lists. */
static void count_certified(selection *s, size_t n)
{
    certify_job jobs[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = own(&s[i]);
        const choose_job *l = &s[i].list;
        jobs[i] = certify_job_of(&r->certify, s[i].t->v, s[i].layer);
        jobs[i].least = r->o.least;
        jobs[i].score = s[i].raw;
        jobs[i].order = l->score;
        jobs[i].stride = l->stride;
        jobs[i].n_lists = l->n_lists;
        jobs[i].first = l->first;
        jobs[i].items = l->items;
        jobs[i].most = max64(l->k, 0);
        jobs[i].k = l->budget;
    }
    s->t->v->be->ops->certify->choose(s->t->v->be, jobs, n);
}

/* True if scores of lists are not the raw ones. */
static bool combines(const attn_view *v, const retrieve *r)
{
    gqa_mode gqa = r->o.gqa;
    if (gqa == GQA_LAYER_MEAN || gqa == GQA_LAYER_CONCAT) return true; /* other ranks have more heads */
    return gqa != GQA_PER_Q && gqa != GQA_MEAN_Q && (size_t)v->shape->n_heads > r->n_lists;
}

/* Sets the parts that the options ask for. */
static void set_parts(const attn_view *v, retrieve *r)
{
    const retrieve_options *o = &r->o;
    bool combined = combines(v, r), votes = combined && (o->gqa == GQA_VOTE || o->gqa == GQA_LAYER_VOTE);
    bool direct = votes && o->gqa == GQA_VOTE && r->kind->votes && !o->coarse.tokens && !o->draws;
    r->spans = o->coarse.tokens ? choose_spans : NULL;
    r->rank = r->kind->by_tokens ? score_tokens : direct ? score_votes : score_items;
    r->bound = o->eps > 0 ? bound_scores : NULL;
    r->slope = o->draws ? find_slopes : NULL;
    r->combine = combined && !direct ? combine_scores : NULL;
    r->count = o->p > 0 ? count_mass : o->eps > 0 ? count_certified : NULL;
    r->combined = combined;
    r->scale = votes ? 1 : v->shape->scale;
}

void retrieve_reset(attn_view *v)
{
    retrieve *r = retrieve_of(v);
    const attn_shape *sh = v->shape;
    int64_t n = v->lim->n_tokens;
    r->kind = retrieve_kind_of(v->spec);
    r->o = retrieve_options_of(v->spec);
    memcpy(&r->ops, (const char *)v->be->ops + r->kind->ops, sizeof r->ops);
    r->items = (n + r->o.granule - 1) / r->o.granule;
    r->places = (size_t)(r->o.coarse.tokens ? coarse_places(&r->o.coarse, n) : r->items);
    r->n_lists = gqa_lists(r->o.gqa, (size_t)sh->n_heads, (size_t)sh->n_kv_heads);
    r->idx_stride = (size_t)min64(r->kind->range(v->spec, &r->o, 0, n).most, n);
    set_parts(v, r);
    certify_reset(&r->certify, v, r->o.eps);
    if (r->o.coarse.tokens) coarse_reset(&r->coarse, v, &r->o.coarse, r->o.gqa);
    tail_reset(&r->tail, r->o.sample, r->o.seed);
}

/* ---- a forward ---- */

/* True if the step chooses in a layer that sees `seen` tokens. With a certificate it always does: it may need fewer
 * than the budget. */
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

static void retrieve_append(const attn_turn *t, size_t n, int layer)
{
    index_add_job index[ATTN_TOGETHER], bounds[ATTN_TOGETHER];
    const attn_view *v = t->v;
    const retrieve *r = retrieve_of(v);
    full_append(t, n, layer);
    if (r->kind->stored) return;
    for (size_t i = 0; i < n; i++) {
        const attn_turn *x = &t[i];
        index[i] = (index_add_job){index_of(x->v, layer), x->p.first, x->k, x->p.n_tok};
        bounds[i] = index[i];
        if (r->spans) bounds[i].index = &retrieve_of(x->v)->coarse.bounds.index[layer];
    }
    r->ops->add(v->be, index, n);
    if (r->spans) v->be->ops->quest->add(v->be, bounds, n);
}

/* The choice of a step of one sequence. The mean queries are made, if they are asked for. */
static selection selection_of(const attn_turn *t, int layer)
{
    const attn_view *v = t->v;
    const retrieve *r = retrieve_of(v);
    const attn_shape *sh = v->shape;
    const retrieve_range *a = &r->range[layer];
    size_t heads = (size_t)sh->n_heads, kv = (size_t)sh->n_kv_heads;
    int64_t n = t->p.first + (int64_t)t->p.n_tok;
    buf combined = buf_at(r->score, heads * r->places * sizeof(float));
    selection s = {.t = t,
                   .layer = layer,
                   .q = t->q,
                   .n_heads = heads,
                   .raw = r->score,
                   .list = {.score = r->combined ? combined : r->score,
                            .n_lists = r->n_lists,
                            .stride = r->places,
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
    s.list.first = selection_first(&s);
    s.scored = s.columns = s.list.items;
    if (r->bound) s.scored = (item_range){n, s.list.first, n}; /* all that the step sees */
    if (r->o.gqa == GQA_MEAN_Q) {
        v->be->ops->select->mean_heads(v->be, r->probe, t->q, 1, heads, kv, (size_t)sh->head_dim);
        s.q = r->probe;
        s.n_heads = kv;
    }
    if (r->kind->stored) kv_need(v->be, kv_store_rows(v->store, layer), s.scored.lo, s.scored.hi);
    return s;
}

/* Lists of the best items of n steps. */
static void select_best(const attn_turn *const *t, size_t n, int layer)
{
    const retrieve *r = retrieve_of(t[0]->v);
    const retrieve_part parts[] = {r->spans, r->rank, r->bound, r->slope, r->combine, r->count};
    selection s[ATTN_TOGETHER];
    choose_job choose[ATTN_TOGETHER];
    attn_tail *tails[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) s[i] = selection_of(t[i], layer);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i]) parts[i](s, n);
    for (size_t i = 0; i < n; i++) choose[i] = s[i].list;
    attn_choose(t[0]->v, choose, n);
    for (size_t i = 0; i < n; i++) {
        const choose_job *l = &s[i].list;
        attn_sel *sel = t[i]->sel;
        tails[i] = &retrieve_of(t[i]->v)->tail;
        sel->head = min64(l->head * l->granule, l->items.n_slots);
        sel->tail = min64(l->tail * l->granule, l->items.n_slots);
        sel->attended = 0;
        sel->seg[0] = selection_segment(l, kv_store_rows(t[i]->v->store, layer), l->idx_stride);
    }
    tail_select(tails, t, n, layer);
}

static void retrieve_select(const attn_turn *t, size_t n, int layer)
{
    const attn_turn *best[ATTN_TOGETHER];
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
    int64_t from = r->kind->range(v->spec, &r->o, 0, n).redo, span = r->o.coarse.tokens;
    if (span) from = min64(from, n / span * span);
    if (kv_store_coded_in(v->store, from, n)) return "keys that the index needs again are quantized";
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    for (int l = 0; l < v->shape->n_layers; l++) {
        const kv_rows *rows = kv_store_rows(v->store, l);
        if (!v->layers[l] || r->kind->stored) continue;
        kv_need(v->be, rows, from, n);
        r->ops->redo(v->be, index_of(v, l), rows, n);
        if (span) v->be->ops->quest->redo(v->be, &r->coarse.bounds.index[l], rows, n);
    }
    return NULL;
}

/* The byte `pooled` is 0: earlier versions had a pool of budgets. */
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
