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
    infinitebench_sample *s; /* by task, then by index */
    size_t n, cap;
    int64_t count[INFINITEBENCH_TASKS]; /* samples so far, while they are read */
    json_t *files;
    size_t n_wrap; /* tokens that the chat template puts around a prompt */
    metrics *m;
} infinitebench_run;

/* The table of tasks and strategies on standard output, and --json. */
status infinitebench_report(void *run, evaluation *ev, err *e);

#endif
