/* SPDX-License-Identifier: MIT */
/* The report of an evaluation: a table with the lineup as its columns, time and memory of answers, parts of --json. */
#ifndef EVAL_EVALUATION_TABLE_H
#define EVAL_EVALUATION_TABLE_H

#include "eval/evaluation.h"

enum { EVALUATION_NAME_WIDTH = 24 };

typedef struct {
    const evaluation *ev;
    int *width; /* [rows.n] of the columns */
    double *x;  /* [rows.n] the line that is next, filled by the caller; NAN: a dash */
} evaluation_table;

/* evaluation_table_close also after an error. */
status evaluation_table_open(evaluation_table *t, const evaluation *ev, err *e);
void evaluation_table_close(evaluation_table *t);

/* The names and budgets of the columns, and an empty line. */
status evaluation_table_head(const evaluation_table *t, err *e);
/* A line of values x; indent: spaces in front of the name; samples: their number, 0: not said. */
status evaluation_table_line(const evaluation_table *t, int indent, const char *name, size_t samples, int decimals,
                             err *e);
/* Why rows could not run; flushes. */
status evaluation_table_end(const evaluation_table *t, err *e);

/* Sums of time and memory over answers; zeroed: none. */
typedef struct {
    size_t n, n_attended;            /* answers; those with decode steps */
    double seconds, kv_mb, attended; /* sums; attended: tokens of a decode step and layer */
} evaluation_costs;

void evaluation_costs_add(evaluation_costs *c, const json_t *line);
/* Three lines of means; costs [rows.n]. */
status evaluation_table_costs(const evaluation_table *t, const evaluation_costs *costs, err *e);

/* {"attn", "params", "budget"} of a row, and "reason" where it cannot run; NULL: out of memory. */
json_t *evaluation_row_json(const evaluation *ev, size_t row);
/* Adds "attended", "seconds" and "kv_bytes", means or null. */
void evaluation_costs_json(json_t *o, const evaluation_costs *c);
/* --json: takes list, the results; extra, to which the numbers of samples and of truncated prompts are added; and own,
 * options beside the common ones. One that is NULL is out of memory. */
status evaluation_report_json(const evaluation *ev, size_t n_samples, json_t *own, json_t *list, json_t *extra, err *e);

#endif
