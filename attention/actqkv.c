/* SPDX-License-Identifier: MIT */
/* ActQKV: memory blocks chosen by a probe per prompt window that weighs activated queries more, and decode budgets that
 * are divided among the layers. doc/methods.md section 9.
 *
 * Statistics, weights and probe use queries rotated to the fixed distance of far tokens. Statistics run over the prompt
 * tokens of a layer so far. In decode steps the query is the probe.
 *
 * Question (ActQKV 5.1 and its code; doc/methods.md 9.3): the first window that starts after the question and beyond
 * the band computes z. For each query head, z is the mean of the question's queries with the largest band mass, at the
 * fixed distance. Windows from then on add the cosine with z to their scores. A weight of 0 disables all of this. Only
 * the buffers are saved, since sessions are saved between prompts and each prompt computes its own z. */
#include "config.h"

#include <stddef.h>

#include "attention/blocks.h"
#include "kernels/base/rng.h"

enum { P_PROBE = BLOCKS_OWN, P_GQA, P_POOL, P_CHOOSE, P_QUESTION };
enum { PROBE_ACT, PROBE_MEAN };
enum { BY_CONCAT, BY_MEAN };
enum { POOL_FIXED, POOL_ENTROPY };
enum { SEED = 42, BEST = 4 }; /* of choose=random; tokens of the question in z */
enum { CHOOSE_BEST, CHOOSE_ALL, CHOOSE_RANDOM, CHOOSE_NEWEST };

static const attn_param params[] = {
    BLOCKS_PARAMS(64, 512, 256, 32, 4),
    [P_PROBE] = {"probe", "act mean", "probe of a prompt window: activated queries weigh more, or the plain mean",
                 PROBE_ACT, 0, 1},
    [P_GQA] = {"gqa", "layer_concat layer_mean",
               "score of a block: cosine over the concatenated heads, or the mean of the heads' cosines", BY_CONCAT, 0,
               1},
    [P_POOL] = {"pool", "fixed entropy",
                "budget of a decode step: equal in all layers, or divided by the entropy of their scores", POOL_ENTROPY,
                0, 1},
    [P_CHOOSE] = {"choose", "best all random newest",
                  "blocks by score; controls without scores: all blocks, or as many as the budget at random or newest",
                  CHOOSE_BEST, 0, 3},
    [P_QUESTION] = {"question", NULL,
                    "weight of a marked question in the scores of later prompt windows; 0: off (published: 4)", 0, 0,
                    1000},
    {.key = NULL},
};

typedef struct {
    block_memory b;
    buf *mean;      /* f32 [2][dim] mean and m2 of the prompt's queries so far */
    int64_t n_stat; /* tokens in the statistics before this forward */
    bool queried;   /* this forward had queries */
    /* Budgets. */
    bool pools;                     /* the layers of this forward divide a pool of blocks */
    int *rank;                      /* [n_layers] index of a layer among those of the pool */
    entropy_pool pool;              /* uses the following buffers */
    buf left, k, count, sum, theta; /* k i64 [n_layers] */
    /* The question. */
    int64_t made; /* first position of the window that computed z; INT64_MAX: not yet in this prompt */
    buf *asked;   /* f32 [n_heads][rows][head_dim]: last queries of the question, by position, at most a window */
    buf *z;       /* f32 [n_heads][head_dim] */
    buf cosines;  /* scratch: cosines with z */
} act_memory;

/* Returns the blocks of a layer with equal budgets. */
static int64_t nominal_of(const attn_spec *s)
{
    return s->value[P_CHOOSE] == CHOOSE_ALL ? (int64_t)1 << 40 : blocks_budget(s);
}

/* Returns POOL_*. Controls take the same number of blocks in every layer. */
static int64_t pool_of(const attn_spec *s)
{
    return s->value[P_CHOOSE] == CHOOSE_BEST ? s->value[P_POOL] : POOL_FIXED;
}

/* Returns the most blocks of a layer. */
static int64_t most_of(const attn_spec *s)
{
    return pool_of(s) == POOL_ENTROPY ? 2 * nominal_of(s) : nominal_of(s);
}

