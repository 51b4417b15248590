/* SPDX-License-Identifier: MIT */
/* Oracle: the best tokens by exact scores, an upper bound for every index of tokens. doc/methods.md 7a. */
#include "config.h"

#include <stddef.h>

#include "attention/retrieve.h"

enum { P_SINK, P_RECENT, P_GQA, P_FRACTION, P_MIN, P_TAIL, P_TAIL_SEED };

static const attn_param params[] = {
    [P_SINK] = {RETRIEVE_SINK_PARAM},  [P_RECENT] = {RETRIEVE_RECENT_PARAM},
    [P_GQA] = {RETRIEVE_GQA_PARAM},    [P_FRACTION] = {RETRIEVE_P_PARAM},
    [P_MIN] = {RETRIEVE_MIN_PARAM},    [P_TAIL] = {RETRIEVE_TAIL_PARAM},
    [P_TAIL_SEED] = {TAIL_SEED_PARAM}, {.key = NULL},
};

/* The index is the store's keys, as pages of one token whose mean is the key. */
typedef struct {
    retrieve r;
    quest_index *index;
} oracle_ctx;

static int64_t forced(const attn_spec *s)
{
    return s->value[P_SINK] + max64(s->value[P_RECENT], 1);
}

static status oracle_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    char store[64];
    (void)shape;
    kv_format_text(&s->kv, store, sizeof store);
    if (kv_has_codes(&s->kv) || kv_in_blocks(&s->kv))
        return err_set(e, ST_USAGE, "%s: store %s is quantized; exact scores require f32, f16 or bf16", s->text, store);
    if (s->budget < forced(s))
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least %lld (forced tokens and the current one)",
                       s->text, (long long)s->budget, (long long)forced(s));
    return retrieve_check(s, e);
}

static retrieve_range oracle_range(const attn_spec *s, const retrieve_options *o, int64_t first, int64_t n)
{
    return retrieve_items(o, first, n, n - 1, s->budget);
}

static void oracle_declare(attn_decl *d)
{
    decl_bytes(d, MEM_HOST, offsetof(oracle_ctx, index), "keys", (size_t)d->shape->n_layers * sizeof(quest_index));
}

static void oracle_reset(attn_view *v)
{
    oracle_ctx *c = v->own;
    retrieve_reset(v);
    for (int l = 0; l < v->shape->n_layers; l++) {
        if (!v->layers[l]) continue;
        const kv_rows *rows = kv_store_rows(v->store, l);
        c->index[l] = (quest_index){.bound = rows->k,
                                    .type = rows->type,
                                    .n_kv_heads = rows->n_kv_heads,
                                    .head_dim = rows->head_dim,
                                    .cap = rows->cap,
                                    .page = 1,
                                    .how = QUEST_MEAN};
    }
}

const attn_method attn_oracle = {
    .name = "oracle",
    .summary = "best tokens by exact scores (reads all keys; a reference)",
    .source = "Twilight (arXiv 2502.02770) and others, as a reference; doc/methods.md 7a, deviations 7a",
    .params = params,
    .family = &attn_retrieve,
    .kind = &(const retrieve_kind){.stored = true,
                                   .range = oracle_range,
                                   .ops = offsetof(backend_ops, quest),
                                   .index = offsetof(oracle_ctx, index),
                                   .index_size = sizeof(quest_index)},
    .size = sizeof(oracle_ctx),
    .uses = USES(quest),
    .has_budget = true,
    .def_budget = 256,
    .def_skip = 2,
    .reuse = ATTN_REUSE_ANY,
    .reuse_budget = "",
    .check = oracle_check,
    .hooks = {.declare = oracle_declare, .reset = oracle_reset},
};
