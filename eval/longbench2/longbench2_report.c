/* SPDX-License-Identifier: MIT */
/* LongBench v2's table: accuracies by difficulty and length against strategies. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/answers.h"
#include "eval/longbench2/longbench2_run.h"
#include "eval/stats.h"

const char *const longbench2_rules_names[] = {"official", "pariskv", "kvpress", NULL};

/* Groups of answers: all, by difficulty, by length, and from CELLS on each length with each difficulty. */
enum { OVERALL, EASY, HARD, SHORT, MEDIUM, LONG, CELLS, CATEGORIES = CELLS + 6 };
static const char *const names[CATEGORIES] = {"overall",      "easy",         "hard",        "short",
                                              "medium",       "long",         "short, easy", "short, hard",
                                              "medium, easy", "medium, hard", "long, easy",  "long, hard"};

static answer_group group_of(int category)
{
    int difficulty = ANSWER_ANY, length = ANSWER_ANY;
    if (category >= CELLS) {
        difficulty = (category - CELLS) % 2;
        length = (category - CELLS) / 2;
    } else if (category >= SHORT) {
        length = category - SHORT;
    } else if (category >= EASY) {
        difficulty = category - EASY;
    }
    return ANSWERS(difficulty, length, false);
}

/* The answers of all samples, then the reasoning of all. Difficulties other than easy count as hard, lengths other than
 * short and medium as long. */
static void answer_of(const void *own, size_t i, answer_id *out)
{
    const longbench2_run *r = own;
    bool first = i >= r->list.n;
    const longbench2_sample *s = longbench2_at(r, i % r->list.n);
    int length = strcmp(s->length, "short") == 0 ? 0 : strcmp(s->length, "medium") == 0 ? 1 : 2;
    *out = (answer_id){LONGBENCH2_DATASET,
                       first           ? LONGBENCH2_REASONING
                       : r->ev->passes ? LONGBENCH2_ANSWER
                                       : NULL,
                       s->at.index,
                       {strcmp(s->difficulty, "easy") != 0, length, first}};
}

static double judged(const json_t *line)
{
    const json_t *judge = json_object_get(line, "judge");
    return json_is_boolean(judge) ? json_is_true(judge) : (double)NAN;
}

static bool has_no_choice(const json_t *line)
{
    return json_is_null(json_object_get(line, "pred"));
}

/* ---- numbers ---- */

static const answer_group all = {{ANSWER_ANY, ANSWER_ANY, false}}, reasoning = {{ANSWER_ANY, ANSWER_ANY, true}};

/* Returns 100 k / n, rounded; NAN: n is 0. */
static double percent(double k, size_t n, int decimals)
{
    return n ? round_decimals(100 * k / (double)n, decimals) : (double)NAN;
}

static double accuracy(const answer_cell *c)
{
    return percent(c->sum, c->n, 1);
}

/* As ParisKV's Table 3 rounds it. */
static double accuracy_of_cell(const answer_cell *c)
{
    return percent(c->sum, c->n, 2);
}

/* An output without a choice gets what guessing would. */
static double compensated(const answer_cell *c)
{
    return percent(c->sum + 0.25 * (double)c->marked, c->n, 1);
}

static double without_choice(const answer_cell *c)
{
    return c->n ? (double)c->marked : (double)NAN;
}

/* Returns the number of samples with an empty output, at once or as reasoning; NAN: no samples. */
static double empty_of(const answers *a, size_t row)
{
    size_t n = answers_cell(a, row, a->t.ev->passes ? reasoning : all).costs.n;
    return n ? (double)(n - answers_cell(a, row, all).n) : (double)NAN;
}

/* ---- text ---- */

/* Prints a line of one value of a group; its number of samples where `counted`. */
static status print_line(const answers *a, int indent, const char *name, answer_group g, bool counted, int decimals,
                         double (*value)(const answer_cell *c), err *e)
{
    for (size_t row = 0; row < a->t.ev->rows.n; row++) {
        const answer_cell c = answers_cell(a, row, g);
        a->t.x[row] = value(&c);
    }
    return evaluation_table_line(&a->t, indent, name, counted ? answers_count(a, g) : 0, decimals, e);
}

static status print_scores(const answers *a, err *e)
{
    double empty = 0;
    for (int k = 0; k < CELLS; k++)
        TRY(print_line(a, k == OVERALL ? 0 : 2, names[k], group_of(k), true, 1, accuracy, e));
    TRY(print_line(a, 0, "overall, compensated", all, false, 1, compensated, e));
    TRY(print_line(a, 0, "outputs without a choice", all, false, 0, without_choice, e));
    for (size_t row = 0; row < a->t.ev->rows.n; row++) {
        a->t.x[row] = empty_of(a, row);
        if (a->t.x[row] > 0) empty += a->t.x[row];
    }
    return empty > 0 ? evaluation_table_line(&a->t, 0, "empty, not counted", 0, 0, e) : ST_OK;
}

