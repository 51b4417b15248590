/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/retrieve.h"

#include "attention/bounds.h"
#include "kernels/base/mem.h"

/* The state of a layer in ops memory, in i64 elements. */
enum {
    R_ALL, /* range of all rows {0, n}; its first element is also the position of slot 0 */
    R_N = R_ALL + 2, /* choose_job's n: slots, first candidate, end of the candidates */
    R_TAIL = R_N + 3,
    R_FIRST, /* first visible slot */
    R_CHOOSES, /* whether the step chooses */
    R_COUNT
};

static retrieve *of(attn_ctx *c)
{
    return (retrieve *)c;
}

static buf at(const retrieve *r, int layer, int i)
{
    return buf_at(r->state, (size_t)(layer * R_COUNT + i) * sizeof(int64_t));
}

/* Tokens that a query at position n - 1 sees. */
static int64_t visible(const attn_shape *sh, int layer, int64_t n)
{
    int64_t window = sh->window[layer];
    return window > 0 && window < n ? window : n;
}

bool retrieve_dense(const attn_spec *s, const attn_shape *shape, int layer)
{
    return shape->window[layer] > 0 && shape->window[layer] <= s->budget;
}

const char *retrieve_alone(const attn_spec *s)
{
    return attn_gqa(s) == GQA_LAYER_VOTE ? "the shares of all heads' softmax that gqa=layer_vote adds; use gqa=vote or layer_mean"
                                         : NULL;
}

static bool combines(const retrieve *r)
{
    bool layer = r->gqa == GQA_LAYER_MEAN || r->gqa == GQA_LAYER_CONCAT; /* other ranks have more heads */
    return layer || (r->gqa != GQA_PER_Q && r->gqa != GQA_MEAN_Q &&
                     (size_t)r->base.shape->n_heads > r->n_lists);
}

/* ---- memory ---- */

/* Bytes of the buffers of a sequence; probe, budget: 0 where there is none. */
typedef struct {
    size_t state, k, score, idx, ranges, probe, budget, coarse, host;
    size_t places; /* of a list's scores */
} sizes;

static sizes sizes_of(const retrieve_kind *kind, const attn_spec *s, const attn_shape *sh,
                      const attn_limits *lim)
{
    size_t layers = (size_t)sh->n_layers, heads = (size_t)sh->n_heads, kv = (size_t)sh->n_kv_heads;
    gqa_mode gqa = attn_gqa(s);
    size_t lists = gqa_lists(gqa, heads, kv), granule = (size_t)kind->granule(s);
    size_t items = ((size_t)lim->n_tokens + granule - 1) / granule;
    coarse_rule rule = kind->coarse(s);
    if (rule.tokens) items = (size_t)coarse_places(&rule, lim->n_tokens);
    int64_t most = kind->most(s) < lim->n_tokens ? kind->most(s) : lim->n_tokens;
    sizes z = {.state = layers * R_COUNT * sizeof(int64_t),
               .k = layers * sizeof(int64_t),
               .score = (heads + lists) * items * sizeof(float),
               .idx = lists * (size_t)most * sizeof(int32_t),
               .ranges = layers * lists * 2 * sizeof(int64_t),
               .host = layers * R_COUNT * sizeof(int64_t),
               .places = items};
    if (rule.tokens) z.coarse = coarse_scratch(&rule, sh, lim->n_tokens, gqa);
    if (gqa == GQA_MEAN_Q) z.probe = kv * (size_t)sh->head_dim * sizeof(float);
    if (kind->pool(s) == POOL_ENTROPY) z.budget = attn_budget_bytes(sh, 1);
    return z;
}

static size_t scratch_bytes(const sizes *z)
{
    return z->state + z->k + z->score + z->idx + z->ranges + z->probe + z->budget + z->coarse;
}

/* Of the index of one layer that holds n tokens, with its second level. */
static status index_bytes(size_t *out, const retrieve_kind *kind, const attn_spec *s, const attn_shape *shape, int64_t n,
                          err *e)
{
    size_t bounds;
    coarse_rule rule = kind->coarse(s);
    TRY(kind->bytes(out, s, shape, n, e));
    if (!rule.tokens) return ST_OK;
    TRY(bounds_bytes(&bounds, s, shape, rule.tokens, n, e));
    return size_add(out, *out, bounds, "KV plan", e);
}

