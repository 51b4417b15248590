/* SPDX-License-Identifier: MIT */
/* The table of a reasoning benchmark: accuracies, then how long and how well the generations ended. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "eval/evaluation_table.h"
#include "eval/reason/reason_run.h"
#include "eval/stats.h"
#include "kernels/base/mem.h"

/* What a row of the lineup did. */
typedef struct {
    size_t answers, right[REASON_METRICS]; /* right: by each metric */
    size_t none, limit, loops;             /* without an answer; at the most new tokens; that end in a loop */
    double tokens, seconds;
    evaluation_costs costs;
    size_t *right_of; /* [data.n] samples that are right by the first metric */
    size_t *asked_of; /* [data.n] samples that were answered */
} tally;

/* Problems that are counted together. */
typedef struct {
    utf8_text name;
    size_t n; /* problems */
} group;

typedef struct {
    const reason_run *r;
    evaluation_table t;
    tally *rows; /* [rows.n] */
    group *groups;
    size_t n_groups;
    size_t *group_of; /* [data.n] */
} report;

static const char *metric_label(const reason_run *r, size_t k)
{
    if (r->task == REASON_MMLU) return k == 0 ? "likelihood" : NULL;
    return r->protocol.metric[k] ? metric_name(r->protocol.metric[k]) : NULL;
}

/* ---- counting ---- */

static void count(const report *p, tally *t, size_t problem, const json_t *line)
{
    const json_t *scores = json_object_get(line, "scores"), *answers = json_object_get(line, "answer");
    const char *name;
    t->answers++;
    t->asked_of[problem]++;
    for (size_t k = 0; (name = metric_label(p->r, k)); k++) {
        bool right = json_integer_value(json_object_get(scores, name)) == 1;
        t->right[k] += right;
        if (k == 0) t->right_of[problem] += right;
    }
    t->none += json_is_null(json_object_get(answers, metric_label(p->r, 0)));
    t->limit += json_is_false(json_object_get(line, "stopped"));
    t->loops += json_is_true(json_object_get(line, "loop"));
    t->tokens += results_number(line, "new_tokens");
    t->seconds += results_number(line, "seconds");
    evaluation_costs_add(&t->costs, line);
}

static status count_row(report *p, size_t row, err *e)
{
    size_t n = p->r->data.n;
    tally *t = &p->rows[row];
    TRY(MEM_NEW(&t->right_of, n, e));
    TRY(MEM_NEW(&t->asked_of, n, e));
    for (size_t i = 0; i < n * p->r->n_samples; i++) {
        const json_t *line = evaluation_result(p->r->ev, row, NULL, (int64_t)i, NULL);
        if (line) count(p, t, i % n, line);
    }
    return ST_OK;
}

static bool is_group(const group *g, utf8_text name)
{
    return g->name.n == name.n && (name.n == 0 || memcmp(g->name.s, name.s, name.n) == 0);
}

/* Levels and subjects in the order in which they come first. */
static status find_groups(report *p, err *e)
{
    const reason_data *d = &p->r->data;
    TRY(MEM_NEW(&p->groups, d->n, e));
    TRY(MEM_NEW(&p->group_of, d->n, e));
    for (size_t i = 0; i < d->n; i++) {
        utf8_text name = d->s[i].group;
        size_t k = 0;
        while (k < p->n_groups && !is_group(&p->groups[k], name)) k++;
        if (k == p->n_groups) p->groups[p->n_groups++].name = name;
        p->groups[k].n++;
        p->group_of[i] = k;
    }
    return ST_OK;
}

/* ---- numbers ---- */

static double share(double k, double n)
{
    return n > 0 ? k / n : (double)NAN;
}

static double accuracy(const tally *t, size_t by)
{
    return share((double)t->right[by], (double)t->answers);
}

/* Of the problems of a group that were answered; SIZE_MAX: of all. */
static double group_accuracy(const report *p, const tally *t, size_t of)
{
    double right = 0, asked = 0;
    for (size_t i = 0; i < p->r->data.n; i++) {
        if (of != SIZE_MAX && p->group_of[i] != of) continue;
        right += (double)t->right_of[i];
        asked += (double)t->asked_of[i];
    }
    return share(right, asked);
}

/* The mean over the problems of the chance that one of k samples is right. */
static double pass_at(const report *p, const tally *t, size_t k)
{
    double sum = 0, n = 0;
    for (size_t i = 0; i < p->r->data.n; i++) {
        if (t->asked_of[i] < k) continue;
        sum += stats_pass(t->asked_of[i], t->right_of[i], k);
        n++;
    }
    return share(sum, n);
}

/* 95 % of the mean over the problems. Samples of one problem tell less than other problems: they are not counted as
 * trials. */
