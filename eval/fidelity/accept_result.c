/* SPDX-License-Identifier: MIT */
/* `eval accept`: the sessions and the results of a strategy. */
#include "config.h"

#include "eval/fidelity/accept.h"

int64_t accept_limit(const accept_run *r, int64_t ctx)
{
    return ctx + r->o->n + ACCEPT_AHEAD;
}

status accept_pair_of(accept_pair *out, const attn_spec *row, int64_t n_tokens, err *e)
{
    const attn_options o = {.kv = row->kv, .tier = &row->tier};
    *out = (accept_pair){.draft = *row, .size = session_of(n_tokens)};
    TRY(attn_spec_parse(&out->full, "full", &o, e));
    TRY(attn_verify_check(&out->full, e));
    if (row->method == out->full.method) return ST_OK;
    out->draft.tier = (kv_tier){0}; /* its rows are the other's */
    out->size.draft = &out->draft;
    return ST_OK;
}

json_t *accept_identity(const accept_run *r, const accept_case *x)
{
    const attn_spec *spec = &r->f.rows.run[x->row].spec;
    return json_pack("{s:s, s:o, s:I, s:i, s:f}", "attn", spec->text, "budget", lineup_budget_json(spec), "ctx",
                     (json_int_t)x->ctx, "trial", x->trial, "temp", x->temp);
}

const json_t *accept_result(const accept_run *r, const accept_case *x)
{
    return fidelity_result(&r->f, accept_identity(r, x));
}
