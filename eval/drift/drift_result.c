/* SPDX-License-Identifier: MIT */
/* `eval drift`: the results of intervals. */
#include "config.h"

#include "eval/drift/drift.h"

json_t *drift_identity(const drift_run *r, size_t row, int64_t generated)
{
    const attn_spec *spec = &r->f.rows.run[row].spec;
    return json_pack("{s:s, s:o, s:I}", "attn", spec->text, "budget", lineup_budget_json(spec), "generated",
                     (json_int_t)generated);
}

const json_t *drift_result(const drift_run *r, size_t row, int64_t generated)
{
    return fidelity_result(&r->f, drift_identity(r, row, generated));
}
