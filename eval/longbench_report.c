/* SPDX-License-Identifier: MIT */
/* LongBench's table: datasets in the official groups against strategies. Averages are plain means of the datasets'
 * rounded scores, as the published tables have them. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "eval/longbench_run.h"
#include "kernels/base/mem.h"

/* What a row of the lineup got in a dataset. */
typedef struct {
    size_t n; /* 0: nothing */
    double mean, bucket[LONGBENCH_BUCKETS];
    double attended, seconds, kv_bytes; /* means over samples; attended NAN: no decode step */
} cell;

typedef struct {
    const longbench_run *r;
    cell *cells; /* [rows.n, t.n] */
    int *width;  /* [rows.n] of the columns */
} table;

/* ---- numbers ---- */

static double number(const json_t *line, const char *key)
{
    const json_t *j = json_object_get(line, key);
    return json_is_number(j) ? json_number_value(j) : (double)NAN;
}

static status fill_cell(const table *t, size_t row, size_t d, cell *out, err *e)
{
    const longbench_run *r = t->r;
    longbench_scores s = {0};
    size_t n_attended = 0;
    status st = ST_OK;
    *out = (cell){0};
    for (size_t i = 0; i < r->data.n && st == ST_OK; i++) {
        if (r->data.s[i].d != &r->t.d[d]) continue;
        const json_t *line = longbench_result(r, row, i);
        if (!line) continue;
        double attended = number(line, "attended");
        st = longbench_scores_add(&s, number(line, "score"), r->data.s[i].p.length, e);
        out->seconds += number(line, "seconds");
        out->kv_bytes += number(line, "kv_bytes");
        if (isnan(attended)) continue;
        out->attended += attended;
        n_attended++;
    }
    out->n = s.n;
    out->mean = longbench_mean(&s);
    if (st == ST_OK) st = longbench_bucket_means(&s, out->bucket, e);
    out->seconds /= (double)s.n;
    out->kv_bytes /= (double)s.n;
    out->attended /= (double)n_attended;
    longbench_scores_free(&s);
    return st;
}

static const cell *cell_of(const table *t, size_t row, size_t d)
{
    return &t->cells[row * t->r->t.n + d];
}

/* Mean of the scores of a group's datasets (NULL: of all); NAN: there are none. */
static double average(const table *t, size_t row, const char *group)
{
    double sum = 0;
    size_t n = 0;
    for (size_t d = 0; d < t->r->t.n; d++) {
        const cell *c = cell_of(t, row, d);
        if (c->n == 0 || (group && strcmp(t->r->t.d[d].group, group) != 0)) continue;
        sum += c->mean;
        n++;
    }
    return n ? sum / (double)n : (double)NAN;
}

typedef enum { PER_SECONDS, PER_KV, PER_ATTENDED } per_sample;

/* Means over all samples of a row. */
static double mean_of(const table *t, size_t row, per_sample what)
{
    double sum = 0;
    size_t n = 0;
    for (size_t d = 0; d < t->r->t.n; d++) {
        const cell *c = cell_of(t, row, d);
        double x = what == PER_SECONDS ? c->seconds
                   : what == PER_KV    ? c->kv_bytes / 1e6
                                       : c->attended;
        if (c->n == 0 || isnan(x)) continue;
        sum += x * (double)c->n;
        n += c->n;
    }
    return n ? sum / (double)n : (double)NAN;
}

static bool has_dataset(const longbench_run *r, size_t d)
{
    for (size_t i = 0; i < r->data.n; i++)
        if (r->data.s[i].d == &r->t.d[d]) return true;
    return false;
}

static size_t n_samples(const longbench_run *r, size_t d)
{
    size_t n = 0;
    for (size_t i = 0; i < r->data.n; i++) n += r->data.s[i].d == &r->t.d[d];
    return n;
}

/* ---- text ---- */

enum { NAME_WIDTH = 24, DECIMALS = 2 };

static status print_value(const table *t, size_t row, double x, int decimals, err *e)
{
    return isnan(x) ? out_printf(e, "  %*s", t->width[row], "-")
                    : out_printf(e, "  %*.*f", t->width[row], decimals, x);
}

