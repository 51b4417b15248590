/* SPDX-License-Identifier: MIT */
/* H2O: keeps the most recent tokens and the tokens that received the most attention so far. doc/methods.md section 3.
 *
 * Each kept token has the sum of its attention weights over all queries since it was added. For a prompt's queries a
 * second pass over Q K computes the weights; for a decode step they follow from the logits of its attention. Heads of a
 * group are combined per query, so that a list has one sum per token. Tokens are really removed (`utils_real_drop`).
 * The oracle of the accuracy scripts (3.7 a), whose choice depends on later queries, is not implemented. */
#include "config.h"

#include "attention/evict.h"

enum { P_HH, P_RECENT, P_GQA, P_PREFILL, P_DEMOTE, P_DEMOTE_G, P_RECALL };

static const attn_param params[] = {
    [P_HH] = {"hh", NULL, "heavy hitters kept; -1: half of the budget, or the budget minus recent", -1, -1, 1 << 30},
    [P_RECENT] = {"recent", NULL, "newest tokens kept; -1: the budget minus hh", -1, -1, 1 << 30},
    [P_GQA] = {EVICT_GQA_PARAM(GQA_MEAN_S)},
    [P_PREFILL] = {EVICT_PREFILL_PARAM},
    [P_DEMOTE] = {DEMOTE_PARAM},
    [P_DEMOTE_G] = {DEMOTE_G_PARAM},
    [P_RECALL] = {RECALL_PARAM},
    {.key = NULL},
};

static status h2o_parse(attn_spec *s, err *e)
{
    int64_t *hh = &s->value[P_HH], *recent = &s->value[P_RECENT];
    if (*hh >= 0 && *recent >= 0) s->budget = *hh + *recent;
    else if (*hh >= 0) *recent = s->budget - *hh;
    else if (*recent >= 0) *hh = s->budget - *recent;
    else {
        *hh = s->budget / 2;
        *recent = s->budget - *hh;
    }
    if (*hh >= 0 && *recent >= 0) return ST_OK;
    return err_set(e, ST_USAGE, "--attn %s: %s=%lld, at most the budget of %lld", s->text, *hh < 0 ? "recent" : "hh",
                   (long long)(*hh < 0 ? *recent : *hh), (long long)s->budget);
}

static void h2o_rule(const attn_spec *s, evict_rule *r)
{
    r->recent = s->value[P_RECENT];
    r->sums = true;
    r->each_chunk = s->value[P_PREFILL] == 1;
}

static const evict_kind h2o_kind = {.least = 2, .rule = h2o_rule};

const attn_method attn_h2o = {
    .name = "h2o",
    .summary = "H2O: heavy hitters by accumulated attention, and the most recent tokens",
    .source = "Zhang et al. 2023 (arXiv 2306.14048); H2O utils_real_drop; doc/methods.md 3, deviations 3.7",
    .params = params,
    .family = &attn_evict,
    .kind = &h2o_kind,
    .has_budget = true,
    .def_budget = 256,
    .parse = h2o_parse,
    .check = evict_check,
    .hooks = {.observe = evict_add_weights},
};