static void interval(const report *p, const tally *t, double ends[2])
{
    int64_t n = 0;
    double right = 0;
    for (size_t i = 0; i < p->r->data.n; i++) {
        if (t->asked_of[i] == 0) continue;
        right += (double)t->right_of[i] / (double)t->asked_of[i];
        n++;
    }
    ends[0] = ends[1] = (double)NAN;
    if (n > 0) stats_wilson(right, n, &ends[0], &ends[1]);
}

/* 2, 4, 8 ... and the number of samples; 0: no more. */
static size_t next_k(const report *p, size_t k)
{
    size_t n = p->r->n_samples;
    return k == n ? 0 : 2 * k < n ? 2 * k : n;
}

/* ---- text ---- */

enum { NONE, LIMIT, LOOPS, TOKENS, SPEED, LINES };
static const char *const line_names[LINES] = {"without an answer", "hit the limit", "end in a loop",
                                              "new tokens an answer", "new tokens a second"};

static double line_value(const tally *t, int line)
{
    double n = (double)t->answers;
    if (t->answers == 0) return (double)NAN;
    switch (line) {
    case NONE: return (double)t->none;
    case LIMIT: return (double)t->limit;
    case LOOPS: return (double)t->loops;
    case TOKENS: return t->tokens / n;
    default: return share(t->tokens, t->seconds);
    }
}

static status print_interval(report *p, err *e)
{
    double ends[2];
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < p->r->ev->rows.n; i++) {
            interval(p, &p->rows[i], ends);
            p->t.x[i] = 100 * ends[side];
        }
        TRY(evaluation_table_line(&p->t, 2, side ? "95 % to" : "95 % from", 0, 1, e));
    }
    return ST_OK;
}

static status print_accuracies(report *p, err *e)
{
    size_t rows = p->r->ev->rows.n, answers = p->r->data.n * p->r->n_samples;
    const char *label;
    char name[40];
    for (size_t k = 0; (label = metric_label(p->r, k)); k++) {
        for (size_t i = 0; i < rows; i++) p->t.x[i] = 100 * accuracy(&p->rows[i], k);
        TRY(evaluation_table_line(&p->t, 0, label, answers, 1, e));
        if (k == 0) TRY(print_interval(p, e));
    }
    for (size_t k = next_k(p, 1); k > 0; k = next_k(p, k)) {
        bool all = k == p->r->n_samples;
        snprintf(name, sizeof name, all ? "any of %zu" : "pass@%zu", k);
        for (size_t i = 0; i < rows; i++) p->t.x[i] = 100 * pass_at(p, &p->rows[i], k);
        TRY(evaluation_table_line(&p->t, 2, name, p->r->data.n, 1, e));
    }
    for (size_t g = 0; p->n_groups > 1 && g < p->n_groups; g++) {
        const group *x = &p->groups[g];
        snprintf(name, sizeof name, "%.*s", x->name.n < 22 ? (int)x->name.n : 22, x->name.n ? x->name.s : "others");
        for (size_t i = 0; i < rows; i++) p->t.x[i] = 100 * group_accuracy(p, &p->rows[i], g);
        TRY(evaluation_table_line(&p->t, 2, name, x->n * p->r->n_samples, 1, e));
    }
    return ST_OK;
}

static status print_generations(report *p, err *e)
{
    size_t rows = p->r->ev->rows.n;
    evaluation_costs *costs;
    TRY(out_printf(e, "\n"));
    for (int line = 0; line < LINES && p->r->task != REASON_MMLU; line++) {
        for (size_t i = 0; i < rows; i++) p->t.x[i] = line_value(&p->rows[i], line);
        TRY(evaluation_table_line(&p->t, 0, line_names[line], 0, line == TOKENS || line == SPEED, e));
    }
    TRY(MEM_NEW(&costs, rows, e));
    for (size_t i = 0; i < rows; i++) costs[i] = p->rows[i].costs;
    status st = evaluation_table_costs(&p->t, costs, e);
    mem_free(costs);
    return st;
}

/* What the answers are drawn by. */
static status print_sampling(const reason_run *r, err *e)
{
    const sampler_options *s = &r->sampling;
    if (!r->ev->sampling) return out_printf(e, ", greedy");
    TRY(out_printf(e, ", temperature %g, top-k %d, top-p %g", s->temp, s->top_k, s->top_p));
    if (s->min_p > 0) TRY(out_printf(e, ", min-p %g", s->min_p));
    return out_printf(e, ", seed %llu", (unsigned long long)r->ev->c->seed);
}

