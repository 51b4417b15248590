/* SPDX-License-Identifier: MIT */
/* Recall: a strategy's selection and output against exact attention of the same query. */
#ifndef LENS_RECALL_SCORE_H
#define LENS_RECALL_SCORE_H

#include "attention/sequence.h"

/* Keys and values that exact attention sees in one layer: f32 [n_kv_heads][cap][head_dim], rounded to the
 * stored type; v NULL: unknown. Rows are positions; n of them count. */
typedef struct {
    const attn_shape *shape;
    float *k, *v;
    int64_t cap, n;
} exact_rows;

/* One query in one layer. first: the first position that the layer's window shows. */
typedef struct {
    const exact_rows *rows;
    const float *q; /* [n_heads][head_dim], rotated */
    int64_t first;
    double *score; /* [n_heads][cap]: scale * q.k */
    double *share; /* [n_heads][cap]: softmax of it */
} exact_query;

/* What one query head attended. */
typedef struct {
    const int64_t *pos; /* ascending, the current token included */
    int64_t n;
    int64_t head_end, tail; /* positions that are attended whatever their score */
    gqa_mode gqa;           /* how its group shares a selection */
} exact_choice;

/* Scores and softmax of all heads; score and share are the caller's. */
void exact_fill(exact_query *x);
/* Share of the exact scores' choice that is in c: as many positions, the same forced ones, the same
 * combination of the heads that share the list (methods.md 0.2.4); forced positions do not count.
 * 1 when there is nothing to choose. work: [2 * cap] doubles. */
double exact_recall(const exact_query *x, int head, const exact_choice *c, double *work);
/* Sum of the head's softmax over the choice. */
double exact_mass(const exact_query *x, int head, const exact_choice *c);
/* Whether the 95 % interval of a sample of n tokens, which says that the share tau was missed, with the error sigma of
 * tail_missed_job, holds `missed`: log(tau / (1 - tau)) +- t sigma, t of Student's distribution with 2 (n - 1) / 3
 * degrees of freedom, which successive differences have about. What is below 1e-6 is nothing, and 0.001 is added for
 * what rounding does where a sample has all. */
bool exact_covers(double tau, double sigma, int64_t n, double missed);
/* Sum over the visible positions of |p - p^|, 0 to 2: p the head's softmax, p^ that over the choice, or over those
 * positions of it that `kept` [n] holds (NULL: all), of the keys `held`, laid out as rows->k (NULL: the exact ones).
 * With exact keys it is 2 (1 - the mass of what is left). */
double exact_distance(const exact_query *x, int head, const exact_choice *c, const bool *kept, const float *held);
/* Sum of the head's softmax over those positions of the choice that `kept` holds (NULL: all), but for 0 and 1; *n:
 * their number. LogQuant, equation 1. */
double exact_covered(const exact_query *x, int head, const exact_choice *c, const bool *kept, int64_t *n);
/* |out - exact| / |exact| of one head's output. */
typedef struct {
    double l2, l1;
} exact_diff;
/* out [head_dim]. rows->v must be known. */
exact_diff exact_error(const exact_query *x, int head, const float *out);
/* The same of exact attention over those positions of c that `kept` [n] holds. */
exact_diff exact_without(const exact_query *x, int head, const exact_choice *c, const bool *kept);

#endif
