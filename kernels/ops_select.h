/* SPDX-License-Identifier: MIT */
/* Ops that turn scores of items (tokens, pages, blocks) into lists of slots. */
#ifndef KERNELS_OPS_SELECT_H
#define KERNELS_OPS_SELECT_H

#include "kernels/ops.h"

/* How the query heads of a group share one selection. methods.md 0.2.4 */
typedef enum {
    GQA_PER_Q,  /* each head its own */
    GQA_MEAN_Q, /* of the mean query: done before scoring */
    GQA_MEAN_S, /* raw scores of the group */
    GQA_SUM_S,
    GQA_MAX_S,
    GQA_VOTE,       /* softmax over the candidates per head, then the sum: as log-sum-exp of logit - lse */
    GQA_LAYER_MEAN, /* the same over all heads of the layer */
    GQA_LAYER_VOTE,
    GQA_LAYER_CONCAT, /* one score from the concatenated heads: done by the scorer */
    GQA_COUNT
} gqa_mode;
#define GQA_NAMES "per_q mean_q mean_s sum_s max_s vote layer_mean layer_vote layer_concat"

/* Lists a mode makes of n_heads query heads over n_kv_heads. */
static inline size_t gqa_lists(gqa_mode m, size_t n_heads, size_t n_kv_heads)
{
    return m == GQA_PER_Q ? n_heads : m >= GQA_LAYER_MEAN ? 1 : n_kv_heads;
}

/* Choice of items. Item i is the slots [i * granule, min((i + 1) * granule, n_slots)).
 * score  f32 [n_lists][stride], of the candidates
 * n      i64 [3]: n_slots, first candidate item, end of the candidates
 * head   items [0, head) and
 * tail   i64 [1]: items [tail, ceil(n_slots / granule)) are taken whatever their score, and are no candidates
 * first  i64 [1]: slots before it are left out of every item; p NULL: none are
 * k      i64 [n_k] (n_k 1 or n_lists): candidates to take; all if there are fewer, none if k <= 0
 * idx    i32 [n_lists][idx_stride] out: slots, ascending; range i64 [n_lists][2] out: {0, count}
 * NaN counts as -INFINITY; of equal scores the lower item goes first (methods.md 0.2.2). */
typedef struct {
    buf score, n, k, tail, first;
    size_t n_lists, stride, n_k;
    int64_t granule, head, n_items_max, idx_stride;
    buf idx, range;
} choose_job;

/* A choice of groups of items that went before: group g is the items [g * per, (g + 1) * per). List l has the groups
 * group[l][0 .. range[l][1]), ascending, each with a candidate; `choose` over groups makes such lists, in idx and range.
 * What is scored by groups lies close together: place p of a list is item group[l][p / per] * per + p % per. The places
 * of items that are no candidates hold -INFINITY. */
typedef struct {
    buf group;     /* i32 [n_lists][stride] */
    buf range;     /* i64 [n_lists][2]: {0, groups} */
    size_t n_lists, stride;
    int64_t per, n_max; /* n_max: most groups of a list */
} item_groups;

/* Scorers and `combine` take n as choose_job does and touch the candidates [n[1], n[2]) alone; n_max bounds
 * their end. Scores decide selections: they are float32 sums of a fixed order, so that all implementations
 * give the same bits. A dot product has 16 partial sums of rounded products, channel c in partial c mod 16 in
 * ascending order, added as (q0 + q1) + (q2 + q3) with q_i = (p_4i + p_4i+2) + (p_4i+1 + p_4i+3). */
struct select_ops {
    /* Mean of the queries of each group: out [n_rows][n_groups][dim] of q [n_rows][n_heads][dim]. */
    void (*mean_heads)(backend *, buf out, buf q, size_t n_rows, size_t n_heads, size_t n_groups, size_t dim);
    /* score[h][i] = q_h . k_i, slot i: the exact scorer. q [n_heads][dim]; rows of any store (codes are
     * scored as the keys that they give). Adds bytes read to read[0]; read.p NULL: not counted. */
    void (*exact)(backend *, buf score, size_t stride, buf q, size_t n_heads, const kv_rows *rows, buf n,
                  int64_t n_max, buf read);
    /* Combines raw scores in [n_heads][stride] into out [n_lists][stride], lists as gqa_lists says (or
     * n_heads = n_lists: a copy). MEAN, SUM, MAX: of the raw scores, heads in ascending order; LAYER_CONCAT is
     * the sum over all heads, which is the product of the concatenated vectors. VOTE: the log of the sum over
     * the group of the softmax over the candidates of scale * score; NaN counts as -INFINITY. The votes' exp
     * and log are to 1e-6, the rest is exact to the bit. Items that are no candidates stay undefined. LAYER_MEAN and
     * LAYER_CONCAT take in the heads of all ranks; LAYER_VOTE knows those of one process alone. */
    void (*combine)(backend *, buf out, buf in, size_t stride, size_t n_heads, size_t n_lists, buf n,
                    int64_t n_max, gqa_mode mode, float scale);
    void (*choose)(backend *, const choose_job *job);
    /* Takes the scratch of choices of up to n_lists lists of n_items items now, so that they take none. ST_NOMEM. NULL: it is
     * the host's. */
    status (*reserve)(backend *, size_t n_lists, int64_t n_items, err *e);
    /* The same among the candidates in the groups: score [n_lists][stride] by places. NULL: this and the scorers by
     * groups are missing. */
    void (*choose_groups)(backend *, const choose_job *job, const item_groups *g);
};

extern const select_ops ref_select, cpu_select;

#endif
