/* SPDX-License-Identifier: MIT */
/* Scores by equality: labels and numbers. evals.md 2.5 and 2.6. */
#include "config.h"

#include "eval/metrics/impl.h"
#include "kernels/base/mem.h"

static bool contains(span s, span part)
{
    return span_find(s, 0, part) <= s.n;
}

/* Takes the first span that equals s out of the list. */
static void remove_first(span_list *l, span s)
{
    size_t i = 0;
    while (!span_equal(l->s[i], s)) i++;
    for (l->n--; i < l->n; i++) l->s[i] = l->s[i + 1];
}

status score_classification(const metric_pair *p, double *score, err *e)
{
    span_list found = {0};
    bool right = false;
    status st = ST_OK;
    if (!p->classes) return err_set(e, ST_FORMAT, "classification: the list of classes (all_classes) is missing");
    for (size_t i = 0; i < p->n_classes && st == ST_OK; i++)
        if (contains(p->prediction, p->classes[i])) st = span_push(&found, p->classes[i], e);
    /* The original removes from the list that it walks, so the one behind a removed one is not looked at. */
    for (size_t i = 0; i < found.n; i++) {
        span label = found.s[i];
        if (contains(p->answer, label) && !span_equal(label, p->answer)) remove_first(&found, label);
    }
    for (size_t i = 0; i < found.n; i++) right |= span_equal(found.s[i], p->answer);
    *score = right ? 1.0 / (double)found.n : 0;
    span_list_free(&found);
    return st;
}

/* The share of the prediction's numbers that are written exactly as `target`. */
static status share_of_numbers(span prediction, span target, double *score, err *e)
{
    span_list numbers = {0};
    size_t right = 0;
    status st = span_digits(&numbers, prediction, e);
    for (size_t i = 0; i < numbers.n; i++) right += span_equal(numbers.s[i], target);
    *score = numbers.n ? (double)right / (double)numbers.n : 0;
    span_list_free(&numbers);
    return st;
}

/* The digits behind the first `word` of the answer that has some. */
static status retrieval(const metric_pair *p, span word, double *score, err *e)
{
    for (size_t at = 0; (at = span_find(p->answer, at, word)) <= p->answer.n; at++) {
        size_t begin = at + word.n, end = begin;
        while (end < p->answer.n && char_is_digit(p->answer.c[end])) end++;
        if (end > begin) return share_of_numbers(p->prediction, span_from(p->answer, begin, end), score, e);
    }
    return err_set(e, ST_FORMAT, "retrieval: the answer names no paragraph number");
}

status score_retrieval(const metric_pair *p, double *score, err *e)
{
    static const int32_t word[] = {'P', 'a', 'r', 'a', 'g', 'r', 'a', 'p', 'h', ' '};
    return retrieval(p, (span){word, sizeof word / sizeof *word}, score, e);
}

status score_retrieval_zh(const metric_pair *p, double *score, err *e)
{
    static const int32_t word[] = {0x6bb5, 0x843d}; /* "paragraph" */
    return retrieval(p, (span){word, sizeof word / sizeof *word}, score, e);
}

status score_count(const metric_pair *p, double *score, err *e)
{
    return share_of_numbers(p->prediction, p->answer, score, e);
}
