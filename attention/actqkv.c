/* SPDX-License-Identifier: MIT */
/* ActQKV: blocks chosen by a probe of each prompt window that weighs activated queries more, and
 * decode budgets that travel across layers. methods.md section 9.
 *
 * Statistics, weights and probe use queries rotated at the fixed distance of far tokens, and run
 * over the prompt tokens of a layer so far. In decode steps the query is the probe. Left out:
 * the question span (there are no hints in the interface, its default weight is 0) and
 * compat=code. */
#include "config.h"

#include "attention/blocks.h"
#include "attention/budget.h"
#include "kernels/base/mem.h"
#include "kernels/ops_select.h"

enum { P_SINK, P_LOCAL, P_WINDOW, P_BLOCK, P_REPS, P_PROBE, P_GQA, P_POOL, P_POOL_PREFILL, P_MODE };
enum { PROBE_ACT, PROBE_MEAN };
enum { BY_CONCAT, BY_MEAN };

static const attn_param params[] = {
    [P_SINK] = {"sink", NULL, "first tokens, always attended", 64, 0, 1 << 20},
    [P_LOCAL] = {"local", NULL, "newest tokens, attended at their true distances", 512, 1, 1 << 20},
    [P_WINDOW] = {"window", NULL,
                  "prompt tokens that choose their blocks together; chunks are multiples of it",
                  256, 1, 1 << 20},
    [P_BLOCK] = {"block", NULL, "tokens of a block", 32, 1, 1 << 16},
    [P_REPS] = {"reps", NULL, "best tokens of a block, whose mean key stands for it", 4, 1,
                1 << 16},
    [P_PROBE] = {"probe", "act mean",
                 "probe of a window: activated queries weigh more, or the plain mean (InfLLM)",
                 PROBE_ACT, 0, 1},
    [P_GQA] = {"gqa", "layer_concat layer_mean",
               "score of a block, for all heads: cosine of the heads concatenated, or the mean of "
               "one a head",
               BY_CONCAT, 0, 1},
    [P_POOL] = ATTN_POOL_PARAM(POOL_ENTROPY),
    [P_POOL_PREFILL] = {"pool_prefill", NULL,
                        "1: prompt windows share pools too, by the entropies of earlier forwards "
                        "(results then change with --chunk)",
                        0, 0, 1},
    [P_MODE] = ATTN_MODE_PARAM(BUDGET_TOTAL),
    {.key = NULL},
};

typedef struct {
    block_ctx b;
    attn_budget *budget;
    buf *mean;      /* [n_layers] f32 mean, m2 [2][dim] of the prompt's queries so far */
    int64_t n_stat; /* tokens in them before this forward */
    bool queried;   /* this forward had queries */
    buf queries, weights, probe, score, chosen;
} act_ctx;

enum { N_SCRATCH = 5 };

static act_ctx *ctx_of(attn_ctx *c)
{
    return (act_ctx *)c;
}

static int64_t nominal_of(const attn_spec *s)
{
    const int64_t *v = s->value;
    int64_t forced = v[P_MODE] == BUDGET_EXTRA ? 0 : v[P_SINK] + v[P_LOCAL];
    return (s->budget - forced) / v[P_BLOCK];
}

static block_rule rule_of(const attn_spec *s)
{
    const int64_t *v = s->value;
    return (block_rule){.sink = v[P_SINK],
                        .local = v[P_LOCAL],
                        .window = v[P_WINDOW],
                        .block = v[P_BLOCK],
                        .reps = v[P_REPS],
                        .most = attn_budget_most(v[P_POOL], nominal_of(s))};
}

static status act_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    (void)shape;
    const int64_t *v = s->value;
    bool extra = v[P_MODE] == BUDGET_EXTRA;
    int64_t least = v[P_BLOCK] + (extra ? 0 : v[P_SINK] + v[P_LOCAL]);
    if (s->budget < least)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least %s = %lld", s->text,
                       (long long)s->budget, extra ? "block" : "sink + local + block",
                       (long long)least);
    if (v[P_POOL_PREFILL] && v[P_POOL] == POOL_FIXED)
        return err_set(e, ST_USAGE, "%s: pool_prefill=1 with pool=fixed, expected pool=entropy",
                       s->text);
    if (v[P_REPS] > v[P_BLOCK])
        return err_set(e, ST_USAGE, "%s: reps=%lld, expected at most block = %lld", s->text,
                       (long long)v[P_REPS], (long long)v[P_BLOCK]);
    return ST_OK;
}

