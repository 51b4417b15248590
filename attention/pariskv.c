/* SPDX-License-Identifier: MIT */
/* ParisKV: all rows are kept; a step attends the first `sink` tokens, the newest ones, and of the tokens between
 * (the indexed ones) the `budget` best by an index of 6 bits a channel. methods.md section 8.
 *
 * Rows, prompts, and steps that attend everything are those of `full`. Regions: sink | indexed | local and
 * update buffer. They follow in closed form (8.3) from the token count and the end of the last prompt, so that no
 * counter can differ between layers (8.7). Every token is encoded when it is appended, since a store may
 * quantize its row before it is indexed: the codes of tokens in the buffer exist but are not scored. */
#include "config.h"

#include "attention/budget.h"
#include "attention/paris_index.h"
#include "attention/store.h"
#include "kernels/base/mem.h"
#include "kernels/ops_paris.h"

enum {
    P_SINK,
    P_LOCAL,
    P_U,
    P_FULL_THR,
    P_RHO,
    P_BETA,
    P_GQA,
    P_ROUNDS,
    P_CENTER,
    P_TIERS,
    P_ALPHA,
    P_ROTATE,
    P_MODE
};
enum { GQA_MEAN, GQA_HEADS_VOTE };
enum { TIERS_6, TIERS_1 };

static const attn_param params[] = {
    [P_SINK] = {"sink", NULL, "first tokens, always attended", 64, 0, 1 << 20},
    [P_LOCAL] = {"local", NULL, "newest tokens, always attended", 256, 0, 1 << 20},
    [P_U] = {"u", NULL, "new tokens gathered before the oldest are indexed", 512, 1, 1 << 20},
    [P_FULL_THR] = {"full_thr", NULL, "with fewer tokens everything is attended", 2048, 0,
                    (int64_t)1 << 40},
    [P_RHO] = {"rho", NULL, "percent of the keys in the tiers of a block; 0: by length", 0, 0, 100},
    [P_BETA] = {"beta", NULL, "percent of the indexed tokens to rerank; 0: by length", 0, 0, 100},
    [P_GQA] = {"gqa", "mean_q vote", "how query heads share the reranking", GQA_MEAN, 0, 1},
    [P_ROUNDS] = {"rounds", NULL, "rounds of the rotation", 1, 1, 2},
    [P_CENTER] = {"center", NULL, "1: encode keys less the mean of the first prompt's", 0, 0, 1},
    [P_TIERS] = {"tiers", "6 1", "tiers of the collision score", TIERS_6, 0, 1},
    [P_ALPHA] = {"alpha", NULL, "0: weights without the factor 1/alpha", 1, 0, 1},
    [P_ROTATE] = {"rotate", NULL, "0: no rotation", 1, 0, 1},
    [P_MODE] = ATTN_MODE_PARAM(BUDGET_EXTRA),
    {.key = NULL},
};

typedef struct {
    attn_ctx base;
    attn_ctx *all; /* `full` over the same layers */
    paris_search *search;
    int64_t prompt_end; /* tokens at the end of the last prompt */
    int64_t encoded;    /* tokens with codes, */
    int64_t to_encode;  /* and how many follow in this forward */
} paris_ctx;

static paris_ctx *ctx_of(attn_ctx *c)
{
    return (paris_ctx *)c;
}

