/* SPDX-License-Identifier: MIT */
/* LongBench v1: datasets, samples, prompts, and the scoring of its official eval.py. Source: evals.md 1;
 * THUDM/LongBench pred.py and eval.py, mit-han-lab/Quest. */
#ifndef EVAL_LONGBENCH_H
#define EVAL_LONGBENCH_H

#include "eval/evaluation.h"
#include "eval/prediction.h"

typedef struct {
    const char *name, *group;
    const metric *metric;
    int max_new_tokens;
    int chat;             /* wrap the prompt in the chat template of an instruct model */
    int first_line;       /* score only the first line of a prediction */
    int longbench_e;      /* one of the 13 datasets of LongBench-E */
    int newline_stops;    /* a newline ends the answer and must not be its first token; else only EOS ends it */
    const char *question; /* Quest's rule: its last occurrence begins the decoded part; or NULL */
    const char *prompt;   /* template with {context} and {input} */
} longbench_dataset;

/* Maximum number of datasets of a table. */
enum { LONGBENCH_DATASETS = 64 };

typedef struct {
    longbench_dataset *d; /* in the order of the file */
    dataset_names names;
    bool longbench_e;         /* LongBench-E: only its datasets, NAME_e.jsonl in a folder; lengths are required */
    json_t *source, *prompts; /* owners of the texts */
} longbench_table;

/* Reads longbench/datasets.json and longbench/prompts.json in the folder of evaluation data. Requires longbench_close,
 * also after an error. */
status longbench_open(longbench_table *t, const char *data_dir, err *e);
void longbench_close(longbench_table *t);
/* Finds a dataset; see dataset_find. */
status longbench_find(const longbench_dataset **out, const longbench_table *t, const char *name, size_t n, err *e);

/* ---- samples ---- */

typedef struct {
    sample_head at;
    prediction p; /* its text is the context, until longbench_sample_forget */
    utf8_text input;
    const char *id; /* "" if missing */
} longbench_sample;

void longbench_drop(void *s);

/* Reads records {"input", "context", "answers", "length", "all_classes", "dataset", "_id"} of `datasets`,
 * comma-separated names, or (NULL) of all that are found. */
status longbench_read(sample_list *out, const longbench_table *t, const sample_source *from, const char *datasets,
                      err *e);
/* Frees the large context and leaves it empty. */
void longbench_sample_forget(longbench_sample *s);

/* ---- prompts ---- */

/* Makes the prompt of a sample. Requires prompt_tokens_free, also after an error. */
status longbench_prompt_make(prompt_tokens *out, const prompter *p, const longbench_dataset *d, utf8_text context,
                             utf8_text input, err *e);

/* Returns the byte of a whole prompt at which Quest starts to decode: the last occurrence of the dataset's question, at
 * most 100 characters from the end (the last character, if a shorter prompt has no question). */
size_t longbench_cut(const longbench_dataset *d, const char *s, size_t n);

/* Appends the ids that end an answer with newline_stops: the model's, and the newline. */
status longbench_stops(token_list *out, const tokenizer *tok, err *e);

/* Returns the default of max_length: the window in thousands of tokens, less 500, as in the published tables (4k: 3500,
 * 8k: 7500, 16k: 15500, 32k: 31500); below 2,000 tokens the window less 500. ST_USAGE: less than 600. */
status longbench_max_length(size_t *out, const evaluation *ev, err *e);

/* ---- scores ---- */

/* Scores one raw prediction in 0..1, with the dataset's post-processing. Errors: those of metric_score. */
status longbench_score(metrics *m, const longbench_dataset *d, metric_case c, double *score, err *e);

enum { LONGBENCH_BUCKETS = 3 }; /* lengths below 4000, below 8000, and longer */
extern const char *const longbench_bucket_names[LONGBENCH_BUCKETS];

/* Scores of predictions by length. A zeroed struct is empty. */
typedef struct {
    double sum; /* sum of all scores, in the order of insertion */
    size_t n;
    double *score[LONGBENCH_BUCKETS];
    size_t in[LONGBENCH_BUCKETS]; /* number of scores per bucket */
} longbench_scores;

status longbench_scores_add(longbench_scores *s, double score, int64_t length, err *e);
void longbench_scores_free(longbench_scores *s);
/* Returns 100 times the mean, rounded to two decimals as in Python; NAN: no scores. */
double longbench_mean(const longbench_scores *s);
/* Returns the mean of bucket b. Rounds with NumPy's rule, as the official code does; it may differ from Python's in the
 * last digit. */
double longbench_bucket_mean(const longbench_scores *s, int b);

/* Scores the predictions of a JSONL file: objects with pred, answers, all_classes and, with need_length, length. As in
 * the official code, the classes of the last line apply to all. ST_FORMAT names line and field. */
status longbench_score_file(metrics *m, const longbench_dataset *d, const char *path, bool need_length,
                            longbench_scores *out, err *e);

#endif
