/* SPDX-License-Identifier: MIT */
/* TokenSelect: all rows are kept. A prompt window or a decode step attends the first `sink` tokens, the newest tokens,
 * and the `budget` best of the tokens between them, by the votes of all heads: one list per layer. doc/methods.md 12.4.
 *
 * Keys are stored raw. Votes are softmaxes of exact scores of the window's mean query, rotated to the distance `local`
 * from every key. With `reuse` a layer holds the votes and the query of its last selection. If the next query is
 * similar, these votes are used again. They select the same tokens without reading keys. */
#include "config.h"

#include <stddef.h>

#include "attention/gathered.h"
#include "kernels/ops_block.h"
#include "kernels/ops_select.h"
#include "kernels/ops_token.h"

enum { P_SINK, P_LOCAL, P_WINDOW, P_REUSE };

static const attn_param params[] = {
    [P_SINK] = {"sink", NULL, "first tokens, always attended", 128, 0, 1 << 20},
    [P_LOCAL] = {"local", NULL, "newest tokens, always attended", 512, 1, 1 << 20},
    [P_WINDOW] = {"window", NULL, "prompt tokens that choose together; --chunk must be a multiple", 512, 1, 1 << 20},
    [P_REUSE] = {"reuse", NULL, "minimum cosine in percent at which a query reuses an earlier selection; 0: never", 0,
                 0, 101},
    {.key = NULL},
};

enum { TOKEN_REUSE_MOST = 16 }; /* most consecutive reuses of a selection */

typedef struct {
    int64_t sink, local, window, k;
    int64_t reuse; /* least cosine in percent; 0: never */
} token_rule;

typedef struct {
    token_rule rule;
    gathered_rows rows;
    buf queries, weights, probe; /* f32: a window's queries at the distance, their weights, their mean */
    buf probe_table;             /* rotation of these queries */
    size_t window;               /* most of them */
    buf score, votes;            /* f32 [n_heads][tokens]; [tokens] each */
    buf idx, range;              /* i32 selected tokens of the current layer; i64 [2] */
    buf *held_probe, *held;      /* reuse: token_cache.probe, and f32 [tokens] votes */
    buf *state;                  /* token_cache.state */
} token_select;

/* Returns the most tokens that a step attends. */
static int64_t token_attended(const token_rule *r)
{
    return r->sink + r->local + r->k;
}

static token_rule rule_of(const attn_spec *s)
{
    const int64_t *v = s->value;
    return (token_rule){
        .sink = v[P_SINK], .local = v[P_LOCAL], .window = v[P_WINDOW], .k = s->budget, .reuse = v[P_REUSE]};
}

static void select_regions(const attn_spec *s, attn_regions *r)
{
    const token_rule a = rule_of(s);
    *r = (attn_regions){.first = a.sink, .newest = a.local, .covers = token_attended(&a)};
}

/* ---- memory ---- */

/* Returns the newest tokens of a list for n queries, including the queries' own tokens. */
static int64_t newest_of(const token_rule *r, int64_t n)
{
    return max64(r->local, n);
}

/* Queries of a window, rows of a list, positions of the rotation table. */
typedef struct {
    int64_t window, rows, positions;
} token_sizes;

static token_sizes sizes_of(const token_rule *r, const attn_limits *lim)
{
    int64_t all = lim->n_tokens, window = min64(r->window, min64(lim->chunk, all));
    int64_t rows = min64(r->sink + newest_of(r, window) + r->k, all);
    return (token_sizes){window, rows, max64(rows, r->local + window)};
}

#define AT(member) offsetof(token_select, member)

static void select_declare(attn_decl *d)
{
    const token_rule rule = rule_of(d->spec), *r = &rule;
    const token_sizes n = sizes_of(r, d->lim);
    const int64_t all = d->lim->n_tokens;
    size_t heads = (size_t)d->shape->n_heads, dim = heads * (size_t)d->shape->head_dim * sizeof(float);
    gathered_declare(d, AT(rows), n.rows, n.positions);
    decl_scratch(d, AT(queries), "queries", dim, n.window);
    decl_bytes(d, MEM_SCRATCH, AT(probe_table), "queries", (size_t)n.window * 2 * attn_pairs(d->shape) * sizeof(float));
    decl_scratch(d, AT(weights), "queries", sizeof(float), n.window);
    decl_scratch(d, AT(probe), "queries", dim, 1);
    decl_scratch(d, AT(score), "scores", heads * sizeof(float), all);
    decl_scratch(d, AT(votes), "votes", sizeof(float), all);
    decl_scratch(d, AT(idx), "selected tokens", sizeof(int32_t), n.rows);
    decl_bytes(d, MEM_SCRATCH, AT(range), "selected tokens", 2 * sizeof(int64_t));
    d->window = r->window;
    d->choose_lists = 1;
    d->choose_items = all;
    if (!r->reuse) return;
    decl_layers(d, MEM_INDEX, AT(held_probe), "queries of selections", dim);
    decl_regions(d, MEM_INDEX, AT(held), "votes of selections", 1, sizeof(float), all, d->n);
    decl_layers(d, MEM_STATE, AT(state), "selections", TOKEN_STATE * sizeof(int64_t));
}

