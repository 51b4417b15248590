/* SPDX-License-Identifier: MIT */
/* Ops that convert scores of items (tokens, pages, blocks) to lists of slots. */
#ifndef KERNELS_OPS_SELECT_H
#define KERNELS_OPS_SELECT_H

#include "kernels/ops.h"

/* Modes in which the query heads of a group share one selection. methods.md 0.2.4 */
typedef enum {
    GQA_PER_Q,  /* one selection per head */
    GQA_MEAN_Q, /* of the mean query; computed before scoring */
    GQA_MEAN_S, /* raw scores of the group */
    GQA_SUM_S,
    GQA_MAX_S,
    GQA_VOTE,       /* softmax over the candidates per head, then the sum, as log-sum-exp of logit - lse */
    GQA_LAYER_MEAN, /* like MEAN_S over all heads of the layer */
    GQA_LAYER_VOTE,
    GQA_LAYER_CONCAT, /* one score from the concatenated heads; computed by the scorer */
    GQA_COUNT
} gqa_mode;
#define GQA_NAMES "per_q mean_q mean_s sum_s max_s vote layer_mean layer_vote layer_concat"

/* Returns the number of lists for n_heads query heads over n_kv_heads in mode m. */
static inline size_t gqa_lists(gqa_mode m, size_t n_heads, size_t n_kv_heads)
{
    return m == GQA_PER_Q ? n_heads : m >= GQA_LAYER_MEAN ? 1 : n_kv_heads;
}

/* Spans of items chosen by an earlier selection: span g is the items [g * per, (g + 1) * per). List l has the spans
 * span[l][0 .. range[l][1]), ascending, each with a candidate. `choose` over spans makes such lists in idx and range.
 * Scores by spans are stored contiguously: column p of a list is item span[l][p / per] * per + p % per. Columns of
 * items that are not candidates hold -INFINITY. */
typedef struct {
    buf span;  /* i32 [n_lists][stride] */
    buf range; /* i64 [n_lists][2]: {0, number of spans} */
    size_t n_lists, stride;
    int64_t per, n_max; /* n_max: maximum spans of a list */
} item_spans;

/* These ops take lists of jobs, one job for each sequence of a batch, so that a device launches once. The jobs of a
 * call differ in buffers, numbers of items and strides. All else (types, index sizes, heads, lists, modes) is equal,
 * and either all or none have spans, votes or a budget.
 *
 * Job of a scorer.
 * index   a quest_index or fier_index
 * q       f32 [n_heads][head_dim]; n_heads a multiple of n_kv_heads
 * score   f32 [n_heads][stride] out: column i is item i of the candidates; no other column is written
 * spans   not NULL: only the candidates in these spans, in the columns of item_spans. Head h uses list
 *         h / (n_heads / n_lists), and one of n_lists and n_kv_heads divides the other
 * votes   f32 [n_kv_heads][stride] out: the scores combined with GQA_VOTE and `scale`, to the bit. score is undefined
 *         then. Requires more query heads than kv heads and no spans. p NULL: not wanted
 * read    u64 [1]: the bytes read are added; p NULL: not counted
 * Scores decide selections, so they are float32 sums of a fixed order, and all implementations give the same bits. A
 * dot product has 16 partial sums of rounded products, channel c in partial sum c mod 16 in ascending order, added as
 * (q0 + q1) + (q2 + q3) with q_i = (p_4i + p_4i+2) + (p_4i+1 + p_4i+3). */
typedef struct {
    const void *index;
    buf q;
    size_t n_heads;
    buf score;
    size_t stride;
    item_range items;
    const item_spans *spans;
    buf votes;
    float scale;
    buf read;
} score_job;

/* n new keys k [n][n_kv_heads][head_dim] f32 at the positions from `pos` on. */
typedef struct {
    const void *index;
    int64_t pos;
    buf k;
    size_t n;
} index_add_job;

/* Combines raw scores in [n_heads][stride] into out [n_lists][stride], in columns [lo, hi). Lists follow gqa_lists;
 * n_heads = n_lists copies. MEAN, SUM, MAX: of the raw scores, heads in ascending order. LAYER_CONCAT is the sum over
 * all heads, which equals the product of the concatenated vectors. VOTE: the log of the sum over the group of the
 * softmax over the candidates of scale * score; NaN counts as -INFINITY. exp and log of votes are accurate to 1e-6; the
 * rest is exact to the bit. LAYER_MEAN and LAYER_CONCAT include the heads of all ranks (all columns may change then);
 * LAYER_VOTE supports a single process only. */
typedef struct {
    buf out, in;
    size_t stride, n_heads, n_lists;
    int64_t lo, hi;
    gqa_mode mode;
    float scale;
} combine_job;

/* Reduces scores of tokens to scores of items: item i is the tokens [i * granule, min((i + 1) * granule, n_slots)).
 * in      f32 [n_heads][in_stride]: column t is token t
 * out     f32 [n_heads][stride]: the columns [lo, hi) of items; does not overlap `in`
 * The score of an item is the mean of its tokens' scores: their sum, number j in partial sum j mod 16 as in a dot
 * product, divided by their number. */
typedef struct {
    buf out;
    size_t stride;
    buf in;
    size_t in_stride, n_heads;
    item_range items;
    int64_t granule;
} page_reduce_job;

