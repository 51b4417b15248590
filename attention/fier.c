/* SPDX-License-Identifier: MIT */
/* FIER: all tokens ranked by one-bit keys. doc/methods.md section 7. */
#include "config.h"

#include <stddef.h>

#include "attention/bits.h"
#include "attention/retrieve.h"

enum {
    P_G,
    P_SCORE,
    P_SINK,
    P_RECENT,
    P_GQA,
    P_FRACTION,
    P_MIN,
    P_CALIBRATE,
    P_COARSE,
    P_COARSE_KEEP,
    P_TAIL,
    P_TAIL_SEED
};

static const attn_param params[] = {
    [P_G] = {"g", NULL, "tokens per group of a channel that share two levels", 32, 1, 1 << 16},
    [P_SCORE] = {"score", "float int8",
                 "arithmetic: float32, or int8 queries and 7-bit levels (faster, nearly the same ranking)", FIER_FLOAT,
                 0, 1},
    [P_SINK] = {RETRIEVE_SINK_PARAM},
    [P_RECENT] = {RETRIEVE_RECENT_PARAM},
    [P_GQA] = {RETRIEVE_GQA_PARAM},
    [P_FRACTION] = {RETRIEVE_P_PARAM},
    [P_MIN] = {RETRIEVE_MIN_PARAM},
    [P_CALIBRATE] = {RETRIEVE_CALIBRATE_PARAM},
    [P_COARSE] = {COARSE_PARAM},
    [P_COARSE_KEEP] = {COARSE_KEEP_PARAM},
    [P_TAIL] = {RETRIEVE_TAIL_PARAM},
    [P_TAIL_SEED] = {TAIL_SEED_PARAM},
    {.key = NULL},
};

typedef struct {
    retrieve r;
    key_bits bits;
} fier_ctx;

/* Returns the forced tokens at the end: recent tokens, at least the current one. */
static int64_t most_recent(const attn_spec *s)
{
    return max64(s->value[P_RECENT], 1);
}

static status fier_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    (void)shape;
    int64_t least = s->value[P_SINK] + most_recent(s);
    if (s->budget < least)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least %lld (forced tokens and the current one)",
                       s->text, (long long)s->budget, (long long)least);
    return retrieve_check(s, e);
}

static void fier_regions(const attn_spec *s, attn_regions *r)
{
    r->newest = most_recent(s);
}

static retrieve_range fier_range(const attn_spec *s, const retrieve_options *o, int64_t first, int64_t n)
{
    retrieve_range r = retrieve_items(o, first, n, n - 1, s->budget);
    r.redo = n / s->value[P_G] * s->value[P_G];
    return r;
}

static void fier_declare(attn_decl *d)
{
    bits_declare(d, offsetof(fier_ctx, bits), d->spec->value[P_G]);
}

static void fier_reset(attn_view *v)
{
    fier_ctx *c = v->own;
    retrieve_reset(v);
    bits_reset(&c->bits, v, attn_get(v, P_G));
    for (int l = 0; l < v->shape->n_layers; l++) c->bits.index[l].products = (fier_products)attn_get(v, P_SCORE);
}

const attn_method attn_fier = {
    .name = "fier",
    .summary = "FIER: tokens by one-bit keys",
    .source = "FIER v2 (EMNLP 2025), section 3.3 and Alg. 1; no public code; doc/methods.md 7, deviations 7.7",
    .params = params,
    .family = &attn_retrieve,
    .kind = &(const retrieve_kind){.votes = true,
                                   .range = fier_range,
                                   .ops = offsetof(backend_ops, fier),
                                   .index = offsetof(fier_ctx, bits.index),
                                   .index_size = sizeof(fier_index)},
    .size = sizeof(fier_ctx),
    .uses = USES(fier),
    .has_budget = true,
    .def_budget = 256,
    .def_skip = 2,
    .reuse = ATTN_REUSE_ANY,
    .reuse_budget = "coarse",
    .check = fier_check,
    .regions = fier_regions,
    .hooks = {.declare = fier_declare, .reset = fier_reset},
};