static status act_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (s->value[P_QUESTION] && s->value[P_CHOOSE] != CHOOSE_BEST)
        return err_set(e, ST_USAGE, "%s: question=%lld requires choose=best", s->text, (long long)s->value[P_QUESTION]);
    return blocks_check(s, shape, e);
}

/* ---- memory ---- */

#define AT(member) offsetof(act_memory, member)

static void act_declare(attn_decl *d)
{
    const block_sizes n = blocks_sizes(d->spec, d->shape, d->lim);
    size_t layers = (size_t)d->shape->n_layers, i64 = sizeof(int64_t), f = sizeof(float);
    decl_bytes(d, MEM_STATE, AT(sum), "entropies", layers * sizeof(double));
    decl_bytes(d, MEM_STATE, AT(count), "number of entropies", i64);
    decl_bytes(d, MEM_SCRATCH, AT(theta), "budgets", layers * f);
    decl_bytes(d, MEM_SCRATCH, AT(left), "budgets", i64);
    decl_bytes(d, MEM_SCRATCH, AT(k), "budgets", layers * i64);
    decl_bytes(d, MEM_HOST, AT(rank), "budgets", layers * sizeof(int));
    decl_layers(d, MEM_STATE, AT(mean), "statistics", 2 * n.dim * f);
    if (d->spec->value[P_QUESTION] == 0) return;
    decl_layers(d, MEM_INDEX, AT(asked), "question's queries", n.rows * n.dim * f);
    decl_layers(d, MEM_INDEX, AT(z), "question's probe", n.dim * f);
    decl_bytes(d, MEM_SCRATCH, AT(cosines), "question: scratch", n.blocks * f);
}

/* Controls: uploads scores that depend only on block numbers, for all layers, windows and steps. */
static void rank_blindly(attn_view *v)
{
    const act_memory *c = v->own;
    rng r = {SEED};
    for (size_t b = 0; b < c->b.n.blocks && attn_get(v, P_CHOOSE) != CHOOSE_BEST; b++) {
        float score = attn_get(v, P_CHOOSE) == CHOOSE_RANDOM ? rng_float(&r) : (float)b;
        v->be->ops->upload(v->be, buf_at(c->b.score, b * sizeof score), &score, sizeof score);
    }
}

/* Resets the pool, which has the layers of v->layers. */
static void reset_budgets(attn_view *v)
{
    act_memory *c = v->own;
    const int64_t zero = 0;
    const double none = 0;
    size_t used = 0;
    for (int l = 0; l < v->shape->n_layers; l++) {
        c->rank[l] = (int)used;
        used += v->layers[l];
    }
    c->pools = false;
    c->pool = (entropy_pool){.theta = c->theta, .sum = c->sum, .count = c->count, .pool = c->left, .n_layers = used};
    v->be->ops->upload(v->be, c->count, &zero, sizeof zero);
    for (size_t l = 0; l < used; l++) v->be->ops->upload(v->be, buf_at(c->sum, l * sizeof none), &none, sizeof none);
}

static void act_reset(attn_view *v)
{
    act_memory *c = v->own;
    blocks_reset(v);
    reset_budgets(v);
    rank_blindly(v);
    c->n_stat = 0;
    c->queried = false;
    c->made = INT64_MAX;
}

/* Validates loaded entropies. */
static status check_budgets(const attn_view *v, err *e)
{
    const act_memory *c = v->own;
    int64_t count;
    double sum;
    v->be->ops->download(v->be, &count, c->count, sizeof count);
    TRY(state_within("number of entropies", count, 0, (int64_t)1 << 50, e));
    for (size_t l = 0; l < c->pool.n_layers; l++) {
        v->be->ops->download(v->be, &sum, buf_at(c->sum, l * sizeof sum), sizeof sum);
        if (!(sum >= 0 && sum < 1e300)) return state_bad("an entropy is not a number", e);
    }
    return ST_OK;
}

