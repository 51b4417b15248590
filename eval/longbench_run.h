/* SPDX-License-Identifier: MIT */
/* Running LongBench: what a run has in hand, and its report. */
#ifndef EVAL_LONGBENCH_RUN_H
#define EVAL_LONGBENCH_RUN_H

#include "eval/lineup.h"
#include "eval/longbench_data.h"
#include "eval/longbench_prompt.h"
#include "eval/results.h"

typedef struct {
    const cli *c;
    engine g;
    longbench_table t;
    longbench_data data;
    lineup rows;
    longbench_prompter prompter;
    longbench_prompt *tokens; /* [data.n] */
    together_prompt *prompts; /* [data.n] */
    token_list *stops;        /* [t.n] */
    metrics *m;
    results *out;
    bool *known; /* [rows.n, data.n] answers that are in the results */
    int64_t limit;
    size_t n_truncated;
    progress *bar;
} longbench_run;

/* The result of a row for a sample, NULL: there is none. */
const json_t *longbench_result(const longbench_run *r, size_t row, size_t sample);

/* The table of datasets and strategies on standard output, and --json. */
status longbench_report(longbench_run *r, err *e);

/* `eval longbench` without --score. */
status longbench_evaluate(const cli *c, const char *data_dir, metrics *m, err *e);

#endif
