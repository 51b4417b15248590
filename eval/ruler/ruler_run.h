/* SPDX-License-Identifier: MIT */
/* `eval ruler`: what its options say, and what a run has in hand. */
#ifndef EVAL_RULER_RULER_RUN_H
#define EVAL_RULER_RULER_RUN_H

#include "eval/evaluation.h"
#include "eval/ruler/ruler.h"
#include "eval/ruler/ruler_data.h"

typedef struct {
    const char *task, *length, *variant, *template, *essays, *squad, *hotpotqa, *words, *tokens, *answer_prefix, *write;
    int samples, pre_samples;
    bool one_line;
} ruler_options;

/* What prompts are made from. */
typedef struct {
    const ruler_options *o;
    const char *data_dir;
    bool old; /* --variant 2024 */
    bool runs[RULER_TASKS];
    bool named;                  /* by --task; else a task that cannot run is left out */
    bool lacks[RULER_TASKS];     /* data of the user, without which it does not run */
    err why[RULER_TASKS];        /* another reason; code ST_OK: none */
    size_t samples[RULER_TASKS]; /* of each length */
    sample_list data;            /* of --data; else they are made */
    int64_t *length;             /* [n_length]; of --data one, 0 */
    size_t n_length;
    ruler_templates templates;
    ruler_words *words;
    ruler_essay essay;
    ruler_qa qa[2];
    ruler_counter counter;
} ruler_inputs;

/* Reads options and files. ruler_inputs_close also after an error. */
status ruler_inputs_open(ruler_inputs *in, const cli *c, err *e);
/* Counts by the tokenizer (borrowed) unless --tokens ws, and makes a sample of each task at the shortest length, so
 * that one that is too short shows before anything runs. */
status ruler_inputs_check(ruler_inputs *in, const tokenizer *tok, uint64_t seed, err *e);
void ruler_inputs_close(ruler_inputs *in);
ruler_settings ruler_inputs_settings(ruler_inputs *in, uint64_t seed, int64_t length);

/* --write DIR: files of prompts, without a model. */
status ruler_write(const cli *c, err *e);

/* An item for each sample; a pass for each length and task. */
typedef struct {
    evaluation *ev;
    ruler_inputs in;
    metrics *m;
    size_t at_length, at_task; /* of the pass that is under way */
    ruler_maker maker;
    json_t **answers; /* [n_answers] of the pass's samples */
    size_t n_answers;
    bool too_few_words; /* cwe was too long for its own words */
} ruler_run;

/* The table on standard output, and --json. */
status ruler_report(void *run, evaluation *ev, err *e);

#endif