status retrieve_plan(attn_bytes *out, const retrieve_kind *kind, const attn_spec *s,
                     const attn_shape *shape, const attn_limits *lim, const bool *layers, err *e)
{
    sizes z = sizes_of(kind, s, shape, lim);
    for (int l = 0; l < shape->n_layers; l++) {
        size_t bytes;
        if (!layers[l]) continue;
        TRY(kv_plan_bytes(&bytes, &s->kv, shape, (size_t)shape->n_kv_heads, lim->n_tokens, e));
        TRY(size_add(&out->kv, out->kv, bytes, "KV plan", e));
        TRY(index_bytes(&bytes, kind, s, shape, lim->n_tokens, e));
        TRY(size_add(&out->index, out->index, bytes, "KV plan", e));
    }
    return size_add(&out->scratch, out->scratch, scratch_bytes(&z), "KV plan", e);
}

void retrieve_free(attn_ctx *c)
{
    retrieve *r = of(c);
    const backend_ops *o = c->be->ops;
    sizes z = sizes_of(r->kind, c->spec, c->shape, c->lim);
    r->kind->close(r);
    kv_store_free(r->store);
    attn_budget_free(r->budget);
    coarse_free(r->coarse);
    const struct {
        buf b;
        size_t bytes;
    } all[] = {{r->state, z.state}, {r->k, z.k},           {r->score, z.score},
               {r->idx, z.idx},     {r->ranges, z.ranges}, {r->probe, z.probe}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].b.p) o->free(c->be, all[i].b, all[i].bytes);
    mem_free(r->host);
    mem_free(r);
}

static status alloc_buffers(retrieve *r, err *e)
{
    backend *be = r->base.be;
    const backend_ops *o = be->ops;
    sizes z = sizes_of(r->kind, r->base.spec, r->base.shape, r->base.lim);
    TRY(o->alloc(be, &r->state, z.state, "selection: state", e));
    TRY(o->alloc(be, &r->k, z.k, "selection: budgets", e));
    TRY(o->alloc(be, &r->score, z.score, "selection: scores", e));
    TRY(o->alloc(be, &r->idx, z.idx, "selection: lists", e));
    TRY(o->alloc(be, &r->ranges, z.ranges, "selection: lists", e));
    if (z.probe) TRY(o->alloc(be, &r->probe, z.probe, "selection: queries", e));
    if (z.budget) TRY(attn_budget_create(&r->budget, &r->base, POOL_ENTROPY, 1, e));
    coarse_rule rule = r->kind->coarse(r->base.spec);
    if (rule.tokens) TRY(coarse_create(&r->coarse, &r->base, &rule, r->gqa, e));
    else TRY(attn_choose_reserve(&r->base, r->n_lists, r->items, e));
    r->places = z.places;
    r->idx_stride = z.idx / sizeof(int32_t) / r->n_lists;
    return mem_alloc((void **)&r->host, z.host, 1, "selection: host state", e);
}

status retrieve_create(attn_ctx **out, const retrieve_kind *kind, const attn_ctx *base, err *e)
{
    retrieve *r;
    int64_t *cap = NULL;
    const attn_shape *sh = base->shape;
    *out = NULL;
    TRY(mem_alloc((void **)&r, kind->size, 1, "selection: state", e));
    r->base = *base;
    r->kind = kind;
    r->gqa = attn_gqa(base->spec);
    r->granule = kind->granule(base->spec);
    r->items = (base->lim->n_tokens + r->granule - 1) / r->granule;
    r->n_lists = gqa_lists(r->gqa, (size_t)sh->n_heads, (size_t)sh->n_kv_heads);
    status st = MEM_NEW(&cap, (size_t)sh->n_layers, e);
    if (st != ST_OK) goto done;
    for (int l = 0; l < sh->n_layers; l++) cap[l] = base->layers[l] ? base->lim->n_tokens : 0;
    TRY_GOTO(kv_store_create(&r->store, base, (size_t)sh->n_kv_heads, cap, e));
    TRY_GOTO(alloc_buffers(r, e));
    TRY_GOTO(kind->open(r, e));
    *out = &r->base;
done:
    mem_free(cap);
    if (st != ST_OK) retrieve_free(&r->base);
    return st;
}

