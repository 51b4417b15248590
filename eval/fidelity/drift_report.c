/* SPDX-License-Identifier: MIT */
/* `eval drift`: a table for each strategy, its end against its start, and --json. */
#include "config.h"

#include <math.h>

#include "eval/fidelity/drift.h"

/* The columns; values are divided by `unit`. */
static const struct {
    const char *title, *keys[2]; /* sums of two members, or one */
    double unit;
    int decimals;
} columns[] = {{"tokens/s", {"tokens_per_s"}, 1, 1},
               {"KV MB", {"kv_bytes"}, 1e6, 3},
               {"index MB", {"index_bytes"}, 1e6, 3},
               {"read MB", {"kv_read", "index_read"}, 1e6, 3},
               {"attended", {"attended"}, 1, 1},
               {"recall", {"recall"}, 1, 4},
               {"mass", {"mass"}, 1, 4},
               {"newest", {"newest"}, 1, 1},
               {"KL", {"kl"}, 1, 4},
               {"top 1", {"top1"}, 1, 4}};

enum { COLUMNS = sizeof columns / sizeof *columns };

/* NAN: not known, or nothing is measured. */
static double value_of(const json_t *line, int column)
{
    double sum = 0;
    for (int i = 0; i < 2 && columns[column].keys[i]; i++) sum += results_number(line, columns[column].keys[i]);
    return sum / columns[column].unit;
}

/* The last interval in which it is known over the first one. */
static double ratio_of(const drift_run *r, size_t row, int column)
{
    double start = (double)NAN, end = (double)NAN;
    for (int64_t k = r->every; k <= r->n; k += r->every) {
        double x = value_of(drift_result(r, row, k), column);
        if (isnan(start)) start = x;
        if (!isnan(x)) end = x;
    }
    return start > 0 ? end / start : (double)NAN;
}

status drift_print_row(const void *own, size_t row, err *e)
{
    const drift_run *r = own;
    const attn_spec *spec = &r->f.rows.run[row].spec;
    char budget[24];
    lineup_budget_text(budget, sizeof budget, spec);
    TRY(out_printf(e, "%s, budget %s\n%11s", spec->text, budget, "new tokens"));
    for (int c = 0; c < COLUMNS; c++) TRY(out_printf(e, " %9s", columns[c].title));
    for (int64_t k = r->every; k <= r->n; k += r->every) {
        const json_t *line = drift_result(r, row, k);
        TRY(out_printf(e, "\n%11lld", (long long)k));
        for (int c = 0; c < COLUMNS; c++) TRY(fidelity_print_number(value_of(line, c), 9, columns[c].decimals, e));
    }
    TRY(out_printf(e, "\n%11s", "end / start"));
    for (int c = 0; c < COLUMNS; c++) TRY(fidelity_print_number(ratio_of(r, row, c), 9, 3, e));
    TRY(out_printf(e, "\n\n"));
    return out_flush(e);
}

/* ---- JSON ---- */

/* A row with all its intervals, or why there are none. */
json_t *drift_row_json(const void *own, size_t row, size_t i)
{
    const drift_run *r = own;
    const attn_spec *spec = &r->f.rows.run[row].spec;
    const err *why = &r->f.rows.why[row];
    json_t *intervals = json_array(), *ratios = json_object();
    int bad = 0;
    (void)i;
    for (int64_t k = r->every; k <= r->n; k += r->every) {
        const json_t *line = drift_result(r, row, k);
        if (line) bad |= json_array_append(intervals, (json_t *)(uintptr_t)line);
    }
    for (int c = 0; c < COLUMNS; c++)
        bad |= json_object_set_new(ratios, columns[c].title, results_real(ratio_of(r, row, c)));
    json_t *o = json_pack("{s:o, s:o, s:s?}", "intervals", intervals, "end_over_start", ratios, "reason",
                          why->code == ST_OK ? NULL : why->msg);
    return fidelity_json(results_merge(lineup_row_json(spec), o), bad);
}

json_t *drift_options_json(const void *own)
{
    const drift_run *r = own;
    const cli *c = r->f.c;
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:i, s:f, s:f, s:I}", "attn", c->attn ? c->attn : "all", "n",
                     (json_int_t)r->n, "prompt", (json_int_t)r->n_prompt, "every", (json_int_t)r->every, "compare",
                     (json_int_t)r->compare, "judged", r->o->judged, "temp", c->temp, "top_p", c->top_p, "seed",
                     (json_int_t)c->seed);
}
