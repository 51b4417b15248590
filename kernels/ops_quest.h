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
    bool max_channel; /* a page's score is the largest term instead of their sum (methods.md 6.7) */
} quest_index;

#define QUEST_OPS(OP, own, plain)                                                                                      \
    /* Adds keys, rounded to the index's type; the first token of a page starts it anew. */                            \
    OP(own, void, add, (backend *, const index_add_job *jobs, size_t n))                                               \
    /* After a rewind to n tokens: the last, partial page again from the exact K rows of the slots                     \
     * [n / page * page, n). Slots are positions. */                                                                   \
    OP(plain, void, redo, (backend *, const quest_index *x, const kv_rows *rows, int64_t n))                           \
    /* The score of a page: the sum over channels of max(q_c max_c, q_c min_c). No votes. */                           \
    OP(own, void, score, (backend *, const score_job *jobs, size_t n))

struct quest_ops {
    QUEST_OPS(OP_POINTER, , )
};

#endif
