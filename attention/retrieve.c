/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/retrieve.h"

#include <stddef.h>

static const retrieve_kind *kind_of(const attn_spec *s)
{
    return s->method->kind;
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

static bool combines(const attn_view *v, const retrieve *r)
{
    bool layer = r->gqa == GQA_LAYER_MEAN || r->gqa == GQA_LAYER_CONCAT; /* other ranks have more heads */
    return layer || (r->gqa != GQA_PER_Q && r->gqa != GQA_MEAN_Q && (size_t)v->shape->n_heads > r->n_lists);
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
    decl_bytes(d, MEM_SCRATCH, AT(idx), "selected slots", lists * (size_t)most * sizeof(int32_t));
    decl_bytes(d, MEM_SCRATCH, AT(ranges), "selected slots", layers * lists * 2 * sizeof(int64_t));
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
    r->items = (n + r->granule - 1) / r->granule;
    r->places = (size_t)(rule.tokens ? coarse_places(&rule, n) : r->items);
    r->n_lists = gqa_lists(r->gqa, (size_t)sh->n_heads, (size_t)sh->n_kv_heads);
    r->idx_stride = (size_t)min64(r->kind->range(v->spec, 0, n).most, n);
    if (rule.tokens) coarse_reset(&r->coarse, v, &rule, r->gqa);
    if (r->budget.sum.p) budget_reset(&r->budget, v, POOL_ENTROPY);
}

/* ---- a forward ---- */

/* Whether the step chooses in a layer that sees `seen` tokens. */
static bool chooses(const attn_view *v, const attn_part *p, int64_t seen)
{
    return !(p->flags & ATTN_PROMPT) && (seen > v->spec->budget || v->spec->forced);
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

static void retrieve_begin(attn_view *v, const attn_part *p)
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

static void retrieve_append(attn_view *v, const attn_part *p, int layer, buf k_raw, buf k, buf val)
{
    const retrieve *r = retrieve_of(v);
    full_append(v, p, layer, k_raw, k, val);
    if (r->kind->add) r->kind->add(v, p, layer, k);
    if (r->coarse.rule.tokens) bounds_add(&r->coarse.bounds, v, p, layer, k);
}

/* Scores of a layer's candidates in a step that sees the slots of j->items: makes them, and leaves in j where the
 * combined ones lie, [n_lists][places]. *columns: those that hold them; *logit: what makes logits of them. */
static void score_items(attn_view *v, int layer, score_job *j, item_range *columns, float *logit)
{
    retrieve *r = retrieve_of(v);
    backend *be = v->be;
    const select_ops *so = be->ops->select;
    size_t heads = (size_t)v->shape->n_heads, kv = (size_t)v->shape->n_kv_heads;
    bool both = combines(v, r), vote = both && (r->gqa == GQA_VOTE || r->gqa == GQA_LAYER_VOTE);
    buf out = buf_at(r->score, heads * r->places * sizeof(float));
    if (r->gqa == GQA_MEAN_Q) {
        so->mean_heads(be, r->probe, j->q, 1, heads, kv, (size_t)v->shape->head_dim);
        j->q = r->probe;
        j->n_heads = kv;
    }
    *columns = j->items;
    if (r->coarse.rule.tokens) {
        *columns = (item_range){0};
        j->spans = coarse_choose(&r->coarse, v, layer, j->items, j->q, j->n_heads, &columns->hi);
    } else if (r->gqa == GQA_VOTE && vote && r->kind->votes) {
        j->votes = out;
    }
    r->kind->score(v, layer, j);
    if (both && !j->votes.p)
        so->combine(be,
                    &(combine_job){out, r->score, j->stride, j->n_heads, r->n_lists, columns->lo, columns->hi, r->gqa,
                                   v->shape->scale},
                    1);
    if (both) j->score = out;
    *logit = vote ? 1 : v->shape->scale; /* votes are shares already */
}

/* Lists of the best items in a step that sees n tokens, and in this layer the slots from `first` on. */
static void select_best(attn_view *v, int layer, buf q, int64_t first, int64_t n, attn_seg *seg)
{
    retrieve *r = retrieve_of(v);
    const retrieve_range *a = &r->range[layer];
    score_job s = {.q = q,
                   .n_heads = (size_t)v->shape->n_heads,
                   .score = r->score,
                   .stride = r->places,
                   .items = {n, a->lo, a->hi},
                   .scale = v->shape->scale,
                   .read = attn_index_read(v)};
    item_scores scores = {.n_lists = r->n_lists, .stride = r->places};
    float logit;
    score_items(v, layer, &s, &scores.items, &logit);
    scores.score = s.score;
    choose_job j = {.score = s.score,
                    .items = s.items,
                    .head = a->head,
                    .tail = a->tail,
                    .first = first,
                    .k = a->k,
                    .n_lists = r->n_lists,
                    .stride = r->places,
                    .granule = r->granule,
                    .most = r->items,
                    .spans = s.spans,
                    .idx_stride = (int64_t)r->idx_stride,
                    .idx = r->idx,
                    .range = buf_at(r->ranges, (size_t)layer * r->n_lists * 2 * sizeof(int64_t))};
    if (r->budget.sum.p) j.budget = budget_take(&r->budget, layer, 0, &scores, logit);
    attn_choose(v, &j);
    *seg = (attn_seg){.range = j.range,
                      .idx = r->idx,
                      .n_lists = r->n_lists,
                      .idx_stride = r->idx_stride,
                      .n_max = (int64_t)r->idx_stride};
}

static void retrieve_select(attn_view *v, const attn_part *p, int layer, buf q_raw, buf q, attn_sel *sel)
{
    (void)q_raw;
    retrieve *r = retrieve_of(v);
    int64_t n = p->first + (int64_t)p->n_tok, seen = attn_visible(v->shape, layer, n), budget = v->spec->budget;
    full_select(v, p, layer, sel);
    if (!chooses(v, p, seen)) return;
    if (r->kind->slots) {
        attn_seg seg = {.idx = buf_at(r->idx, (size_t)(layer * budget) * sizeof(int32_t)), .n_lists = 1};
        seg.n_max = sel->attended = r->counts[layer];
        sel->seg[0] = seg;
        sel->tail = n - 1;
    } else {
        sel->head = min64(r->range[layer].head * r->granule, n);
        sel->tail = min64(r->range[layer].tail * r->granule, n);
        sel->attended = 0;
        select_best(v, layer, q, n - seen, n, &sel->seg[0]);
    }
    sel->seg[0].rows = kv_store_rows(v->store, layer);
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

static const char *retrieve_rewind(attn_view *v, int64_t n)
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
        if (!v->layers[l]) continue;
        kv_need(v->be, rows, from, n);
        r->kind->redo(v, l, rows, n);
        if (span) v->be->ops->quest->redo(v->be, &r->coarse.bounds.index[l], rows, n);
    }
    return NULL;
}

static status retrieve_state(attn_view *v, attn_state *s, err *e)
{
    retrieve *r = retrieve_of(v);
    TRY(STATE_HOST(s, "pooled", &r->pooled, e));
    r->pooled = r->pooled != 0;
    TRY(attn_walk(v, s, e));
    if (r->budget.sum.p) TRY(budget_check(&r->budget, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}

const attn_family attn_retrieve = {
    .size = sizeof(retrieve),
    .uses = USES_SELECT,
    .retrieves = true,
    .alone = retrieve_alone,
    .hooks = {.declare = retrieve_declare,
              .reset = retrieve_reset,
              .begin = retrieve_begin,
              .append = retrieve_append,
              .select = retrieve_select,
              .end = retrieve_end,
              .rewind = retrieve_rewind,
              .state = retrieve_state},
};
