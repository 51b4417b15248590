/* SPDX-License-Identifier: MIT */
/* ParisKV: all rows are kept; a step attends the first `sink` tokens, the newest ones, and of the tokens between
 * (the indexed ones) the `budget` best by an index of 6 bits a channel. doc/methods.md section 8.
 *
 * Rows, prompts, and steps that attend everything are those of `full`. Regions: sink | indexed | local and
 * update buffer. They follow in closed form (8.3) from the token count and the end of the last prompt, so that no
 * counter can differ between layers (8.7). Every token is encoded when it is appended, since a store may
 * quantize its row before it is indexed: the codes of tokens in the buffer exist but are not scored. */
#include "config.h"

#include <stddef.h>

#include "attention/paris_index.h"
#include "attention/retrieve.h"
#include "attention/tail.h"

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
    P_LEVELS,
    P_ALPHA,
    P_ROTATE,
    P_MODE,
    P_SHARE,
    P_MIN,
    P_TAIL
};
enum { GQA_MEAN, GQA_HEADS_VOTE };
enum { LEVELS_6, LEVELS_1 };

static const attn_param params[] = {
    [P_SINK] = {"sink", NULL, "first tokens, always attended", 64, 0, 1 << 20},
    [P_LOCAL] = {"local", NULL, "newest tokens, always attended", 256, 0, 1 << 20},
    [P_U] = {"u", NULL, "new tokens gathered before the oldest are indexed; until then they are attended", 512, 1,
             1 << 20},
    [P_FULL_THR] = {"full_thr", NULL,
                    "with fewer tokens than this, or than sink + local + 2 budget, everything is attended", 2048, 0,
                    (int64_t)1 << 40},
    [P_RHO] = {"rho", NULL,
               "percent of the keys in the levels of a subspace; 0: by length, 50 to 20 (doc/methods.md 8.3)", 0, 0,
               100},
    [P_BETA] = {"beta", NULL, "percent of the indexed tokens to rerank; 0: by length, 50 to 10 (the paper: 5 to 10)", 0,
                0, 100},
    [P_GQA] = {"gqa", "mean_q vote", "how query heads share the reranking", GQA_MEAN, 0, 1},
    [P_ROUNDS] = {"rounds", NULL, "rounds of the rotation", 1, 1, 2},
    [P_CENTER] = {"center", NULL, "1: encode keys less the mean of the first prompt's", 0, 0, 1},
    [P_LEVELS] = {"tiers", "6 1", "levels of the collision score", LEVELS_6, 0, 1},
    [P_ALPHA] = {"alpha", NULL, "0: weights without the factor 1/alpha", 1, 0, 1},
    [P_ROTATE] = {"rotate", NULL, "0: no rotation", 1, 0, 1},
    [P_MODE] = ATTN_MODE_PARAM(BUDGET_EXTRA),
    [P_SHARE] = RETRIEVE_P_PARAM,
    [P_MIN] = RETRIEVE_MIN_PARAM,
    [P_TAIL] = RETRIEVE_TAIL_PARAM,
    {.key = NULL},
};

typedef struct {
    paris_search search;
    int64_t prompt_end; /* tokens at the end of the last prompt */
    int64_t encoded;    /* tokens with codes, */
    int64_t to_encode;  /* and how many follow in this forward */
    attn_tail tail;
} paris_memory;

/* ---- regions ---- */

/* Fewer visible tokens are all attended. */
static int64_t threshold(const attn_spec *s)
{
    int64_t forced = s->value[P_SINK] + s->value[P_LOCAL];
    int64_t k = s->value[P_MODE] == BUDGET_EXTRA ? s->budget : s->budget - forced;
    return max64(s->value[P_FULL_THR], forced + 2 * k);
}

/* First token and count of each. */
typedef struct {
    slot_range sink, index, rest;
} regions;

/* Of a layer, as the query sees them that is token n - 1, after a prompt that ended with prompt_end tokens.
 * Source: doc/methods.md 8.3; tokens before the layer's window are in none (0.2.11). */
static regions regions_of(const attn_view *v, int layer, int64_t prompt_end, int64_t n)
{
    int64_t u = attn_get(v, P_U), local = attn_get(v, P_LOCAL), window = v->shape->window[layer];
    int64_t sink = min64(attn_get(v, P_SINK), n), from = window > 0 ? max64(0, n - window) : 0;
    int64_t n0 = max64(prompt_end, sink + local), flushes = n > n0 ? (n - n0 - 1) / u : 0;
    int64_t end = sink + max64(0, prompt_end - sink - local) + u * flushes;
    int64_t index = max64(sink, from), rest = max64(end, from);
    return (regions){
        .sink = {from, max64(0, sink - from)}, .index = {index, max64(0, end - index)}, .rest = {rest, n - rest}};
}

