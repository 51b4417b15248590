/* SPDX-License-Identifier: MIT */
/* Selects the best tokens by their quantized keys in the store, without an index. doc/methods.md 7d.
 *
 * In block stores (q8, q4) all rows but the current one are candidates. In quantized stores the newest rows, which are
 * not yet quantized, are always attended. Float rows among quantized rows (sink_fp of a store, the list of logquant)
 * are candidates with exact scores. */
#include "config.h"

#include <stddef.h>

#include "attention/retrieve.h"
#include "kernels/ops_coded.h"

enum { P_SINK, P_RECENT, P_GQA, P_FRACTION, P_MIN, P_CERTIFY };

static const attn_param params[] = {
    [P_SINK] = {RETRIEVE_SINK_PARAM},
    [P_RECENT] = {"force_recent", NULL,
                  "newest tokens, always attended; at least the current one and those the store keeps unquantized", 0,
                  0, 1 << 20},
    [P_GQA] = {RETRIEVE_GQA_PARAM},
    [P_FRACTION] = {RETRIEVE_P_PARAM},
    [P_MIN] = {RETRIEVE_MIN_PARAM},
    [P_CERTIFY] = {CERTIFY_PARAM},
    {.key = NULL},
};

typedef struct {
    retrieve r;
    coded_index *index;
} codes_ctx;

/* Returns the most forced tokens at the end: float rows or recent tokens, including the current one. */
static int64_t most_recent(const attn_spec *s)
{
    return max64(max64(kv_float_newest(&s->kv), s->value[P_RECENT]), 1);
}

static status codes_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    char store[64];
    int64_t least = s->value[P_SINK] + most_recent(s) + 1;
    (void)shape;
    kv_format_text(&s->kv, store, sizeof store);
    if (!kv_has_codes(&s->kv) && !kv_in_blocks(&s->kv))
        return err_set(e, ST_USAGE, "%s: store %s is not quantized; use a quantized store such as kivi4 or q8", s->text,
                       store);
    if (s->budget < least)
        return err_set(e, ST_USAGE,
                       "%s: budget %lld is too small, at least %lld: the newest %lld tokens are always attended "
                       "(forced, or unquantized in store %s)",
                       s->text, (long long)s->budget, (long long)least, (long long)most_recent(s), store);
    return retrieve_check(s, e);
}

/* With certify a list ends once it is certified. Only a budget in the strategy's own text limits it. */
static status codes_parse(attn_spec *s, err *e)
{
    (void)e;
    if (s->value[P_CERTIFY] && !s->own_budget) s->budget = ATTN_NO_BUDGET;
    return ST_OK;
}

static void codes_regions(const attn_spec *s, attn_regions *r)
{
    r->newest = most_recent(s);
}

/* Assumes the most float rows; codes_begin uses the current ones. */
static retrieve_range codes_range(const attn_spec *s, const retrieve_options *o, int64_t first, int64_t n)
{
    return retrieve_items(o, first, n, min64(max64(n - kv_float_newest(&s->kv), 0), n - 1), s->budget);
}

static void codes_begin(attn_view *v, const attn_part *p)
{
    retrieve *r = retrieve_of(v);
    int64_t n = v->length + (int64_t)p->n_tok, tail = max64(n - kv_float_newest(&v->spec->kv), 0);
    retrieve_begin(v, p);
    while (tail < n - 1 && kv_store_coded_in(v->store, tail, tail + 1)) tail++;
    for (int l = 0; l < v->shape->n_layers; l++)
        r->range[l] = retrieve_items(&r->o, n - attn_visible(v->shape, l, n), n, min64(tail, n - 1), v->spec->budget);
}

static void codes_declare(attn_decl *d)
{
    decl_bytes(d, MEM_HOST, offsetof(codes_ctx, index), "keys", (size_t)d->shape->n_layers * sizeof(coded_index));
}

static void codes_reset(attn_view *v)
{
    codes_ctx *c = v->own;
    retrieve_reset(v);
    for (int l = 0; l < v->shape->n_layers; l++) c->index[l].rows = kv_store_rows(v->store, l);
}

const attn_method attn_codes = {
    .name = "codes",
    .summary = "best tokens by their quantized keys in the store",
    .source = "scores over KIVI's codes (arXiv 2402.02750); related: Self-Indexing KVCache (2603.14224); "
              "doc/methods.md 7d, deviations 7d.7",
    .params = params,
    .family = &attn_retrieve,
    .kind = &(const retrieve_kind){.stored = true,
                                   .range = codes_range,
                                   .ops = offsetof(backend_ops, coded),
                                   .index = offsetof(codes_ctx, index),
                                   .index_size = sizeof(coded_index)},
    .size = sizeof(codes_ctx),
    .uses = USES(coded),
    .has_budget = true,
    .def_budget = 256,
    .def_skip = 2,
    .parse = codes_parse,
    .check = codes_check,
    .regions = codes_regions,
    .hooks = {.declare = codes_declare, .reset = codes_reset, .begin = codes_begin},
};