void retrieve_reset(attn_ctx *c)
{
    retrieve *r = of(c);
    kv_store_reset(r->store);
    if (r->budget) attn_budget_reset(r->budget);
    r->pooled = false;
}

/* ---- a forward ---- */

bool retrieve_exact_prompt(const attn_ctx *c, int64_t n)
{
    (void)n;
    return kv_store_exact(((const retrieve *)c)->store);
}

/* Whether the step chooses in a layer that sees `seen` tokens. */
static bool chooses(const attn_ctx *c, const attn_part *p, int64_t seen)
{
    return !(p->flags & ATTN_PROMPT) && (seen > c->spec->budget || c->spec->forced);
}

/* The pool of a step that sees n tokens holds as many candidates a layer as the tightest layer may take. */
static void open_pool(retrieve *r, int64_t n)
{
    int64_t nominal = INT64_MAX;
    const attn_ctx *c = &r->base;
    for (int l = 0; l < c->shape->n_layers; l++) {
        int64_t k = r->kind->range(c->spec, n - visible(c->shape, l, n), n).k;
        if (c->layers[l] && k < nominal) nominal = k;
    }
    attn_budget_open(r->budget, nominal, 1);
    r->pooled = true;
}

void retrieve_step_begin(attn_ctx *c, const attn_part *p)
{
    retrieve *r = of(c);
    const backend_ops *o = c->be->ops;
    int64_t n = c->length + (int64_t)p->n_tok, layers = c->shape->n_layers;
    if (r->budget && chooses(c, p, n)) open_pool(r, n);
    kv_store_begin(r->store, c, p);
    for (int64_t l = 0; l < layers; l++) {
        int64_t *s = r->host + l * R_COUNT, first = n - visible(c->shape, (int)l, n);
        retrieve_range a = r->kind->range(c->spec, first, n);
        s[R_ALL] = 0;
        s[R_ALL + 1] = s[R_N] = n;
        s[R_N + 1] = a.lo;
        s[R_N + 2] = a.hi;
        s[R_TAIL] = a.tail;
        s[R_FIRST] = first;
        s[R_CHOOSES] = c->layers[l] && chooses(c, p, n - first);
        if (r->coarse) coarse_begin(r->coarse, (int)l, a.lo, a.hi);
    }
    if (r->coarse) coarse_upload(r->coarse);
    o->upload(c->be, r->state, r->host, (size_t)(layers * R_COUNT) * sizeof(int64_t));
    for (int64_t l = 0; l < layers; l++)
        r->host[l] = r->kind->range(c->spec, n - visible(c->shape, (int)l, n), n).k;
    o->upload(c->be, r->k, r->host, (size_t)layers * sizeof(int64_t));
}

void retrieve_append(attn_ctx *c, const attn_part *p, int layer, buf k_raw, buf k, buf v)
{
    (void)k_raw;
    retrieve *r = of(c);
    kv_store_put(r->store, p, layer, p->pos, 1, k, v);
    r->kind->add(r, layer, p->pos, k, p->n_tok);
    if (r->coarse) coarse_add(r->coarse, layer, p->pos, k, p->n_tok);
}

/* As `full` does. */
static void select_all(retrieve *r, const attn_part *p, int layer, attn_sel *sel)
{
    int64_t window = r->base.shape->window[layer];
    bool mask = (p->flags & ATTN_PROMPT) || window > 0;
    sel->seg[0] = (attn_seg){.rows = kv_store_rows(r->store, layer),
                             .range = at(r, layer, R_ALL),
                             .n_lists = 1,
                             .n_max = r->base.length + (int64_t)p->n_tok,
                             .kpos = mask ? at(r, layer, R_ALL) : (buf){NULL},
                             .band = window};
}

/* What a step's scores of a layer's candidates are about. */
typedef struct {
    buf score;   /* combined, [n_lists][places] */
    buf n;       /* candidates among the places */
    float logit; /* what makes logits of them */
    const item_groups *groups;
} item_votes;