static void select_reset(attn_view *v)
{
    token_select *c = v->own;
    const token_rule rule = rule_of(v->spec), *r = &rule;
    const token_sizes n = sizes_of(r, v->lim);
    const int64_t none[TOKEN_STATE] = {[TOKEN_AGAIN] = -1};
    c->rule = *r;
    c->window = (size_t)n.window;
    gathered_reset(v, &c->rows, n.rows, n.positions);
    for (int l = 0; l < v->shape->n_layers && r->reuse; l++)
        if (v->layers[l]) v->be->ops->upload(v->be, c->state[l], none, sizeof none);
}

static void select_begin(attn_view *v, const attn_part *p)
{
    token_select *c = v->own;
    const buf from = buf_at(c->rows.count, (size_t)c->rule.local * sizeof(int64_t));
    if (!gathered_begin(v, &c->rows, p)) return;
    /* Raw keys, before rotation, lack the factor mscale, so the queries have it twice. */
    v->be->ops->rope_table(v->be, c->probe_table, from, c->window, p->freq, attn_pairs(v->shape),
                           p->mscale * p->mscale);
}

/* ---- a window ---- */

/* Tokens of a window's selection: [seen, head) and [tail, n) are forced, and k of [lo, tail) are selected. The first
 * query sees the tokens from `seen` on. */
typedef struct {
    int64_t seen, head, lo, tail, n, k;
} token_cut;

static token_cut cut_of(const attn_view *v, const attn_part *p, int layer)
{
    const token_rule *r = &((const token_select *)v->own)->rule;
    token_cut c = {.seen = p->first + 1 - attn_visible(v->shape, layer, p->first + 1),
                   .n = p->first + (int64_t)p->n_tok};
    c.tail = max64(c.n - newest_of(r, (int64_t)p->n_tok), c.seen);
    c.head = min64(r->sink, c.tail);
    c.lo = max64(c.head, c.seen);
    c.k = min64(r->k, c.tail - c.lo);
    return c;
}

/* Returns the mean of the window's queries; query i is rotated to the position local + i. */
static buf probe_of(const attn_task *t)
{
    const token_select *c = t->v->own;
    const backend_ops *o = t->v->be->ops;
    size_t heads = (size_t)t->v->shape->n_heads, d = (size_t)t->v->shape->head_dim;
    buf none = {NULL};
    o->rope(t->v->be, c->queries, t->q_raw, c->probe_table, t->p.n_tok, heads, d, attn_pairs(t->v->shape));
    if (t->p.n_tok == 1) return c->queries;
    o->block->probe(t->v->be, c->probe, c->weights, c->queries, t->p.n_tok, heads * d, none, none, 0);
    return c->probe;
}

/* Returns the votes (summed softmax scores of the heads) of the candidate tokens, by position; with `reuse` those kept
 * from an earlier step if the query is similar. */
static buf votes_of(const attn_task *t, int layer, const token_cut *a)
{
    const token_select *c = t->v->own;
    const attn_view *v = t->v;
    const backend_ops *o = v->be->ops;
    size_t heads = (size_t)v->shape->n_heads, stride = (size_t)v->lim->n_tokens;
    bool again = c->rule.reuse > 0;
    buf u = probe_of(t), state = again ? c->state[layer] : (buf){NULL};
    token_cache cache = {.state = state,
                         .n_parts = heads,
                         .part = (size_t)v->shape->head_dim,
                         .least = (float)c->rule.reuse / 100,
                         .most = TOKEN_REUSE_MOST};
    if (again) cache.probe = c->held_probe[layer], o->token->match(v->be, &cache, u, a->lo, a->tail);
    token_score_job s = {.q = u,
                         .n_heads = heads,
                         .rows = *kv_store_rows(v->store, layer),
                         .lo = a->lo,
                         .hi = a->tail,
                         .score = c->score,
                         .stride = stride,
                         .state = state,
                         .votes = c->votes,
                         .scale = v->shape->scale,
                         .read = v->read};
    o->token->score(v->be, &s);
    if (!again) return c->votes;
    o->token->keep(v->be, c->held[layer], c->votes, a->lo, a->tail, state);
    return c->held[layer];
}

