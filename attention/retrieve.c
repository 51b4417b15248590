/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/retrieve.h"

#include <stddef.h>
#include <string.h>

static const retrieve_kind *kind_of(const attn_spec *s)
{
    const retrieve_kind *k = s->method->kind;
    return k->of ? k->of(s) : k;
}

static int64_t granule_of(const attn_spec *s)
{
    return kind_of(s)->granule ? attn_value(s, kind_of(s)->granule, 1) : 1;
}

static const char *retrieve_alone(const attn_spec *s)
{
    return attn_gqa(s) == GQA_LAYER_VOTE && !kind_of(s)->slots
               ? "the shares of all heads' softmax that gqa=layer_vote adds; use gqa=vote or layer_mean"
               : NULL;
}

/* Parameters that say how p is meant. */
static status check_share(const attn_spec *s, err *e)
{
    int64_t draws = attn_value(s, "calibrate", 0), all = attn_value(s, "of", SHARE_CANDIDATES) == SHARE_ALL;
    char store[64];
    if (!draws && !all) return ST_OK;
    kv_format_text(&s->kv, store, sizeof store);
    if (!attn_value(s, "p", 0))
        return err_set(e, ST_USAGE, "%s: %s says how p is meant, and there is no p", s->text, all ? "of" : "calibrate");
    if (attn_value(s, "coarse", 0))
        return err_set(e, ST_USAGE, "%s: %s needs scores of all tokens, and coarse leaves some out", s->text,
                       all ? "of=all" : "calibrate");
    if (draws == 1) return err_set(e, ST_USAGE, "%s: calibrate=1: one token has no slope, at least 2", s->text);
    if (draws && (kv_has_codes(&s->kv) || kv_in_blocks(&s->kv)))
        return err_set(e, ST_USAGE, "%s: calibrate over store %s: exact keys are expected, f32, f16 or bf16", s->text,
                       store);
    if (draws && s->tier.kind != KV_DEVICE)
        return err_set(e, ST_USAGE, "%s: calibrate reads some keys of each step, which --kv-tier %s has elsewhere",
                       s->text, kv_tier_name(s->tier.kind));
    return ST_OK;
}

status retrieve_check(const attn_spec *s, err *e)
{
    int64_t least = attn_value(s, "min", 0), share = attn_value(s, "p", 0);
    TRY(check_share(s, e));
    TRY(certify_check(s, e));
    if (!share && !attn_value(s, "certify", 0)) return ST_OK;
    if (least > s->budget)
        return err_set(e, ST_USAGE, "%s: min %lld, expected at most the budget (max), %lld", s->text, (long long)least,
                       (long long)s->budget);
    if (share && attn_value(s, "pool", POOL_FIXED) == POOL_ENTROPY)
        return err_set(e, ST_USAGE, "%s: pool=entropy and p both say how many tokens a layer takes: one is expected",
                       s->text);
    return ST_OK;
}

static const index_ops *ops_of(const attn_view *v)
{
    return *(const index_ops *const *)(const void *)((const char *)v->be->ops + kind_of(v->spec)->ops);
}

static const void *index_of(const attn_view *v, int layer)
{
    const char *first;
    memcpy(&first, (const char *)v->own + kind_of(v->spec)->index, sizeof first);
    return first + (size_t)layer * kind_of(v->spec)->index_size;
}

retrieve_range retrieve_items(const attn_spec *s, int64_t first, int64_t n, int64_t tail, int64_t budget)
{
    int64_t g = granule_of(s), items = (n + g - 1) / g, from = first / g;
    int64_t sink = attn_value(s, "force_sink", 0), recent = attn_value(s, "force_recent", 0);
    if (recent > 0) tail = min64(tail, max64(n - recent, 0) / g);
    tail = max64(tail, from);
    int64_t head = min64((sink + g - 1) / g, tail), forced = items - tail + max64(head - from, 0);
    bool extra = attn_value(s, "budget_mode", BUDGET_TOTAL) == BUDGET_EXTRA;
    return (retrieve_range){
        .lo = max64(head, from), .hi = tail, .head = head, .tail = tail, .k = budget - (extra ? 0 : forced)};
}

static bool combines(const attn_view *v, const retrieve *r)
{
    bool layer = r->gqa == GQA_LAYER_MEAN || r->gqa == GQA_LAYER_CONCAT; /* other ranks have more heads */
    return layer || (r->gqa != GQA_PER_Q && r->gqa != GQA_MEAN_Q && (size_t)v->shape->n_heads > r->n_lists);
}