static status print_head(const table *t, err *e)
{
    const longbench_run *r = t->r;
    char budget[24];
    TRY(out_printf(e, "%-*s %5s", NAME_WIDTH, "strategy", "n"));
    for (size_t i = 0; i < r->rows.n; i++)
        TRY(out_printf(e, "  %*s", t->width[i], r->rows.run[i].spec.text));
    TRY(out_printf(e, "\n%-*s %5s", NAME_WIDTH, "budget", ""));
    for (size_t i = 0; i < r->rows.n; i++) {
        lineup_budget_text(budget, sizeof budget, &r->rows.run[i].spec);
        TRY(out_printf(e, "  %*s", t->width[i], budget));
    }
    return out_printf(e, "\n\n");
}

static status print_dataset(const table *t, size_t d, err *e)
{
    const longbench_run *r = t->r;
    TRY(out_printf(e, "  %-*s %5zu", NAME_WIDTH - 2, r->t.d[d].name, n_samples(r, d)));
    for (size_t i = 0; i < r->rows.n; i++) {
        const cell *c = cell_of(t, i, d);
        TRY(print_value(t, i, c->n ? c->mean : (double)NAN, DECIMALS, e));
    }
    TRY(out_printf(e, "\n"));
    for (int b = 0; r->c->longbench_e && b < LONGBENCH_BUCKETS; b++) {
        TRY(out_printf(e, "    %-*s %5s", NAME_WIDTH - 4, longbench_bucket_names[b], ""));
        for (size_t i = 0; i < r->rows.n; i++) {
            const cell *c = cell_of(t, i, d);
            TRY(print_value(t, i, c->n ? c->bucket[b] : (double)NAN, DECIMALS, e));
        }
        TRY(out_printf(e, "\n"));
    }
    return ST_OK;
}

static status print_average(const table *t, const char *name, const char *group, err *e)
{
    TRY(out_printf(e, "%-*s %5s", NAME_WIDTH, name, ""));
    for (size_t i = 0; i < t->r->rows.n; i++)
        TRY(print_value(t, i, average(t, i, group), DECIMALS, e));
    return out_printf(e, "\n");
}

/* A group is printed where its first dataset stands. */
static bool is_first_of_group(const longbench_run *r, size_t d)
{
    for (size_t k = 0; k < d; k++)
        if (has_dataset(r, k) && strcmp(r->t.d[k].group, r->t.d[d].group) == 0) return false;
    return has_dataset(r, d);
}

static status print_group(const table *t, size_t first, err *e)
{
    const longbench_run *r = t->r;
    const char *group = r->t.d[first].group;
    TRY(print_average(t, group, group, e));
    for (size_t d = first; d < r->t.n; d++)
        if (has_dataset(r, d) && strcmp(r->t.d[d].group, group) == 0) TRY(print_dataset(t, d, e));
    return ST_OK;
}

static status print_costs(const table *t, err *e)
{
    static const struct {
        const char *name;
        per_sample what;
        int decimals;
    } costs[] = {{"tokens attended", PER_ATTENDED, 1},
                 {"KV MB", PER_KV, 2},
                 {"seconds a sample", PER_SECONDS, 3}};
    for (size_t k = 0; k < sizeof costs / sizeof *costs; k++) {
        TRY(out_printf(e, "%-*s %5s", NAME_WIDTH, costs[k].name, ""));
        for (size_t i = 0; i < t->r->rows.n; i++)
            TRY(print_value(t, i, mean_of(t, i, costs[k].what), costs[k].decimals, e));
        TRY(out_printf(e, "\n"));
    }
    return ST_OK;
}

static status print_table(const table *t, err *e)
{
    const longbench_run *r = t->r;
    const longbench_prompter *p = &r->prompter;
    TRY(out_printf(
        e,
        "LongBench%s: %zu samples, prompts of at most %zu tokens (%zu cut in the middle), "
        "wrap %s, protocol %s\n\n",
        r->c->longbench_e ? "-E" : "", r->data.n, p->max_length, r->n_truncated,
        prompt_wrap_name(p->wrap), p->decode ? "decode" : "prefill"));
    TRY(print_head(t, e));
    for (size_t d = 0; d < r->t.n; d++)
        if (is_first_of_group(r, d)) TRY(print_group(t, d, e));
    TRY(print_average(t, "average of datasets", NULL, e));
    TRY(out_printf(e, "\n"));
    TRY(print_costs(t, e));
    TRY(lineup_print_why(&r->rows, e));
    return out_flush(e);
}

/* ---- JSON ---- */