/* A layer that sees no further than the band. */
static bool act_dense(const attn_spec *s, const attn_shape *shape, int layer)
{
    return shape->window[layer] > 0 && shape->window[layer] <= s->value[P_LOCAL];
}

/* ---- life ---- */

static void list_scratch(act_ctx *c, const block_sizes *n, sized_buf out[N_SCRATCH])
{
    size_t f = sizeof(float);
    const sized_buf all[N_SCRATCH] = {
        {&c->queries, n->rows * n->dim * f},
        {&c->weights, n->rows * f},
        {&c->probe, n->dim * f},
        {&c->score, n->blocks * f},
        {&c->chosen, 2 * sizeof(int64_t) + (size_t)n->most * sizeof(int32_t)},
    };
    for (int i = 0; i < N_SCRATCH; i++) out[i] = all[i];
}

static size_t scratch_bytes(const block_sizes *n)
{
    act_ctx unused;
    sized_buf list[N_SCRATCH];
    size_t sum = 0;
    list_scratch(&unused, n, list);
    for (int i = 0; i < N_SCRATCH; i++) sum += list[i].bytes;
    return sum;
}

static size_t mean_bytes(const block_sizes *n)
{
    return 2 * n->dim * sizeof(float);
}

/* Bytes of statistics and budgets. */
static size_t state_bytes(const block_sizes *n, const attn_shape *shape, const bool *layers)
{
    size_t sum = attn_budget_bytes(shape, n->windows);
    for (int l = 0; l < shape->n_layers; l++) sum += layers[l] ? mean_bytes(n) : 0;
    return sum;
}

static status act_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                       const attn_limits *lim, const bool *layers, err *e)
{
    block_rule r = rule_of(s);
    block_sizes n = blocks_sizes(&r, shape, lim);
    TRY(blocks_plan(out, s, shape, lim, layers, &r, e));
    TRY(size_add(&out->index, out->index, state_bytes(&n, shape, layers), "KV plan", e));
    return size_add(&out->scratch, out->scratch, scratch_bytes(&n), "KV plan", e);
}

static void act_free(attn_ctx *base)
{
    act_ctx *c = ctx_of(base);
    sized_buf list[N_SCRATCH];
    list_scratch(c, &c->b.n, list);
    blocks_dealloc(base->be, list, N_SCRATCH);
    for (int l = 0; c->mean && l < base->shape->n_layers; l++) {
        const sized_buf mean = {&c->mean[l], mean_bytes(&c->b.n)};
        blocks_dealloc(base->be, &mean, 1);
    }
    attn_budget_free(c->budget);
    blocks_release(&c->b);
    mem_free(c->mean);
    mem_free(c);
}

static void act_reset(attn_ctx *base)
{
    act_ctx *c = ctx_of(base);
    blocks_reset(base);
    attn_budget_reset(c->budget);
    c->n_stat = 0;
    c->queried = false;
}

static status act_create(attn_ctx **out, const attn_ctx *base, err *e)
{
    act_ctx *c;
    sized_buf list[N_SCRATCH];
    block_rule r = rule_of(base->spec);
    *out = NULL;
    TRY(MEM_NEW(&c, 1, e));
    status st = blocks_init(&c->b, base, &r, e);
    if (st != ST_OK) goto done;
    TRY_GOTO(attn_budget_create(&c->budget, base, base->spec->value[P_POOL], c->b.n.windows, e));
    list_scratch(c, &c->b.n, list);
    TRY_GOTO(blocks_alloc(base->be, list, N_SCRATCH, "actqkv: scratch", e));
    TRY_GOTO(attn_choose_reserve(base, 1, (int64_t)c->b.n.blocks, e));
    TRY_GOTO(MEM_NEW(&c->mean, (size_t)base->shape->n_layers, e));
    for (int l = 0; l < base->shape->n_layers && st == ST_OK; l++) {
        const sized_buf mean = {&c->mean[l], mean_bytes(&c->b.n)};
        if (base->layers[l]) st = blocks_alloc(base->be, &mean, 1, "actqkv: statistics", e);
    }
    if (st != ST_OK) goto done;
    *out = &c->b.base;
done:
    if (st != ST_OK) act_free(&c->b.base);
    return st;
}

