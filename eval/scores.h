/* SPDX-License-Identifier: MIT */
/* Scores of samples and their means, as Python's round shows them. */
#ifndef EVAL_SCORES_H
#define EVAL_SCORES_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

/* Scores of a dataset in the order of its samples; zeroed: none. */
typedef struct {
    double *score;
    int64_t *length; /* of the samples, for means by length */
    size_t n, cap;
} scores;

status scores_add(scores *s, double score, int64_t length, err *e);
void scores_free(scores *s);

/* 100 times the mean, rounded to two decimals; NAN without scores. */
double scores_mean(const scores *s);

/* round(x, decimals): the exact value to so many decimals, ties to even. */
double round_decimals(double x, int decimals);

#endif
