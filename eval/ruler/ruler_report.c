/* SPDX-License-Identifier: MIT */
/* RULER's table: at each length its tasks against strategies. Averages are of all 13 tasks, as published ones are;
 * where not all ran, the mean says of how many it is. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "eval/answers.h"
#include "eval/ruler/ruler_run.h"
#include "eval/stats.h"

enum { OFFICIAL_LENGTHS = 6 };

/* ---- numbers ---- */

static const ruler_run *run_of(const answers *a)
{
    return a->t.ev->own;
}

static size_t rows_of(const answers *a)
{
    return a->t.ev->rows.n;
}

/* Answers are grouped by task and length: item i is one of the tasks that run, in order. */
static void answer_of(const void *own, size_t i, answer_id *out)
{
    const ruler_inputs *in = &((const ruler_run *)own)->in;
    size_t task = 0;
    for (; !in->runs[task] || i >= in->samples[task] * in->n_length; task++)
        if (in->runs[task]) i -= in->samples[task] * in->n_length;
    *out = (answer_id){
        .dataset = ruler_tasks[task].name, .index = (int64_t)i, .key = {(int64_t)task, (int64_t)(i % in->n_length)}};
}

static answer_group group_of(size_t task, size_t length)
{
    return ANSWERS((int64_t)task, (int64_t)length, ANSWER_ANY);
}

/* The mean of the tasks' scores at a length; *n: of how many. */
static double mean_at(const answers *a, size_t length, size_t row, size_t *n)
{
    double sum = 0;
    *n = 0;
    for (size_t t = 0; t < RULER_TASKS; t++) {
        double x = answers_cell(a, row, group_of(t, length)).mean;
        if (isnan(x)) continue;
        sum += x;
        ++*n;
    }
    return *n ? sum / (double)*n : (double)NAN;
}

static size_t tasks_run(const answers *a)
{
    size_t n = 0;
    for (size_t t = 0; t < RULER_TASKS; t++) n += run_of(a)->in.runs[t];
    return n;
}

/* Whether the lengths are RULER's own, 4k to 128k, in order. */
static bool has_official_lengths(const ruler_inputs *in)
{
    bool good = in->n_length == OFFICIAL_LENGTHS;
    for (size_t i = 0; good && i < OFFICIAL_LENGTHS; i++) good = in->length[i] == (int64_t)4096 << i;
    return good;
}

/* The mean over the lengths of their averages of 13 tasks; weights: 0 equal, 1 growing, -1 falling. */
static double mean_over_lengths(const answers *a, size_t row, int weights)
{
    double sum = 0, all = 0;
    size_t n, lengths = run_of(a)->in.n_length;
    for (size_t i = 0; i < lengths; i++) {
        double w = weights == 0 ? 1 : (double)(weights > 0 ? i + 1 : lengths - i);
        sum += w * mean_at(a, i, row, &n);
        all += w;
        if (n < RULER_TASKS) return (double)NAN;
    }
    return sum / all;
}

/* The longest length whose average is above that of Llama-2-7B at 4k. */
static double effective_length(const answers *a, size_t row)
{
    const double threshold = 85.6;
    double longest = (double)NAN;
    for (size_t i = 0; i < run_of(a)->in.n_length; i++) {
        size_t n;
        double x = mean_at(a, i, row, &n), length = (double)run_of(a)->in.length[i];
        if (n == RULER_TASKS && x > threshold && !(length < longest)) longest = length;
    }
    return longest;
}

/* ---- text ---- */

static status print_length(const answers *a, size_t length, err *e)
{
    const ruler_inputs *in = &run_of(a)->in;
    char name[64];
    size_t n;
    if (!run_of(a)->ev->c->data) TRY(out_printf(e, "%lld tokens\n", (long long)in->length[length]));
    for (size_t t = 0; t < RULER_TASKS; t++) {
        if (in->named && !in->runs[t]) continue;
        for (size_t i = 0; i < rows_of(a); i++) a->t.x[i] = answers_cell(a, i, group_of(t, length)).mean;
        TRY(evaluation_table_line(&a->t, 2, ruler_tasks[t].name, in->runs[t] ? in->samples[t] : 0, a->decimals, e));
    }
    for (size_t i = 0; i < rows_of(a); i++) a->t.x[i] = mean_at(a, length, i, &n);
    size_t run = tasks_run(a);
    if (run == RULER_TASKS) snprintf(name, sizeof name, "average");
    else snprintf(name, sizeof name, "mean of %zu of %d tasks", run, RULER_TASKS);
    return run > 1 ? evaluation_table_line(&a->t, 2, name, 0, a->decimals, e) : ST_OK;
}