/* Where the combined scores lie, f32 [n_lists][places]. */
static buf combined_of(const attn_view *v)
{
    const retrieve *r = retrieve_of(v);
    return buf_at(r->score, (size_t)v->shape->n_heads * r->places * sizeof(float));
}

/* ---- memory ---- */

#define AT(member) offsetof(retrieve, member)

static void declare_slots(attn_decl *d)
{
    size_t n = (size_t)d->shape->n_layers, bytes = n * (size_t)d->spec->budget * sizeof(int32_t);
    decl_bytes(d, MEM_SCRATCH, AT(idx), "selected slots", bytes);
    decl_bytes(d, MEM_HOST, AT(slots), "selected slots", bytes);
    decl_bytes(d, MEM_HOST, AT(counts), "selected slots", n * sizeof(int64_t));
}

static void retrieve_declare(attn_decl *d)
{
    const attn_shape *sh = d->shape;
    size_t layers = (size_t)sh->n_layers, heads = (size_t)sh->n_heads, kv = (size_t)sh->n_kv_heads;
    if (kind_of(d->spec)->slots) {
        declare_slots(d);
        return;
    }
    gqa_mode gqa = attn_gqa(d->spec);
    int64_t n = d->lim->n_tokens, granule = granule_of(d->spec), items = (n + granule - 1) / granule;
    size_t lists = gqa_lists(gqa, heads, kv);
    coarse_rule rule = coarse_rule_of(d->spec, granule);
    int64_t most = min64(kind_of(d->spec)->range(d->spec, 0, n).most, n);
    d->choose_lists = lists;
    if (rule.tokens) coarse_declare(d, AT(coarse), &rule, gqa);
    else d->choose_items = items;
    if (rule.tokens) items = coarse_places(&rule, n);
    decl_bytes(d, MEM_HOST, AT(range), "selection", layers * sizeof(retrieve_range));
    decl_bytes(d, MEM_HOST, AT(chooses), "selection", layers * sizeof(bool));
    decl_bytes(d, MEM_SCRATCH, AT(score), "scores", (heads + lists) * (size_t)items * sizeof(float));
    if (kind_of(d->spec)->reduce)
        decl_bytes(d, MEM_SCRATCH, AT(token_score), "scores of tokens", heads * (size_t)n * sizeof(float));
    decl_bytes(d, MEM_SCRATCH, AT(idx), "selected slots", lists * (size_t)most * sizeof(int32_t));
    if (attn_value(d->spec, "p", 0) || attn_value(d->spec, "certify", 0))
        decl_bytes(d, MEM_SCRATCH, AT(mass), "selected slots", lists * sizeof(int64_t));
    if (attn_value(d->spec, "calibrate", 0))
        decl_bytes(d, MEM_SCRATCH, AT(slope), "slopes of estimates", lists * sizeof(float));
    certify_declare(d, AT(certify), items);
    decl_bytes(d, MEM_SCRATCH, AT(ranges), "selected slots", layers * lists * 2 * sizeof(int64_t));
    tail_declare(d, AT(tail), lists, attn_value(d->spec, "tail", 0));
    if (gqa == GQA_MEAN_Q)
        decl_bytes(d, MEM_SCRATCH, AT(probe), "mean queries", kv * (size_t)sh->head_dim * sizeof(float));
    if (attn_value(d->spec, "pool", POOL_FIXED) == POOL_ENTROPY) budget_declare(d, AT(budget), MEM_COUNTS, 1);
}

void retrieve_reset(attn_view *v)
{
    retrieve *r = retrieve_of(v);
    const attn_shape *sh = v->shape;
    int64_t n = v->lim->n_tokens;
    r->kind = kind_of(v->spec);
    r->pooled = false;
    if (r->kind->slots) return;
    coarse_rule rule = coarse_rule_of(v->spec, granule_of(v->spec));
    r->gqa = attn_gqa(v->spec);
    r->granule = granule_of(v->spec);
    r->p = (float)attn_value(v->spec, "p", 0) / ATTN_FRACTION;
    certify_reset(&r->certify, v);
    r->items = (n + r->granule - 1) / r->granule;
    r->places = (size_t)(rule.tokens ? coarse_places(&rule, n) : r->items);
    r->n_lists = gqa_lists(r->gqa, (size_t)sh->n_heads, (size_t)sh->n_kv_heads);
    r->idx_stride = (size_t)min64(r->kind->range(v->spec, 0, n).most, n);
    if (rule.tokens) coarse_reset(&r->coarse, v, &rule, r->gqa);
    tail_reset(&r->tail, attn_value(v->spec, "tail", 0), attn_value(v->spec, "tail_seed", 0));
    if (r->budget.sum.p) budget_reset(&r->budget, v, POOL_ENTROPY);
}