/* Attention is exact while all fits into the band, but statistics need the raw queries of every
 * window, which a sequence that shares another one's prompt does not get. */
static bool act_exact_prompt(const attn_ctx *c, int64_t n)
{
    (void)c;
    (void)n;
    return false;
}

static int64_t act_window(const attn_ctx *c)
{
    return ((const act_ctx *)c)->b.rule.window;
}

/* ---- forwards ---- */

/* Windows of the forward that come before any block: the others share pools. */
static int64_t windows_without(const act_ctx *c)
{
    const block_rule *r = &c->b.rule;
    int64_t first = r->local + r->sink + r->block - c->b.base.length; /* least start with a block */
    return first > 0 ? (first + r->window - 1) / r->window : 0;
}

static void act_step_begin(attn_ctx *base, const attn_part *p)
{
    act_ctx *c = ctx_of(base);
    int64_t window = c->b.rule.window, none = windows_without(c), pools = 0;
    blocks_step_begin(base, p);
    if (!(p->flags & ATTN_PROMPT)) pools = blocks_after(&c->b, base->length) > 0;
    else if (attn_get(base, P_POOL_PREFILL))
        pools = ((int64_t)p->n_tok + window - 1) / window - none;
    attn_budget_open(c->budget, nominal_of(base->spec), pools > 0 ? (size_t)pools : 0);
}

/* The statistics take in the window's queries; the probe is made of them. */
static buf probe_of(act_ctx *c, const attn_part *p, int layer, bool wanted)
{
    backend *be = c->b.base.be;
    const block_ops *o = be->ops->block;
    size_t dim = c->b.n.dim, before = (size_t)(c->n_stat + p->prompt_done - c->b.done);
    buf mean = c->mean[layer], m2 = buf_at(mean, dim * sizeof(float));
    if (!(p->flags & ATTN_PROMPT)) return c->queries;
    bool plain = attn_get(&c->b.base, P_PROBE) == PROBE_MEAN;
    if (!plain) o->moments(be, mean, m2, before, c->queries, p->n_tok, dim);
    if (wanted)
        o->probe(be, c->probe, c->weights, c->queries, p->n_tok, dim, plain ? (buf){NULL} : mean,
                 m2, before + p->n_tok);
    c->queried = true;
    return c->probe;
}

/* Scores blocks against the probe and chooses; the numbers of the chosen lie behind their range. */
static void choose(act_ctx *c, const attn_part *p, int layer, buf probe)
{
    backend *be = c->b.base.be;
    const block_index *x = &c->b.index[layer];
    int64_t first = blocks_first(&c->b, p), n = blocks_after(&c->b, first);
    size_t parts = attn_get(&c->b.base, P_GQA) == BY_MEAN ? x->n_heads : 0, window = 0;
    item_scores scores = {.score = c->score,
                          .n = blocks_candidates(&c->b, layer),
                          .n_lists = 1,
                          .stride = x->cap,
                          .n_max = n};
    be->ops->block->score(be, c->score, probe, x, parts, scores.n, n, attn_index_read(&c->b.base));
    if (p->flags & ATTN_PROMPT)
        window = (size_t)((p->prompt_done - c->b.done) / c->b.rule.window - windows_without(c));
    choose_job job = {.score = c->score,
                      .n = scores.n,
                      .k = attn_budget_take(c->budget, layer, window, &scores, 1),
                      .tail = scores.n,
                      .n_lists = 1,
                      .stride = x->cap,
                      .n_k = 1,
                      .granule = 1,
                      .n_items_max = n,
                      .idx_stride = c->b.n.most,
                      .idx = buf_at(c->chosen, 2 * sizeof(int64_t)),
                      .range = c->chosen};
    attn_choose(&c->b.base, &job);
}