static bool is_sparse(const attn_view *v, const regions *r)
{
    bool short_of = !v->spec->forced && r->sink.n + r->index.n + r->rest.n < threshold(v->spec);
    return !short_of && r->index.n > 0;
}

/* Indexed tokens to find beside the other regions. */
static int64_t wanted(const attn_spec *s, const regions *r)
{
    int64_t forced = s->value[P_MODE] == BUDGET_EXTRA ? 0 : r->sink.n + r->rest.n;
    return min64(s->budget - forced, r->index.n);
}

static void paris_regions(const attn_spec *s, attn_regions *r)
{
    const int64_t *v = s->value;
    *r = (attn_regions){.first = v[P_SINK], .newest = v[P_LOCAL] + v[P_U], .covers = threshold(s) - 1};
}

static status paris_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (shape->head_dim > PARIS_DIM_MAX)
        return err_set(e, ST_UNSUPPORTED, "%s: head_dim %d, at most %d", s->text, shape->head_dim, (int)PARIS_DIM_MAX);
    int64_t fewest = s->value[P_SINK] + s->value[P_LOCAL] + s->value[P_U] + 1;
    if (s->value[P_MODE] == BUDGET_TOTAL && s->budget < fewest)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least sink + local + u + 1 = %lld", s->text,
                       (long long)s->budget, (long long)fewest);
    return retrieve_check(s, e);
}

/* ---- a forward ---- */

static void set_ranges(attn_view *v, int layer, bool prompt, int64_t n)
{
    paris_memory *c = v->own;
    regions now = regions_of(v, layer, c->prompt_end, n), next = regions_of(v, layer, n, n + 1); /* if a prompt ends */
    paris_ranges s = {
        .index = now.index, .next = next.index, .encode = {c->encoded, c->to_encode}, .k = wanted(v->spec, &now)};
    /* center: the first prompt gives the mean; one that indexes nothing that of all its keys */
    if (prompt) s.mean = next.index.n > 0 ? next.index : (slot_range){0, n};
    c->search.ranges[layer] = s;
    c->search.finds[layer] = !prompt && is_sparse(v, &now);
}

static void paris_begin(attn_view *v, const attn_part *p)
{
    paris_memory *c = v->own;
    int64_t n = v->length + (int64_t)p->n_tok;
    bool prompt = p->flags & ATTN_PROMPT, open = prompt && !(p->flags & ATTN_PROMPT_END);
    /* Before the mean is known nothing can be encoded: the whole prompt is at its end, when all of its rows
     * are still exact. */
    c->to_encode = attn_get(v, P_CENTER) && c->encoded == 0 && open ? 0 : n - c->encoded;
    for (int l = 0; l < v->shape->n_layers; l++) {
        c->search.finds[l] = false;
        if (v->layers[l]) set_ranges(v, l, prompt, n);
    }
}

static attn_tail *tail_of(const attn_view *v)
{
    paris_memory *c = v->own;
    return &c->tail;
}

static void paris_append(const attn_turn *t, size_t n, int layer)
{
    attn_tail *tails[ATTN_TOGETHER];
    full_append(t, n, layer);
    for (size_t i = 0; i < n; i++) tails[i] = tail_of(t[i].v);
    tail_add(tails, t, n, layer);
    for (; n > 0; n--, t++) {
        const paris_memory *c = t->v->own;
        const kv_rows *rows = kv_store_rows(t->v->store, layer);
        if (c->to_encode == 0) continue;
        kv_need(t->v->be, rows, c->encoded, c->encoded + c->to_encode);
        paris_encode(t->v, &c->search, layer, rows, c->encoded == 0);
    }
}

static void select_sparse(const attn_turn *t, int layer, const regions *r)
{
    const paris_memory *c = t->v->own;
    attn_sel *sel = t->sel;
    const kv_rows *rows = sel->seg[0].rows;
    sel->n_seg = 0;
    if (attn_get(t->v, P_SINK) > 0)
        sel->seg[sel->n_seg++] = (attn_seg){.rows = rows, .n_lists = 1, .first = r->sink.first, .n_max = r->sink.n};
    sel->seg[sel->n_seg++] = paris_find(t->v, &c->search, layer, rows, t->q);
    sel->seg[sel->n_seg++] = (attn_seg){.rows = rows, .n_lists = 1, .first = r->rest.first, .n_max = r->rest.n};
    sel->head = r->index.first;
    sel->tail = r->rest.first;
    sel->attended = r->sink.n + r->rest.n + (c->search.o.p > 0 ? 0 : wanted(t->v->spec, r)); /* or counted in end */
    tail_select(&(attn_tail *){tail_of(t->v)}, &t, 1, layer);
}

