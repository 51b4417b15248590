/* SPDX-License-Identifier: MIT */
/* LongBench v1: its datasets, samples, prompts, and scoring as its official eval.py does. Source: evals.md 1;
 * THUDM/LongBench pred.py and eval.py, mit-han-lab/Quest. */
#ifndef EVAL_LONGBENCH_H
#define EVAL_LONGBENCH_H

#include "eval/evaluation.h"
#include "eval/prediction.h"

typedef struct {
    const char *name, *group;
    const metric *metric;
    int max_new_tokens;
    int chat;             /* the prompt is wrapped in the chat template of an instruct model */
    int first_line;       /* only the first line of a prediction is scored */
    int longbench_e;      /* one of the 13 datasets of LongBench-E */
    int newline_stops;    /* a newline ends the answer, whose first token is no end; else only EOS does */
    const char *question; /* Quest's rule: its last occurrence begins the part that is decoded; or NULL */
    const char *prompt;   /* template with {context} and {input} */
} longbench_dataset;

/* Most datasets of a table. */
enum { LONGBENCH_DATASETS = 64 };

typedef struct {
    longbench_dataset *d; /* in the order of the file */
    dataset_names names;
    bool longbench_e;         /* LongBench-E: its datasets alone, NAME_e.jsonl in a folder; lengths are needed */
    json_t *source, *prompts; /* hold the texts */
} longbench_table;

/* Reads longbench/datasets.json and longbench/prompts.json of the folder of evaluation data. longbench_close also after
 * an error. */
status longbench_open(longbench_table *t, const char *data_dir, err *e);
void longbench_close(longbench_table *t);
/* dataset_find's terms. */
status longbench_find(const longbench_dataset **out, const longbench_table *t, const char *name, size_t n, err *e);

/* ---- samples ---- */

typedef struct {
    sample_head at;
    prediction p; /* its text is the context, until longbench_sample_forget */
    utf8_text input;
    const char *id; /* "" where there is none */
} longbench_sample;

void longbench_drop(void *s);

/* Reads records {"input", "context", "answers", "length", "all_classes", "dataset", "_id"} of `datasets`, names
 * separated by commas, or of all that are found (NULL). */
status longbench_read(sample_list *out, const longbench_table *t, const sample_source *from, const char *datasets,
                      err *e);
/* Frees the context, which is large; it is empty then. */
void longbench_sample_forget(longbench_sample *s);

/* ---- prompts ---- */

/* prompt_tokens_free also after an error. */
status longbench_prompt_make(prompt_tokens *out, const prompter *p, const longbench_dataset *d, utf8_text context,
                             utf8_text input, err *e);

/* Where Quest's decoding part begins in a whole prompt, in bytes: at the last occurrence of the dataset's question, at
 * most 100 characters from the end (a prompt shorter than that without a question: its last character). */
size_t longbench_cut(const longbench_dataset *d, const char *s, size_t n);

/* Appends the ids that end an answer where newline_stops: the model's, and the newline. */
status longbench_stops(token_list *out, const tokenizer *tok, err *e);

/* The default of max_length: the window in thousands of tokens, less 500, as the published tables have it (4k: 3500,
 * 8k: 7500, 16k: 15500, 32k: 31500); below 2,000 tokens the window less 500. ST_USAGE for less than 600. */
status longbench_max_length(size_t *out, const evaluation *ev, err *e);

/* ---- scores ---- */

/* The score in 0..1 of one raw prediction, post-processed as the dataset wants it: metric_score's terms. */
status longbench_score(metrics *m, const longbench_dataset *d, metric_case c, double *score, err *e);

enum { LONGBENCH_BUCKETS = 3 }; /* lengths below 4000, below 8000 and the others */
extern const char *const longbench_bucket_names[LONGBENCH_BUCKETS];

/* Scores of predictions, by their lengths; zeroed: none. */
typedef struct {
    double sum; /* of all, in the order in which they were added */
    size_t n;
    double *score[LONGBENCH_BUCKETS];
    size_t in[LONGBENCH_BUCKETS]; /* scores of each bucket */
} longbench_scores;

status longbench_scores_add(longbench_scores *s, double score, int64_t length, err *e);
void longbench_scores_free(longbench_scores *s);
/* Returns 100 times the mean, rounded to two decimals as Python does; NAN: no scores. */
double longbench_mean(const longbench_scores *s);
/* Returns the mean of bucket b. The official code takes NumPy's mean and rounding here, which may differ from Python's
 * in the last digit; so does this. */
double longbench_bucket_mean(const longbench_scores *s, int b);

/* Scores the predictions of a JSONL file, objects with pred, answers, all_classes and, with need_length, length. As in
 * the official code the classes of the last line hold for all. ST_FORMAT names line and field. */
status longbench_score_file(metrics *m, const longbench_dataset *d, const char *path, bool need_length,
                            longbench_scores *out, err *e);

#endif
