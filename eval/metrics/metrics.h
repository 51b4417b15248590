/* SPDX-License-Identifier: MIT */
/* The scores of LongBench v1, InfiniteBench and RULER, equal to their official Python code to the last bits. Sources:
 * evals.md section 2; THUDM/LongBench metrics.py, with rouge 1.0.1, fuzzywuzzy 0.18.0 over difflib, jieba 0.42.1;
 * evals.md 6.2 and 6.3; OpenBMB/InfiniteBench compute_scores.py, with rouge_score 0.1.2, and thunlp/InfLLM
 * infinitebench_eval.py. */
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
    const utf8_text *classes; /* labels of a classification, or what mrcr's answers begin with; NULL: none */
    size_t n_classes;
} metric_case;

typedef struct metric metric;

/* What scoring keeps between calls: the Chinese dictionary, once it was needed. One thread at a time. */
typedef struct metrics metrics;

/* Reads nothing yet; data_dir is the folder of evaluation data. */
status metrics_open(metrics **out, const char *data_dir, err *e);
void metrics_destroy(metrics *m);

/* qa_f1 qa_f1_zh rouge rouge_zh classification retrieval retrieval_zh count code_sim; a task of InfiniteBench, as its
 * file is called; longbook_choice_eng_infllm, code_debug_infllm: these two as InfLLM and ActQKV score them; ruler_all,
 * ruler_part; mrcr, mrcr_v2; scbench_kv, scbench_qa_eng, scbench_vt, scbench_mf; gsm8k..., math..., aime..., gpqa...:
 * the rules of evals.md 17. NULL: unknown. */
const metric *metric_find(const char *name);
/* Whether its answers are labels, texts or numbers (labels of prediction_of). */
bool metric_takes_labels(const metric *k);
const char *metric_name(const metric *k);
/* All of them: the first one behind NULL; NULL behind the last one. */
const metric *metric_next(const metric *k);

/* The best score over the answers, in 0..1; 0 without answers. Of longdialogue_qa_eng the first answer counts, of
 * math_calc they are the numbers in order, of the two choices the option's text and its letter; of mrcr the second, if
 * there is one, is what the first begins with. Errors: ST_FORMAT for
 * text that is not UTF-8, a classification without classes, a retrieval answer without its number, labels of another
 * kind than the task's; ST_UNSUPPORTED for rouge where the words of both texts multiply to over 2^32, and for lines of
 * code, and texts of mrcr, of over 65536 characters; ST_IO, ST_FORMAT for the dictionary. */
status metric_score(metrics *m, const metric *k, const metric_case *c, double *score, err *e);

/* Whether the prediction that metric_score was given last said nothing that code_debug_infllm takes for an answer. Its
 * score is 0; the original scores a letter drawn at random. */
bool metrics_undecided(const metrics *m);

/* Whether the metric takes an answer out of an output: metric_answer. */
bool metric_finds_answers(const metric *k);
/* That answer, NUL-terminated (mem_free), of n bytes; NULL: the output has none. */
status metric_answer(char **answer, size_t *n, const metric *k, utf8_text prediction, err *e);

#endif
