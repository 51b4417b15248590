/* SPDX-License-Identifier: MIT */
/* Page bounds. Source: Quest (Tang et al. 2024), Alg. 1; kernels/include/decode/decode_page.cuh; methods.md 6. */
#ifndef KERNELS_OPS_QUEST_H
#define KERNELS_OPS_QUEST_H

#include "kernels/ops_select.h"

/* Channel-wise largest and smallest key of each page, in the type of the rows: [n_kv_heads][cap][2][head_dim],
 * the maximum first. */
typedef struct {
    buf bound;
    dtype type;
    size_t n_kv_heads, head_dim, cap, page;
} quest_index;

struct quest_ops {
    /* Adds n keys k [n][n_kv_heads][head_dim] f32 of the consecutive positions pos[0].. (i64), rounded to the
     * index's type; the first token of a page starts it anew. */
    void (*add)(backend *, const quest_index *x, buf pos, buf k, size_t n);
    /* After a rewind to n tokens: the last, partial page again from the exact K rows of the slots
     * [n / page * page, n). Slots are positions. */
    void (*redo)(backend *, const quest_index *x, const kv_rows *rows, int64_t n);
    /* score[h][p] = sum over channels of max(q_c max_c, q_c min_c), a dot product in the order of
     * ops_select.h; max_channel: the largest term instead of the sum (methods.md 6.7). Pages [n[1], n[2]), n as
     * in choose_job; n_heads a multiple of n_kv_heads. read as in select_ops.exact. */
    void (*score)(backend *, buf score, size_t stride, buf q, size_t n_heads, const quest_index *x, buf n,
                  int64_t n_max, bool max_channel, buf read);
    /* The same of the pages in groups: score[h] by places (item_groups), where head h follows the list
     * h / (n_heads / n_lists). n_lists and n_kv_heads: one divides the other. NULL: missing. */
    void (*score_groups)(backend *, buf score, size_t stride, buf q, size_t n_heads, const quest_index *x, buf n,
                         const item_groups *g, bool max_channel, buf read);
};

extern const quest_ops ref_quest, cpu_quest;

#endif
