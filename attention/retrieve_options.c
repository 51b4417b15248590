/* SPDX-License-Identifier: MIT */
/* The options of methods that retrieve: read by their keys, once, when a sequence is planned or created. */
#include "config.h"

#include "attention/retrieve.h"

const retrieve_kind *retrieve_kind_of(const attn_spec *s)
{
    const retrieve_kind *k = s->method->kind;
    return k->of ? k->of(s) : k;
}

retrieve_options retrieve_options_of(const attn_spec *s)
{
    const retrieve_kind *k = retrieve_kind_of(s);
    int64_t granule = k->granule ? attn_value(s, k->granule, 1) : 1;
    return (retrieve_options){.granule = granule,
                              .sink = attn_value(s, "force_sink", 0),
                              .recent = attn_value(s, "force_recent", 0),
                              .gqa = attn_gqa(s),
                              .p = (float)attn_value(s, "p", 0) / ATTN_FRACTION,
                              .least = attn_value(s, "min", 0),
                              .draws = attn_value(s, "calibrate", 0),
                              .sample = attn_value(s, "tail", 0),
                              .seed = attn_value(s, "tail_seed", 0),
                              .eps = certify_eps(attn_value(s, "certify", 0)),
                              .coarse = coarse_rule_of(s, granule)};
}

static status check_draws(const attn_spec *s, const retrieve_options *o, err *e)
{
    char store[64];
    if (!o->draws) return ST_OK;
    kv_format_text(&s->kv, store, sizeof store);
    if (o->p == 0) return err_set(e, ST_USAGE, "%s: calibrate says how p is meant, and there is no p", s->text);
    if (o->coarse.tokens)
        return err_set(e, ST_USAGE, "%s: calibrate needs scores of all tokens, and coarse leaves some out", s->text);
    if (o->draws == 1) return err_set(e, ST_USAGE, "%s: calibrate=1: one token has no slope, at least 2", s->text);
    if (kv_has_codes(&s->kv) || kv_in_blocks(&s->kv))
        return err_set(e, ST_USAGE, "%s: calibrate over store %s: exact keys are expected, f32, f16 or bf16", s->text,
                       store);
    if (s->tier.kind != KV_DEVICE)
        return err_set(e, ST_USAGE, "%s: calibrate reads some keys of each step, which --kv-tier %s has elsewhere",
                       s->text, kv_tier_name(s->tier.kind));
    return ST_OK;
}

status retrieve_check(const attn_spec *s, err *e)
{
    const retrieve_options o = retrieve_options_of(s);
    TRY(check_draws(s, &o, e));
    TRY(certify_check(s, o.eps, o.gqa, o.p > 0, e));
    if ((o.p > 0 || o.eps > 0) && o.least > s->budget)
        return err_set(e, ST_USAGE, "%s: min %lld, expected at most the budget, %lld", s->text, (long long)o.least,
                       (long long)s->budget);
    return ST_OK;
}
