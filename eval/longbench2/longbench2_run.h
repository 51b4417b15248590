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
    const char *rules;
} longbench2_options;

/* Whose prompts, lengths and judgement. */
typedef enum { LONGBENCH2_OFFICIAL, LONGBENCH2_BY_PARISKV, LONGBENCH2_BY_KVPRESS } longbench2_rules;
extern const char *const longbench2_rules_names[];

typedef struct {
    const longbench2_options *o;
    longbench2_rules rules;
    const evaluation *ev; /* an item for each sample; in the second pass for each of `reasoned` */
    longbench2_templates templates;
    sample_list list;
    longbench2_prompt prompt;      /* of the current pass */
    bool second_pass;              /* it is the one of answers behind reasoning */
    longbench2_reasoned *reasoned; /* [rows.n * list.n at most] */
    size_t n_reasoned;
    size_t n_cut; /* prompts of the first of two passes */
} longbench2_run;

static inline longbench2_sample *longbench2_at(const longbench2_run *r, size_t i)
{
    return samples_at(&r->list, i);
}

/* The table of accuracies on standard output, and --json. */
status longbench2_report(void *run, evaluation *ev, err *e);

#endif