/* ---- a forward ---- */

/* Whether the step chooses in a layer that sees `seen` tokens. With a certificate it always does: it may need fewer
 * than the budget. */
static bool chooses(const attn_view *v, const attn_part *p, int64_t seen)
{
    bool (*ready)(const attn_view *) = kind_of(v->spec)->ready;
    bool all = seen <= v->spec->budget && !v->spec->forced && !attn_value(v->spec, "certify", 0);
    return !(p->flags & ATTN_PROMPT) && !all && (!ready || ready(v));
}

/* The pool of a step that sees n tokens holds as many candidates a layer as the tightest layer may take. */
static void open_pool(const attn_view *v, retrieve *r, int64_t n)
{
    int64_t nominal = INT64_MAX;
    for (int l = 0; l < v->shape->n_layers; l++)
        if (v->layers[l]) nominal = min64(nominal, r->kind->range(v->spec, n - attn_visible(v->shape, l, n), n).k);
    budget_open(&r->budget, nominal, 1);
    r->pooled = true;
}

static void begin_slots(attn_view *v, const attn_part *p, int64_t n)
{
    retrieve *r = retrieve_of(v);
    int64_t budget = v->spec->budget;
    for (int l = 0; l < v->shape->n_layers; l++)
        if (v->layers[l] && chooses(v, p, attn_visible(v->shape, l, n)))
            r->counts[l] = r->kind->slots(v, l, n, r->slots + l * budget);
    if (!(p->flags & ATTN_PROMPT))
        v->be->ops->upload(v->be, r->idx, r->slots, (size_t)(v->shape->n_layers * budget) * sizeof(int32_t));
}

void retrieve_begin(attn_view *v, const attn_part *p)
{
    retrieve *r = retrieve_of(v);
    int64_t n = v->length + (int64_t)p->n_tok;
    if (r->kind->slots) {
        begin_slots(v, p, n);
        return;
    }
    if (r->budget.sum.p && chooses(v, p, n)) open_pool(v, r, n);
    for (int l = 0; l < v->shape->n_layers; l++) {
        int64_t seen = attn_visible(v->shape, l, n);
        r->range[l] = r->kind->range(v->spec, n - seen, n);
        r->chooses[l] = v->layers[l] && chooses(v, p, seen);
    }
}

static void retrieve_append(const attn_turn *t, size_t n, int layer)
{
    index_add_job index[ATTN_TOGETHER], bounds[ATTN_TOGETHER];
    const attn_view *v = t->v;
    const retrieve *r = retrieve_of(v);
    full_append(t, n, layer);
    if (r->kind->slots || r->kind->stored) return;
    for (size_t i = 0; i < n; i++) {
        const attn_turn *x = &t[i];
        index[i] = (index_add_job){index_of(x->v, layer), x->p.first, x->k, x->p.n_tok};
        bounds[i] = index[i];
        if (r->coarse.rule.tokens) bounds[i].index = &retrieve_of(x->v)->coarse.bounds.index[layer];
    }
    ops_of(v)->add(v->be, index, n);
    if (r->coarse.rule.tokens) v->be->ops->quest->add(v->be, bounds, n);
}

/* All that a step sees. */
static item_range seen_by(const attn_turn *t, int layer)
{
    int64_t n = t->p.first + (int64_t)t->p.n_tok;
    return (item_range){n, n - attn_visible(t->v->shape, layer, n), n};
}

/* Whether p is a share of all that a step sees, which is scored then. */
static bool of_all(const attn_view *v)
{
    return attn_value(v->spec, "of", SHARE_CANDIDATES) == SHARE_ALL;
}

/* The items of all that. */
static slot_range all_items(const attn_turn *t, int layer)
{
    int64_t g = retrieve_of(t->v)->granule;
    item_range seen = seen_by(t, layer);
    return (slot_range){seen.lo / g, (seen.hi + g - 1) / g - seen.lo / g};
}

/* What can be chosen. */
static item_range candidates_of(const attn_turn *t, int layer)
{
    const retrieve_range *a = &retrieve_of(t->v)->range[layer];
    return (item_range){t->p.first + (int64_t)t->p.n_tok, a->lo, a->hi};
}

