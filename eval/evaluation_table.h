/* SPDX-License-Identifier: MIT */
/* Report of an evaluation: a table with one column per lineup row, time and memory of answers, and parts of --json. */
#ifndef EVAL_EVALUATION_TABLE_H
#define EVAL_EVALUATION_TABLE_H

#include "eval/evaluation.h"

typedef struct {
    const evaluation *ev;
    table *text;
    double *x; /* [rows.n] values of the next line, filled by the caller; NAN: printed as a dash */
} evaluation_table;

/* Requires evaluation_table_close, also after an error. */
status evaluation_table_open(evaluation_table *t, const evaluation *ev, err *e);
void evaluation_table_close(evaluation_table *t);

/* Adds the names and budgets of the columns, and an empty line. */
status evaluation_table_head(const evaluation_table *t, err *e);
/* Adds the name and the number of samples of a line, whose cells follow. indent: spaces before the name. samples: 0:
 * not printed. */
void evaluation_table_name(const evaluation_table *t, int indent, const char *name, size_t samples);
/* Adds a line of the values x. */
status evaluation_table_line(const evaluation_table *t, int indent, const char *name, size_t samples, int decimals,
                             err *e);
/* Prints the table and the reasons of rows that could not run, and flushes. */
status evaluation_table_end(const evaluation_table *t, err *e);

/* Sums of time and memory over answers. A zeroed struct is empty. */
typedef struct {
    size_t n, n_attended;            /* answers; those of them with decode steps */
    double seconds, kv_mb, attended; /* sums; attended: tokens per decode step and layer */
} evaluation_costs;

void evaluation_costs_add(evaluation_costs *c, const json_t *line);
/* Adds three lines of means. costs: [rows.n]. */
status evaluation_table_costs(const evaluation_table *t, const evaluation_costs *costs, err *e);

/* Returns {"attn", "params", "budget"} of a row, and "reason" if it could not run; NULL: out of memory. */
json_t *evaluation_row_json(const evaluation *ev, size_t row);
/* Adds "attended", "seconds" and "kv_bytes": means, or null. */
void evaluation_costs_json(json_t *o, const evaluation_costs *c);
/* Writes --json. Takes ownership of list, the results; of extra, to which it adds the numbers of samples and of
 * truncated prompts; and of own, additional options. If one of them is NULL, the error is ST_NOMEM. */
status evaluation_report_json(const evaluation *ev, size_t n_samples, json_t *own, json_t *list, json_t *extra, err *e);

#endif