static item_votes score_items(retrieve *r, int layer, buf q)
{
    backend *be = r->base.be;
    const select_ops *so = be->ops->select;
    const attn_shape *sh = r->base.shape;
    size_t heads = (size_t)sh->n_heads, kv = (size_t)sh->n_kv_heads, stride = r->places;
    if (r->gqa == GQA_MEAN_Q) {
        so->mean_heads(be, r->probe, q, 1, heads, kv, (size_t)sh->head_dim);
        q = r->probe;
        heads = kv;
    }
    buf out = buf_at(r->score, (size_t)sh->n_heads * stride * sizeof(float)), n = at(r, layer, R_N);
    bool vote = combines(r) && (r->gqa == GQA_VOTE || r->gqa == GQA_LAYER_VOTE);
    /* votes are shares already */
    item_votes v = {.score = combines(r) ? out : r->score, .n = n, .logit = vote ? 1 : sh->scale};
    if (r->coarse) {
        v.groups = coarse_choose(r->coarse, layer, q, heads);
        v.n = coarse_range(r->coarse, layer);
        r->kind->score_groups(r, layer, r->score, stride, q, heads, n, v.groups);
    } else if (vote && r->gqa == GQA_VOTE && r->kind->vote) {
        r->kind->vote(r, layer, out, r->score, stride, q, heads, n, r->items);
        return v;
    } else {
        r->kind->score(r, layer, r->score, stride, q, heads, n, r->items);
    }
    if (combines(r))
        so->combine(be, out, r->score, stride, heads, r->n_lists, v.n, (int64_t)stride, r->gqa, sh->scale);
    return v;
}

/* Candidates to take, i64 [1]. */
static buf items_to_take(retrieve *r, int layer, const item_votes *v)
{
    if (!r->budget) return buf_at(r->k, (size_t)layer * sizeof(int64_t));
    item_scores s = {v->score, v->n, r->n_lists, r->places, (int64_t)r->places};
    return attn_budget_take(r->budget, layer, 0, &s, v->logit);
}

void retrieve_select(attn_ctx *c, const attn_part *p, int layer, buf q_raw, buf q, attn_sel *sel)
{
    (void)q_raw;
    retrieve *r = of(c);
    int64_t n = c->length + (int64_t)p->n_tok, seen = visible(c->shape, layer, n);
    sel->n_seg = 1;
    if (!chooses(c, p, seen)) {
        select_all(r, p, layer, sel);
        return;
    }
    retrieve_range a = r->kind->range(c->spec, n - seen, n);
    sel->head = a.head * r->granule < n ? a.head * r->granule : n;
    sel->tail = a.tail * r->granule < n ? a.tail * r->granule : n;
    item_votes v = score_items(r, layer, q);
    buf ranges = buf_at(r->ranges, (size_t)layer * r->n_lists * 2 * sizeof(int64_t));
    choose_job j = {.score = v.score,
                    .n = at(r, layer, R_N),
                    .tail = at(r, layer, R_TAIL),
                    .first = at(r, layer, R_FIRST),
                    .k = items_to_take(r, layer, &v),
                    .n_k = 1,
                    .n_lists = r->n_lists,
                    .stride = r->places,
                    .granule = r->granule,
                    .head = a.head,
                    .n_items_max = r->items,
                    .idx_stride = (int64_t)r->idx_stride,
                    .idx = r->idx,
                    .range = ranges};
    attn_choose_among(c, &j, v.groups);
    sel->seg[0] = (attn_seg){.rows = kv_store_rows(r->store, layer),
                             .range = ranges,
                             .idx = r->idx,
                             .n_lists = r->n_lists,
                             .idx_stride = r->idx_stride,
                             .n_max = (int64_t)r->idx_stride};
}

void retrieve_layer_end(attn_ctx *c, const attn_part *p, int layer)
{
    (void)p;
    kv_store_layer_end(of(c)->store, layer);
}