/* A step of one sequence: the mean queries are made, if they are asked for. */
static score_job score_of(const attn_turn *t, int layer)
{
    const attn_view *v = t->v;
    const retrieve *r = retrieve_of(v);
    const attn_shape *sh = v->shape;
    size_t kv = (size_t)sh->n_kv_heads;
    score_job j = {.index = index_of(v, layer),
                   .q = t->q,
                   .n_heads = (size_t)sh->n_heads,
                   .score = r->score,
                   .stride = r->places,
                   .items = candidates_of(t, layer),
                   .scale = sh->scale,
                   .read = attn_index_read(v)};
    if (r->gqa == GQA_MEAN_Q) {
        v->be->ops->select->mean_heads(v->be, r->probe, t->q, 1, j.n_heads, kv, (size_t)sh->head_dim);
        j.q = r->probe;
        j.n_heads = kv;
    } else if (r->gqa == GQA_VOTE && combines(v, r) && r->kind->votes && !r->coarse.rule.tokens && !r->slope.p) {
        j.votes = combined_of(v);
    }
    return j;
}

/* Scores of n steps by an index of tokens. */
static void score_tokens(const attn_turn *const *t, size_t n, const score_job *jobs)
{
    const attn_view *v = t[0]->v;
    score_job tokens[ATTN_TOGETHER];
    page_reduce_job reduce[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = retrieve_of(t[i]->v);
        const item_range *items = &jobs[i].items;
        tokens[i] = jobs[i];
        tokens[i].score = r->token_score;
        tokens[i].stride = (size_t)t[i]->v->lim->n_tokens;
        tokens[i].items.lo = items->lo * r->granule;
        tokens[i].items.hi = min64(items->hi * r->granule, items->n_slots);
        reduce[i] = (page_reduce_job){.out = jobs[i].score,
                                      .stride = jobs[i].stride,
                                      .in = r->token_score,
                                      .in_stride = tokens[i].stride,
                                      .n_heads = jobs[i].n_heads,
                                      .items = *items,
                                      .granule = r->granule,
                                      .how = (page_reduction)attn_value(v->spec, r->kind->reduce, REDUCE_MEAN),
                                      .scale = v->shape->scale};
    }
    ops_of(v)->score(v->be, tokens, n);
    v->be->ops->select->page_reduce(v->be, reduce, n);
}

/* How exact scores follow the estimates of n steps. */
static void find_slopes(const attn_turn *const *t, size_t n, int layer, const score_job *s)
{
    slope_job jobs[ATTN_TOGETHER];
    const attn_view *v = t[0]->v;
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = retrieve_of(t[i]->v);
        jobs[i] = (slope_job){.q = s[i].q,
                              .score = s[i].score,
                              .n_heads = s[i].n_heads,
                              .n_lists = r->n_lists,
                              .stride = r->places,
                              .rows = *kv_store_rows(t[i]->v->store, layer),
                              .items = candidates_of(t[i], layer),
                              .count = (size_t)attn_value(v->spec, "calibrate", 0),
                              .seed = (uint64_t)attn_value(v->spec, "tail_seed", 0),
                              .layer = layer,
                              .slope = r->slope,
                              .read = attn_index_read(t[i]->v)};
    }
    v->be->ops->select->slope(v->be, jobs, n);
}

/* Scores of n steps: leaves in jobs[i].score what is combined, in the columns [lo, hi). */
static void score_items(const attn_turn *const *t, size_t n, int layer, score_job *jobs, item_range *columns)
{
    const attn_view *v = t[0]->v;
    const retrieve *r = retrieve_of(v);
    combine_job combine[ATTN_TOGETHER];
    coarse *spans[ATTN_TOGETHER];
    const attn_certify *bounds[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) {
        jobs[i] = score_of(t[i], layer);
        columns[i] = jobs[i].items;
        if (r->certify.eps > 0) jobs[i].items = seen_by(t[i], layer);
        if (of_all(v)) {
            slot_range all = all_items(t[i], layer);
            columns[i].lo = all.first;
            columns[i].hi = all.first + all.n;
            jobs[i].items = columns[i];
        }
        if (r->kind->stored) kv_need(v->be, kv_store_rows(t[i]->v->store, layer), jobs[i].items.lo, jobs[i].items.hi);
        bounds[i] = &retrieve_of(t[i]->v)->certify;
        spans[i] = &retrieve_of(t[i]->v)->coarse;
    }
    if (r->coarse.rule.tokens) coarse_choose(spans, v, layer, jobs, columns, n);
    if (r->kind->reduce) score_tokens(t, n, jobs);
    else ops_of(v)->score(v->be, jobs, n);
    if (r->certify.eps > 0) certify_errors(bounds, v->be, jobs, n);
    if (r->slope.p) find_slopes(t, n, layer, jobs);
    for (size_t i = 0; i < n && (r->certify.eps > 0 || of_all(v)); i++) jobs[i].items = candidates_of(t[i], layer);
    if (!combines(v, r)) return;
    for (size_t i = 0; i < n; i++) {
        buf out = combined_of(t[i]->v);
        combine[i] = (combine_job){out,           jobs[i].score, r->places, jobs[i].n_heads, r->n_lists,
                                   columns[i].lo, columns[i].hi, r->gqa,    v->shape->scale};
        jobs[i].score = out;
    }
    if (!jobs->votes.p) v->be->ops->select->combine(v->be, combine, n);
}

