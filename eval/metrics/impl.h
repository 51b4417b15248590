/* SPDX-License-Identifier: MIT */
/* What the metrics share. */
#ifndef EVAL_METRICS_IMPL_H
#define EVAL_METRICS_IMPL_H

#include "eval/metrics/metrics.h"
#include "eval/metrics/segment.h"
#include "eval/metrics/text.h"

/* One prediction against one answer. */
typedef struct {
    metrics *m;
    span prediction, answer;
    const span *classes;
    size_t n_classes;
} metric_pair;

typedef status (*metric_fn)(const metric_pair *p, double *score, err *e);

struct metric {
    const char *name;
    metric_fn score;
};

/* The dictionary, read at the first call. */
status metrics_segmenter(metrics *m, const segmenter **out, err *e);

/* Multiset F1 of two token lists in one: `tokens` holds those of the prediction, n_prediction, then the answer's. */
status token_f1(const span_list *tokens, size_t n_prediction, double *score, err *e);

status score_qa_f1(const metric_pair *p, double *score, err *e);
status score_qa_f1_zh(const metric_pair *p, double *score, err *e);
status score_rouge(const metric_pair *p, double *score, err *e);
status score_rouge_zh(const metric_pair *p, double *score, err *e);
status score_classification(const metric_pair *p, double *score, err *e);
status score_retrieval(const metric_pair *p, double *score, err *e);
status score_retrieval_zh(const metric_pair *p, double *score, err *e);
status score_count(const metric_pair *p, double *score, err *e);
status score_code_sim(const metric_pair *p, double *score, err *e);

#endif