/* Selection of items. Item i is the slots [i * granule, min((i + 1) * granule, n_slots)).
 * score   f32 [n_lists][stride], of the candidates: by items or, with spans, by the columns of item_spans
 * head    items [0, head) and
 * tail    items [tail, ceil(n_slots / granule)) are always taken and are not candidates
 * first   slots before it are excluded from every item
 * k       number of candidates to take; all if there are fewer, none if k <= 0
 * budget  i64 [1], or with `each` [n_lists]: k as computed by an op; p NULL: k applies
 * most    the host's bound on the items; a backend may choose its algorithm by it
 * idx     i32 [n_lists][idx_stride] out: slots, ascending; range i64 [n_lists][2] out: {0, count}
 * NaN counts as -INFINITY; the lower item goes first among equal scores (methods.md 0.2.2). */
typedef struct {
    buf score;
    size_t n_lists, stride;
    item_range items;
    int64_t head, tail, first, k;
    buf budget;
    bool each;
    int64_t granule, most, idx_stride;
    const item_spans *spans;
    buf idx, range;
} choose_job;

/* Number of items that hold a fraction of the attention, by their scores (top-p).
 * score   as in choose_job, including spans; the candidates are `items`
 * k       i64 [n_lists] out: the smallest number of candidates, in the order of choose_job, that have at least p of the
 *         sum over all of exp(scale * score), within `least` and `most`. p >= 1, or a largest score that is not finite:
 *         `most`
 * slope   f32 [n_lists]: factor of the scale; p NULL: 1
 * NaN counts as -INFINITY. Sums have a relative error of 1e-5; k may be off by one if a sum is that close to p.
 * Source: Twilight (arXiv 2502.02770), section 4, without its stop; doc/methods.md 17.1. */
typedef struct {
    buf score;
    size_t n_lists, stride;
    item_range items;
    const item_spans *spans;
    float scale, p;
    int64_t least, most;
    buf slope;
    buf k;
} mass_job;

/* Corrects estimates whose spread is too wide: for each list, the slope of exact scores on estimates, within [1/4, 1].
 * score   f32 [n_heads][stride] of the queries q f32 [n_heads][head_dim]: column t is the estimate of token t
 * rows    exact keys, of f32, f16 or bf16
 * items   the tokens [lo, hi), of which `count` are drawn, 2 to SLOPE_MOST, like a sample of ops_tail.h: one of each of
 *         min(hi - lo, count) strata, by seed, position n_slots - 1, layer and list
 * slope   f32 [n_lists] out: cov(x, x^) / var(x^) over the draws of all heads of the list, each head about its own
 *         means, in double. Draws with a non-finite estimate or product are left out; 1 if var is 0
 * read    u64 [1]: the bytes of the drawn keys are added; p NULL: not counted
 * Source: methods.md 17.1. */
enum { SLOPE_MOST = 1024 };
typedef struct {
    buf q, score;
    size_t n_heads, n_lists, stride;
    kv_rows rows;
    item_range items;
    size_t count;
    uint64_t seed;
    int layer;
    buf slope, read;
} slope_job;

#ifdef __CUDACC__
#define SELECT_FN static __host__ __device__ __forceinline__
#else
#define SELECT_FN static inline
#endif

SELECT_FN double slope_within(double cov, double var)
{
    double slope = var > 0 ? cov / var : 1;
    return slope < 0.25 ? 0.25 : slope > 1 ? 1 : slope;
}

/* Returns the bytes of the drawn keys: for each list, those of its kv heads. */
static inline uint64_t slope_bytes(const slope_job *j)
{
    int64_t m = j->items.hi - j->items.lo, b = m < (int64_t)j->count ? m : (int64_t)j->count;
    size_t regions = j->n_lists < j->rows.n_kv_heads ? j->rows.n_kv_heads : j->n_lists;
    return (uint64_t)(b > 0 ? b : 0) * regions * j->rows.head_dim * dtype_size(j->rows.type);
}

/* An index of keys, by pages (ops_quest.h) or tokens (ops_fier.h). `index` and `x` are a quest_index or a
 * fier_index. */
#define INDEX_OPS(OP, own, plain)                                                                                      \
    /* Adds keys, rounded to the index's type. */                                                                      \
    OP(own, void, add, (backend *, const index_add_job *jobs, size_t n))                                               \
    /* Rebuilds incomplete parts from K rows after a rewind to n tokens. Slots are positions. */                       \
    OP(plain, void, redo, (backend *, const void *x, const kv_rows *rows, int64_t n))                                  \
    OP(own, void, score, (backend *, const score_job *jobs, size_t n))

struct index_ops {
    INDEX_OPS(OP_POINTER, , )
};

#define SELECT_OPS(OP, own, plain)                                                                                     \
    /* Mean of the queries of each group: out [n_rows][n_groups][dim] of q [n_rows][n_heads][dim]. */                  \
    OP(plain, void, mean_heads,                                                                                        \
       (backend *, buf out, buf q, size_t n_rows, size_t n_heads, size_t n_groups, size_t dim))                        \
    OP(own, void, combine, (backend *, const combine_job *jobs, size_t n))                                             \
    OP(own, void, page_reduce, (backend *, const page_reduce_job *jobs, size_t n))                                     \
    OP(own, void, mass, (backend *, const mass_job *jobs, size_t n))                                                   \
    OP(plain, void, slope, (backend *, const slope_job *jobs, size_t n))                                               \
    OP(own, void, choose, (backend *, const choose_job *jobs, size_t n))                                               \
    /* Allocates the scratch memory for choices of up to n_lists lists of n_items items, so that they allocate         \
     * none. ST_NOMEM. */                                                                                              \
    OP(plain, status, reserve, (backend *, size_t n_lists, int64_t n_items, err * e))

struct select_ops {
    SELECT_OPS(OP_POINTER, , )
};

#endif
