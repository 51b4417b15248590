/* SPDX-License-Identifier: MIT */
/* Running LongBench v2: what a run has in hand, and its report. */
#ifndef EVAL_LONGBENCH2_RUN_H
#define EVAL_LONGBENCH2_RUN_H

#include "eval/evaluation.h"
#include "eval/longbench2/longbench2.h"

/* The name of the only dataset, and the passes of a chain of thought. */
#define LONGBENCH2_DATASET   "longbench2"
#define LONGBENCH2_REASONING "reasoning"
#define LONGBENCH2_ANSWER    "answer"

/* A prompt of the second pass: what one row of the lineup reasoned on one sample. */
typedef struct {
    size_t row, sample;
} longbench2_reasoned;

typedef struct {
    bool cot, no_context;
} longbench2_options;

typedef struct {
    const longbench2_options *o;
    const evaluation *ev; /* an item for each sample; in the second pass for each of `reasoned` */
    longbench2_templates templates;
    longbench2_data data;
    longbench2_prompt prompt;      /* of the pass that is under way */
    longbench2_reasoned *reasoned; /* [rows.n * data.n at most] */
    size_t n_reasoned;
} longbench2_run;

/* The table of accuracies on standard output, and --json. */
status longbench2_report(void *run, evaluation *ev, err *e);

#endif
