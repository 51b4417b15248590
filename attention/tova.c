/* SPDX-License-Identifier: MIT */
/* TOVA: each step drops the token that the latest query attended least. doc/methods.md section 5.
 *
 * No token is protected, not even the new one. */
#include "config.h"

#include "attention/evict.h"

enum { P_GQA, P_PREFILL, P_DEMOTE, P_DEMOTE_G, P_RECALL };

static const attn_param params[] = {
    [P_GQA] = {EVICT_GQA_PARAM(GQA_LAYER_MEAN)},
    [P_PREFILL] = {EVICT_PREFILL_PARAM},
    [P_DEMOTE] = {DEMOTE_PARAM},
    [P_DEMOTE_G] = {DEMOTE_G_PARAM},
    [P_RECALL] = {RECALL_PARAM},
    {.key = NULL},
};

static void tova_rule(const attn_spec *s, evict_rule *r)
{
    r->each_chunk = s->value[P_PREFILL] == 1;
}

/* Scores the entries by the weights of the last query. */
static void tova_observe(attn_view *v, const attn_part *p, int layer, buf q, buf lse)
{
    const evict_ctx *c = v->own;
    size_t last = p->n_tok - 1, heads = (size_t)v->shape->n_heads * sizeof(float);
    attn_job j = evict_job(v, layer, v->listed, 1, buf_at(q, last * heads * (size_t)v->shape->head_dim),
                           buf_at(lse, last * heads), buf_at(p->pos, last * sizeof(int64_t)));
    v->be->ops->evict->colsum(v->be, &j, c->n_lists, c->rule.how, false, c->score, c->stride);
    evict_add_ranks(v, c->score);
}

static const evict_kind tova_kind = {.rule = tova_rule};

const attn_method attn_tova = {
    .name = "tova",
    .summary = "TOVA: drop the token that the latest query attends least",
    .source = "Oren et al. 2024 (arXiv 2401.06104); TOVA tova_cache.py; doc/methods.md 5, deviations 5.7",
    .params = params,
    .family = &attn_evict,
    .kind = &tova_kind,
    .has_budget = true,
    .def_budget = 256,
    .check = evict_check,
    .hooks = {.observe = tova_observe},
};
