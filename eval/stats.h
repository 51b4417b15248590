/* SPDX-License-Identifier: MIT */
/* Small statistics of the reports. */
#ifndef EVAL_STATS_H
#define EVAL_STATS_H

#include <stddef.h>
#include <stdint.h>

/* 95 % interval of a share of k successes in n trials, both within [0, 1]; n = 0: [0, 1]. k may be a sum of shares.
 * Source: Wilson 1927, without continuity correction, z = 1.959964. */
void stats_wilson(double k, int64_t n, double *low, double *high);

/* The chance that one of k samples is right where c of n were, 1 <= k <= n, without bias: pass@k.
 * Source: Chen et al. 2021, "Evaluating large language models trained on code". */
double stats_pass(size_t n, size_t c, size_t k);

/* Mean tokens of a verification of n drafted tokens, its own included: 1 + h_1 + h_1 h_2 + ...; hazard [n]: the chance
 * of each where those before it were right; NAN: they never were. Source: doc/evals.md 21.2. */
double stats_accepted_length(const double *hazard, size_t n);

/* The middle value, of an even number the mean of the two middle ones; sorts x. n = 0: 0. */
double stats_median(double *x, size_t n);

/* The width of the middle half, from the lower quartile to the upper one (between two values in proportion), over the
 * median; sorts x. 0 where the median is 0. */
double stats_spread(double *x, size_t n);

/* round(x, decimals): the exact value to so many decimals, ties to even. */
double round_decimals(double x, int decimals);

#endif
