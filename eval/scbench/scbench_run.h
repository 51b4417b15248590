/* SPDX-License-Identifier: MIT */
/* Running SCBench: what a run has in hand, and its report. */
#ifndef EVAL_SCBENCH_RUN_H
#define EVAL_SCBENCH_RUN_H

#include "eval/evaluation.h"
#include "eval/scbench/scbench.h"

typedef struct {
    const char *dataset, *mode, *length;
    bool own; /* answers of the model's own stand between turns */
} scbench_options;

typedef struct {
    const scbench_options *o;
    evaluation *ev; /* a pass for each task; an item for each turn of its samples */
    scbench_prompts prompts;
    bool requests;
    bool wanted[SCBENCH_TASKS], made[SCBENCH_TASKS];
    int64_t length; /* of samples that are made, in tokens */
    sample_list list;
    metrics *m;
    size_t first, last;  /* samples of the current pass */
    scbench_parts parts; /* of the sample whose items are being made, */
    size_t parts_of;     /* which is this one, + 1 */
} scbench_run;

static inline scbench_sample *scbench_at(const scbench_run *r, size_t i)
{
    return samples_at(&r->list, i);
}

/* An item's number within its task, which tells the results of a sample's turns apart. */
static inline int64_t scbench_index(const scbench_sample *s, size_t turn)
{
    return s->at.index * SCBENCH_TURNS + (int64_t)turn;
}

/* The table of tasks and turns against strategies on standard output, and --json. */
status scbench_report(void *run, evaluation *ev, err *e);

#endif