/* `full` with the length that the composition keeps here. */
static attn_ctx *all_of(const attn_ctx *c)
{
    attn_ctx *all = ((const paris_ctx *)c)->all;
    all->length = c->length;
    return all;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- regions ---- */

/* Fewer visible tokens are all attended. */
static int64_t threshold(const attn_spec *s)
{
    int64_t forced = s->value[P_SINK] + s->value[P_LOCAL];
    int64_t k = s->value[P_MODE] == BUDGET_EXTRA ? s->budget : s->budget - forced;
    return most(s->value[P_FULL_THR], forced + 2 * k);
}

/* First token and count of each. */
typedef struct {
    int64_t sink[2], index[2], rest[2];
} regions;

/* Of a layer, as the query sees them that is token n - 1, after a prompt that ended with prompt_end tokens.
 * Source: methods.md 8.3; tokens before the layer's window are in none (0.2.11). */
static regions regions_of(const attn_ctx *c, int layer, int64_t prompt_end, int64_t n)
{
    int64_t u = attn_get(c, P_U), local = attn_get(c, P_LOCAL), window = c->shape->window[layer];
    int64_t sink = least(attn_get(c, P_SINK), n), from = window > 0 ? most(0, n - window) : 0;
    int64_t n0 = most(prompt_end, sink + local), flushes = n > n0 ? (n - n0 - 1) / u : 0;
    int64_t end = sink + most(0, prompt_end - sink - local) + u * flushes;
    int64_t index = most(sink, from), rest = most(end, from);
    return (regions){.sink = {from, most(0, sink - from)},
                     .index = {index, most(0, end - index)},
                     .rest = {rest, n - rest}};
}

static bool is_sparse(const attn_ctx *c, const regions *r)
{
    bool short_of = !c->spec->forced && r->sink[1] + r->index[1] + r->rest[1] < threshold(c->spec);
    return !short_of && r->index[1] > 0;
}

/* Indexed tokens to find beside the other regions. */
static int64_t wanted(const attn_spec *s, const regions *r)
{
    return s->budget - (s->value[P_MODE] == BUDGET_EXTRA ? 0 : r->sink[1] + r->rest[1]);
}

/* ---- memory ---- */

static paris_options options_of(const attn_spec *s)
{
    const int64_t *v = s->value;
    return (paris_options){.k = s->budget,
                           .rho = v[P_RHO],
                           .beta = v[P_BETA],
                           .rounds = v[P_ROTATE] ? (size_t)v[P_ROUNDS] : 0,
                           .n_tiers = v[P_TIERS] == TIERS_1 ? 1 : PARIS_TIERS,
                           .vote = v[P_GQA] == GQA_HEADS_VOTE,
                           .center = v[P_CENTER],
                           .alpha = v[P_ALPHA]};
}

static status paris_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                         const attn_limits *lim, const bool *layers, err *e)
{
    paris_options o = options_of(s);
    TRY(attn_full.plan(out, s, shape, lim, layers, e));
    return paris_search_plan(out, &o, shape, lim, layers, e);
}

static void paris_free(attn_ctx *base)
{
    paris_ctx *c = ctx_of(base);
    if (c->all) attn_full.free(c->all);
    paris_search_free(c->search);
    mem_free(c);
}

static status paris_create(attn_ctx **out, const attn_ctx *base, err *e)
{
    paris_ctx *c;
    paris_options o = options_of(base->spec);
    *out = NULL;
    TRY(MEM_NEW(&c, 1, e));
    c->base = *base;
    status st = attn_full.create(&c->all, base, e);
    if (st == ST_OK) st = paris_search_create(&c->search, base, &o, e);
    if (st != ST_OK) paris_free(&c->base);
    else *out = &c->base;
    return st;
}

static status paris_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (shape->head_dim > PARIS_DIM_MAX)
        return err_set(e, ST_UNSUPPORTED, "%s: head_dim %d, at most %d", s->text, shape->head_dim,
                       (int)PARIS_DIM_MAX);
    int64_t fewest = s->value[P_SINK] + s->value[P_LOCAL] + s->value[P_U] + 1;
    if (s->value[P_MODE] == BUDGET_TOTAL && s->budget < fewest)
        return err_set(e, ST_USAGE,
                       "%s: budget %lld is too small, at least sink + local + u + 1 = %lld",
                       s->text, (long long)s->budget, (long long)fewest);
    return ST_OK;
}

static bool paris_dense(const attn_spec *s, const attn_shape *shape, int layer)
{
    return shape->window[layer] > 0 && shape->window[layer] < threshold(s);
}

static bool paris_exact_prompt(const attn_ctx *c, int64_t n)
{
    return attn_full.exact_prompt(all_of(c), n);
}

