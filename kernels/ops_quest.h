/* SPDX-License-Identifier: MIT */
/* Page bounds. Source: Quest (Tang et al. 2024), Alg. 1; kernels/include/decode/decode_page.cuh; methods.md 6. */
#ifndef KERNELS_OPS_QUEST_H
#define KERNELS_OPS_QUEST_H

#include "kernels/ops_select.h"

/* Channel-wise largest and smallest key of each page, in the type of the rows: [n_kv_heads][cap][2][head_dim],
 * the maximum first. The ops are INDEX_OPS:
 * add     the first token of a page starts it anew
 * redo    the last, partial page again, from the rows of the slots [n / page * page, n)
 * score   of a page: the sum over channels of max(q_c max_c, q_c min_c). No votes */
typedef struct {
    buf bound;
    dtype type;
    size_t n_kv_heads, head_dim, cap, page;
    bool max_channel; /* a page's score is the largest term instead of their sum (methods.md 6.7) */
} quest_index;

#endif