/* Combined scores are logits but for this: votes are shares already. */
static float scale_of(const attn_view *v)
{
    const retrieve *r = retrieve_of(v);
    bool vote = combines(v, r) && (r->gqa == GQA_VOTE || r->gqa == GQA_LAYER_VOTE);
    return vote ? 1 : v->shape->scale;
}

static choose_job choice_of(const attn_turn *t, int layer, const score_job *s, item_range columns)
{
    retrieve *r = retrieve_of(t->v);
    const retrieve_range *a = &r->range[layer];
    const item_scores scores = {.score = s->score, .n_lists = r->n_lists, .stride = r->places, .items = columns};
    choose_job j = {.score = s->score,
                    .items = s->items,
                    .head = a->head,
                    .tail = a->tail,
                    .first = s->items.n_slots - attn_visible(t->v->shape, layer, s->items.n_slots),
                    .k = a->k,
                    .n_lists = r->n_lists,
                    .stride = r->places,
                    .granule = r->granule,
                    .most = r->items,
                    .spans = s->spans,
                    .idx_stride = (int64_t)r->idx_stride,
                    .idx = r->idx,
                    .range = buf_at(r->ranges, (size_t)layer * r->n_lists * 2 * sizeof(int64_t))};
    if (r->budget.sum.p) j.budget = budget_take(&r->budget, layer, 0, &scores, scale_of(t->v));
    if (r->p > 0 || r->certify.eps > 0) j.budget = r->mass, j.each = true;
    return j;
}

/* How many items hold p, of n steps. */
static void count_mass(const attn_turn *const *t, size_t n, int layer, const score_job *s)
{
    mass_job jobs[ATTN_TOGETHER];
    const attn_view *v = t[0]->v;
    int64_t least = attn_value(v->spec, "min", 0);
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = retrieve_of(t[i]->v);
        jobs[i] = (mass_job){.score = s[i].score,
                             .n_lists = r->n_lists,
                             .stride = r->places,
                             .items = s[i].items,
                             .spans = s[i].spans,
                             .scale = scale_of(v),
                             .p = r->p,
                             .least = (least + r->granule - 1) / r->granule,
                             .most = max64(r->range[layer].k, 0),
                             .slope = r->slope,
                             .k = r->mass};
        if (of_all(v)) jobs[i].all = all_items(t[i], layer);
    }
    v->be->ops->select->mass(v->be, jobs, n);
}

/* How many items certify their lists, of n steps. */
static void count_certified(const attn_turn *const *t, size_t n, int layer, const score_job *s)
{
    certify_job jobs[ATTN_TOGETHER];
    backend *be = t[0]->v->be;
    for (size_t i = 0; i < n; i++) {
        const retrieve *r = retrieve_of(t[i]->v);
        jobs[i] = certify_job_of(&r->certify, t[i]->v, layer);
        jobs[i].score = r->score;
        jobs[i].order = s[i].score;
        jobs[i].stride = r->places;
        jobs[i].n_lists = r->n_lists;
        jobs[i].first = seen_by(t[i], layer).lo;
        jobs[i].items = s[i].items;
        jobs[i].most = max64(r->range[layer].k, 0);
        jobs[i].k = r->mass;
    }
    be->ops->certify->choose(be, jobs, n);
}

