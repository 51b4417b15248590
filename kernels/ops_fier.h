/* SPDX-License-Identifier: MIT */
/* One-bit keys. Source: FIER v2, section 3.3, Alg. 1; methods.md 7. */
#ifndef KERNELS_OPS_FIER_H
#define KERNELS_OPS_FIER_H

#include "kernels/ops_select.h"

typedef enum { FIER_FLOAT, FIER_INT8 } fier_products; /* number format that `score` multiplies */

/* A group is `group` consecutive tokens of one channel, counted from position 0.
 * bits    u32 [n_kv_heads][ceil(cap / 32)][words][32]: the words of 32 tokens at a time, word by word; bit i of word w
 *         is channel 32 w + i; words = ceil(head_dim / 32)
 * levels  [n_kv_heads][ceil(cap / group)][2][head_dim]: lo, hi in the type of the rows
 * ring    [n_kv_heads][group][head_dim]: the newest `group` keys, in the type of the rows, position p in row p mod
 *         group
 *
 * The ops are INDEX_OPS:
 *
 * add: computes levels and bits of the groups that the keys complete or leave open; complete groups never change again.
 * lo and hi are the minimum and maximum of a channel's keys, z = 0.5 (lo + hi) in float32, and a bit is x >= z.
 *
 * redo: rebuilds ring and open group from the rows of the slots [n / group * group, n).
 *
 * score: for token t, an estimate of q_h . k_t: a + the sum over the set bits c of q_c (hi_c - lo_c), with a = q . lo
 * in the order of ops_select.h.
 *   FIER_FLOAT   over pairs of channels (2j, 2j + 1) in ascending order of b0 w0 + b1 w1, w_c = q_c (hi_c - lo_c)
 *   FIER_INT8    a + float(D) ((m / 127) (r / 127)), where D is the sum over the set bits of u_c p_c, an exact integer,
 *                m = max(0, max over c of hi_c - lo_c), u_c = clamp(round((hi_c - lo_c) (127 / m)), 0, 127),
 *                r = max over c of |q_c|, p_c = clamp(round(q_c (127 / r)), -127, 127)
 * Each operation is in float32, rounded to nearest even. NaN is left out of maxima and clamped to the lower end. u has
 * 7 bits so that two products fit the 16-bit sums of instructions without wider ones. */
typedef struct {
    buf bits, levels, ring;
    dtype type;
    size_t n_kv_heads, head_dim, cap, group;
    fier_products products;
} fier_index;

static inline size_t fier_words(size_t head_dim)
{
    return (head_dim + 31) / 32;
}

/* Returns the bytes that the scores of a kv head's candidates read: bits of whole words and the levels of their
 * groups. */
static inline uint64_t fier_head_bytes(const fier_index *x, item_range n)
{
    int64_t g = (int64_t)x->group;
    if (n.hi <= n.lo) return 0;
    return (uint64_t)(n.hi - n.lo) * 4 * fier_words(x->head_dim) +
           (uint64_t)((n.hi - 1) / g - n.lo / g + 1) * 2 * x->head_dim * dtype_size(x->type);
}

#endif
