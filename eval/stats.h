/* SPDX-License-Identifier: MIT */
/* Small statistics of the reports. */
#ifndef EVAL_STATS_H
#define EVAL_STATS_H

#include <stddef.h>
#include <stdint.h>

/* Computes the 95 % interval of a proportion of k successes in n trials, within [0, 1]; n = 0: [0, 1]. k may be a sum
 * of fractions. Source: Wilson 1927, without continuity correction, z = 1.959964. */
void stats_wilson(double k, int64_t n, double *low, double *high);

/* Returns the unbiased estimate of pass@k: the probability that at least one of k samples is right, if c of n samples
 * were; 1 <= k <= n. Source: Chen et al. 2021, "Evaluating large language models trained on code". */
double stats_pass(size_t n, size_t c, size_t k);

/* Returns the mean number of tokens per verification of n drafted tokens, including its own: 1 + h_1 + h_1 h_2 + ...
 * hazard [n]: acceptance probability of each token, given that those before it were accepted; NAN: they never were.
 * Source: doc/evals.md 21.2. */
double stats_accepted_length(const double *hazard, size_t n);

/* Returns the median, for even n the mean of the two middle values; n = 0: 0. Sorts x. */
double stats_median(double *x, size_t n);

/* Returns a quantile, q in [0, 1], of n > 0 values, interpolated linearly. Sorts x. */
double stats_quantile(double *x, size_t n, double q);

/* Returns the interquartile range (quartiles interpolated linearly) divided by the median; 0 if the median is 0. Sorts
 * x. */
double stats_spread(double *x, size_t n);

/* round(x, decimals): exact value to a number of decimals, ties to even. */
double round_decimals(double x, int decimals);

#endif