/* While all fits into the band it is the only segment, contiguous as in `full`. */
static void act_select(attn_ctx *base, const attn_part *p, int layer, buf q_raw, buf q,
                       attn_sel *sel)
{
    (void)q;
    act_ctx *c = ctx_of(base);
    bool far = blocks_beyond(&c->b, p), any = blocks_after(&c->b, blocks_first(&c->b, p)) > 0;
    blocks_begin(&c->b, p, layer);
    if ((p->flags & ATTN_PROMPT) || any) blocks_far_queries(&c->b, p, c->queries, q_raw);
    buf probe = probe_of(c, p, layer, any);
    sel->n_seg = 0;
    if (any) choose(c, p, layer, probe);
    if (far)
        blocks_far(&c->b, p, layer, buf_at(c->chosen, 2 * sizeof(int64_t)),
                   any ? c->chosen : (buf){NULL}, &sel->seg[sel->n_seg++]);
    blocks_band(&c->b, p, layer, &sel->seg[sel->n_seg++]);
    sel->head = c->b.rule.sink;
    sel->tail = c->b.rule.sink + c->b.rule.block * blocks_after(&c->b, blocks_first(&c->b, p));
}

static void act_step_end(attn_ctx *base, const attn_part *p)
{
    act_ctx *c = ctx_of(base);
    blocks_step_end(base, p);
    attn_budget_close(c->budget);
    if (c->queried) c->n_stat += (int64_t)p->n_tok;
    c->queried = false;
}

static status act_state(attn_ctx *base, attn_state *v, err *e)
{
    act_ctx *c = ctx_of(base);
    TRY(blocks_state(base, v, e));
    TRY(attn_budget_state(c->budget, v, e));
    TRY(STATE_HOST(v, "tokens in statistics", &c->n_stat, e));
    TRY(state_within("tokens in statistics", c->n_stat, 0, base->length, e));
    for (int l = 0; l < base->shape->n_layers; l++)
        if (base->layers[l]) TRY(v->mem(v, "statistics", l, c->mean[l], mean_bytes(&c->b.n), e));
    return ST_OK;
}

/* Beside sinks and band the tokens that fill no block yet. */
static void act_always(const attn_spec *s, int64_t *first, int64_t *newest)
{
    *first = s->value[P_SINK];
    *newest = s->value[P_LOCAL] + s->value[P_BLOCK];
}

static void act_held(const attn_ctx *base, int64_t n_new, attn_bytes *out)
{
    const act_ctx *c = (const act_ctx *)base;
    blocks_held(base, n_new, out);
    out->index += state_bytes(&c->b.n, base->shape, base->layers);
    out->scratch += scratch_bytes(&c->b.n);
}

const attn_method attn_actqkv = {
    .name = "actqkv",
    .summary = "ActQKV: blocks chosen by activated queries, budgets that travel across layers",
    .source = "ActQKV (github.com/MrXiaoaa/ActQKV) on InfLLM (Xiao et al. 2024, arXiv 2402.04617); "
              "methods.md sections 9 and 12.1",
    .params = params,
    .uses = USES_CODES | USES_EVICT | USES_SELECT | USES_BLOCK,
    .retrieves = true,
    .pages = true,
    .always = act_always,
    .has_budget = true,
    .def_budget = 2048,
    .check = act_check,
    .dense = act_dense,
    .plan = act_plan,
    .create = act_create,
    .free = act_free,
    .reset = act_reset,
    .exact_prompt = act_exact_prompt,
    .window = act_window,
    .step_begin = act_step_begin,
    .append = blocks_append,
    .select = act_select,
    .observes = blocks_observes,
    .observe = blocks_observe,
    .layer_end = blocks_layer_end,
    .step_end = act_step_end,
    .rewind = blocks_rewind,
    .state = act_state,
    .held = act_held,
    .attended = blocks_attended,
    .positions = blocks_positions,
};
