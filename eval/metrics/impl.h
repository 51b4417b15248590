/* SPDX-License-Identifier: MIT */
/* Internal declarations shared by the metrics. */
#ifndef EVAL_METRICS_IMPL_H
#define EVAL_METRICS_IMPL_H

#include "eval/metrics/metrics.h"
#include "eval/metrics/segment.h"
#include "eval/metrics/text.h"

/* Extraction and comparison of answers in long outputs (answer.h). */
typedef struct answer_rule answer_rule;

/* One prediction and one answer; metrics of whole cases use `answers`. */
typedef struct {
    metrics *m;
    const answer_rule *rule; /* rule of the metric */
    utf8_text prediction, answer;
    const utf8_text *answers, *classes;
    size_t n_answers, n_classes;
} metric_pair;

/* Computes *score, which is 0 before the call. */
typedef status metric_fn(const metric_pair *p, double *score, err *e);

struct metric {
    const char *name;
    metric_fn *score;
    bool labels;             /* answers may be numbers */
    bool whole;              /* the answers are parts of one answer; else the best of them counts */
    const answer_rule *rule; /* rule of score_answer, else NULL */
};

struct metrics {
    char *jieba_dir;
    segmenter *words; /* NULL until the first call needs it */
    bool undecided;   /* see metrics_undecided */
};

/* Returns the segmenter; reads the dictionary on the first call. */
static inline status metrics_segmenter(metrics *m, const segmenter **out, err *e)
{
    if (!m->words) TRY(segmenter_create(&m->words, m->jieba_dir, e));
    *out = m->words;
    return ST_OK;
}

metric_fn score_qa_f1, score_qa_f1_zh, score_rouge, score_rouge_zh, score_classification, score_retrieval,
    score_retrieval_zh, score_count, score_code_sim, score_contains, score_contains_upper, score_fraction_found,
    score_math_find_whole, score_mrcr, score_mrcr_v2, score_first_number, score_kv_retrieval, score_longdialogue,
    score_rouge_lsum, score_choice, score_choice_infllm, score_char_f1_zh, score_math_find, score_math_calc,
    score_code_run, score_code_debug, score_code_debug_infllm, score_ruler_all, score_ruler_part;

#endif