static void paris_held(const attn_ctx *c, int64_t n_new, attn_bytes *out)
{
    attn_full.held(all_of(c), n_new, out);
    paris_search_held(((const paris_ctx *)c)->search, c->length + n_new, out);
}

static int64_t paris_positions(const attn_ctx *c, int layer, int head, int64_t *out)
{
    return attn_full.positions(all_of(c), layer, head, out);
}

static int64_t paris_attended(const attn_ctx *c, int layer)
{
    regions r = regions_of(c, layer, ((const paris_ctx *)c)->prompt_end, c->length);
    if (!is_sparse(c, &r)) return attn_full.attended(all_of(c), layer);
    return r.sink[1] + r.rest[1] + least(wanted(c->spec, &r), r.index[1]);
}

/* ---- a forward ---- */

static void set_range(int64_t to[2], int64_t first, int64_t n)
{
    to[0] = first;
    to[1] = n;
}

static void set_ranges(paris_ctx *c, int layer, bool prompt, int64_t n)
{
    paris_ranges *s = paris_search_ranges(c->search, layer);
    regions now = regions_of(&c->base, layer, c->prompt_end, n);
    regions next = regions_of(&c->base, layer, n, n + 1); /* if this ends a prompt */
    set_range(s->sink, now.sink[0], now.sink[1]);
    set_range(s->index, now.index[0], now.index[1]);
    set_range(s->rest, now.rest[0], now.rest[1]);
    s->k = least(wanted(c->base.spec, &now), now.index[1]);
    set_range(s->next, next.index[0], next.index[1]);
    set_range(s->encode, c->encoded, c->to_encode);
    /* center: the first prompt gives the mean; one that indexes nothing that of all its keys */
    if (!prompt) set_range(s->mean, 0, 0);
    else if (next.index[1] > 0) set_range(s->mean, next.index[0], next.index[1]);
    else set_range(s->mean, 0, n);
}

static void paris_step_begin(attn_ctx *base, const attn_part *p)
{
    paris_ctx *c = ctx_of(base);
    int64_t n = base->length + (int64_t)p->n_tok;
    bool prompt = p->flags & ATTN_PROMPT, open = prompt && !(p->flags & ATTN_PROMPT_END);
    attn_full.step_begin(all_of(base), p);
    /* Before the mean is known nothing can be encoded: the whole prompt is at its end, when all of its rows
     * are still exact. */
    c->to_encode = attn_get(base, P_CENTER) && c->encoded == 0 && open ? 0 : n - c->encoded;
    for (int l = 0; l < base->shape->n_layers; l++)
        if (base->layers[l]) set_ranges(c, l, prompt, n);
    paris_search_upload(c->search);
}

static void paris_append(attn_ctx *base, const attn_part *p, int layer, buf k_raw, buf k, buf v)
{
    paris_ctx *c = ctx_of(base);
    attn_sel all;
    attn_full.append(c->all, p, layer, k_raw, k, v);
    if (c->to_encode == 0) return;
    attn_full.select(c->all, p, layer, (buf){NULL}, (buf){NULL}, &all);
    kv_need(base->be, all.seg[0].rows, c->encoded, c->encoded + c->to_encode);
    paris_search_encode(c->search, layer, all.seg[0].rows, c->encoded == 0);
}

static void paris_select(attn_ctx *base, const attn_part *p, int layer, buf q_raw, buf q,
                         attn_sel *sel)
{
    paris_ctx *c = ctx_of(base);
    regions r = regions_of(base, layer, c->prompt_end, base->length + (int64_t)p->n_tok);
    attn_full.select(c->all, p, layer, q_raw, q, sel);
    if ((p->flags & ATTN_PROMPT) || !is_sparse(base, &r)) return;
    attn_seg seg = {.rows = sel->seg[0].rows, .n_lists = 1}, found;
    paris_search_run(c->search, layer, q, &found);
    found.rows = seg.rows;
    sel->n_seg = 0;
    if (attn_get(base, P_SINK) > 0) {
        seg.range = paris_search_at(c->search, layer, offsetof(paris_ranges, sink));
        seg.n_max = attn_get(base, P_SINK);
        sel->seg[sel->n_seg++] = seg;
    }
    sel->seg[sel->n_seg++] = found;
    seg.range = paris_search_at(c->search, layer, offsetof(paris_ranges, rest));
    seg.n_max = attn_get(base, P_LOCAL) + attn_get(base, P_U);
    sel->seg[sel->n_seg++] = seg;
    sel->head = r.index[0];
    sel->tail = r.rest[0];
}

