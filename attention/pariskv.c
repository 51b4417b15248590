/* SPDX-License-Identifier: MIT */
/* ParisKV: all rows are kept; a step attends the first `sink` tokens, the newest ones, and of the tokens between
 * (the indexed ones) the `budget` best by an index of 6 bits a channel. doc/methods.md section 8.
 *
 * Here: its parameters, memory and state. A forward: paris_steps.c; the index: paris_index.c. */
#include "config.h"

#include <stddef.h>

#include "attention/paris_steps.h"

enum { P_SINK, P_LOCAL, P_U, P_FULL_THR, P_RHO, P_BETA, P_CENTER, P_LEVELS, P_ALPHA, P_ROTATE };
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
    [P_CENTER] = {"center", NULL, "1: encode keys less the mean of the first prompt's", 0, 0, 1},
    [P_LEVELS] = {"tiers", "6 1", "levels of the collision score", LEVELS_6, 0, 1},
    [P_ALPHA] = {"alpha", NULL, "0: weights without the factor 1/alpha", 1, 0, 1},
    [P_ROTATE] = {"rotate", NULL, "0: no rotation", 1, 0, 1},
    {.key = NULL},
};

static paris_sizes sizes_of(const attn_spec *s)
{
    const int64_t *v = s->value;
    return (paris_sizes){
        .sink = v[P_SINK], .local = v[P_LOCAL], .u = v[P_U], .full_thr = v[P_FULL_THR], .budget = s->budget};
}

static void paris_regions(const attn_spec *s, attn_regions *r)
{
    paris_sizes z = sizes_of(s);
    *r = (attn_regions){.first = z.sink, .newest = z.local + z.u, .covers = paris_covers(&z) - 1};
}

static status paris_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (shape->head_dim > PARIS_DIM_MAX)
        return err_set(e, ST_UNSUPPORTED, "%s: head_dim %d, at most %d", s->text, shape->head_dim, (int)PARIS_DIM_MAX);
    return ST_OK;
}

/* ---- life ---- */

static paris_options options_of(const attn_spec *s)
{
    const int64_t *v = s->value;
    return (paris_options){.k = s->budget,
                           .rho = v[P_RHO],
                           .beta = v[P_BETA],
                           .rounds = (size_t)v[P_ROTATE],
                           .n_levels = v[P_LEVELS] == LEVELS_1 ? 1 : PARIS_LEVELS,
                           .center = v[P_CENTER],
                           .alpha = v[P_ALPHA]};
}

static void paris_declare_all(attn_decl *d)
{
    const paris_options o = options_of(d->spec);
    paris_declare(d, offsetof(paris_memory, search), &o);
    decl_bytes(d, MEM_HOST, offsetof(paris_memory, ends), "ends of prompts",
               (size_t)(d->lim->n_tokens + 1) * sizeof(int64_t));
}

static void paris_reset(attn_view *v)
{
    paris_memory *c = v->own;
    const paris_options o = options_of(v->spec);
    c->sizes = sizes_of(v->spec);
    paris_open(v, &c->search, &o);
    c->ends[0] = 0;
    paris_forget(v, 0);
}

/* True if the tokens up to n were the start of a longer prompt, whose mean is then that of later keys too. */
static bool in_first_prompt(const paris_memory *c, int64_t n, int64_t length)
{
    for (int64_t i = 1; i <= n; i++)
        if (c->ends[i] < i) return false;
    return n < length && c->ends[n + 1] > n;
}

static const char *paris_rewind(attn_view *v, int64_t n)
{
    const paris_memory *c = v->own;
    if (c->search.o.center && in_first_prompt(c, n, v->length)) return "the mean key is that of the whole prompt";
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    paris_forget(v, n);
    return NULL;
}

static status paris_state(attn_view *v, attn_state *s, err *e)
{
    paris_memory *c = v->own;
    TRY(s->host(s, "ends of prompts", -1, c->ends, (size_t)(v->length + 1) * sizeof *c->ends, e));
    for (int64_t n = 0; n <= v->length; n++)
        TRY(state_within("end of the prompt", c->ends[n], n ? c->ends[n - 1] : 0, n, e));
    c->prompt_end = c->ends[v->length];
    c->encoded = v->length;
    TRY(paris_walk(v, &c->search, s, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}

static const attn_family everything_is_kept = {.retrieves = true, .drafts = true};

const attn_method attn_pariskv = {
    .name = "pariskv",
    .summary = "ParisKV: sink, newest tokens, and the best others by sign collisions and 4-bit codes",
    .source = "ParisKV (paper, whose budget is 100; cache_hub/polar_cache.py); doc/methods.md 8, deviations 8.7",
    .params = params,
    .family = &everything_is_kept,
    .size = sizeof(paris_memory),
    .uses = USES_SELECT | USES_PARIS,
    .counts = "+forced",
    .gqa = "mean_q",
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
