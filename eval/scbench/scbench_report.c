/* SPDX-License-Identifier: MIT */
/* SCBench's table: tasks and their turns against strategies. What a strategy loses between turns shows from the first
 * turn to the later ones. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "eval/answers.h"
#include "eval/scbench/scbench_run.h"

#define ALL ANSWER_ANY

/* Answers are grouped by task, by the kind of turn within a mixed task, and by turn. */
static void answer_of(const void *own, size_t item, answer_id *out)
{
    const scbench_run *r = own;
    size_t i = 0;
    for (; item >= scbench_at(r, i)->n_turns; i++) item -= scbench_at(r, i)->n_turns;
    const scbench_sample *s = scbench_at(r, i);
    *out = (answer_id){scbench_tasks[s->at.dataset].name,
                       NULL,
                       scbench_index(s, item),
                       {(int64_t)s->at.dataset, (int64_t)s->turn[item].task, (int64_t)item}};
}

/* ---- text ---- */

/* Returns a task's name without "scbench_". */
static const char *short_name(int task)
{
    return scbench_tasks[task].name + strlen("scbench_");
}

static status print_turns(const answers *a, int task, int kind, int indent, err *e)
{
    const scbench_run *r = a->t.ev->own;
    char name[24];
    for (int turn = 0; turn < SCBENCH_TURNS && !r->requests; turn++) {
        snprintf(name, sizeof name, "turn %d", turn + 1);
        TRY(answers_line(a, indent, name, ANSWERS(task, kind, turn), e));
    }
    return ST_OK;
}

/* A mixed task has the kinds of its turns apart. */
static status print_task(const answers *a, int task, err *e)
{
    const scbench_run *r = a->t.ev->own;
    char name[40];
    snprintf(name, sizeof name, "%s%s", short_name(task), r->made[task] ? " (made)" : "");
    TRY(answers_line(a, 0, name, ANSWERS(task, ALL, ALL), e));
    if (scbench_tasks[task].metric) return print_turns(a, task, ALL, 2, e);
    for (int kind = 0; kind < SCBENCH_TASKS; kind++) {
        TRY(answers_line(a, 2, short_name(kind), ANSWERS(task, kind, ALL), e));
        TRY(print_turns(a, task, kind, 4, e));
    }
    return ST_OK;
}

static status print_table(const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    const scbench_run *r = ev->own;
    TRY(out_printf(e, "SCBench, %s: %zu contexts (%zu cut in the middle), wrap %s",
                   r->requests ? "each question on the context alone"
                   : r->o->own ? "turns with the model's own answers between them"
                               : "turns with the right answers between them",
                   r->list.n, ev->n_truncated, prompt_wrap_name(ev->prompter.wrap)));
    TRY(lineup_print_terms(&ev->rows, ev->c, e));
    TRY(evaluation_table_head(&a->t, e));
    for (int task = 0; task < SCBENCH_TASKS; task++) TRY(print_task(a, task, e));
    TRY(answers_average_line(a, "average of tasks", SCBENCH_TASKS, NULL, e));
    TRY(out_printf(e, "\n"));
    TRY(answers_costs(a, ANSWERS(ALL, ALL, ALL), e));
    return evaluation_table_end(&a->t, e);
}

/* ---- JSON ---- */

static void add_cell(json_t **list, const answers *a, size_t row, int task, int kind, int turn)
{
    const scbench_run *r = a->t.ev->own;
    const answer_group g = ANSWERS(task, kind, turn);
    if (answers_count(a, g) == 0) return;
    answers_json(
        list, a, row, g, json_pack("{s:s, s:s}", "dataset", scbench_tasks[task].name, "task", scbench_tasks[kind].name),
        json_pack("{s:o, s:b}", "turn", turn == ALL ? json_null() : json_integer(turn + 1), "made", r->made[task]));
}

/* Writes, of each kind in each task, each turn and all of them. */
static status write_json(const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    const scbench_run *r = ev->own;
    json_t *list = json_array(), *averages = json_array();
    for (size_t row = 0; row < ev->rows.n; row++) {
        json_t *o = evaluation_row_json(ev, row);
        json_object_set_new(o, "average", results_real(answers_average(a, row, SCBENCH_TASKS, NULL)));
        json_add(&averages, o);
        for (int task = 0; task < SCBENCH_TASKS; task++)
            for (int kind = 0; kind < SCBENCH_TASKS; kind++)
                for (int turn = 0; turn <= SCBENCH_TURNS; turn++)
                    add_cell(&list, a, row, task, kind, turn == SCBENCH_TURNS ? ALL : turn);
    }
    return evaluation_report_json(
        ev, r->list.n,
        json_pack("{s:s, s:I}", "mode", r->requests ? "multi-request" : "multi-turn", "length", (json_int_t)r->length),
        list, json_pack("{s:o}", "averages", averages), e);
}

static double percent(double sum, size_t n)
{
    return 100 * (sum / (double)n);
}

status scbench_report(void *run, evaluation *ev, err *e)
{
    const scbench_run *r = run;
    answers a;
    size_t n = 0;
    for (size_t i = 0; i < r->list.n; i++) n += scbench_at(r, i)->n_turns;
    status st = answers_open(&a, ev, n, answer_of, e);
    a.decimals = 3;
    a.mean = percent;
    return answers_report(&a, st, print_table, write_json, e);
}
