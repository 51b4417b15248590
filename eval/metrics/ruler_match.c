/* SPDX-License-Identifier: MIT */
/* RULER's scores: references that stand in the prediction. evals.md 15.5; NVIDIA/RULER scripts/eval/. */
#include "config.h"

#include "eval/metrics/impl.h"

/* The prediction as RULER's evaluation has it: control characters become newlines, and nothing white is at its ends. */
static status clean(text *out, span prediction, err *e)
{
    text low;
    TRY(text_lower(&low, span_strip(prediction), e));
    for (size_t i = 0; i < low.n; i++)
        if (low.c[i] < 0x20) low.c[i] = '\n';
    *out = low;
    return ST_OK;
}

static status holds(const text *prediction, span reference, bool *out, err *e)
{
    text low;
    span s = span_strip(text_span(prediction));
    TRY(text_lower(&low, reference, e));
    *out = span_find(s, 0, text_span(&low)) <= s.n;
    text_free(&low);
    return ST_OK;
}

/* The share of the references. */
status score_ruler_all(const metric_pair *p, double *score, err *e)
{
    text prediction;
    size_t found = 0;
    TRY(clean(&prediction, p->prediction, e));
    status st = ST_OK;
    for (size_t i = 0; i < p->n_answers && st == ST_OK; i++) {
        bool one = false;
        st = holds(&prediction, p->answers[i], &one, e);
        found += one;
    }
    if (p->n_answers) *score = (double)found / (double)p->n_answers;
    text_free(&prediction);
    return st;
}

/* Whether there is one. */
status score_ruler_part(const metric_pair *p, double *score, err *e)
{
    text prediction;
    bool one = false;
    TRY(clean(&prediction, p->prediction, e));
    status st = holds(&prediction, p->answer, &one, e);
    *score = one;
    text_free(&prediction);
    return st;
}
