/* SPDX-License-Identifier: MIT */
/* The best tokens by the codes of their keys in the store: no index beside it. doc/methods.md 7d.
 *
 * In a store of blocks (q8, q4) every row is in codes, and all but the current one are candidates. In the others the
 * newest rows, which are not in codes yet, are always attended. Exact rows among the codes (sink_fp of a store, the
 * list of logquant) are candidates with exact scores. */
#include "config.h"

#include <stddef.h>

#include "attention/retrieve.h"
#include "kernels/ops_coded.h"

enum { P_SINK, P_RECENT, P_GQA, P_SHARE, P_MIN, P_CERTIFY };

static const attn_param params[] = {
    [P_SINK] = {RETRIEVE_SINK_PARAM},
    [P_RECENT] = {"force_recent", NULL,
                  "newest tokens that are always attended, where fewer are exact (the current one always is)", 0, 0,
                  1 << 20},
    [P_GQA] = {RETRIEVE_GQA_PARAM},
    [P_SHARE] = {RETRIEVE_P_PARAM},
    [P_MIN] = {RETRIEVE_MIN_PARAM},
    [P_CERTIFY] = {CERTIFY_PARAM},
    {.key = NULL},
};

typedef struct {
    retrieve r;
    coded_index *index;
} codes_ctx;

/* Most forced tokens at the end: the exact ones, or the recent ones, the current one among them. */
static int64_t most_recent(const attn_spec *s)
{
    return max64(max64(kv_exact_newest(&s->kv), s->value[P_RECENT]), 1);
}

static status codes_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    char store[64];
    int64_t least = s->value[P_SINK] + most_recent(s) + 1;
    (void)shape;
    kv_format_text(&s->kv, store, sizeof store);
    if (!kv_has_codes(&s->kv) && !kv_in_blocks(&s->kv))
        return err_set(e, ST_USAGE,
                       "%s: store %s has no codes that could be scored, expected one that has, as kivi4 or q8", s->text,
                       store);
    if (s->budget < least)
        return err_set(e, ST_USAGE,
                       "%s: budget %lld is too small, at least %lld: the newest %lld tokens, which are forced or which "
                       "store %s keeps exact (r), are always attended",
                       s->text, (long long)s->budget, (long long)least, (long long)most_recent(s), store);
    return retrieve_check(s, e);
}

/* With a certificate a list ends where it holds: the budget bounds it only where the strategy says so itself. */
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

/* With as many exact rows as there may be. */
static retrieve_range codes_range(const attn_spec *s, const retrieve_options *o, int64_t first, int64_t n)
{
    return retrieve_items(o, first, n, min64(max64(n - kv_exact_newest(&s->kv), 0), n - 1), s->budget);
}

static void codes_begin(attn_view *v, const attn_part *p)
{
    retrieve *r = retrieve_of(v);
    int64_t n = v->length + (int64_t)p->n_tok, tail = max64(n - kv_exact_newest(&v->spec->kv), 0);
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
    .summary = "the best tokens by the store's codes of their keys",
    .source = "scores over KIVI's codes (arXiv 2402.02750); near it Self-Indexing KVCache (2603.14224); doc/methods.md "
              "7d, deviations 7d.7",
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
