/* SPDX-License-Identifier: MIT */
/* `eval accept`: a line for each strategy, length and temperature, and --json. */
#include "config.h"

#include <math.h>

#include "eval/fidelity/accept.h"
#include "eval/stats.h"

enum { REPORTED = 4 }; /* accepted_length is of so many drafted tokens */

/* The drafts whose accepted length has a column. */
static const size_t drafted[] = {1, 2, REPORTED, ACCEPT_AHEAD};
enum { LENGTHS = sizeof drafted / sizeof *drafted };

/* ---- sums ---- */

static void add(accept_sums *s, const json_t *line)
{
    const json_t *right = json_object_get(line, "right");
    s->n += (int64_t)results_number(line, "n");
    s->tokens += (int64_t)results_number(line, "tokens");
    s->differences += (int64_t)results_number(line, "differences");
    for (size_t i = 0; i < ACCEPT_AHEAD; i++) s->right[i] += json_integer_value(json_array_get(right, i));
}

/* Of a row at a temperature: of one length, or (n_ctx) of all. */
static accept_sums sums_of(const accept_run *r, size_t row, double temp, size_t length)
{
    accept_sums s = {0};
    for (size_t i = 0; i < r->n_ctx; i++)
        for (int t = 0; t < r->o->trials && (length == r->n_ctx || length == i); t++) {
            const json_t *line =
                accept_result(r, &(accept_case){.row = row, .ctx = r->ctx[i], .trial = t, .temp = temp});
            if (line) add(&s, line);
        }
    return s;
}

/* What follows from them; NAN: unknown. */
typedef struct {
    double hazard[ACCEPT_AHEAD]; /* the chance of a token whose predecessors were all right */
    double low, high;            /* 95 % interval of the first */
    double run;                  /* tokens from one difference to the next */
} figures;

static double share(int64_t part, int64_t all)
{
    return all > 0 ? (double)part / (double)all : (double)NAN;
}

static figures figures_of(const accept_sums *s)
{
    figures f;
    for (size_t i = 0; i < ACCEPT_AHEAD; i++) f.hazard[i] = share(s->right[i], i > 0 ? s->right[i - 1] : s->n);
    stats_wilson((double)s->right[0], s->n, &f.low, &f.high);
    f.run = share(s->tokens, s->differences);
    return f;
}

static double length_of(const accept_sums *s, const figures *f, size_t n)
{
    return s->n > 0 ? stats_accepted_length(f->hazard, n) : (double)NAN;
}

/* ---- the table ---- */

status accept_print_head(const void *own, err *e)
{
    const accept_run *r = own;
    TRY(out_printf(e,
                   "accept: drafts of %d tokens from %d places of each of %d pieces, against full attention over the "
                   "same rows, seed %llu",
                   (int)ACCEPT_AHEAD, r->o->n, r->o->trials, (unsigned long long)r->f.c->seed));
    TRY(lineup_print_terms(&r->f.rows, r->f.c, e));
    TRY(out_printf(e, "%-*s %7s %7s %5s %6s %9s %-15s %6s %7s", lineup_width(&r->f.rows), "strategy", "budget",
                   "tokens", "temp", "n", "agreement", " 95 %", "h8", "run"));
    for (size_t i = 0; i < LENGTHS; i++) TRY(out_printf(e, "   E(%zu)", drafted[i]));
    TRY(out_printf(e, "\n"));
    return out_flush(e);
}

static status print_line(const accept_run *r, size_t row, double temp, size_t length, err *e)
{
    const attn_spec *spec = &r->f.rows.run[row].spec;
    accept_sums s = sums_of(r, row, temp, length);
    figures f = figures_of(&s);
    char budget[24], tokens[24] = "all";
    lineup_budget_text(budget, sizeof budget, spec);
    if (length < r->n_ctx) snprintf(tokens, sizeof tokens, "%lld", (long long)r->ctx[length]);
    TRY(out_printf(e, "%-*s %7s %7s %5.3g %6lld", lineup_width(&r->f.rows), spec->text, budget, tokens, temp,
                   (long long)s.n));
    TRY(fidelity_print_number(f.hazard[0], 9, 4, e));
    TRY(out_printf(e, "  %.4f-%.4f ", f.low, f.high));
    TRY(fidelity_print_number(f.hazard[ACCEPT_AHEAD - 1], 6, 4, e));
    TRY(fidelity_print_number(f.run, 7, 1, e));
    for (size_t i = 0; i < LENGTHS; i++) TRY(fidelity_print_number(length_of(&s, &f, drafted[i]), 6, 3, e));
    return out_printf(e, "\n");
}

