/* SPDX-License-Identifier: MIT */
/* Recall: compares a strategy's selection and output with exact attention for the same query. */
#ifndef LENS_RECALL_SCORE_H
#define LENS_RECALL_SCORE_H

#include "attention/sequence.h"

/* Keys and values of one layer for exact attention: f32 [n_kv_heads][cap][head_dim], rounded to the stored type. v
 * NULL: unknown. Row i belongs to position i; the first n rows are valid. */
typedef struct {
    const attn_shape *shape;
    float *k, *v;
    int64_t cap, n;
} exact_rows;

/* One query in one layer. first: first position in the layer's window. */
typedef struct {
    const exact_rows *rows;
    const float *q; /* [n_heads][head_dim], rotated */
    int64_t first;
    double *score; /* [n_heads][cap]: scale * q.k */
    double *share; /* [n_heads][cap]: softmax of score */
} exact_query;

/* Positions that one query head attended. */
typedef struct {
    const int64_t *pos; /* ascending, the current token included */
    int64_t n;
    int64_t head_end, tail; /* positions before head_end and from tail on are always attended */
    gqa_mode gqa;           /* how the heads of a group share a selection */
} exact_choice;

/* Computes the scores and softmax of all heads into score and share, which the caller owns. */
void exact_fill(exact_query *x);
/* Returns the fraction of the exact selection that is in c. The exact selection has as many positions with the highest
 * exact scores, combined over the heads that share the list (methods.md 0.2.4). Forced positions do not count. Returns
 * 1 if there is nothing to select. work: [2 * cap]. */
double exact_recall(const exact_query *x, int head, const exact_choice *c, double *work);
/* Returns the sum of the head's softmax over c. */
double exact_mass(const exact_query *x, int head, const exact_choice *c);
/* True if `missed` is in the 95 % interval of tau, the missed fraction estimated from n sampled tokens. The interval is
 * log(tau / (1 - tau)) +- t sigma: sigma is the error of tail_missed_job, t Student's quantile for 2 (n - 1) / 3
 * degrees of freedom, as successive differences have. Fractions are at least 1e-6. The interval is widened by 0.001 for
 * rounding when a sample contains all tokens. */
bool exact_covers(double tau, double sigma, int64_t n, double missed);
/* Returns the sum of |p - p^| over the visible positions, from 0 to 2. p is the head's softmax. p^ is the softmax over
 * the positions of c that are in `kept` [n] (NULL: all), for the keys `held`, laid out as rows->k (NULL: the exact
 * keys). With exact keys the result is 2 (1 - the mass of those positions). */
double exact_distance(const exact_query *x, int head, const exact_choice *c, const bool *kept, const float *held);
/* Returns the sum of the head's softmax over the positions of c that are in `kept` (NULL: all), except 0 and 1. *n:
 * number of these positions. LogQuant, equation 1. */
double exact_covered(const exact_query *x, int head, const exact_choice *c, const bool *kept, int64_t *n);
/* Relative error |out - exact| / |exact| of one head's output. */
typedef struct {
    double l2, l1;
} exact_diff;
/* Returns the error of `out` [head_dim]. rows->v must not be NULL. */
exact_diff exact_error(const exact_query *x, int head, const float *out);
/* Returns the error of exact attention over the positions of c that are in `kept` [n]. */
exact_diff exact_without(const exact_query *x, int head, const exact_choice *c, const bool *kept);

#endif
