/* SPDX-License-Identifier: MIT */
/* TOVA: after each step the token goes that the latest query attended least. methods.md section 5.
 *
 * Nothing is protected, not even the new token, unless protect_last asks for it (kvpress does so). */
#include "config.h"

#include "attention/evict.h"

enum { P_GQA, P_LAST, P_PREFILL };

static const attn_param params[] = {
    [P_GQA] = EVICT_GQA_PARAM(GQA_LAYER_MEAN),
    [P_LAST] = {"protect_last", NULL, "1: the newest token stays (kvpress)", 0, 0, 1},
    [P_PREFILL] = EVICT_PREFILL_PARAM,
    {.key = NULL},
};

static evict_rule rule_of(const attn_spec *s)
{
    gqa_mode gqa = (gqa_mode)s->value[P_GQA];
    return (evict_rule){.lists = evict_lists_of(gqa),
                        .how = evict_combine_of(gqa),
                        .recent = s->value[P_LAST],
                        .each_chunk = s->value[P_PREFILL] == 1};
}

static status tova_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    (void)shape;
    return evict_check_gqa(s, (gqa_mode)s->value[P_GQA], e);
}

static status tova_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                        const attn_limits *lim, const bool *layers, err *e)
{
    evict_rule rule = rule_of(s);
    return evict_plan(out, s, shape, lim, layers, &rule, e);
}

static status tova_create(attn_ctx **out, const attn_ctx *base, err *e)
{
    evict_rule rule = rule_of(base->spec);
    return evict_create(out, base, &rule, e);
}

static bool tova_observes(const attn_ctx *base, const attn_part *p, int layer)
{
    (void)p;
    (void)layer;
    return ((const evict_ctx *)base)->due;
}

/* The last query's row. */
static void tova_observe(attn_ctx *base, const attn_part *p, int layer, buf q, buf lse)
{
    evict_ctx *c = evict_of(base);
    size_t last = p->n_tok - 1, heads = (size_t)base->shape->n_heads * sizeof(float);
    attn_job j =
        evict_job(c, layer, c->listed, 1, buf_at(q, last * heads * (size_t)base->shape->head_dim),
                  buf_at(lse, last * heads), buf_at(p->pos, last * sizeof(int64_t)));
    base->be->ops->evict->colsum(base->be, &j, c->n_lists, c->rule.how, false, c->score, c->stride);
    evict_add_ranks(c, c->score);
}

const attn_method attn_tova = {
    .name = "tova",
    .summary = "TOVA: drop what the latest query attends least",
    .source = "Oren et al. 2024 (arXiv 2401.06104); TOVA tova_cache.py; methods.md section 5",
    .params = params,
    .uses = USES_EVICT,
    .has_budget = true,
    .def_budget = 256,
    .check = tova_check,
    .plan = tova_plan,
    .create = tova_create,
    .free = evict_free,
    .step_begin = evict_step_begin,
    .observes = tova_observes,
    .observe = tova_observe,
    .held = evict_held,
    .held_most = evict_held_most,
    EVICT_HOOKS,
};
