/* SPDX-License-Identifier: MIT */
/* LongBench v2's table: accuracies by difficulty and length against strategies. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "eval/evaluation_table.h"
#include "eval/longbench2/longbench2_run.h"
#include "eval/scores.h"
#include "kernels/base/mem.h"

/* CELLS: from here on each length with each difficulty, the lengths one after the other. */
enum { OVERALL, EASY, HARD, SHORT, MEDIUM, LONG, CELLS, CATEGORIES = CELLS + 6 };
static const char *const names[CATEGORIES] = {"overall",      "easy",         "hard",        "short",
                                              "medium",       "long",         "short, easy", "short, hard",
                                              "medium, easy", "medium, hard", "long, easy",  "long, hard"};

/* What a row of the lineup got in a category. */
typedef struct {
    size_t n, right, none; /* outputs that are not empty; right ones; those without a choice */
} tally;

typedef struct {
    const longbench2_run *r;
    evaluation_table t;
    tally *tallies;             /* [rows.n, CATEGORIES] */
    size_t *empty;              /* [rows.n] samples with an empty output */
    evaluation_costs *costs[2]; /* [rows.n] of the answers; of the reasoning */
    size_t samples[CATEGORIES];
} report;

/* Whatever is not easy counts as hard, whatever is neither short nor medium as long. */
static bool is_in(const longbench2_sample *s, int category)
{
    bool easy = strcmp(s->difficulty, "easy") == 0, is_short = strcmp(s->length, "short") == 0,
         medium = strcmp(s->length, "medium") == 0;
    switch (category) {
    case EASY: return easy;
    case HARD: return !easy;
    case SHORT: return is_short;
    case MEDIUM: return medium;
    case LONG: return !is_short && !medium;
    case OVERALL: return true;
    default: return is_in(s, SHORT + (category - CELLS) / 2) && is_in(s, EASY + (category - CELLS) % 2);
    }
}

/* ---- numbers ---- */

/* 100 k / n, rounded; NAN: n is 0. */
static double percent(double k, size_t n, int decimals)
{
    return n ? round_decimals(100 * k / (double)n, decimals) : (double)NAN;
}

static double accuracy(const tally *t)
{
    return percent((double)t->right, t->n, 1);
}

/* An output without a choice gets what guessing would. */
static double compensated(const tally *t)
{
    return percent((double)t->right + 0.25 * (double)t->none, t->n, 1);
}

static const json_t *line_of(const report *p, size_t row, size_t sample, const char *pass)
{
    const longbench2_run *r = p->r;
    return evaluation_result(r->ev, row, LONGBENCH2_DATASET, r->data.s[sample].index, pass);
}

static void count(report *p, size_t row, const longbench2_sample *s, const json_t *line)
{
    bool right = json_is_true(json_object_get(line, "judge")), none = json_is_null(json_object_get(line, "pred"));
    for (int k = 0; k < CATEGORIES; k++) {
        tally *t = &p->tallies[row * CATEGORIES + (size_t)k];
        if (!is_in(s, k)) continue;
        t->n++;
        t->right += right;
        t->none += none;
    }
}

static void count_row(report *p, size_t row)
{
    const longbench2_run *r = p->r;
    bool passes = r->ev->passes;
    for (size_t i = 0; i < r->data.n; i++) {
        const json_t *line = line_of(p, row, i, passes ? LONGBENCH2_ANSWER : NULL),
                     *first = passes ? line_of(p, row, i, LONGBENCH2_REASONING) : NULL;
        if (first) evaluation_costs_add(&p->costs[1][row], first);
        if (line) evaluation_costs_add(&p->costs[0][row], line);
        if (line && !json_is_null(json_object_get(line, "judge"))) count(p, row, &r->data.s[i], line);
        else p->empty[row] += line || first;
    }
}

/* ---- text ---- */

static status print_counts(const report *p, err *e)
{
    size_t rows = p->r->ev->rows.n, empty = 0;
    for (size_t i = 0; i < rows; i++) {
        const tally *t = &p->tallies[i * CATEGORIES];
        p->t.x[i] = t->n ? (double)t->none : (double)NAN;
        empty += p->empty[i];
    }
    TRY(evaluation_table_line(&p->t, 0, "outputs without a choice", 0, 0, e));
    if (empty == 0) return ST_OK;
    for (size_t i = 0; i < rows; i++) {
        bool asked = p->tallies[i * CATEGORIES].n + p->empty[i] > 0;
        p->t.x[i] = asked ? (double)p->empty[i] : (double)NAN;
    }
    return evaluation_table_line(&p->t, 0, "empty, not counted", 0, 0, e);
}

static status print_scores(const report *p, err *e)
{
    size_t rows = p->r->ev->rows.n;
    for (int k = 0; k < CELLS; k++) {
        for (size_t i = 0; i < rows; i++) p->t.x[i] = accuracy(&p->tallies[i * CATEGORIES + (size_t)k]);
        TRY(evaluation_table_line(&p->t, k == OVERALL ? 0 : 2, names[k], p->samples[k], 1, e));
    }
    for (size_t i = 0; i < rows; i++) p->t.x[i] = compensated(&p->tallies[i * CATEGORIES]);
    TRY(evaluation_table_line(&p->t, 0, "overall, compensated", 0, 1, e));
    return print_counts(p, e);
}

