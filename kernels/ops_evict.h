/* SPDX-License-Identifier: MIT */
/* Ops of eviction: attention that keys receive, and the lists of rows that are kept. */
#ifndef KERNELS_OPS_EVICT_H
#define KERNELS_OPS_EVICT_H

#include "kernels/ops.h"

/* The rows that a layer keeps: n_lists lists in the order of positions.
 * slot, at  i32 [n_lists][stride]: slots and positions
 * range     i64 [n_lists][2]: first entry and count, as attn_job reads it
 * score     f32 [n_lists][stride], parallel to slot; p NULL: none
 * spare     i64 [n_lists]: a slot that holds nothing: where the next token goes */
typedef struct {
    buf slot, at, range, score, spare;
    size_t n_lists, stride;
} kept_rows;

struct evict_ops {
    /* sum[h][i] += sum over the job's queries t, ascending, of exp(s(t, i) - lse[t][h]) for the entries
     * i that t sees (entry range.first + i); job->lse is read, job->q is given, job->out is not
     * used. sum f32 [n_heads][stride]. Source: H2O, methods.md 3.3 (pass 2). */
    void (*colsum)(backend *, const attn_job *job, buf sum, size_t stride);
    /* out [n_groups][out_stride] = combination over the n_heads / n_groups rows of in that belong to each group
     * (n_groups 1: all): 0 mean, 1 sum, 2 maximum; columns [0, n). add: out += instead of =. */
    void (*group)(backend *, buf out, size_t out_stride, buf in, size_t in_stride, size_t n_heads,
                  size_t n_groups, size_t n, int how, bool add);
    /* Pooling along i with an odd kernel, stride 1, same length: avg divides by kernel also at the
     * borders; max ignores what lies outside. Source: SnapKV, methods.md 4.3. */
    void (*pool)(backend *, buf out, buf in, size_t n_lists, size_t stride, size_t n, size_t kernel, bool max);
    /* Appends n entries to every list: entry i has position pos[i] (i64 [n]), slot slots[i] (i64 [n],
     * with slot_lists = n_lists slots[i][list]) and score 0. */
    void (*append)(backend *, const kept_rows *l, buf pos, buf slots, size_t slot_lists, size_t n);
    /* Drops entries behind a window of `band` as a query at pos[0] sees it (band 0: none), then, in
     * lists longer than budget, the entry of the smallest score among all but the last `recent` (of
     * equal ones the last); its slot becomes spare. Order is kept. */
    void (*drop_one)(backend *, const kept_rows *l, buf pos, int64_t band, int64_t budget, int64_t recent);
    /* Keeps the last `recent` entries and of the others the budget - recent of the largest scores
     * (of equal ones the first). Lists of at most budget entries stay. */
    void (*prune)(backend *, const kept_rows *l, int64_t budget, int64_t recent);
    /* The rows of entry i of each list move to slot i, and slot becomes i; entries' slots must ascend. spare
     * becomes the count. rows: those of all heads (n_lists 1 or rows->n_kv_heads). */
    void (*compact)(backend *, const kv_rows *rows, const kept_rows *l);
};

extern const evict_ops ref_evict, cpu_evict;

#endif
