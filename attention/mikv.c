/* SPDX-License-Identifier: MIT */
/* MiKV: drops no tokens. Tokens with the most attention, by H2O's sums, keep float rows. The others are quantized, with
 * keys balanced by channel. doc/methods.md section 14b. */
#include "config.h"

#include <stddef.h>

#include "attention/evict.h"

enum { P_RATIO, P_BUDGET, P_BITS, P_BALANCE, P_GQA };

static const attn_param params[] = {
    [P_RATIO] = {"ratio", NULL, "unquantized tokens per list, in % of all tokens so far; half of them are the newest",
                 20, 0, 100},
    [P_BUDGET] = {"budget", NULL, "number of unquantized tokens per list; 0: use ratio", 0, 0, 1 << 30},
    [P_BITS] = {"bits", "2 4 16", "bits per number of the other tokens; 16: f16, as a reference", 0, 0, 2},
    [P_BALANCE] = {"balance", NULL, "1: scale key channels to the prompt's queries before quantization", 1, 0, 1},
    [P_GQA] = {EVICT_GQA_PARAM(GQA_MEAN_S)},
    {.key = NULL},
};

typedef struct {
    evict_ctx e;
    buf *most_q, *most_k; /* [n_layers] f32 [n_kv_heads][head_dim] largest |x| in the first prompt; NULL: no balance */
    float *zeros;
} mikv_ctx;

static status mikv_parse(attn_spec *s, err *e)
{
    (void)e;
    s->budget = s->value[P_BUDGET];
    return ST_OK;
}

static bool balances(const attn_spec *s)
{
    return s->value[P_BALANCE] && s->value[P_BITS] < 2;
}

static status mikv_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (attn_gqa(s) == GQA_PER_Q)
        return err_set(e, ST_USAGE, "%s: gqa=per_q: keys are balanced by KV head; use mean_s", s->text);
    return evict_check(s, shape, e);
}

static int64_t mikv_keeps(const attn_spec *s, int64_t n)
{
    return s->budget > 0 ? s->budget : n * s->value[P_RATIO] / 100;
}

static void mikv_rule(const attn_spec *s, evict_rule *r)
{
    static const int how[] = {DEMOTE_TOKEN2, DEMOTE_TOKEN4, DEMOTE_F16};
    r->sums = true;
    r->low = (demote_rule){.how = how[s->value[P_BITS]], .recall = ATTN_ALL, .group = 1};
}

#define AT(member) offsetof(mikv_ctx, member)

static size_t channels(const attn_shape *sh)
{
    return (size_t)sh->n_kv_heads * (size_t)sh->head_dim;
}

static void mikv_declare(attn_decl *d)
{
    size_t bytes = channels(d->shape) * sizeof(float);
    if (!balances(d->spec)) return;
    decl_layers(d, MEM_INDEX, AT(e.low.factor), "channel factors", bytes);
    decl_layers(d, MEM_SCRATCH, AT(most_q), "channel maxima", bytes);
    decl_layers(d, MEM_SCRATCH, AT(most_k), "channel maxima", bytes);
    decl_bytes(d, MEM_HOST, AT(zeros), "channel maxima", bytes);
}

/* Computes the channel factors from the maxima. Channels without data have the factor 1. */
static void balance(const attn_view *v, int layer)
{
    const mikv_ctx *c = v->own;
    v->be->ops->codes->balance(v->be, c->e.low.factor[layer], c->most_q[layer], c->most_k[layer], channels(v->shape));
}

static void mikv_reset(attn_view *v)
{
    mikv_ctx *c = v->own;
    size_t bytes = channels(v->shape) * sizeof(float);
    evict_reset(v);
    for (int l = 0; l < v->shape->n_layers && c->most_q; l++) {
        if (!v->layers[l]) continue;
        v->be->ops->upload(v->be, c->most_q[l], c->zeros, bytes);
        v->be->ops->upload(v->be, c->most_k[l], c->zeros, bytes);
        balance(v, l);
    }
}

/* True if this forward updates the maxima: in the first prompt, before anything is quantized. */
static bool learns(const attn_view *v, const attn_part *p)
{
    const mikv_ctx *c = v->own;
    return c->most_q && (p->flags & ATTN_PROMPT) && c->e.prompts == 0 && v->stored == v->length;
}

/* Updates the largest |x| of each channel of a KV head, over its n_heads / n_kv_heads heads. */
static void see(const attn_view *v, buf most, buf x, size_t n_tok, int n_heads)
{
    v->be->ops->codes->column_max(v->be, most, x, n_tok, (size_t)n_heads, (size_t)v->shape->n_kv_heads,
                                  (size_t)v->shape->head_dim);
}

static void mikv_append(const attn_task *t, size_t n, int layer)
{
    for (size_t i = 0; i < n; i++) {
        const mikv_ctx *c = t[i].v->own;
        if (learns(t[i].v, &t[i].p)) see(t[i].v, c->most_k[layer], t[i].k, t[i].p.n_tok, t[i].v->shape->n_kv_heads);
    }
    evict_append(t, n, layer);
}

static void mikv_observe(attn_view *v, const attn_part *p, int layer, buf q, buf lse)
{
    const mikv_ctx *c = v->own;
    if (learns(v, p)) see(v, c->most_q[layer], q, p->n_tok, v->shape->n_heads);
    evict_add_weights(v, p, layer, q, lse);
}

static void mikv_layer_end(attn_view *v, const attn_part *p, int layer)
{
    if (learns(v, p) && (p->flags & ATTN_PROMPT_END)) balance(v, layer);
    evict_layer_end(v, p, layer);
}

static const evict_kind mikv_kind = {.rule = mikv_rule, .keeps = mikv_keeps};

const attn_method attn_mikv = {
    .name = "mikv",
    .summary = "MiKV: importance decides the precision of a token",
    .source = "Yang et al. 2024 (arXiv 2402.18096); no official code; doc/methods.md 14b, deviations 14b",
    .params = params,
    .family = &attn_evict,
    .kind = &mikv_kind,
    .size = sizeof(mikv_ctx),
    .uses = USES(codes),
    .parse = mikv_parse,
    .check = mikv_check,
    .hooks = {.declare = mikv_declare,
              .reset = mikv_reset,
              .append = mikv_append,
              .observe = mikv_observe,
              .layer_end = mikv_layer_end},
};