static json_t *real_or_null(double x)
{
    return isnan(x) ? json_null() : json_real(x);
}

static json_t *cell_json(const table *t, size_t row, size_t d)
{
    const longbench_run *r = t->r;
    const cell *c = cell_of(t, row, d);
    const attn_spec *s = &r->rows.run[row].spec;
    char params[512];
    attn_spec_params(s, params, sizeof params);
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:o, s:I, s:o, s:o, s:o, s:o}", "dataset",
                          r->t.d[d].name, "group", r->t.d[d].group, "attn", s->text, "params",
                          params, "budget", lineup_budget_json(s), "n", (json_int_t)c->n, "score",
                          real_or_null(c->mean), "attended", real_or_null(c->attended), "seconds",
                          real_or_null(c->seconds), "kv_bytes", real_or_null(c->kv_bytes));
    if (!r->c->longbench_e) return o;
    json_t *buckets = json_object();
    for (int b = 0; b < LONGBENCH_BUCKETS; b++)
        json_object_set_new(buckets, longbench_bucket_names[b], real_or_null(c->bucket[b]));
    json_object_set_new(o, "buckets", buckets);
    return o;
}

/* The averages of one strategy: {"attn", "budget", "average", "groups": {...}}, or why there are none. */
static json_t *averages_json(const table *t, size_t row)
{
    const longbench_run *r = t->r;
    const attn_spec *s = &r->rows.run[row].spec;
    const err *why = &r->rows.why[row];
    if (why->code != ST_OK)
        return json_pack("{s:s, s:o, s:s}", "attn", s->text, "budget", lineup_budget_json(s),
                         "reason", why->msg);
    json_t *groups = json_object();
    for (size_t d = 0; d < r->t.n; d++)
        if (is_first_of_group(r, d))
            json_object_set_new(groups, r->t.d[d].group,
                                real_or_null(average(t, row, r->t.d[d].group)));
    return json_pack("{s:s, s:o, s:o, s:o}", "attn", s->text, "budget", lineup_budget_json(s),
                     "average", real_or_null(average(t, row, NULL)), "groups", groups);
}

static status write_json(const table *t, err *e)
{
    const longbench_run *r = t->r;
    const longbench_prompter *p = &r->prompter;
    json_t *list = json_array(), *averages = json_array();
    bool bad = false;
    for (size_t i = 0; i < r->rows.n; i++) {
        bad |= json_array_append_new(averages, averages_json(t, i)) != 0;
        for (size_t d = 0; d < r->t.n; d++)
            if (has_dataset(r, d) && cell_of(t, i, d)->n)
                bad |= json_array_append_new(list, cell_json(t, i, d)) != 0;
    }
    json_t *options =
        json_pack("{s:s, s:I, s:s, s:s, s:b, s:b, s:I}", "attn", r->c->attn ? r->c->attn : "full",
                  "max_length", (json_int_t)p->max_length, "wrap", prompt_wrap_name(p->wrap),
                  "protocol", p->decode ? "decode" : "prefill", "clean_up", p->clean, "longbench_e",
                  r->c->longbench_e, "limit", (json_int_t)r->c->limit);
    json_t *extra = json_pack("{s:o, s:I, s:I}", "averages", averages, "samples",
                              (json_int_t)r->data.n, "truncated", (json_int_t)r->n_truncated);
    if (bad) {
        json_decref(list);
        json_decref(options);
        json_decref(extra);
        return err_set(e, ST_NOMEM, "out of memory for the report");
    }
    return report_write(r->c, &r->g, options, list, extra, e);
}

/* ---- both ---- */

status longbench_report(longbench_run *r, err *e)
{
    table t = {.r = r};
    status st;
    TRY_GOTO(MEM_NEW(&t.cells, r->rows.n * r->t.n, e));
    TRY_GOTO(MEM_NEW(&t.width, r->rows.n, e));
    for (size_t i = 0; i < r->rows.n; i++) {
        int n = (int)strlen(r->rows.run[i].spec.text);
        t.width[i] = n > 7 ? n : 7;
        for (size_t d = 0; d < r->t.n; d++)
            TRY_GOTO(fill_cell(&t, i, d, &t.cells[i * r->t.n + d], e));
    }
    TRY_GOTO(print_table(&t, e));
    if (r->c->json) st = write_json(&t, e);
done:
    mem_free(t.cells);
    mem_free(t.width);
    return st;
}
