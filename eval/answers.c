/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/answers.h"

#include <math.h>

#include "eval/stats.h"
#include "kernels/base/mem.h"

/* Returns 100 times the mean, rounded to two decimals. */
static double percent(double sum, size_t n)
{
    return round_decimals(100 * sum / (double)n, 2);
}

static double score_of(const json_t *line)
{
    return results_number(line, "score");
}

static bool is_undecided(const json_t *line)
{
    return json_is_true(json_object_get(line, "undecided"));
}

/* Opens n answers. They must be freed also after an error. */
static status open_answers(answers *a, const answers_layout *l, const evaluation *ev, size_t n, err *e)
{
    *a = (answers){.n = n,
                   .decimals = l->decimals ? l->decimals : 2,
                   .mean = l->mean ? l->mean : percent,
                   .score = l->score ? l->score : score_of,
                   .is_marked = l->is_marked ? l->is_marked : is_undecided};
    TRY(evaluation_table_open(&a->t, ev, e));
    TRY(MEM_NEW(&a->id, n, e));
    TRY(MEM_NEW(&a->line, ev->rows.n * n, e));
    for (size_t i = 0; i < n; i++) {
        answer_id *x = &a->id[i];
        l->answer(ev->own, i, x);
        for (size_t row = 0; row < ev->rows.n; row++)
            a->line[row * n + i] = evaluation_result(ev, row, x->dataset, x->index, x->pass);
    }
    return ST_OK;
}

/* ---- numbers ---- */

bool answers_has(const answers *a, size_t i, answer_group g)
{
    for (int k = 0; k < ANSWER_KEYS; k++)
        if (g.key[k] != ANSWER_ANY && g.key[k] != a->id[i].key[k]) return false;
    return true;
}

size_t answers_count(const answers *a, answer_group g)
{
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++) n += answers_has(a, i, g);
    return n;
}

answer_cell answers_cell(const answers *a, size_t row, answer_group g)
{
    answer_cell c = {0};
    for (size_t i = 0; i < a->n; i++) {
        const json_t *line = a->line[row * a->n + i];
        if (!line || !answers_has(a, i, g)) continue;
        evaluation_costs_add(&c.costs, line);
        double score = a->score(line);
        if (isnan(score)) continue;
        c.n++;
        c.sum += score;
        c.marked += a->is_marked(line);
    }
    c.mean = c.n ? a->mean(c.sum, c.n) : (double)NAN;
    return c;
}

double answers_average(const answers *a, size_t row, size_t n, const bool *among)
{
    double sum = 0;
    size_t count = 0;
    for (size_t d = 0; d < n; d++) {
        answer_cell c = {0};
        if (!among || among[d]) c = answers_cell(a, row, ANSWERS((int64_t)d, ANSWER_ANY, ANSWER_ANY));
        if (c.n == 0) continue;
        sum += c.mean;
        count++;
    }
    return count ? sum / (double)count : (double)NAN;
}

/* Returns the smallest key greater than `after` among a group's answers; ANSWER_ANY: none. */
static int64_t next_key(const answers *a, answer_group g, int level, int64_t after)
{
    int64_t next = ANSWER_ANY;
    for (size_t i = 0; i < a->n; i++) {
        int64_t k = a->id[i].key[level];
        if (answers_has(a, i, g) && k > after && (next == ANSWER_ANY || k < next)) next = k;
    }
    return next;
}

/* ---- text ---- */

status answers_line(const answers *a, int indent, const char *name, answer_group g, err *e)
{
    size_t n = answers_count(a, g);
    if (n == 0) return ST_OK;
    for (size_t row = 0; row < a->t.ev->rows.n; row++) a->t.x[row] = answers_cell(a, row, g).mean;
    return evaluation_table_line(&a->t, indent, name, n, a->decimals, e);
}

status answers_average_line(const answers *a, const char *name, size_t n, const bool *among, err *e)
{
    for (size_t row = 0; row < a->t.ev->rows.n; row++) a->t.x[row] = answers_average(a, row, n, among);
    return evaluation_table_line(&a->t, 0, name, 0, a->decimals, e);
}

static status print_groups(const answers_layout *l, const answers *a, answer_group g, int level, int indent, err *e)
{
    char name[ANSWER_NAME];
    answer_group part = g;
    if (level == ANSWER_KEYS) return ST_OK;
    while ((part.key[level] = next_key(a, g, level, part.key[level])) != ANSWER_ANY) {
        bool line = l->name(a->t.ev->own, &part, level, name);
        if (line) TRY(answers_line(a, indent, name, part, e));
        TRY(print_groups(l, a, part, level + 1, line ? indent + 2 : indent, e));
    }
    return ST_OK;
}

