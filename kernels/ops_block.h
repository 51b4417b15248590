/* SPDX-License-Identifier: MIT */
/* Blocks with representative keys, the probe of a prompt window, budgets shared across layers.
 * Source: InfLLM, ActQKV (eqs. 6-12); methods.md 9 and 12.1. */
#ifndef KERNELS_OPS_BLOCK_H
#define KERNELS_OPS_BLOCK_H

#include "kernels/ops.h"

/* A backend with ranks holds some of a layer's heads. In `probe` and `score`, channels, concatenated heads and lists
 * are those of all heads, and values that decide are the same on every rank. */

/* Representatives of blocks of `size` consecutive tokens: rep [cap][n_heads][head_dim], for each query head the mean of
 * the raw keys of its `reps` best tokens of the block. product: blocks are compared by inner products (InfLLM),
 * otherwise by cosines (ActQKV). */
typedef struct {
    buf rep;
    dtype type;
    size_t n_heads, n_kv_heads, head_dim, cap, size, reps;
    bool product;
} block_index;

/* Attention that tokens received while they were in the local band: f32 [n_heads][ring], that of position p in column
 * p mod ring.
 * read  u64 [1]: the bytes of mass that are read are added; p NULL: not counted */
typedef struct {
    buf mass;
    size_t n_heads, ring;
    buf read;
} band_mass;

/* The tokens far from a query, by position: the sinks [0, sinks); blocks, where block b has the `size` positions from
 * sinks + b * size on; and the pending tokens [pending, end), which left the band but are not in a block yet. Positions
 * before `from` are not visible.
 * block    i32: numbers of the chosen blocks, ascending; chosen i64 [2]: first entry and count; p NULL: none
 * idx      i32 out: visible sinks, tokens of the blocks and pending tokens, ascending
 * range    i64 [2] out: {0, number of entries of idx}
 * count    u64 [1]: this number is added; p NULL: not counted */
typedef struct {
    int64_t from, sinks, pending, end, size;
    buf block, chosen, idx, range, count;
} far_list;

/* Budget of items shared by the layers of a decode step.
 * theta    f32 [n_layers]: entropies of this forward
 * sum      f64 [n_layers]: sums of the entropies of earlier forwards; count i64 [1]: number of them
 * pool     i64 [1]: items left
 * least, most: bounds on the items of a layer */
typedef struct {
    buf theta, sum, count, pool;
    int64_t least, most;
    size_t n_layers;
} entropy_pool;

/* These ops take no list of jobs: blocks are chosen once for a window of a prompt, which belongs to one sequence. */
#define BLOCK_OPS(OP, own, plain)                                                                                      \
    /* Running mean and sum of squared deviations (m2), f32 [dim], over `before` rows and then the n rows of x         \
     * [n][dim] f32; before 0: previous contents are ignored. Prompts only. Source: Chan, Golub, LeVeque 1979. */      \
    OP(own, void, moments, (backend *, buf mean, buf m2, size_t before, buf x, size_t n, size_t dim))                  \
    /* weights[j] = |phi_j|_1 / sum_i |phi_i|_1 with phi_j = (x_j - mean)^2 / (var + average of var / 100), var =      \
     * m2 / (count - 1); probe [dim] = sum_j weights[j] x_j. Uniform weights where that sum is 0 or not finite, and    \
     * with mean.p NULL. weights f32 [n], x [n][dim] f32. Sums in float32, over channels first, rows ascending.        \
     * Source: ActQKV eqs. 6-9. */                                                                                     \
    OP(own, void, probe,                                                                                               \
       (backend *, buf probe, buf weights, buf x, size_t n, size_t dim, buf mean, buf m2, size_t count))               \
    /* score[b] of candidate b = mean over `parts` equal runs of the concatenated heads of the cosine of probe         \
     * [n_heads * head_dim] and representative; 0 if one of them is 0. x->product: the inner product instead. parts    \
     * 0: one run of the heads of all ranks; otherwise the mean is over the ranks too. Adds the bytes read to          \
     * read[0]. Source: ActQKV eq. 10; InfLLM, methods.md 12.1. */                                                     \
    OP(own, void, score,                                                                                               \
       (backend *, buf score, buf probe, const block_index *x, size_t parts, item_range n, buf read))                  \
    /* score[b] += by * other[b] for the candidates b, f32. */                                                         \
    OP(plain, void, weigh, (backend *, buf score, buf other, item_range n, float by))                                  \
    /* Adds the sums of one window to the ring: sum f32 [n_heads][stride] (p NULL: zeros), entry i < n <= ring has     \
     * position first + i; from position `fresh` on it replaces the old value. */                                      \
    OP(own, void, fold,                                                                                                \
       (backend *, const band_mass *m, buf sum, size_t stride, int64_t first, int64_t n, int64_t fresh))               \
    /* Makes the representatives of the n blocks from `block` on, whose first token has position pos. keys: f32        \
     * rows, slot i is the raw key of position pos + i. The lower position goes first among equal masses; m NULL:      \
     * all are equal. Source: InfLLM, methods.md 12.1. */                                                              \
    OP(plain, void, form,                                                                                              \
       (backend *, const block_index *x, const kv_rows *keys, const band_mass *m, int64_t block, int64_t n,            \
        int64_t pos))                                                                                                  \
    OP(plain, void, list, (backend *, const far_list *l))                                                              \
    /* Writes the entropy H of softmax(score) over the candidates to theta[layer], and the layer's number of items     \
     * to k[0] (i64): floor(share * pool + 1/2) with share = H / (H + sum over later layers of their mean entropy),    \
     * or 1 / (layers left) if there are no means or both are 0. k is within least and most, leaves later layers       \
     * their least, is at most the candidates, and is taken from the pool. Source: ActQKV eqs. 11-12; methods.md       \
     * 9.3, 9.7. */                                                                                                    \
    OP(plain, void, take, (backend *, const entropy_pool *p, size_t layer, buf score, item_range n, buf k))            \
    /* Adds the entropies to the sums. */                                                                              \
    OP(plain, void, close_pool, (backend *, const entropy_pool *p))

struct block_ops {
    BLOCK_OPS(OP_POINTER, , )
};

#endif
