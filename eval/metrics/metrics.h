/* SPDX-License-Identifier: MIT */
/* The scores of LongBench v1, equal to its official Python code to the last bits. Source: evals.md section 2;
 * THUDM/LongBench metrics.py, with rouge 1.0.1, fuzzywuzzy 0.18.0 over difflib, jieba 0.42.1. */
#ifndef EVAL_METRICS_METRICS_H
#define EVAL_METRICS_METRICS_H

#include <stddef.h>

#include "kernels/base/err.h"

/* Borrowed UTF-8; NUL is a character like any other. */
typedef struct {
    const char *s;
    size_t n;
} utf8_text;

typedef struct {
    utf8_text prediction;
    const utf8_text *answers; /* any of them is right */
    size_t n_answers;
    const utf8_text *classes; /* labels of a classification; NULL where there are none */
    size_t n_classes;
} metric_case;

typedef struct metric metric;

/* What scoring keeps between calls: the Chinese dictionary, once it was needed. One thread at a time. */
typedef struct metrics metrics;

/* Reads nothing yet; jieba_dir is the folder of dict.txt and hmm.tsv. */
status metrics_create(metrics **out, const char *jieba_dir, err *e);
void metrics_destroy(metrics *m);

/* qa_f1 qa_f1_zh rouge rouge_zh classification retrieval retrieval_zh count code_sim; NULL: unknown. */
const metric *metric_find(const char *name);
const char *metric_name(const metric *k);
/* NULL-terminated. */
const metric *const *metric_list(void);

/* The best score over the answers, in 0..1; 0 without answers. Errors: ST_FORMAT for text that is not UTF-8, a
 * classification without classes, a retrieval answer without its number; ST_UNSUPPORTED for rouge where the
 * words of both texts multiply to over 2^32, and for lines of code of over 65536 characters; ST_IO, ST_FORMAT for the
 * dictionary. */
status metric_score(metrics *m, const metric *k, const metric_case *c, double *score, err *e);

#endif
