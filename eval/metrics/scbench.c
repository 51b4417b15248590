/* SPDX-License-Identifier: MIT */
/* Scores of SCBench that are not InfiniteBench's. doc/evals.md 16; microsoft/MInference scbench/compute_scores.py. */
#include "config.h"

#include "eval/metrics/impl.h"
#include "eval/stats.h"

static bool contains(span s, span part)
{
    return span_find(s, 0, part) <= s.n;
}

/* Whether the prediction holds the label. */
status score_contains(const metric_pair *p, double *score, err *e)
{
    (void)e;
    *score = contains(p->prediction, p->answer);
    return ST_OK;
}

/* The same of two texts after a change of case. */
static status contains_cased(bool *out, span s, span part, status (*change)(text *, span, err *), err *e)
{
    text a = {0}, b = {0};
    status st = change(&a, s, e);
    if (st == ST_OK) st = change(&b, part, e);
    if (st == ST_OK) *out = contains(text_span(&a), text_span(&b));
    text_free(&a);
    text_free(&b);
    return st;
}

/* The prediction is stripped, then both are upper-cased. */
status score_contains_upper(const metric_pair *p, double *score, err *e)
{
    bool found = false;
    TRY(contains_cased(&found, span_strip(p->prediction), p->answer, text_upper, e));
    *score = found;
    return ST_OK;
}

/* The share of the labels that the lower-cased prediction holds, rounded to two decimals. */
status score_share_found(const metric_pair *p, double *score, err *e)
{
    size_t found = 0;
    for (size_t i = 0; i < p->n_answers; i++) {
        bool one = false;
        TRY(contains_cased(&one, p->prediction, p->answers[i], text_lower, e));
        found += one;
    }
    *score = round_decimals((double)found / (double)p->n_answers, 2);
    return ST_OK;
}