static void paris_select(const attn_turn *t, size_t n, int layer)
{
    full_select(t, n, layer);
    for (; n > 0; n--, t++) {
        const paris_memory *c = t->v->own;
        regions r = regions_of(t->v, layer, c->prompt_end, t->p.first + (int64_t)t->p.n_tok);
        if (!(t->p.flags & ATTN_PROMPT) && is_sparse(t->v, &r)) select_sparse(t, layer, &r);
    }
}

/* The counts of a prompt's tokens are taken with the prompt, not with the first step after it. */
static void paris_layer_end(attn_view *v, const attn_part *p, int layer)
{
    const paris_memory *c = v->own;
    if (p->flags & ATTN_PROMPT_END) paris_count(v, &c->search, layer);
}

static void paris_end(attn_view *v, const attn_part *p)
{
    paris_memory *c = v->own;
    paris_count_found(v, &c->search);
    c->encoded += c->to_encode;
    if (p->flags & ATTN_PROMPT_END) c->prompt_end = v->length + (int64_t)p->n_tok;
}

/* ---- life ---- */

static paris_options options_of(const attn_spec *s)
{
    const int64_t *v = s->value;
    return (paris_options){.k = s->budget,
                           .rho = v[P_RHO],
                           .beta = v[P_BETA],
                           .rounds = v[P_ROTATE] ? (size_t)v[P_ROUNDS] : 0,
                           .n_levels = v[P_LEVELS] == LEVELS_1 ? 1 : PARIS_LEVELS,
                           .vote = v[P_GQA] == GQA_HEADS_VOTE,
                           .center = v[P_CENTER],
                           .alpha = v[P_ALPHA],
                           .p = (float)v[P_SHARE] / ATTN_FRACTION,
                           .least = v[P_MIN]};
}

static void paris_declare_all(attn_decl *d)
{
    const paris_options o = options_of(d->spec);
    paris_declare(d, offsetof(paris_memory, search), &o);
    tail_declare(d, offsetof(paris_memory, tail), (size_t)d->shape->n_kv_heads);
}

/* Cuts the index to the first n tokens; the counts now, while the codes that they count are still there. */
static void forget(attn_view *v, int64_t n)
{
    paris_memory *c = v->own;
    c->prompt_end = min64(c->prompt_end, n);
    c->encoded = min64(c->encoded, n);
    for (int l = 0; l < v->shape->n_layers; l++) {
        if (!v->layers[l]) continue;
        c->search.ranges[l].next = regions_of(v, l, c->prompt_end, n).index;
        paris_count(v, &c->search, l);
    }
}

static void paris_reset(attn_view *v)
{
    paris_memory *c = v->own;
    const paris_options o = options_of(v->spec);
    paris_open(v, &c->search, &o);
    tail_reset(&c->tail, v, (size_t)v->shape->n_kv_heads);
    forget(v, 0);
}

static const char *paris_rewind(attn_view *v, int64_t n)
{
    const attn_tail *tail = tail_of(v);
    if (kv_store_coded_in(v->store, tail_redo_from(tail, n), n)) return TAIL_NO_REWIND;
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    tail_rewind(tail, v, n);
    forget(v, n);
    return NULL;
}

static status paris_state(attn_view *v, attn_state *s, err *e)
{
    paris_memory *c = v->own;
    TRY(STATE_HOST(s, "end of the prompt", &c->prompt_end, e));
    TRY(state_within("end of the prompt", c->prompt_end, 0, v->length, e));
    c->encoded = v->length;
    TRY(paris_walk(v, &c->search, s, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}

static const attn_family everything_is_kept = {.retrieves = true, .drafts = true};

const attn_method attn_pariskv = {
    .name = "pariskv",
    .summary = "ParisKV: sink, newest tokens, and the best others by sign collisions and 4-bit codes",
    .source = "ParisKV (paper, whose budget is 100; cache_hub/polar_cache.py); doc/methods.md 8",
    .params = params,
    .family = &everything_is_kept,
    .size = sizeof(paris_memory),
    .uses = USES_SELECT | USES_PARIS,
    .has_budget = true,
    .def_budget = 512,
    .reuse = ATTN_REUSE_ANY,
    .reuse_unless = "center",
    .check = paris_check,
    .regions = paris_regions,
    .hooks = {.declare = paris_declare_all,
              .reset = paris_reset,
              .begin = paris_begin,
              .append = paris_append,
              .select = paris_select,
              .layer_end = paris_layer_end,
              .end = paris_end,
              .rewind = paris_rewind,
              .state = paris_state},
};
