/* SPDX-License-Identifier: MIT */
/* Scores of LongBench v1, InfiniteBench and RULER, bit-identical to their official Python code. Sources: evals.md
 * section 2; THUDM/LongBench metrics.py, with rouge 1.0.1, fuzzywuzzy 0.18.0 over difflib, jieba 0.42.1; evals.md 6.2
 * and 6.3; OpenBMB/InfiniteBench compute_scores.py, with rouge_score 0.1.2, and thunlp/InfLLM infinitebench_eval.py. */
#ifndef EVAL_METRICS_METRICS_H
#define EVAL_METRICS_METRICS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"
#include "tokenizer/chars.h"

typedef struct {
    utf8_text prediction;
    const utf8_text *answers; /* any of them is right */
    size_t n_answers;
    const utf8_text *classes; /* labels of a classification, or the prefix of mrcr's answers; NULL: none */
    size_t n_classes;
} metric_case;

typedef struct metric metric;

/* State between calls: the Chinese dictionary, loaded on first use. Not thread-safe. */
typedef struct metrics metrics;

/* Opens a scorer without reading a file; data_dir is the folder of evaluation data. */
status metrics_open(metrics **out, const char *data_dir, err *e);
void metrics_destroy(metrics *m);

/* Finds a metric: qa_f1 qa_f1_zh rouge rouge_zh classification retrieval retrieval_zh count code_sim; the file name of
 * an InfiniteBench task; longbook_choice_eng_infllm, code_debug_infllm: those two as scored by InfLLM and ActQKV;
 * ruler_all, ruler_part; mrcr, mrcr_v2; scbench_kv, scbench_qa_eng, scbench_vt, scbench_mf; gsm8k..., math..., aime...,
 * gpqa...: the rules of evals.md 17. NULL: unknown. */
const metric *metric_find(const char *name);
/* True if its answers are labels: texts or numbers (see prediction_of). */
bool metric_takes_labels(const metric *k);
const char *metric_name(const metric *k);
/* Iterates over all metrics: NULL returns the first one; the last one returns NULL. */
const metric *metric_next(const metric *k);

/* Computes the best score over the answers, in 0..1; 0 without answers. Exceptions: for longdialogue_qa_eng only the
 * first answer counts; for math_calc the answers are the numbers in order; for the two choice tasks they are the
 * option's text and its letter; for mrcr an optional second answer is the prefix of the first. Errors: ST_FORMAT for
 * invalid UTF-8, a classification without classes, a retrieval answer without its number, labels of the wrong kind;
 * ST_UNSUPPORTED if the word counts of both texts multiply to over 2^32 (rouge), and for lines of code and texts of
 * mrcr of over 65536 characters; ST_IO, ST_FORMAT for the dictionary. */
status metric_score(metrics *m, const metric *k, const metric_case *c, double *score, err *e);

/* True if the last scored prediction contains no answer by the rules of code_debug_infllm. Its score is 0; the original
 * scores a random letter. */
bool metrics_undecided(const metrics *m);

/* True if the metric extracts an answer from an output (metric_answer). */
bool metric_finds_answers(const metric *k);
/* Returns the extracted answer of n bytes, NUL-terminated (mem_free); NULL: the output has none. */
status metric_answer(char **answer, size_t *n, const metric *k, utf8_text prediction, err *e);

#endif