static status print_averages(const answers *a, err *e)
{
    static const char *const names[] = {"average", "wAvg (inc)", "wAvg (dec)"};
    static const int weights[] = {0, 1, -1};
    if (tasks_run(a) < RULER_TASKS || run_of(a)->in.n_length < 2) return ST_OK;
    TRY(out_printf(e, "all lengths\n"));
    for (int k = 0; k < (has_official_lengths(&run_of(a)->in) ? 3 : 1); k++) {
        for (size_t i = 0; i < rows_of(a); i++) a->t.x[i] = mean_over_lengths(a, i, weights[k]);
        TRY(evaluation_table_line(&a->t, 2, names[k], 0, a->decimals, e));
    }
    for (size_t i = 0; i < rows_of(a); i++) a->t.x[i] = effective_length(a, i);
    TRY(evaluation_table_line(&a->t, 2, "effective length", 0, 0, e));
    return out_printf(e, "\n");
}

/* The tasks that lack a file, by the option that names it. */
static status print_missing(const answers *a, err *e)
{
    static const char *const options[] = {"--essays", "--squad", "--hotpotqa"};
    for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
        size_t n = 0;
        for (size_t t = 0; t < RULER_TASKS; t++) {
            const ruler_task *task = &ruler_tasks[t];
            if (!run_of(a)->in.lacks[t] || strcmp(task->option, options[k]) != 0) continue;
            if (n++ == 0) TRY(out_printf(e, "not run without %s FILE:", options[k]));
            TRY(out_printf(e, " %s", task->name));
        }
        if (n) TRY(out_printf(e, "\n"));
    }
    for (size_t t = 0; t < RULER_TASKS; t++)
        if (run_of(a)->in.why[t].code != ST_OK)
            TRY(out_printf(e, "not run: %s: %s\n", ruler_tasks[t].name, run_of(a)->in.why[t].msg));
    if (!run_of(a)->too_few_words) return ST_OK;
    return out_printf(e, "cwe: RULER takes other words for its longest lists, which are not here; these are not its "
                         "prompts\n");
}

static status print_table(const answers *a, err *e)
{
    const ruler_run *r = run_of(a);
    const ruler_options *o = r->in.o;
    const evaluation *ev = r->ev;
    const char *template = ev->c->data ? "as in the data" : o->template ? o->template : "base";
    TRY(out_printf(e, "RULER%s: template %s, protocol %s, answer prefix %s, seed %llu", r->in.old ? " of 2024" : "",
                   template, ev->prompter.decode ? "decode" : "prefill", o->answer_prefix ? o->answer_prefix : "on",
                   (unsigned long long)ev->c->seed));
    TRY(lineup_print_terms(&ev->rows, ev->c, e));
    TRY(evaluation_table_head(&a->t, e));
    for (size_t i = 0; i < r->in.n_length; i++) {
        TRY(print_length(a, i, e));
        TRY(out_printf(e, "\n"));
    }
    TRY(print_averages(a, e));
    TRY(answers_costs(a, ANSWERS(ANSWER_ANY, ANSWER_ANY, ANSWER_ANY), e));
    TRY(print_missing(a, e));
    return evaluation_table_end(&a->t, e);
}

/* ---- JSON ---- */

/* null: of prompts that were there already. */
static json_t *length_json(const answers *a, size_t length)
{
    int64_t n = run_of(a)->in.length[length];
    return n ? json_integer((json_int_t)n) : json_null();
}

static json_t *mean_json(const answers *a, size_t length, size_t row)
{
    size_t n;
    json_t *o = evaluation_row_json(run_of(a)->ev, row);
    double mean = mean_at(a, length, row, &n);
    json_object_set_new(o, "length", length_json(a, length));
    json_object_set_new(o, "tasks", json_integer((json_int_t)n));
    json_object_set_new(o, "mean", results_real(mean));
    return o;
}

static status write_json(const answers *a, err *e)
{
    const evaluation *ev = run_of(a)->ev;
    const ruler_inputs *in = &run_of(a)->in;
    json_t *list = json_array(), *means = json_array(), *missing = json_array(), *options = ev->kind->config(run_of(a));
    for (size_t i = 0; i < in->n_length; i++)
        for (size_t row = 0; row < rows_of(a); row++) {
            json_array_append_new(means, mean_json(a, i, row));
            for (size_t t = 0; t < RULER_TASKS; t++)
                if (in->runs[t])
                    answers_json(&list, a, row, group_of(t, i), json_object(),
                                 json_pack("{s:s, s:o}", "task", ruler_tasks[t].name, "length", length_json(a, i)));
        }
    for (size_t t = 0; t < RULER_TASKS; t++)
        if (!in->named && !in->runs[t]) json_array_append_new(missing, json_string(ruler_tasks[t].name));
    json_t *extra = json_pack("{s:o, s:o}", "means", means, "not_run", missing);
    return report_write(ev->c, &ev->g, options, list, extra, e);
}

static double percent(double sum, size_t n)
{
    return round_decimals(sum / (double)n * 100, 2);
}

status ruler_report(void *run, evaluation *ev, err *e)
{
    const ruler_inputs *in = &((const ruler_run *)run)->in;
    answers a;
    size_t n = 0;
    for (size_t t = 0; t < RULER_TASKS; t++)
        if (in->runs[t]) n += in->samples[t] * in->n_length;
    status st = answers_open(&a, ev, n, answer_of, e);
    a.mean = percent;
    return answers_report(&a, st, print_table, write_json, e);
}
