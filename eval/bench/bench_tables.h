/* SPDX-License-Identifier: MIT */
/* Results of bench by case: the columns that identify one, and the tables of its time by part and of its bytes. */
#ifndef EVAL_BENCH_TABLES_H
#define EVAL_BENCH_TABLES_H

#include "eval/bench/bench_run.h"

typedef struct {
    attn_spec spec;
    int64_t ctx;
    bench_result r;
    sample_summary sum;
    double bytes; /* bytes read per token */
} bench_line;

const char *bench_line_phase(const bench_line *l);
/* Returns x divided by the tokens of a sample. */
double bench_per_token(const bench_line *l, double x);
/* Returns the time outside all stages: host work between them. */
double bench_unmarked_ns(const bench_result *r);

/* Adds the columns that identify a case. l: the strategies that are known. batches, kvs: there are several; else the
 * column is a detail. */
void bench_case_columns(const lineup *l, bool batches, bool kvs, table *t);
void bench_case_cells(const bench_line *l, table *t);
/* Prints the tables by case. */
status bench_print_tables(const bench_line *lines, size_t n, err *e);

#endif
