/* SPDX-License-Identifier: MIT */
/* Ops of eviction: attention that keys receive, and lists of kept rows. */
#ifndef KERNELS_OPS_EVICT_H
#define KERNELS_OPS_EVICT_H

#include "kernels/ops.h"

/* Rows that a layer keeps: n_lists lists in the order of positions.
 * at     i32 [n_lists][stride] positions, ascending
 * slot   i32 [n_lists][stride] a permutation of the slots [0, stride): those of the entries, then the free ones, the
 *        next one to be used first. p NULL: slots are positions and are not reused; `at` is then also attn_job's idx
 * score  f32 [n_lists][stride], parallel to at; p NULL: none
 * range  i64 [n_lists][2] 0 and the count of entries, as attn_job reads it
 * seen   i64 [n_lists] entries within the window that the last prune found, before it applied the budget
 * read   u64 [1] bytes of scores that prune reads are added; p NULL: not counted */
typedef struct {
    buf at, slot, score, range, seen, read;
    size_t n_lists, stride;
} kept_rows;

/* Entries that a list keeps: band and budget as in prune.
 * gone_slot, gone_at  i32 [n_lists][gone_stride] out: slots and positions of the entries that the budget drops, in
 *                     their order; both or neither are NULL */
typedef struct {
    int64_t band, budget, recent;
    buf gone_slot, gone_at;
    size_t gone_stride;
} keep_rule;

/* Combination of the heads of a group into one score. */
enum { COMBINE_MEAN, COMBINE_SUM, COMBINE_MAX };

#define EVICT_OPS(OP, own, plain)                                                                                      \
    /* Column sums: sum[g][i] (add: +=) over the job's queries t, ascending, of the combination over the heads h of    \
     * group g of exp(s(t, h, i) - lse[t][h]); 0 if t does not see entry i (entry range.first + i). sum f32            \
     * [n_groups][stride]; columns [0, n) are written. A group is n_heads / n_groups consecutive heads that read       \
     * one list. Uses job->q and job->lse, not job->out. Bytes read are added to job->read: the K rows of each         \
     * list, except copied ones, where the pairs of a group of quantized rows count once for consecutive entries;      \
     * and with `add` the sums, as index. With job->scores, as attn_decode left them for the one query, no K row is    \
     * read; sum may then be that buffer if each head is a group. Queries are added one by one in float32: bits do     \
     * not depend on the division into jobs. Source: H2O, methods.md 3.3 (pass 2). */                                  \
    OP(own, void, colsum,                                                                                              \
       (backend *, const attn_job *job, size_t n_groups, int how, bool add, buf sum, size_t stride))                   \
    /* out[g] = combination, in the order of heads, of the n_heads / n_groups rows of in that belong to g. in f32      \
     * [n_heads][stride], out f32 [n_groups][stride]; columns [0, n). */                                               \
    OP(plain, void, combine,                                                                                           \
       (backend *, buf out, buf in, size_t stride, size_t n_heads, size_t n_groups, size_t n, int how))                \
    /* l->score = in, pooled along the entries before the last `trim` of each list: odd kernel, stride 1, same         \
     * length. avg divides by kernel at the borders too, max ignores entries outside; reads of in end at the same      \
     * entry. in f32 [n_lists][stride]. Source: SnapKV, methods.md 4.3. */                                             \
    OP(plain, void, pool, (backend *, const kept_rows *l, buf in, int64_t trim, int64_t kernel, bool max))             \
    /* out f32 [n][n_heads * repeat][dim] = in f32 [n][n_heads][dim], with each head repeated `repeat` times. */       \
    OP(plain, void, repeat_heads, (backend *, buf out, buf in, size_t n, size_t n_heads, size_t repeat, size_t dim))   \
    /* slot[i] = i in all lists: entry i, at position i, has slot i. */                                                \
    OP(plain, void, open, (backend *, const kept_rows *l))                                                             \
    /* Appends entries at the n positions from pos on, with score 0, to each list. slots i64 [n][n_lists] receives     \
     * their slots; p NULL: no slots are assigned (by position, or before `open`). */                                  \
    OP(plain, void, append, (backend *, const kept_rows *l, int64_t pos, size_t n, buf slots))                         \
    /* Drops the entries outside a window of `band` for a query at pos (band 0: none). Then lists longer than          \
     * budget keep only the last `recent` <= budget entries and, of the others, the budget - recent with the           \
     * largest scores, earlier entries first among equals. NaN counts as -INFINITY. Order is kept. The rule            \
     * receives the entries that the budget drops. Rows stay unchanged until their slots are reused. Source:           \
     * methods.md 0.2.2, 0.2.11. */                                                                                    \
    OP(plain, void, prune, (backend *, const kept_rows *l, int64_t pos, const keep_rule *rule))                        \
    /* Moves rows of entries in slots from `limit` on to free slots below it; no list is longer than limit. rows:      \
     * n_lists regions, or any number with one list. */                                                                \
    OP(plain, void, compact, (backend *, const kv_rows *rows, const kept_rows *l, int64_t limit))

struct evict_ops {
    EVICT_OPS(OP_POINTER, , )
};

#endif
