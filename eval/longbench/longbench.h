/* SPDX-License-Identifier: MIT */
/* LongBench v1: what its 21 datasets are, and scoring as its official eval.py does. Source: evals.md 1.2 and
 * 1.6; THUDM/LongBench eval.py. */
#ifndef EVAL_LONGBENCH_H
#define EVAL_LONGBENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "eval/metrics/metrics.h"
#include "eval/sample_files.h"
#include "eval/scores.h"

typedef struct {
    const char *name, *group;
    const metric *metric;
    int max_new_tokens;
    bool chat;            /* the prompt is wrapped in the chat template of an instruct model */
    bool first_line;      /* only the first line of a prediction is scored */
    bool longbench_e;     /* one of the 13 datasets of LongBench-E */
    bool newline_stops;   /* a newline ends the answer, whose first token is no end; else only EOS does */
    const char *question; /* Quest's rule: its last occurrence begins the part that is decoded; or NULL */
    const char *prompt;   /* template with {context} and {input} */
} longbench_dataset;

typedef struct {
    longbench_dataset *d; /* in the order of the file */
    size_t n;
    json_t *source, *prompts; /* hold the texts */
} longbench_table;

/* Reads longbench/datasets.json and longbench/prompts.json of the folder of evaluation data. longbench_close also after
 * an error. */
status longbench_open(longbench_table *t, const char *data_dir, err *e);
void longbench_close(longbench_table *t);
/* For files of samples; borrows t. */
dataset_names longbench_names(const longbench_table *t);
/* dataset_find's terms. */
status longbench_find(const longbench_dataset **out, const longbench_table *t, const char *name, size_t n, err *e);

/* The score in 0..1 of one raw prediction, post-processed as the dataset wants it: metric_score's terms. */
status longbench_score(metrics *m, const longbench_dataset *d, metric_case c, double *score, err *e);

enum { LONGBENCH_BUCKETS = 3 };
extern const char *const longbench_bucket_names[LONGBENCH_BUCKETS];
/* scores_mean for lengths below 4000, below 8000 and the others. NAN for an empty one. The official code
 * takes NumPy's mean and rounding here, which may differ from Python's in the last digit; so does this. */
status longbench_bucket_means(const scores *s, double out[LONGBENCH_BUCKETS], err *e);

/* Scores the predictions of a JSONL file, objects with pred, answers, all_classes and, with need_length, length. As in
 * the official code the classes of the last line hold for all. ST_FORMAT names line and field. */
status longbench_score_file(metrics *m, const longbench_dataset *d, const char *path, bool need_length, scores *out,
                            err *e);

#endif