static void select_one(const attn_task *t, int layer)
{
    token_select *c = t->v->own;
    const token_cut a = cut_of(t->v, &t->p, layer);
    attn_sel *sel = t->sel;
    bool all = a.seen == 0 && a.tail - a.lo <= a.k && !t->v->spec->forced;
    int64_t n = max64(a.head - a.seen, 0) + a.k + a.n - a.tail;
    kv_need(t->v->be, kv_store_rows(t->v->store, layer), a.seen, a.n);
    if (!all)
        attn_choose(t->v,
                    &(choose_job){.score = votes_of(t, layer, &a),
                                  .items = {a.n, a.lo, a.tail},
                                  .head = a.head,
                                  .tail = a.tail,
                                  .first = a.seen,
                                  .k = a.k,
                                  .n_lists = 1,
                                  .stride = (size_t)t->v->lim->n_tokens,
                                  .granule = 1,
                                  .most = t->v->lim->n_tokens,
                                  .idx_stride = (int64_t)c->rows.rows.cap,
                                  .idx = c->idx,
                                  .range = c->range},
                    1);
    sel->n_seg = 1;
    sel->seg[0] = gathered_segment(t->v, &c->rows, &t->p, layer, all ? (buf){NULL} : c->idx, n);
    if (!all) sel->head = a.head, sel->tail = a.tail;
    sel->attended = n;
}

static void select_tokens(const attn_task *t, size_t n, int layer)
{
    for (size_t i = 0; i < n; i++) select_one(&t[i], layer);
}

/* ---- between forwards ---- */

/* Fails with `reuse` if a selection may come from later queries. */
static const char *select_rewind(attn_view *v, int64_t n)
{
    const token_select *c = v->own;
    if (n == v->length) return NULL;
    if (c->rule.reuse && v->length > token_attended(&c->rule)) return "reused selections depend on later queries";
    return kv_store_rewind(v->store, n) ? NULL : KV_NO_REWIND;
}

static status select_state(attn_view *v, attn_state *s, err *e)
{
    const token_select *c = v->own;
    int64_t x[TOKEN_STATE];
    TRY(attn_walk(v, s, e));
    for (int l = 0; l < v->shape->n_layers && c->rule.reuse; l++) {
        if (!v->layers[l]) continue;
        v->be->ops->download(v->be, x, c->state[l], sizeof x);
        TRY(state_within("uses of a selection", x[TOKEN_AGAIN], -1, TOKEN_REUSE_MOST, e));
        TRY(state_within("end of a selection", x[TOKEN_END], 0, v->length, e));
    }
    return kv_store_state(v->store, s, v->length, v->length, e);
}

/* Rows hold unrotated keys, so attention rounds differently from `full`. */
static bool select_exact_prompt(const attn_view *v, int64_t n)
{
    (void)v;
    (void)n;
    return false;
}

/* ---- the method ---- */

static const char *select_alone(const attn_spec *s)
{
    (void)s;
    return "a vote adds the softmax of the heads of all ranks";
}

static const attn_family windows_of_tokens = {.retrieves = true, .windows = true, .alone = select_alone};

const attn_method attn_tokenselect = {
    .name = "tokenselect",
    .summary = "TokenSelect: first and newest tokens, and the best others by a vote of all heads over all keys",
    .source = "TokenSelect (Wu et al. 2024, arXiv 2411.02886; patcher/token_retrieval.py); doc/methods.md 12.4, "
              "deviations 12.4",
    .params = params,
    .family = &windows_of_tokens,
    .size = sizeof(token_select),
    .uses = USES(codes) | USES(select) | USES(block) | USES(token),
    .counts = "+forced",
    .has_budget = true,
    .def_budget = 2048,
    .reuse = ATTN_REUSE_ANY,
    .reuse_unless = "reuse",
    .check = attn_check_ropes,
    .regions = select_regions,
    .hooks = {.declare = select_declare,
              .reset = select_reset,
              .begin = select_begin,
              .append = gathered_append,
              .select = select_tokens,
              .rewind = select_rewind,
              .state = select_state,
              .exact_prompt = select_exact_prompt},
};