/* Lists of the best items of n steps. */
static void select_best(const attn_turn *const *t, size_t n, int layer)
{
    score_job score[ATTN_TOGETHER];
    item_range columns[ATTN_TOGETHER];
    choose_job choose[ATTN_TOGETHER];
    attn_tail *tails[ATTN_TOGETHER];
    score_items(t, n, layer, score, columns);
    if (retrieve_of(t[0]->v)->p > 0) count_mass(t, n, layer, score);
    if (retrieve_of(t[0]->v)->certify.eps > 0) count_certified(t, n, layer, score);
    for (size_t i = 0; i < n; i++) choose[i] = choice_of(t[i], layer, &score[i], columns[i]);
    attn_choose(t[0]->v, choose, n);
    for (size_t i = 0; i < n; i++) {
        retrieve *r = retrieve_of(t[i]->v);
        int64_t seen = score[i].items.n_slots;
        tails[i] = &r->tail;
        attn_sel *sel = t[i]->sel;
        sel->head = min64(r->range[layer].head * r->granule, seen);
        sel->tail = min64(r->range[layer].tail * r->granule, seen);
        sel->attended = 0;
        sel->seg[0] = (attn_seg){.rows = kv_store_rows(t[i]->v->store, layer),
                                 .range = choose[i].range,
                                 .idx = r->idx,
                                 .n_lists = r->n_lists,
                                 .idx_stride = r->idx_stride,
                                 .n_max = (int64_t)r->idx_stride};
    }
    tail_select(tails, t, n, layer);
}

static void select_slots(const attn_turn *t, int layer)
{
    const retrieve *r = retrieve_of(t->v);
    attn_seg seg = {.rows = kv_store_rows(t->v->store, layer), .n_lists = 1};
    seg.idx = buf_at(r->idx, (size_t)(layer * t->v->spec->budget) * sizeof(int32_t));
    seg.n_max = t->sel->attended = r->counts[layer];
    t->sel->seg[0] = seg;
    t->sel->tail = t->p.first + (int64_t)t->p.n_tok - 1;
}

static void retrieve_select(const attn_turn *t, size_t n, int layer)
{
    const attn_turn *best[ATTN_TOGETHER];
    size_t n_best = 0;
    full_select(t, n, layer);
    for (size_t i = 0; i < n; i++) {
        int64_t seen = attn_visible(t[i].v->shape, layer, t[i].p.first + (int64_t)t[i].p.n_tok);
        if (!chooses(t[i].v, &t[i].p, seen)) continue;
        if (kind_of(t->v->spec)->slots) select_slots(&t[i], layer);
        else best[n_best++] = &t[i];
    }
    if (n_best > 0) select_best(best, n_best, layer);
}

static void retrieve_end(attn_view *v, const attn_part *p)
{
    retrieve *r = retrieve_of(v);
    if (r->kind->slots) return;
    if (r->budget.sum.p) budget_close(&r->budget);
    if (!(p->flags & ATTN_PROMPT))
        v->be->ops->count_lists(v->be, buf_at(v->read, READ_ATTENDED * sizeof(uint64_t)), r->ranges,
                                (size_t)v->shape->n_layers, r->n_lists, r->chooses);
}

/* ---- between forwards ---- */

const char *retrieve_rewind(attn_view *v, int64_t n)
{
    retrieve *r = retrieve_of(v);
    if (n == v->length) return NULL;
    if (r->kind->slots) return kv_store_rewind(v->store, n) ? NULL : KV_NO_REWIND;
    int64_t from = r->kind->range(v->spec, 0, n).redo, span = r->coarse.rule.tokens;
    if (span) from = min64(from, n / span * span);
    if (r->pooled) return "the means of the budget pool hold later steps";
    if (kv_store_coded_in(v->store, from, n)) return "keys that the index needs again are quantized";
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    for (int l = 0; l < v->shape->n_layers; l++) {
        const kv_rows *rows = kv_store_rows(v->store, l);
        if (!v->layers[l] || r->kind->stored) continue;
        kv_need(v->be, rows, from, n);
        ops_of(v)->redo(v->be, index_of(v, l), rows, n);
        if (span) v->be->ops->quest->redo(v->be, &r->coarse.bounds.index[l], rows, n);
    }
    return NULL;
}

status retrieve_state(attn_view *v, attn_state *s, err *e)
{
    retrieve *r = retrieve_of(v);
    TRY(STATE_HOST(s, "pooled", &r->pooled, e));
    r->pooled = r->pooled != 0;
    TRY(attn_walk(v, s, e));
    if (r->budget.sum.p) TRY(budget_check(&r->budget, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}

static const attn_certify *retrieve_certifies(const attn_view *v)
{
    const retrieve *r = retrieve_of(v);
    return r->certify.eps > 0 ? &r->certify : NULL;
}

const attn_family attn_retrieve = {
    .size = sizeof(retrieve),
    .uses = USES_SELECT,
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
