/* SPDX-License-Identifier: MIT */
/* InfiniteBench's table: tasks against strategies, in the order of ActQKV's Table 2. The average is the plain mean of
 * the tasks' rounded scores. */
#include "config.h"

#include <stdio.h>

#include "eval/answers.h"
#include "eval/infinitebench/infinitebench_run.h"

/* Groups are tasks, and lengths at which their samples were made (0: of data). */
static void answer_of(const void *own, size_t i, answer_id *out)
{
    const infinitebench_sample *s = infinitebench_at(own, i);
    *out = (answer_id){infinitebench_tasks[s->at.dataset].name, NULL, s->at.index, {(int64_t)s->at.dataset, s->length}};
}

static answer_group of_task(size_t task)
{
    return ANSWERS((int64_t)task, ANSWER_ANY, ANSWER_ANY);
}

/* ---- text ---- */

static status print_task(const answers *a, size_t task, err *e)
{
    const infinitebench_run *r = a->t.ev->own;
    TRY(answers_line(a, 0, infinitebench_tasks[task].title, of_task(task), e));
    for (size_t k = 0; r->made[task] && r->n_length > 1 && k < r->n_length; k++) {
        char name[24];
        snprintf(name, sizeof name, "%lld tokens", (long long)r->length[k]);
        TRY(answers_line(a, 2, name, ANSWERS((int64_t)task, r->length[k], ANSWER_ANY), e));
    }
    return ST_OK;
}

/* Prints how many answers InfLLM's rules judge by lot, and these as wrong. */
static status print_undecided(const answers *a, err *e)
{
    double sum = 0;
    for (size_t i = 0; i < a->t.ev->rows.n; i++) {
        a->t.x[i] = (double)answers_cell(a, i, ANSWERS(ANSWER_ANY, ANSWER_ANY, ANSWER_ANY)).marked;
        sum += a->t.x[i];
    }
    return sum > 0 ? evaluation_table_line(&a->t, 0, "Code.Debug: no answer", 0, 0, e) : ST_OK;
}

static status print_table(const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    const infinitebench_run *r = ev->own;
    size_t made = r->list.n - answers_count(a, ANSWERS(ANSWER_ANY, 0, ANSWER_ANY));
    TRY(out_printf(e,
                   "InfiniteBench: %zu samples (%zu of them made), prompts %s (%zu cut in the "
                   "middle), wrap %s, rules %s",
                   r->list.n, made, infinitebench_prompts_name(&r->prompts), ev->n_truncated,
                   prompt_wrap_name(ev->prompter.wrap), r->infllm_rules ? "infllm" : "official"));
    TRY(lineup_print_terms(&ev->rows, ev->c, e));
    TRY(evaluation_table_head(&a->t, e));
    for (size_t task = 0; task < INFINITEBENCH_TASKS; task++) TRY(print_task(a, task, e));
    TRY(answers_average_line(a, "average of tasks", INFINITEBENCH_TASKS, NULL, e));
    TRY(out_printf(e, "\n"));
    TRY(answers_costs(a, ANSWERS(ANSWER_ANY, ANSWER_ANY, ANSWER_ANY), e));
    TRY(print_undecided(a, e));
    return evaluation_table_end(&a->t, e);
}

/* ---- JSON ---- */

static json_t *head_json(size_t task)
{
    return json_pack("{s:s, s:s}", "dataset", infinitebench_tasks[task].name, "title", infinitebench_tasks[task].title);
}

/* Adds a task's cell, or one for each length that it was made at. */
static void add_cells(json_t **list, const answers *a, size_t row, size_t task)
{
    const infinitebench_run *r = a->t.ev->own;
    if (answers_cell(a, row, of_task(task)).costs.n == 0) return;
    if (!r->made[task]) answers_json(list, a, row, of_task(task), head_json(task), NULL);
    for (size_t k = 0; r->made[task] && k < r->n_length; k++)
        answers_json(list, a, row, ANSWERS((int64_t)task, r->length[k], ANSWER_ANY), head_json(task),
                     json_pack("{s:I}", "length", (json_int_t)r->length[k]));
}

static status write_json(const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    const infinitebench_run *r = ev->own;
    json_t *list = json_array(), *averages = json_array();
    for (size_t row = 0; row < ev->rows.n; row++) {
        json_t *o = evaluation_row_json(ev, row);
        if (ev->rows.why[row].code == ST_OK)
            json_object_set_new(o, "average", results_real(answers_average(a, row, INFINITEBENCH_TASKS, NULL)));
        json_add(&averages, o);
        for (size_t task = 0; task < INFINITEBENCH_TASKS; task++) add_cells(&list, a, row, task);
    }
    return evaluation_report_json(ev, r->list.n,
                                  json_pack("{s:s, s:s, s:I}", "prompts", infinitebench_prompts_name(&r->prompts),
                                            "rules", r->infllm_rules ? "infllm" : "official", "seed",
                                            (json_int_t)ev->c->seed),
                                  list, json_pack("{s:o}", "averages", averages), e);
}

status infinitebench_report(void *run, evaluation *ev, err *e)
{
    const infinitebench_run *r = run;
    answers a;
    return answers_report(&a, answers_open(&a, ev, r->list.n, answer_of, e), print_table, write_json, e);
}
