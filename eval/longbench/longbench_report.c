/* SPDX-License-Identifier: MIT */
/* LongBench's table: datasets in the official groups against strategies. Averages are plain means of the datasets'
 * rounded scores, as the published tables have them. */
#include "config.h"

#include <string.h>

#include "eval/answers.h"
#include "eval/longbench/longbench_run.h"
#include "kernels/base/mem.h"

static void answer_of(const void *own, size_t i, answer_id *out)
{
    const longbench_run *r = own;
    const longbench_sample *s = longbench_at(r, i);
    *out = (answer_id){longbench_of(r, s)->name, NULL, s->at.index, {(int64_t)s->at.dataset, s->p.length}};
}

static answer_group of_dataset(size_t d)
{
    return ANSWERS((int64_t)d, ANSWER_ANY, ANSWER_ANY);
}

/* ---- numbers ---- */

/* The means of a dataset's ranges of lengths. */
static status bucket_means(const answers *a, size_t row, size_t d, double out[LONGBENCH_BUCKETS], err *e)
{
    scores s = {0};
    status st = ST_OK;
    for (size_t i = 0; i < a->n && st == ST_OK; i++) {
        const json_t *line = a->line[row * a->n + i];
        if (line && answers_has(a, i, of_dataset(d))) st = scores_add(&s, a->score(line), a->id[i].key[1], e);
    }
    if (st == ST_OK) st = longbench_bucket_means(&s, out, e);
    scores_free(&s);
    return st;
}

/* Marks the datasets of the group of dataset d that have samples; false where an earlier one has the group's line. */
static bool group_of(const answers *a, bool *among, size_t d)
{
    const longbench_table *t = &((const longbench_run *)a->t.ev->own)->t;
    size_t first = t->n;
    for (size_t k = t->n; k-- > 0;) {
        among[k] = strcmp(t->d[k].group, t->d[d].group) == 0 && answers_count(a, of_dataset(k)) > 0;
        if (among[k]) first = k;
    }
    return first == d;
}

/* ---- text ---- */

static status print_dataset(const answers *a, size_t d, err *e)
{
    const longbench_run *r = a->t.ev->own;
    double mean[LONGBENCH_BUCKETS];
    TRY(answers_line(a, 2, r->t.d[d].name, of_dataset(d), e));
    for (int b = 0; r->o->by_length && b < LONGBENCH_BUCKETS; b++) {
        for (size_t row = 0; row < a->t.ev->rows.n; row++) {
            TRY(bucket_means(a, row, d, mean, e));
            a->t.x[row] = mean[b];
        }
        TRY(evaluation_table_line(&a->t, 4, longbench_bucket_names[b], 0, a->decimals, e));
    }
    return ST_OK;
}

static status print_groups(const answers *a, bool *among, err *e)
{
    const longbench_table *t = &((const longbench_run *)a->t.ev->own)->t;
    for (size_t d = 0; d < t->n; d++) {
        if (!group_of(a, among, d)) continue;
        TRY(answers_average_line(a, t->d[d].group, t->n, among, e));
        for (size_t k = d; k < t->n; k++)
            if (among[k]) TRY(print_dataset(a, k, e));
    }
    return ST_OK;
}

static status print_table(const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    const longbench_run *r = ev->own;
    bool *among;
    TRY(out_printf(e,
                   "LongBench%s: %zu samples, prompts of at most %zu tokens (%zu cut in the middle), "
                   "wrap %s, protocol %s%s%s",
                   r->o->by_length ? "-E" : "", r->list.n, ev->prompter.max_length, ev->n_truncated,
                   prompt_wrap_name(ev->prompter.wrap), ev->prompter.decode ? "decode" : "prefill",
                   r->file.name ? ", prompts " : "", r->file.name ? r->file.name : ""));
    TRY(lineup_print_terms(&ev->rows, ev->c, e));
    TRY(evaluation_table_head(&a->t, e));
    TRY(MEM_NEW(&among, r->t.n, e));
    status st = print_groups(a, among, e);
    mem_free(among);
    if (st != ST_OK) return st;
    TRY(answers_average_line(a, "average of datasets", r->t.n, NULL, e));
    TRY(out_printf(e, "\n"));
    TRY(answers_costs(a, ANSWERS(ANSWER_ANY, ANSWER_ANY, ANSWER_ANY), e));
    return evaluation_table_end(&a->t, e);
}

/* ---- JSON ---- */

static status cell_json(json_t **list, const answers *a, size_t row, size_t d, err *e)
{
    const longbench_run *r = a->t.ev->own;
    double mean[LONGBENCH_BUCKETS];
    if (answers_cell(a, row, of_dataset(d)).costs.n == 0) return ST_OK;
    json_t *head = json_pack("{s:s, s:s}", "dataset", r->t.d[d].name, "group", r->t.d[d].group);
    answers_json(list, a, row, of_dataset(d), head, NULL);
    if (!r->o->by_length || !*list) return ST_OK;
    TRY(bucket_means(a, row, d, mean, e));
    json_t *buckets = json_object();
    for (int b = 0; b < LONGBENCH_BUCKETS; b++)
        json_object_set_new(buckets, longbench_bucket_names[b], results_real(mean[b]));
    json_object_set_new(json_array_get(*list, json_array_size(*list) - 1), "buckets", buckets);
    return ST_OK;
}

/* Returns the averages of one strategy: {"attn", ..., "average", "groups": {...}}, or why there are none. */
static json_t *averages_json(const answers *a, size_t row, bool *among)
{
    const longbench_table *t = &((const longbench_run *)a->t.ev->own)->t;
    json_t *o = evaluation_row_json(a->t.ev, row), *groups;
    if (a->t.ev->rows.why[row].code != ST_OK) return o;
    groups = json_object();
    for (size_t d = 0; d < t->n; d++)
        if (group_of(a, among, d))
            json_object_set_new(groups, t->d[d].group, results_real(answers_average(a, row, t->n, among)));
    json_object_set_new(o, "average", results_real(answers_average(a, row, t->n, NULL)));
    json_object_set_new(o, "groups", groups);
    return o;
}

static status write_json(const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    const longbench_run *r = ev->own;
    json_t *list = json_array(), *averages = json_array();
    bool *among;
    status st = MEM_NEW(&among, r->t.n, e);
    for (size_t row = 0; row < ev->rows.n && st == ST_OK; row++) {
        json_add(&averages, averages_json(a, row, among));
        for (size_t d = 0; d < r->t.n && st == ST_OK; d++) st = cell_json(&list, a, row, d, e);
    }
    mem_free(among);
    if (st == ST_OK)
        return evaluation_report_json(ev, r->list.n,
                                      json_pack("{s:b, s:s*}", "longbench_e", r->o->by_length, "prompts", r->file.name),
                                      list, json_pack("{s:o}", "averages", averages), e);
    json_decref(list);
    json_decref(averages);
    return st;
}

status longbench_report(void *run, evaluation *ev, err *e)
{
    const longbench_run *r = run;
    answers a;
    return answers_report(&a, answers_open(&a, ev, r->list.n, answer_of, e), print_table, write_json, e);
}