/* Prints accuracies and right answers of all, of each length and difficulty. */
static status print_cells(const answers *a, err *e)
{
    TRY(out_printf(e, "\nlength, difficulty\n"));
    for (int k = CELLS; k < CATEGORIES; k++) {
        const answer_group g = group_of(k);
        if (answers_count(a, g) == 0) continue;
        TRY(print_line(a, 2, names[k], g, true, 2, accuracy_of_cell, e));
        TRY(out_printf(e, "%-*s %5s", EVALUATION_NAME_WIDTH, "    right", ""));
        for (size_t row = 0; row < a->t.ev->rows.n; row++) {
            const answer_cell c = answers_cell(a, row, g);
            char counts[48];
            snprintf(counts, sizeof counts, "%.0f/%zu", c.sum, c.n);
            TRY(out_printf(e, "  %*s", a->t.width[row], c.n ? counts : "-"));
        }
        TRY(out_printf(e, "\n"));
    }
    return ST_OK;
}

static status print_table(const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    const longbench2_run *r = ev->own;
    bool passes = ev->passes;
    TRY(out_printf(e,
                   "LongBench v2%s: %zu samples, rules %s, prompts of at most %zu tokens (%zu cut in the "
                   "middle), wrap %s",
                   passes                               ? ", chain of thought"
                   : r->prompt == LONGBENCH2_NO_CONTEXT ? ", without the documents"
                                                        : "",
                   r->list.n, longbench2_rules_names[r->rules], ev->prompter.max_length, ev->n_truncated,
                   prompt_wrap_name(ev->prompter.wrap)));
    TRY(lineup_print_terms(&ev->rows, ev->c, e));
    TRY(evaluation_table_head(&a->t, e));
    TRY(print_scores(a, e));
    TRY(print_cells(a, e));
    TRY(out_printf(e, passes ? "\nreasoning\n" : "\n"));
    if (passes) {
        TRY(answers_costs(a, reasoning, e));
        TRY(out_printf(e, "\nanswers\n"));
    }
    TRY(answers_costs(a, all, e));
    return evaluation_table_end(&a->t, e);
}

/* ---- JSON ---- */

static json_t *cells_json(const answers *a, size_t row)
{
    json_t *cells = json_array();
    for (int k = CELLS; k < CATEGORIES; k++) {
        const answer_cell c = answers_cell(a, row, group_of(k));
        json_array_append_new(cells, json_pack("{s:s, s:s, s:I, s:I, s:o}", "length", names[SHORT + (k - CELLS) / 2],
                                               "difficulty", names[EASY + (k - CELLS) % 2], "right", (json_int_t)c.sum,
                                               "n", (json_int_t)c.n, "accuracy", results_real(accuracy_of_cell(&c))));
    }
    return cells;
}

static json_t *row_json(const answers *a, size_t row)
{
    const evaluation *ev = a->t.ev;
    const answer_cell overall = answers_cell(a, row, all);
    const double empty = empty_of(a, row);
    json_t *o = evaluation_row_json(ev, row);
    if (ev->rows.why[row].code != ST_OK) return o;
    json_object_set_new(o, "n", json_integer((json_int_t)overall.n));
    for (int k = 0; k < CELLS; k++) {
        const answer_cell c = answers_cell(a, row, group_of(k));
        json_object_set_new(o, names[k], results_real(accuracy(&c)));
    }
    json_object_set_new(o, "cells", cells_json(a, row));
    json_object_set_new(o, "compensated", results_real(compensated(&overall)));
    json_object_set_new(o, "no_choice", json_integer((json_int_t)overall.marked));
    json_object_set_new(o, "empty", json_integer(empty > 0 ? (json_int_t)empty : 0));
    evaluation_costs_json(o, &overall.costs);
    if (!ev->passes) return o;
    const answer_cell first = answers_cell(a, row, reasoning);
    json_t *costs = json_object();
    evaluation_costs_json(costs, &first.costs);
    json_object_set_new(o, "reasoning", costs);
    return o;
}

static status write_json(const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    const longbench2_run *r = ev->own;
    json_t *list = json_array();
    for (size_t i = 0; i < ev->rows.n; i++) json_add(&list, row_json(a, i));
    return evaluation_report_json(ev, r->list.n,
                                  json_pack("{s:b, s:b, s:s}", "cot", r->o->cot, "no_context", r->o->no_context,
                                            "rules", longbench2_rules_names[r->rules]),
                                  list, json_object(), e);
}

status longbench2_report(void *run, evaluation *ev, err *e)
{
    const longbench2_run *r = run;
    answers a;
    if (ev->passes) ev->n_truncated = r->n_cut; /* a sample counts once */
    status st = answers_open(&a, ev, (ev->passes ? 2 : 1) * r->list.n, answer_of, e);
    a.score = judged;
    a.is_marked = has_no_choice;
    return answers_report(&a, st, print_table, write_json, e);
}
