/* SPDX-License-Identifier: MIT */
/* TokenSelect: all rows are kept; a window of a prompt, or a decode step, attends the first `sink` tokens, the newest
 * ones, and of those between the `budget` best by the votes of all heads, one list for a layer. doc/methods.md 12.4. */
#include "config.h"

#include "attention/token_window.h"
#include "kernels/ops_token.h"

enum { P_SINK, P_LOCAL, P_WINDOW, P_POS, P_POOL, P_REUSE };

static const attn_param params[] = {
    [P_SINK] = {"sink", NULL, "first tokens, always attended", 128, 0, 1 << 20},
    [P_LOCAL] = {"local", NULL, "newest tokens, always attended", 512, 1, 1 << 20},
    [P_WINDOW] = {"window", NULL, "prompt tokens that choose together; chunks are multiples of it", 512, 1, 1 << 20},
    [P_POS] = {"pos", "slot abs", "positions of what is attended: places in the list, or those in the text", 0, 0, 1},
    [P_POOL] = {"pool", NULL, "a vote becomes the largest of so many neighbours'; 0: its own", 0, 0, 1 << 16},
    [P_REUSE] = {"reuse", NULL,
                 "percent of cosine from which on a query takes the selection of an earlier one; 0: never", 0, 0, 101},
    {.key = NULL},
};

static token_rule rule_of(const attn_spec *s)
{
    const int64_t *v = s->value;
    return (token_rule){.sink = v[P_SINK],
                        .local = v[P_LOCAL],
                        .window = v[P_WINDOW],
                        .k = s->budget,
                        .by_position = v[P_POS],
                        .pool = v[P_POOL],
                        .reuse = v[P_REUSE]};
}

static void select_regions(const attn_spec *s, attn_regions *r)
{
    const token_rule a = rule_of(s);
    *r = (attn_regions){.first = a.sink, .newest = a.local, .covers = token_attended(&a)};
}

/* ---- life ---- */

static void select_declare(attn_decl *d)
{
    const token_rule r = rule_of(d->spec);
    token_declare(d, &r);
}

static void select_reset(attn_view *v)
{
    const token_rule r = rule_of(v->spec);
    token_reset(v, &r);
}

/* A selection that later queries made is not that of an earlier one. */
static const char *select_rewind(attn_view *v, int64_t n)
{
    const token_select *c = v->own;
    if (n == v->length) return NULL;
    if (c->rule.reuse && v->length > token_attended(&c->rule))
        return "selections that are used again come from later queries";
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

/* Rows hold keys before rotation: attention over them rounds otherwise than that of `full`. */
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
    return "the shares of all heads' softmax that a vote adds";
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
    .uses = USES_CODES | USES_SELECT | USES_BLOCK | USES_TOKEN,
    .counts = "+forced",
    .has_budget = true,
    .def_budget = 2048,
    .reuse = ATTN_REUSE_ANY,
    .reuse_unless = "reuse",
    .regions = select_regions,
    .hooks = {.declare = select_declare,
              .reset = select_reset,
              .begin = token_begin,
              .append = gathered_append,
              .select = token_choose,
              .rewind = select_rewind,
              .state = select_state,
              .exact_prompt = select_exact_prompt},
};
