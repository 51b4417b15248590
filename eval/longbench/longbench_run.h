/* SPDX-License-Identifier: MIT */
/* Running LongBench: what a run has in hand, and its report. */
#ifndef EVAL_LONGBENCH_RUN_H
#define EVAL_LONGBENCH_RUN_H

#include "eval/evaluation.h"
#include "eval/longbench/longbench.h"
#include "eval/prompt_file.h"

typedef struct {
    const char *dataset, *score, *prompts;
    bool by_length; /* -E */
} longbench_options;

typedef struct {
    const longbench_options *o;
    const evaluation *ev; /* an item for each sample */
    longbench_table t;
    sample_list list;
    prompt_file file;  /* --prompts */
    token_list *stops; /* [t.n] */
    metrics *m;
} longbench_run;

static inline longbench_sample *longbench_at(const longbench_run *r, size_t i)
{
    return samples_at(&r->list, i);
}

/* The dataset of a sample. */
static inline longbench_dataset *longbench_of(const longbench_run *r, const longbench_sample *s)
{
    return &r->t.d[s->at.dataset];
}

/* The table of datasets and strategies on standard output, and --json. */
status longbench_report(void *run, evaluation *ev, err *e);

/* `eval longbench` without --score. */
extern const evaluation_kind longbench_evaluation;

#endif
