/* SPDX-License-Identifier: MIT */
/* Page bounds. Source: Quest (Tang et al. 2024), Alg. 1; kernels/include/decode/decode_page.cuh; methods.md 6. */
#ifndef KERNELS_OPS_QUEST_H
#define KERNELS_OPS_QUEST_H

#include "kernels/ops_select.h"

/* Score of a page. */
typedef enum {
    QUEST_SUM,   /* sum over channels of max(q_c max_c, q_c min_c) */
    QUEST_MAXCH, /* largest of these terms (methods.md 6.7) */
    QUEST_MEAN   /* q . mean of the keys */
} quest_how;

/* bound   channel-wise largest and smallest key of each page, in the type of the rows: [n_kv_heads][cap][2][head_dim],
 *         the maximum first. QUEST_MEAN: [n_kv_heads][cap][head_dim] the mean of the page's keys so far
 * sum     QUEST_MEAN: f32 [n_kv_heads][head_dim], the sum of the newest page's keys, rounded to the type, in ascending
 *         order; the mean is sum / number, rounded to the type
 * The ops are INDEX_OPS:
 * add     the first token of a page resets it
 * redo    rebuilds the last, partial page like `add`, from the rows of the slots [n / page * page, n)
 * score   of pages. No votes */
typedef struct {
    buf bound;
    dtype type;
    size_t n_kv_heads, head_dim, cap, page;
    quest_how how;
    buf sum;
} quest_index;

/* Returns the rows of a page in `bound`. */
static inline size_t quest_rows(const quest_index *x)
{
    return x->how == QUEST_MEAN ? 1 : 2;
}

/* Returns the bytes of n pages of a head. */
static inline size_t quest_bytes(const quest_index *x, int64_t n)
{
    return (size_t)n * quest_rows(x) * x->head_dim * dtype_size(x->type);
}

#endif