void retrieve_step_end(attn_ctx *c, const attn_part *p)
{
    retrieve *r = of(c);
    kv_store_end(r->store);
    if (r->budget) attn_budget_close(r->budget);
    if (!(p->flags & ATTN_PROMPT))
        c->be->ops->count_lists(c->be, buf_at(c->read, READ_ATTENDED * sizeof(uint64_t)), r->ranges,
                                (size_t)c->shape->n_layers, r->n_lists, at(r, 0, R_CHOOSES), R_COUNT);
}

/* Whether the slots [from, n) of all layers are exact rows: others cannot be indexed again. */
static bool rows_are_exact(const retrieve *r, int64_t from, int64_t n)
{
    for (int l = 0; l < r->base.shape->n_layers; l++) {
        if (!r->base.layers[l]) continue;
        const kv_codes *codes = &kv_store_rows(r->store, l)->codes;
        for (int64_t p = from; codes->bits && p < n; p++) {
            int32_t row;
            r->base.be->ops->download(r->base.be, &row, buf_at(codes->k_at, (size_t)p * sizeof row),
                                      sizeof row);
            if (row < 0) return false;
        }
    }
    return true;
}

/* First position whose key an index reads again after a rewind to n tokens. */
static int64_t redo_from(const retrieve *r, int64_t n)
{
    int64_t from = r->kind->redo_from(r->base.spec, n), group = r->kind->coarse(r->base.spec).tokens;
    return group && bounds_redo_from(group, n) < from ? bounds_redo_from(group, n) : from;
}

const char *retrieve_rewind(attn_ctx *c, int64_t n)
{
    retrieve *r = of(c);
    if (n == c->length) return NULL;
    if (r->pooled) return "the means of the budget pool hold later steps";
    if (!rows_are_exact(r, redo_from(r, n), n))
        return "keys that the index needs again are quantized";
    if (!kv_store_rewind(r->store, n)) return KV_NO_REWIND;
    for (int l = 0; l < c->shape->n_layers; l++) {
        if (!c->layers[l]) continue;
        kv_need(c->be, kv_store_rows(r->store, l), redo_from(r, n), n);
        r->kind->redo(r, l, kv_store_rows(r->store, l), n);
        if (r->coarse) coarse_redo(r->coarse, l, kv_store_rows(r->store, l), n);
    }
    return NULL;
}

status retrieve_state(attn_ctx *c, attn_state *v, err *e)
{
    retrieve *r = of(c);
    uint8_t pooled = r->pooled;
    TRY(STATE_HOST(v, "pooled", &pooled, e));
    r->pooled = pooled != 0;
    if (r->budget) TRY(attn_budget_state(r->budget, v, e));
    TRY(kv_store_state(r->store, v, c->length, c->length, e));
    for (int l = 0; l < c->shape->n_layers; l++)
        if (c->layers[l]) {
            TRY(r->kind->state(r, v, l, e));
            if (r->coarse) TRY(coarse_state(r->coarse, c, v, l, e));
        }
    return ST_OK;
}

/* ---- what is told ---- */

void retrieve_held(const attn_ctx *c, int64_t n_new, attn_bytes *out)
{
    const retrieve *r = (const retrieve *)c;
    sizes z = sizes_of(r->kind, c->spec, c->shape, c->lim);
    for (int l = 0; l < c->shape->n_layers; l++) {
        size_t bytes;
        if (!c->layers[l]) continue;
        out->kv += kv_store_bytes(r->store, c->length + n_new);
        /* no overflow: the plan had more tokens */
        if (index_bytes(&bytes, r->kind, c->spec, c->shape, c->length + n_new, NULL) == ST_OK)
            out->index += bytes;
    }
    out->scratch += scratch_bytes(&z);
}

/* Called after the step; of lists that ops made they count the lengths. */
int64_t retrieve_attended(const attn_ctx *c, int layer)
{
    int64_t seen = visible(c->shape, layer, c->length);
    return seen <= c->spec->budget && !c->spec->forced ? seen : 0;
}

int64_t retrieve_positions(const attn_ctx *c, int layer, int kv_head, int64_t *out)
{
    (void)kv_head;
    int64_t n = c->layers[layer] ? c->length : 0;
    for (int64_t i = 0; out && i < n; i++) out[i] = i;
    return n;
}
