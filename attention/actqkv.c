/* SPDX-License-Identifier: MIT */
/* ActQKV: memory blocks chosen by a probe of each prompt window that weighs activated queries more, and decode budgets
 * that travel across layers. doc/methods.md section 9.
 *
 * Statistics, weights and probe use queries rotated at the fixed distance of far tokens, and run over the prompt tokens
 * of a layer so far. In decode steps the query is the probe. */
#include "config.h"

#include <stddef.h>

#include "attention/blocks.h"
#include "attention/question.h"
#include "kernels/base/rng.h"

enum { P_PROBE = BLOCKS_OWN, P_GQA, P_POOL, P_CHOOSE, P_QUESTION };
enum { PROBE_ACT, PROBE_MEAN };
enum { BY_CONCAT, BY_MEAN };
enum { SEED = 42 }; /* of choose=random */
enum { CHOOSE_BEST, CHOOSE_ALL, CHOOSE_RANDOM, CHOOSE_NEWEST };

static const attn_param params[] = {
    BLOCKS_PARAMS(64, 512, 256, 32, 4),
    [P_PROBE] = {"probe", "act mean", "probe of a window: activated queries weigh more, or the plain mean", PROBE_ACT,
                 0, 1},
    [P_GQA] = {"gqa", "layer_concat layer_mean",
               "score of a memory block, for all heads: cosine of the heads concatenated, or the mean of "
               "one a head",
               BY_CONCAT, 0, 1},
    [P_POOL] = ATTN_POOL_PARAM(POOL_ENTROPY),
    [P_CHOOSE] = {"choose", "best all random newest",
                  "blocks by their scores; or controls that look at none: all blocks, whatever the budget; as many as "
                  "it has room for, at random or the newest",
                  CHOOSE_BEST, 0, 3},
    [P_QUESTION] = QUESTION_PARAM,
    {.key = NULL},
};

typedef struct {
    block_memory b;
    attn_budget budget;
    block_question question;
    buf *mean;      /* f32 mean, m2 [2][dim] of the prompt's queries so far */
    int64_t n_stat; /* tokens in them before this forward */
    bool queried;   /* this forward had queries */
} act_memory;

/* Blocks of a layer where none has more than another. */
static int64_t nominal_of(const attn_spec *s)
{
    return s->value[P_CHOOSE] == CHOOSE_ALL ? (int64_t)1 << 40 : blocks_budget(s);
}

/* Controls take equally many blocks in every layer. */
static int64_t pool_of(const attn_spec *s)
{
    return s->value[P_CHOOSE] == CHOOSE_BEST ? s->value[P_POOL] : POOL_FIXED;
}

static int64_t most_of(const attn_spec *s)
{
    return budget_most(pool_of(s), nominal_of(s));
}

static status act_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (s->value[P_QUESTION] && s->value[P_CHOOSE] != CHOOSE_BEST)
        return err_set(e, ST_USAGE, "%s: question=%lld with a choice that looks at no score, expected choose=best",
                       s->text, (long long)s->value[P_QUESTION]);
    return blocks_check(s, shape, e);
}

/* ---- life ---- */

#define AT(member) offsetof(act_memory, member)

static void act_declare(attn_decl *d)
{
    const block_sizes n = blocks_sizes(d->spec, d->shape, d->lim);
    budget_declare(d, AT(budget), MEM_STATE);
    decl_layers(d, MEM_STATE, AT(mean), "statistics", 2 * n.dim * sizeof(float));
    question_declare(d, AT(question), d->spec->value[P_QUESTION]);
}

/* Controls: scores that follow from the numbers of blocks alone, in every layer, window and step. */
static void rank_blindly(attn_view *v)
{
    const act_memory *c = v->own;
    rng r = {SEED};
    for (size_t b = 0; b < c->b.n.blocks && attn_get(v, P_CHOOSE) != CHOOSE_BEST; b++) {
        float score = attn_get(v, P_CHOOSE) == CHOOSE_RANDOM ? rng_float(&r) : (float)b;
        v->be->ops->upload(v->be, buf_at(c->b.score, b * sizeof score), &score, sizeof score);
    }
}

static void act_reset(attn_view *v)
{
    act_memory *c = v->own;
    blocks_reset(v);
    budget_reset(&c->budget, v, pool_of(v->spec));
    rank_blindly(v);
    c->n_stat = 0;
    c->queried = false;
    question_reset(&c->question, attn_get(v, P_QUESTION));
}

static status act_state(attn_view *v, attn_state *s, err *e)
{
    act_memory *c = v->own;
    TRY(STATE_HOST(s, "tokens in statistics", &c->n_stat, e));
    TRY(state_within("tokens in statistics", c->n_stat, 0, v->length, e));
    TRY(attn_walk(v, s, e));
    TRY(budget_check(&c->budget, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}

/* ---- forwards ---- */

static void act_begin(attn_view *v, const attn_part *p)
{
    act_memory *c = v->own;
    bool pools = !(p->flags & ATTN_PROMPT) && blocks_after(&c->b.rule, v->length) > 0;
    blocks_begin(v, p);
    question_begin(&c->question, p);
    budget_open(&c->budget, nominal_of(v->spec), pools);
}

/* The statistics take in the window's queries; the probe is made of them. */
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
    question_window(&c->question, v, p, layer);
    if (n == 0) return;
    const block_index x = blocks_index(v, layer);
    size_t parts = attn_get(v, P_GQA) == BY_MEAN ? x.n_heads : 0;
    const item_range items = blocks_candidates(v, layer, p->first);
    if (!blind) v->be->ops->block->score(v->be, c->b.score, probe, &x, parts, items, attn_index_read(v));
    question_weigh(&c->question, v, p, layer, items, parts);
    blocks_choose(v, items, nominal_of(v->spec), budget_take(&c->budget, layer, c->b.score, items));
}

static void act_end(attn_view *v, const attn_part *p)
{
    act_memory *c = v->own;
    budget_close(&c->budget);
    if (c->queried) c->n_stat += (int64_t)p->n_tok;
    c->queried = false;
}

static const block_kind kind = {most_of, act_choose};

const attn_method attn_actqkv = {
    .name = "actqkv",
    .summary = "ActQKV: blocks chosen by activated queries, budgets that travel across layers",
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
