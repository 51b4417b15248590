/* SPDX-License-Identifier: MIT */
/* Running InfiniteBench: what a run has in hand, and its report. */
#ifndef EVAL_INFINITEBENCH_RUN_H
#define EVAL_INFINITEBENCH_RUN_H

#include "eval/evaluation.h"
#include "eval/infinitebench/infinitebench.h"

typedef struct {
    const char *dataset, *prompts, *rules, *length;
} infinitebench_options;

typedef struct {
    const infinitebench_options *o;
    evaluation *ev; /* an item for each sample */
    infinitebench_prompts prompts;
    bool infllm_rules;
    bool wanted[INFINITEBENCH_TASKS], made[INFINITEBENCH_TASKS];
    int64_t *length; /* [n_length] of samples that are made, in tokens */
    size_t n_length;
    sample_list list;
    size_t n_wrap; /* tokens that the chat template puts around a prompt */
    metrics *m;
} infinitebench_run;

static inline infinitebench_sample *infinitebench_at(const infinitebench_run *r, size_t i)
{
    return samples_at(&r->list, i);
}

/* The table of tasks and strategies on standard output, and --json. */
status infinitebench_report(void *run, evaluation *ev, err *e);

#endif
