/* SPDX-License-Identifier: MIT */
/* Clusters of one layer's tokens: groups of any size, represented by a mean key and a mean value. Source: RetroInfer's
 * wave index (arXiv 2505.02922; RetrievalAttention, cache_hub/retroinfer_cache.py); methods.md 7c. */
#ifndef KERNELS_OPS_CLUSTER_H
#define KERNELS_OPS_CLUSTER_H

#include "kernels/ops.h"

/* start   i32 [n_kv_heads][cap + 1]: cluster c of a head has the members start[c] .. start[c + 1] - 1; start[0] = 0
 * member  i32 [n_kv_heads][tokens]: slots, ascending within a cluster
 * mean    row c of a head is the mean key and the mean value of cluster c. Without members the key is NaN and the value
 *         0. n_kv_heads, head_dim and cap are those of these rows; the type is that of the tokens' rows */
typedef struct {
    buf start, member;
    size_t tokens;
    kv_rows mean;
} cluster_index;

/* Tokens to add: the slots [first, first + n) become the members of the clusters [from, from + count), after the
 * members of earlier clusters. code i32 [n_kv_heads][code_cap]: the cluster of each, minus `from`. */
typedef struct {
    const kv_rows *rows; /* quantized or not */
    int64_t first;
    size_t n;
    buf code;
    size_t code_cap, from, count;
} cluster_fill;

/* Selection of the best of the clusters [0, n) of each kv head in descending order of score, the lower number first
 * among equals. NaN counts as -INFINITY. Clusters without members are skipped.
 * score   f32 [n_kv_heads][stride]
 * k       the first clusters are chosen as long as they have at most k members in total; the first that is too large
 *         ends the choice
 * most    number of following clusters that are estimated
 * idx     i32 [n_kv_heads][idx_stride] out: the slots [0, head), then the members of the chosen clusters, ascending
 *         (all slots are below n_slots); range i64 [n_kv_heads][2] out: {0, count}
 * group   i32 [n_kv_heads][group_stride] out: the clusters to estimate, ascending; groups i64 [n_kv_heads][2] out:
 *         {0, count}
 * bias    f32 [n_heads][group_stride] out: log of the size of cluster i in `group` of the head's kv head
 * key     u32 [n_kv_heads][stride], bits u32 [n_kv_heads][(n_slots + 31) / 32]: work space
 * read    u64 [1]: 4 bytes for each of n + 1 starts and each gathered member are added; p NULL: not counted */
typedef struct {
    const cluster_index *x;
    buf score;
    size_t stride;
    int64_t n, n_slots;
    int64_t k, most, head;
    buf idx, range;
    size_t idx_stride;
    buf group, groups, bias;
    size_t group_stride, n_heads;
    buf key, bits, read;
} cluster_choice;

static inline size_t cluster_words(int64_t n_slots)
{
    return ((size_t)n_slots + 31) / 32;
}

/* Jobs of a call have the same shape of heads. */
#define CLUSTER_OPS(OP, own, plain)                                                                                    \
    /* Writes start[from + 1 ..], members, and means: sums in double over ascending members, divided by their          \
     * number, rounded to f32 and then to the type. */                                                                 \
    OP(own, void, fill, (backend *, const cluster_index *x, const cluster_fill *j))                                    \
    OP(own, void, choose, (backend *, const cluster_choice *jobs, size_t n))

struct cluster_ops {
    CLUSTER_OPS(OP_POINTER, , )
};

#endif
