/* SPDX-License-Identifier: MIT */
/* Running LongBench: what a run has in hand, and its report. */
#ifndef EVAL_LONGBENCH_RUN_H
#define EVAL_LONGBENCH_RUN_H

#include "eval/evaluation.h"
#include "eval/longbench_data.h"
#include "eval/longbench_prompt.h"

typedef struct {
    evaluation ev; /* an item for each sample */
    longbench_table t;
    longbench_data data;
    token_list *stops; /* [t.n] */
    metrics *m;
} longbench_run;

/* The table of datasets and strategies on standard output, and --json. */
status longbench_report(const longbench_run *r, err *e);

/* `eval longbench` without --score. */
status longbench_evaluate(const cli *c, const char *data_dir, metrics *m, err *e);

#endif