status accept_print_row(const void *own, size_t row, err *e)
{
    const accept_run *r = own;
    for (size_t t = 0; t < r->n_temp; t++) {
        for (size_t i = 0; i < r->n_ctx; i++) TRY(print_line(r, row, r->temp[t], i, e));
        if (r->n_ctx > 1) TRY(print_line(r, row, r->temp[t], r->n_ctx, e));
    }
    return out_flush(e);
}

/* ---- JSON ---- */

static json_t *list_json(const double *x, size_t n)
{
    json_t *list = json_array();
    int bad = 0;
    for (size_t i = 0; i < n; i++) bad |= json_array_append_new(list, results_real(x[i]));
    return fidelity_json(list, bad);
}

json_t *accept_counts(const accept_sums *s)
{
    json_t *right = json_array();
    int bad = 0;
    for (size_t i = 0; i < ACCEPT_AHEAD; i++)
        bad |= json_array_append_new(right, json_integer((json_int_t)s->right[i]));
    json_t *o = json_pack("{s:I, s:o, s:I, s:I}", "n", (json_int_t)s->n, "right", right, "tokens",
                          (json_int_t)s->tokens, "differences", (json_int_t)s->differences);
    return fidelity_json(o, bad);
}

/* Takes o, to which the counts are added, and what follows from them. */
static json_t *with_figures(json_t *o, const accept_sums *s)
{
    figures f = figures_of(s);
    double all[ACCEPT_AHEAD];
    for (size_t i = 0; i < ACCEPT_AHEAD; i++) all[i] = length_of(s, &f, i + 1);
    json_t *more = json_pack("{s:o, s:[f, f], s:o, s:o, s:o, s:o, s:o}", "agreement", results_real(f.hazard[0]), "ci95",
                             f.low, f.high, "h8", results_real(f.hazard[ACCEPT_AHEAD - 1]), "run", results_real(f.run),
                             "accepted_length", results_real(all[REPORTED - 1]), "hazards",
                             list_json(f.hazard, ACCEPT_AHEAD), "accepted_lengths", list_json(all, ACCEPT_AHEAD));
    return results_merge(results_merge(o, accept_counts(s)), more);
}

static json_t *by_context(const accept_run *r, size_t row, double temp)
{
    json_t *list = json_array();
    int bad = 0;
    for (size_t i = 0; i < r->n_ctx; i++) {
        accept_sums s = sums_of(r, row, temp, i);
        json_t *o = with_figures(json_pack("{s:I}", "ctx", (json_int_t)r->ctx[i]), &s);
        bad |= json_array_append_new(list, o);
    }
    return fidelity_json(list, bad);
}

size_t accept_per_row(const void *own)
{
    const accept_run *r = own;
    return r->n_temp;
}

/* A row at the i-th temperature. */
json_t *accept_row_json(const void *own, size_t row, size_t i)
{
    const accept_run *r = own;
    double temp = r->temp[i];
    const attn_spec *spec = &r->f.rows.run[row].spec;
    const err *why = &r->f.rows.why[row];
    char kv[128];
    accept_sums s = sums_of(r, row, temp, r->n_ctx);
    kv_format_text(&spec->kv, kv, sizeof kv);
    json_t *o = json_pack("{s:s, s:f, s:o, s:s*}", "kv", kv, "temp", temp, "by_context", by_context(r, row, temp),
                          "reason", why->code == ST_OK ? NULL : why->msg);
    return with_figures(results_merge(lineup_row_json(spec), o), &s);
}

json_t *accept_options_json(const void *own)
{
    const accept_run *r = own;
    return json_pack("{s:s, s:s?, s:o, s:i, s:i, s:o, s:I}", "text_sha256", r->f.sha256, "attn", r->f.c->attn, "ctx",
                     report_sizes(r->ctx, r->n_ctx), "trials", r->o->trials, "n", r->o->n, "temp",
                     list_json(r->temp, r->n_temp), "seed", (json_int_t)r->f.c->seed);
}
