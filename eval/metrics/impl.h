/* SPDX-License-Identifier: MIT */
/* What the metrics share. */
#ifndef EVAL_METRICS_IMPL_H
#define EVAL_METRICS_IMPL_H

#include "eval/metrics/metrics.h"
#include "eval/metrics/segment.h"
#include "eval/metrics/text.h"

/* How a long output answers (answer.h). */
typedef struct answer_rule answer_rule;

/* One prediction against one answer; a metric of whole cases looks at `answers`. */
typedef struct {
    metrics *m;
    const answer_rule *rule; /* of the metric */
    utf8_text said, label;   /* prediction and answer as bytes */
    span prediction, answer;
    const span *answers, *classes;
    size_t n_answers, n_classes;
} metric_pair;

/* *score is 0 before. */
typedef status (*metric_fn)(const metric_pair *p, double *score, err *e);

struct metric {
    const char *name;
    metric_fn score;
    bool labels;             /* answers may be numbers */
    bool whole;              /* the answers are parts of one; else the best of them counts */
    const answer_rule *rule; /* of score_answer, else NULL */
};

/* The dictionary, read at the first call. */
status metrics_segmenter(metrics *m, const segmenter **out, err *e);

/* What metrics_undecided tells. */
void metrics_set_undecided(metrics *m, bool undecided);

/* Multiset F1 of two token lists in one: `tokens` holds those of the prediction, n_prediction, then the answer's. */
status token_f1(const span_list *tokens, size_t n_prediction, double *score, err *e);

/* 1 where the answer of an output is the label, by the metric's rule. */
status score_answer(const metric_pair *p, double *score, err *e);
/* difflib.SequenceMatcher(None, a, b).ratio(), in 0..1: not symmetric. `what`: for the error, ST_UNSUPPORTED, of texts
 * of over 65536 characters. */
status difflib_ratio(span a, span b, const char *what, double *out, err *e);

status score_qa_f1(const metric_pair *p, double *score, err *e);
status score_qa_f1_zh(const metric_pair *p, double *score, err *e);
status score_rouge(const metric_pair *p, double *score, err *e);
status score_rouge_zh(const metric_pair *p, double *score, err *e);
status score_classification(const metric_pair *p, double *score, err *e);
status score_retrieval(const metric_pair *p, double *score, err *e);
status score_retrieval_zh(const metric_pair *p, double *score, err *e);
status score_count(const metric_pair *p, double *score, err *e);
status score_code_sim(const metric_pair *p, double *score, err *e);
status score_contains(const metric_pair *p, double *score, err *e);
status score_contains_upper(const metric_pair *p, double *score, err *e);
status score_share_found(const metric_pair *p, double *score, err *e);
status score_math_find_whole(const metric_pair *p, double *score, err *e);
status score_mrcr(const metric_pair *p, double *score, err *e);
status score_mrcr_v2(const metric_pair *p, double *score, err *e);

status score_first_number(const metric_pair *p, double *score, err *e);
status score_kv_retrieval(const metric_pair *p, double *score, err *e);
status score_longdialogue(const metric_pair *p, double *score, err *e);
status score_rouge_lsum(const metric_pair *p, double *score, err *e);
status score_choice(const metric_pair *p, double *score, err *e);
status score_choice_infllm(const metric_pair *p, double *score, err *e);
status score_char_f1_zh(const metric_pair *p, double *score, err *e);
status score_math_find(const metric_pair *p, double *score, err *e);
status score_math_calc(const metric_pair *p, double *score, err *e);
status score_code_run(const metric_pair *p, double *score, err *e);
status score_code_debug(const metric_pair *p, double *score, err *e);
status score_code_debug_infllm(const metric_pair *p, double *score, err *e);

status score_ruler_all(const metric_pair *p, double *score, err *e);
status score_ruler_part(const metric_pair *p, double *score, err *e);

#endif