/* The counts of a prompt's tokens are taken with the prompt, not with the first step after it. */
static void paris_layer_end(attn_ctx *base, const attn_part *p, int layer)
{
    paris_ctx *c = ctx_of(base);
    attn_full.layer_end(c->all, p, layer);
    if (p->flags & ATTN_PROMPT_END) paris_search_count(c->search, layer);
}

static void paris_step_end(attn_ctx *base, const attn_part *p)
{
    paris_ctx *c = ctx_of(base);
    attn_full.step_end(c->all, p);
    c->encoded += c->to_encode;
    if (p->flags & ATTN_PROMPT_END) c->prompt_end = base->length + (int64_t)p->n_tok;
}

/* Cuts the index to the first n tokens; the counts now, while the codes that they count are still there. */
static void forget(paris_ctx *c, int64_t n)
{
    c->prompt_end = least(c->prompt_end, n);
    c->encoded = least(c->encoded, n);
    for (int pass = 0; pass < 2; pass++) {
        for (int l = 0; l < c->base.shape->n_layers; l++) {
            if (!c->base.layers[l]) continue;
            regions r = regions_of(&c->base, l, c->prompt_end, n);
            set_range(paris_search_ranges(c->search, l)->next, r.index[0], r.index[1]);
            if (pass == 1) paris_search_count(c->search, l);
        }
        if (pass == 0) paris_search_upload(c->search);
    }
}

static const char *paris_rewind(attn_ctx *base, int64_t n)
{
    const char *why = attn_full.rewind(all_of(base), n);
    if (!why) forget(ctx_of(base), n);
    return why;
}

static status paris_state(attn_ctx *base, attn_state *v, err *e)
{
    paris_ctx *c = ctx_of(base);
    TRY(STATE_HOST(v, "end of the prompt", &c->prompt_end, e));
    TRY(state_within("end of the prompt", c->prompt_end, 0, base->length, e));
    c->encoded = base->length;
    TRY(attn_full.state(all_of(base), v, e));
    return paris_search_state(c->search, v, base->length, e);
}

static void paris_always(const attn_spec *s, int64_t *first, int64_t *newest)
{
    *first = s->value[P_SINK];
    *newest = s->value[P_LOCAL] + s->value[P_U];
}

static void paris_reset(attn_ctx *base)
{
    attn_full.reset(all_of(base));
    forget(ctx_of(base), 0);
}

const attn_method attn_pariskv = {
    .name = "pariskv",
    .summary =
        "ParisKV: sink, newest tokens, and the best others by sign collisions and 4-bit codes",
    .source = "ParisKV (paper; cache_hub/polar_cache.py); methods.md section 8",
    .params = params,
    .uses = USES_SELECT | USES_PARIS,
    .pages = true,
    .always = paris_always,
    .retrieves = true,
    .has_budget = true,
    .def_budget = 512,
    .check = paris_check,
    .dense = paris_dense,
    .plan = paris_plan,
    .create = paris_create,
    .free = paris_free,
    .reset = paris_reset,
    .exact_prompt = paris_exact_prompt,
    .step_begin = paris_step_begin,
    .append = paris_append,
    .select = paris_select,
    .layer_end = paris_layer_end,
    .step_end = paris_step_end,
    .rewind = paris_rewind,
    .state = paris_state,
    .held = paris_held,
    .attended = paris_attended,
    .positions = paris_positions,
};
