/* SPDX-License-Identifier: MIT */
/* Ops of eviction: attention that keys receive, and the lists of rows that are kept. */
#ifndef KERNELS_OPS_EVICT_H
#define KERNELS_OPS_EVICT_H

#include "kernels/ops.h"

/* The rows that a layer keeps: n_lists lists in the order of positions.
 * at     i32 [n_lists][stride] positions, ascending
 * slot   i32 [n_lists][stride] a permutation of the slots [0, stride): first those of the entries, then
 *        the free ones, of which the first is the next to be used. p NULL: slots are positions and are
 *        not used again; `at` then also serves as attn_job's idx.
 * score  f32 [n_lists][stride], parallel to at; p NULL: none
 * range  i64 [n_lists][2] 0 and the count of entries, as attn_job reads it
 * seen   i64 [n_lists] what the last prune found behind no window, before it cut to the budget
 * read   u64 [1] bytes of scores that prune reads are added; p NULL: not counted */
typedef struct {
    buf at, slot, score, range, seen, read;
    size_t n_lists, stride;
} kept_rows;

/* What stays of a list: band and budget as in prune.
 * gone_slot, gone_at  i32 [n_lists][gone_stride] out: slots and positions of the entries that the budget drops, in
 * their order; where one of them is not NULL both are. */
typedef struct {
    int64_t band, budget, recent;
    buf gone_slot, gone_at;
    size_t gone_stride;
} keep_rule;

/* How the heads of a group become one score. */
enum { COMBINE_MEAN, COMBINE_SUM, COMBINE_MAX };

#define EVICT_OPS(OP, own, plain)                                                                                      \
    /* Column sums: sum[g][i] (add: +=) over the job's queries t, ascending, of the combination over the heads         \
     * h of group g of exp(s(t, h, i) - lse[t][h]); 0 where t does not see entry i (entry range.first + i).            \
     * sum f32 [n_groups][stride]; columns [0, n) are written. A group is n_heads / n_groups heads in a row that       \
     * read one list. job->q and job->lse are read, job->out is not used. Bytes read are                               \
     * added to job->read: the K rows of each list, but for copied ones, where the pairs of a group of codes count     \
     * once for entries of it that follow each other; and with `add` the sums, as index. With                          \
     * job->scores, as attn_decode left them for the one query, no K row is read; sum may then be that buffer, if      \
     * each head is a group.                                                                                           \
     * Queries are added one by one in float32: bits do not depend on how they are cut into jobs.                      \
     * Source: H2O, methods.md 3.3 (pass 2). */                                                                        \
    OP(own, void, colsum,                                                                                              \
       (backend *, const attn_job *job, size_t n_groups, int how, bool add, buf sum, size_t stride))                   \
    /* out[g] = combination, in the order of heads, of the n_heads / n_groups rows of in that belong to g.             \
     * in f32 [n_heads][stride], out f32 [n_groups][stride]; columns [0, n). */                                        \
    OP(plain, void, combine,                                                                                           \
       (backend *, buf out, buf in, size_t stride, size_t n_heads, size_t n_groups, size_t n, int how))                \
    /* l->score = in, pooled along the entries before the last `trim` of each list: odd kernel, stride 1,              \
     * same length; avg divides by kernel also at the borders, max ignores what lies outside; what comes from in       \
     * ends at the same entry. in f32 [n_lists][stride]. Source: SnapKV, methods.md 4.3. */                            \
    OP(plain, void, pool, (backend *, const kept_rows *l, buf in, int64_t trim, int64_t kernel, bool max))             \
    /* out f32 [n][n_heads * repeat][dim] = in f32 [n][n_heads][dim], each head `repeat` times. */                     \
    OP(plain, void, repeat_heads, (backend *, buf out, buf in, size_t n, size_t n_heads, size_t repeat, size_t dim))   \
    /* slot[i] = i in all lists: entry i, put at position i, has slot i. */                                            \
    OP(plain, void, open, (backend *, const kept_rows *l))                                                             \
    /* Appends entries at the n positions from pos on, with score 0, to each list. slots i64 [n][n_lists] gets the     \
     * slots they take; p NULL: slots are not dealt out (by position, or before `open`). */                            \
    OP(plain, void, append, (backend *, const kept_rows *l, int64_t pos, size_t n, buf slots))                         \
    /* Drops the entries behind a window of `band` as a query at pos sees it (band 0: none); then, of                  \
     * lists longer than budget, all but the last `recent` <= budget and, of the others, the budget - recent of the    \
     * largest scores: of equal ones the first stay. NaN counts as -INFINITY. Order is kept. The rule says where what  \
     * the budget drops is told; rows stay where they are until their slots are used again.                            \
     * Source: methods.md 0.2.2, 0.2.11. */                                                                            \
    OP(plain, void, prune, (backend *, const kept_rows *l, int64_t pos, const keep_rule *rule))                        \
    /* Rows of entries in slots from `limit` on move to free slots below it; no list is longer than limit.             \
     * rows: n_lists regions, or any number with one list. */                                                          \
    OP(plain, void, compact, (backend *, const kv_rows *rows, const kept_rows *l, int64_t limit))

struct evict_ops {
    EVICT_OPS(OP_POINTER, , )
};

#endif