/* Of each length and difficulty: accuracies as ParisKV's Table 3 rounds them, and right ones of those counted. */
static status print_cells(const report *p, err *e)
{
    const evaluation_table *t = &p->t;
    size_t rows = p->r->ev->rows.n;
    TRY(out_printf(e, "\nlength, difficulty\n"));
    for (int k = CELLS; k < CATEGORIES; k++) {
        if (p->samples[k] == 0) continue;
        for (size_t i = 0; i < rows; i++) {
            const tally *c = &p->tallies[i * CATEGORIES + (size_t)k];
            t->x[i] = percent((double)c->right, c->n, 2);
        }
        TRY(evaluation_table_line(t, 2, names[k], p->samples[k], 2, e));
        TRY(out_printf(e, "%-*s %5s", EVALUATION_NAME_WIDTH, "    right", ""));
        for (size_t i = 0; i < rows; i++) {
            const tally *c = &p->tallies[i * CATEGORIES + (size_t)k];
            char counts[48];
            snprintf(counts, sizeof counts, "%zu/%zu", c->right, c->n);
            TRY(out_printf(e, "  %*s", t->width[i], c->n ? counts : "-"));
        }
        TRY(out_printf(e, "\n"));
    }
    return ST_OK;
}

static status print_table(report *p, err *e)
{
    const longbench2_run *r = p->r;
    const evaluation *ev = r->ev;
    bool passes = ev->passes;
    TRY(out_printf(e,
                   "LongBench v2%s: %zu samples, rules %s, prompts of at most %zu tokens (%zu cut in the "
                   "middle), wrap %s",
                   passes                               ? ", chain of thought"
                   : r->prompt == LONGBENCH2_NO_CONTEXT ? ", without the documents"
                                                        : "",
                   r->data.n, longbench2_rules_names[r->rules], ev->prompter.max_length, ev->n_truncated,
                   prompt_wrap_name(ev->prompter.wrap)));
    TRY(lineup_print_terms(&ev->rows, ev->c, e));
    TRY(evaluation_table_head(&p->t, e));
    TRY(print_scores(p, e));
    TRY(print_cells(p, e));
    TRY(out_printf(e, passes ? "\nreasoning\n" : "\n"));
    if (passes) {
        TRY(evaluation_table_costs(&p->t, p->costs[1], e));
        TRY(out_printf(e, "\nanswers\n"));
    }
    TRY(evaluation_table_costs(&p->t, p->costs[0], e));
    return evaluation_table_end(&p->t, e);
}

/* ---- JSON ---- */

static json_t *cells_json(const tally *t)
{
    json_t *cells = json_array();
    for (int k = CELLS; k < CATEGORIES; k++)
        json_array_append_new(cells, json_pack("{s:s, s:s, s:I, s:I, s:o}", "length", names[SHORT + (k - CELLS) / 2],
                                               "difficulty", names[EASY + (k - CELLS) % 2], "right",
                                               (json_int_t)t[k].right, "n", (json_int_t)t[k].n, "accuracy",
                                               results_real(percent((double)t[k].right, t[k].n, 2))));
    return cells;
}

static json_t *row_json(const report *p, size_t row)
{
    const tally *t = &p->tallies[row * CATEGORIES];
    json_t *o = evaluation_row_json(p->r->ev, row);
    if (p->r->ev->rows.why[row].code != ST_OK) return o;
    json_object_set_new(o, "n", json_integer((json_int_t)t->n));
    for (int k = 0; k < CELLS; k++) json_object_set_new(o, names[k], results_real(accuracy(&t[k])));
    json_object_set_new(o, "cells", cells_json(t));
    json_object_set_new(o, "compensated", results_real(compensated(t)));
    json_object_set_new(o, "no_choice", json_integer((json_int_t)t->none));
    json_object_set_new(o, "empty", json_integer((json_int_t)p->empty[row]));
    evaluation_costs_json(o, &p->costs[0][row]);
    if (!p->r->ev->passes) return o;
    json_t *reasoning = json_object();
    evaluation_costs_json(reasoning, &p->costs[1][row]);
    json_object_set_new(o, "reasoning", reasoning);
    return o;
}

static status write_json(const report *p, err *e)
{
    const longbench2_run *r = p->r;
    json_t *list = json_array();
    for (size_t i = 0; i < r->ev->rows.n; i++)
        if (json_array_append_new(list, row_json(p, i)) != 0) {
            json_decref(list);
            return err_set(e, ST_NOMEM, "out of memory for the report");
        }
    return evaluation_report_json(r->ev, r->data.n,
                                  json_pack("{s:b, s:b, s:s}", "cot", r->o->cot, "no_context", r->o->no_context,
                                            "rules", longbench2_rules_names[r->rules]),
                                  list, json_object(), e);
}

/* ---- both ---- */

status longbench2_report(void *run, evaluation *ev, err *e)
{
    const longbench2_run *r = run;
    report p = {.r = r};
    size_t rows = ev->rows.n;
    status st;
    if (ev->passes) ev->n_truncated = r->n_cut; /* a sample counts once */
    TRY_GOTO(evaluation_table_open(&p.t, ev, e));
    TRY_GOTO(MEM_NEW(&p.tallies, rows * CATEGORIES, e));
    TRY_GOTO(MEM_NEW(&p.empty, rows, e));
    for (int i = 0; i < 2; i++) TRY_GOTO(MEM_NEW(&p.costs[i], rows, e));
    for (size_t i = 0; i < rows; i++) count_row(&p, i);
    for (size_t i = 0; i < r->data.n; i++)
        for (int k = 0; k < CATEGORIES; k++) p.samples[k] += is_in(&r->data.s[i], k);
    TRY_GOTO(print_table(&p, e));
    if (ev->c->json) st = write_json(&p, e);
done:
    mem_free(p.tallies);
    mem_free(p.empty);
    for (int i = 0; i < 2; i++) mem_free(p.costs[i]);
    evaluation_table_close(&p.t);
    return st;
}