static status print_head(const reason_run *r, err *e)
{
    const evaluation *ev = r->ev;
    TRY(out_printf(e, "%s, rules %s: %zu problems", ev->kind->name, r->protocol.name, r->data.n));
    if (r->task == REASON_MMLU)
        TRY(out_printf(e, ", %d shots (%zu prompts with fewer), protocol %s", r->o->shots, r->fewer_shots,
                       ev->prompter.decode ? "decode" : "prefill"));
    else
        TRY(out_printf(e, ", %zu generation%s each of at most %zu tokens", r->n_samples, r->n_samples == 1 ? "" : "s",
                       r->n_new));
    if (r->least_new < r->n_new) TRY(out_printf(e, " (the window leaves %zu)", r->least_new));
    if (r->task != REASON_MMLU) TRY(print_sampling(r, e));
    if (ev->n_truncated) TRY(out_printf(e, ", %zu prompts cut in the middle", ev->n_truncated));
    TRY(out_printf(e, ", wrap %s", prompt_wrap_name(ev->prompter.wrap)));
    return lineup_print_terms(&ev->rows, ev->c, e);
}

static status print_table(report *p, err *e)
{
    TRY(print_head(p->r, e));
    TRY(evaluation_table_head(&p->t, e));
    TRY(print_accuracies(p, e));
    TRY(print_generations(p, e));
    return evaluation_table_end(&p->t, e);
}

/* ---- JSON ---- */

static json_t *accuracies_json(const report *p, const tally *t)
{
    json_t *o = json_object();
    const char *label;
    for (size_t k = 0; (label = metric_label(p->r, k)); k++)
        json_object_set_new(o, label, results_real(accuracy(t, k)));
    return o;
}

static json_t *passes_json(const report *p, const tally *t)
{
    json_t *o = json_object();
    char name[24];
    for (size_t k = 1; k > 0; k = next_k(p, k)) {
        snprintf(name, sizeof name, "%zu", k);
        json_object_set_new(o, name, results_real(pass_at(p, t, k)));
    }
    return o;
}

static json_t *groups_json(const report *p, const tally *t)
{
    json_t *o = json_object();
    for (size_t g = 0; p->n_groups > 1 && g < p->n_groups; g++)
        json_object_set_new(o, p->groups[g].name.n ? p->groups[g].name.s : "", results_real(group_accuracy(p, t, g)));
    return o;
}

static json_t *row_json(const report *p, size_t row)
{
    const tally *t = &p->rows[row];
    json_t *o = evaluation_row_json(p->r->ev, row);
    double ends[2];
    if (p->r->ev->rows.why[row].code != ST_OK) return o;
    interval(p, t, ends);
    json_object_set_new(o, "n", json_integer((json_int_t)t->answers));
    json_object_set_new(o, "accuracy", accuracies_json(p, t));
    json_object_set_new(o, "ci95", json_pack("[o, o]", results_real(ends[0]), results_real(ends[1])));
    json_object_set_new(o, "pass", passes_json(p, t));
    json_object_set_new(o, "groups", groups_json(p, t));
    json_object_set_new(o, "no_answer", json_integer((json_int_t)t->none));
    json_object_set_new(o, "hit_limit", json_integer((json_int_t)t->limit));
    json_object_set_new(o, "loops", json_integer((json_int_t)t->loops));
    json_object_set_new(o, "new_tokens", results_real(line_value(t, TOKENS)));
    json_object_set_new(o, "new_tokens_per_second", results_real(line_value(t, SPEED)));
    evaluation_costs_json(o, &t->costs);
    return o;
}

static status write_json(const report *p, err *e)
{
    const reason_run *r = p->r;
    json_t *list = json_array();
    for (size_t i = 0; i < r->ev->rows.n; i++)
        if (json_array_append_new(list, row_json(p, i)) != 0) {
            json_decref(list);
            return err_set(e, ST_NOMEM, "out of memory for the report");
        }
    json_t *own = json_pack("{s:s, s:I, s:I, s:f, s:i, s:f}", "rules", r->protocol.name, "generations",
                            (json_int_t)r->n_samples, "max_new_tokens", (json_int_t)r->n_new, "temperature",
                            r->sampling.temp, "top_k", r->sampling.top_k, "top_p", r->sampling.top_p);
    return evaluation_report_json(r->ev, r->data.n, own, list, json_object(), e);
}

/* ---- both ---- */

status reason_report(void *run, evaluation *ev, err *e)
{
    report p = {.r = run};
    status st;
    TRY_GOTO(evaluation_table_open(&p.t, ev, e));
    TRY_GOTO(MEM_NEW(&p.rows, ev->rows.n, e));
    TRY_GOTO(find_groups(&p, e));
    for (size_t i = 0; i < ev->rows.n; i++) TRY_GOTO(count_row(&p, i, e));
    TRY_GOTO(print_table(&p, e));
    if (ev->c->json) st = write_json(&p, e);
done:
    for (size_t i = 0; p.rows && i < ev->rows.n; i++) {
        mem_free(p.rows[i].right_of);
        mem_free(p.rows[i].asked_of);
    }
    mem_free(p.rows);
    mem_free(p.groups);
    mem_free(p.group_of);
    evaluation_table_close(&p.t);
    return st;
}