static status act_state(attn_view *v, attn_state *s, err *e)
{
    act_memory *c = v->own;
    TRY(STATE_HOST(s, "tokens in statistics", &c->n_stat, e));
    TRY(state_within("tokens in statistics", c->n_stat, 0, v->length, e));
    TRY(attn_walk(v, s, e));
    TRY(check_budgets(v, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}

/* ---- budgets ---- */

/* Opens the pool of a decode step. Bounds per layer: methods.md 9.7, 32 and 92 blocks for the default of 46. */
static void open_pool(attn_view *v)
{
    act_memory *c = v->own;
    int64_t nominal = nominal_of(v->spec), all = (int64_t)c->pool.n_layers * nominal;
    c->pool.least = nominal * 7 / 10;
    c->pool.most = 2 * nominal;
    if (c->pools) v->be->ops->upload(v->be, c->left, &all, sizeof all);
}

/* Takes the layer's budget from the pool, by the scores of items n. Returns i64 [1] in ops memory; p NULL: nominal. */
static buf take_budget(const attn_view *v, int layer, item_range n)
{
    const act_memory *c = v->own;
    buf k = buf_at(c->k, (size_t)layer * sizeof(int64_t));
    if (!c->pools) return (buf){NULL};
    v->be->ops->block->take(v->be, &c->pool, (size_t)c->rank[layer], c->b.score, n, k);
    return k;
}

/* ---- the question ---- */

/* Returns the span of the question's queries that are kept in the current prompt. */
static attn_span span_of(const attn_view *v, const attn_part *p)
{
    const block_memory *b = v->own;
    int64_t start = p->first - p->prompt_done, end = min64(p->hint.question.end, start + p->n_prompt);
    return (attn_span){max64(max64(p->hint.question.first, start), end - (int64_t)b->n.rows), end};
}

static kv_rows rows_of(const attn_view *v, int layer)
{
    const act_memory *c = v->own;
    return (kv_rows){.k = c->asked[layer],
                     .type = DT_F32,
                     .n_kv_heads = (size_t)v->shape->n_heads,
                     .head_dim = (size_t)v->shape->head_dim,
                     .cap = c->b.n.rows};
}

static void keep(const attn_view *v, const attn_part *p, int layer, attn_span span)
{
    const block_memory *b = v->own;
    const kv_rows rows = rows_of(v, layer);
    int64_t from = max64(span.first, p->first), end = min64(span.end, p->first + (int64_t)p->n_tok);
    kv_write_job job = {.rows = &rows, .first = from - span.first, .n_lists = 1, .n = (size_t)(end - from)};
    if (end <= from) return;
    job.k = buf_at(b->queries, (size_t)(from - p->first) * b->n.dim * sizeof(float));
    v->be->ops->kv_write(v->be, &job, 1);
}

/* Computes z as the representative of a block of the question's tokens, with queries in place of keys. */
static void make(const attn_view *v, const attn_part *p, int layer, attn_span span)
{
    const act_memory *c = v->own;
    const block_memory *b = &c->b;
    kv_rows rows = rows_of(v, layer);
    int64_t from = max64(span.first, p->first - (int64_t)b->n.ring), n = span.end - from;
    band_mass m = {.mass = b->mass[layer], .n_heads = rows.n_kv_heads, .ring = b->n.ring, .read = attn_index_read(v)};
    block_index x = {.rep = c->z[layer],
                     .type = DT_F32,
                     .n_heads = rows.n_kv_heads,
                     .n_kv_heads = rows.n_kv_heads,
                     .head_dim = rows.head_dim,
                     .cap = 1,
                     .size = (size_t)n,
                     .reps = (size_t)min64(n, BEST)};
    rows.k = buf_at(rows.k, (size_t)(from - span.first) * rows.head_dim * sizeof(float));
    v->be->ops->block->form(v->be, &x, &rows, &m, 0, 1, from);
}

/* Runs in each window before scoring: keeps queries of the question, or computes z. */
static void hear_question(const attn_view *v, const attn_part *p, int layer)
{
    act_memory *c = v->own;
    attn_span span = span_of(v, p);
    if (attn_get(v, P_QUESTION) == 0 || !(p->flags & ATTN_PROMPT) || span.end <= span.first) return;
    if (p->first < max64(span.end, c->b.rule.local + 1)) {
        keep(v, p, layer, span);
        return;
    }
    if (c->made == INT64_MAX) c->made = p->first;
    if (c->made == p->first) make(v, p, layer, span);
}

/* Adds weight * cos(z, representative) to the scores of the blocks n in a prompt window, if z exists. parts: as in
 * block_ops.score. */
static void weigh_question(const attn_view *v, const attn_part *p, int layer, item_range n, size_t parts)
{
    const act_memory *c = v->own;
    const block_ops *o = v->be->ops->block;
    const block_index x = blocks_index(v, layer);
    if (attn_get(v, P_QUESTION) == 0 || !(p->flags & ATTN_PROMPT) || p->first < c->made) return;
    o->score(v->be, c->cosines, c->z[layer], &x, parts, n, attn_index_read(v));
    o->weigh(v->be, c->b.score, c->cosines, n, (float)attn_get(v, P_QUESTION));
}

/* ---- forwards ---- */

static void act_begin(attn_view *v, const attn_part *p)
{
    act_memory *c = v->own;
    blocks_begin(v, p);
    if (p->prompt_done == 0) c->made = INT64_MAX;
    c->pools = pool_of(v->spec) == POOL_ENTROPY && !(p->flags & ATTN_PROMPT) && blocks_after(&c->b.rule, v->length) > 0;
    open_pool(v);
}

/* Updates the statistics with the window's queries and returns the probe, which is computed only if `wanted`. */
static buf probe_of(const attn_view *v, const attn_part *p, int layer, bool wanted)
{
    act_memory *c = v->own;
    const block_ops *o = v->be->ops->block;
    size_t dim = c->b.n.dim, before = (size_t)(c->n_stat + p->first - v->length);
    buf mean = c->mean[layer], m2 = buf_at(mean, dim * sizeof(float));
    bool plain = attn_get(v, P_PROBE) == PROBE_MEAN;
    if (!(p->flags & ATTN_PROMPT)) return c->b.queries;
    if (!plain) o->moments(v->be, mean, m2, before, c->b.queries, p->n_tok, dim);
    if (wanted)
        o->probe(v->be, c->b.probe, c->b.weights, c->b.queries, p->n_tok, dim, plain ? (buf){NULL} : mean, m2,
                 before + p->n_tok);
    c->queried = true;
    return c->b.probe;
}

static void act_choose(attn_view *v, const attn_part *p, int layer, int64_t n)
{
    act_memory *c = v->own;
    bool blind = attn_get(v, P_CHOOSE) != CHOOSE_BEST;
    buf probe = probe_of(v, p, layer, n > 0 && !blind);
    hear_question(v, p, layer);
    if (n == 0) return;
    const block_index x = blocks_index(v, layer);
    size_t parts = attn_get(v, P_GQA) == BY_MEAN ? x.n_heads : 0;
    const item_range items = blocks_candidates(v, layer, p->first);
    if (!blind) v->be->ops->block->score(v->be, c->b.score, probe, &x, parts, items, attn_index_read(v));
    weigh_question(v, p, layer, items, parts);
    blocks_choose(v, items, nominal_of(v->spec), take_budget(v, layer, items));
}

static void act_end(attn_view *v, const attn_part *p)
{
    act_memory *c = v->own;
    if (c->pools) v->be->ops->block->close_pool(v->be, &c->pool);
    c->pools = false;
    if (c->queried) c->n_stat += (int64_t)p->n_tok;
    c->queried = false;
}

static const block_kind kind = {most_of, act_choose};

const attn_method attn_actqkv = {
    .name = "actqkv",
    .summary = "ActQKV: blocks chosen by activated queries, budgets divided among the layers",
    .source = "ActQKV (github.com/MrXiaoaa/ActQKV) on InfLLM (Xiao et al. 2024, arXiv 2402.04617); "
              "doc/methods.md 9 and 12.1, deviations 9.7 and 12.1",
    .params = params,
    .family = &attn_blocks,
    .kind = &kind,
    .size = sizeof(act_memory),
    .has_budget = true,
    .def_budget = 2048,
    .reuse = ATTN_REUSE_END,
    .check = act_check,
    .regions = blocks_regions,
    .hooks = {.declare = act_declare, .reset = act_reset, .begin = act_begin, .end = act_end, .state = act_state},
};