static status print_lines(const answers_layout *l, const answers *a, err *e)
{
    if (l->lines) return l->lines(a, e);
    TRY(print_groups(l, a, ALL_ANSWERS, 0, 0, e));
    return l->average ? answers_average_line(a, l->average, a->t.ev->names.n, NULL, e) : ST_OK;
}

status answers_costs(const answers *a, answer_group g, err *e)
{
    evaluation_costs *costs;
    size_t rows = a->t.ev->rows.n;
    TRY(MEM_NEW(&costs, rows, e));
    for (size_t row = 0; row < rows; row++) costs[row] = answers_cell(a, row, g).costs;
    status st = evaluation_table_costs(&a->t, costs, e);
    mem_free(costs);
    return st;
}

/* ---- JSON ---- */

static void add_cells(json_t **list, const answers_layout *l, const answers *a, size_t row, answer_group g, int level)
{
    answer_group part = g;
    if (level == ANSWER_KEYS) return;
    while ((part.key[level] = next_key(a, g, level, part.key[level])) != ANSWER_ANY) {
        add_cells(list, l, a, row, part, level + 1);
        l->cell(list, a, row, &part, level);
    }
}

/* Returns the averages of each row; NULL: out of memory. */
static json_t *averages_json(const answers_layout *l, const answers *a)
{
    json_t *list = json_array();
    for (size_t row = 0; row < a->t.ev->rows.n; row++) {
        json_t *o = evaluation_row_json(a->t.ev, row);
        if (l->averages) l->averages(o, a, row);
        else {
            bool ran = a->t.ev->rows.why[row].code == ST_OK;
            double average = ran ? answers_average(a, row, a->t.ev->names.n, NULL) : (double)NAN;
            json_object_set_new(o, "average", results_real(average));
        }
        list = results_append(list, o);
    }
    return list;
}

static status write_json(const answers_layout *l, const answers *a, err *e)
{
    const evaluation *ev = a->t.ev;
    json_t *list = json_array(), *extra = json_object();
    for (size_t row = 0; row < ev->rows.n; row++)
        if (l->cells) l->cells(&list, a, row);
        else add_cells(&list, l, a, row, ALL_ANSWERS, 0);
    if ((l->averages || l->average) && json_object_set_new(extra, "averages", averages_json(l, a)) != 0) {
        json_decref(extra);
        extra = NULL;
    }
    return evaluation_report_json(ev, ev->samples.n, l->options(ev->own), list, extra, e);
}

static status print_layout(const answers_layout *l, const answers *a, err *e)
{
    l->title(a);
    TRY(lineup_print_terms(&a->t.ev->rows, e));
    TRY(evaluation_table_head(&a->t, e));
    TRY(print_lines(l, a, e));
    table_line(a->t.text, "%s", "");
    TRY(l->costs ? l->costs(a, e) : answers_costs(a, ALL_ANSWERS, e));
    TRY(evaluation_table_end(&a->t, e));
    return l->notes ? l->notes(a, e) : ST_OK;
}

status answers_report_layout(void *own, evaluation *ev, err *e)
{
    const answers_layout *l = ev->kind->layout;
    answers a;
    status st = open_answers(&a, l, ev, l->count ? l->count(own) : ev->n_samples, e);
    if (st == ST_OK) st = print_layout(l, &a, e);
    if (st == ST_OK && ev->o->run.out.json) st = l->json ? l->json(&a, e) : write_json(l, &a, e);
    mem_free(a.id);
    mem_free(a.line);
    evaluation_table_close(&a.t);
    return st;
}

void answers_json(json_t **list, const answers *a, size_t row, answer_group g, json_t *head, json_t *more)
{
    const answer_cell c = answers_cell(a, row, g);
    head = results_merge(head, evaluation_row_json(a->t.ev, row));
    if (more) head = results_merge(head, more);
    json_object_set_new(head, "n", json_integer((json_int_t)c.costs.n));
    json_object_set_new(head, "score", results_real(c.mean));
    if (c.marked) json_object_set_new(head, "undecided", json_integer((json_int_t)c.marked));
    evaluation_costs_json(head, &c.costs);
    *list = results_append(*list, head);
}
