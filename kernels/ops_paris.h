/* SPDX-License-Identifier: MIT */
/* ParisKV: sign patterns of rotated keys, collisions, reranking by 4-bit codes. Source: ParisKV (paper 4.1;
 * cache_hub/polar_cache.py); methods.md 8.
 *
 * A vector of head_dim channels is padded with zeros to paris_dim channels, divided by its norm, rotated, and cut into
 * paris_subspaces subspaces of 8. Rotation: `rounds` times a change of signs and the orthonormal Walsh-Hadamard
 * transform (butterflies of span 1, 2, 4, ..., then times 1 / sqrt(dim)).
 *
 * Every op gives the same bits on every backend: float32 without fused multiply-adds, and sums in one order: lane i of
 * 8 adds elements i, i + 8, ... in this order, then ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)). */
#ifndef KERNELS_OPS_PARIS_H
#define KERNELS_OPS_PARIS_H

#include "kernels/ops.h"

enum {
    PARIS_SUBSPACE = 8,
    PARIS_PATTERNS = 256,
    PARIS_LEVELS = 6,
    PARIS_CODE = 5, /* bytes of a code per subspace: a bf16 weight and 8 bins of 3 bits */
    PARIS_DIM_MAX = 256
};

/* Lloyd-Max quantizer of |u_j| for u uniform on the sphere in 8 dimensions: bin t is the number of thresholds
 * strictly below |u_j|. Source: ParisKV Prop. 4.1. */
extern const float paris_threshold[7], paris_centre[8];

static inline size_t paris_dim(size_t head_dim)
{
    size_t d = PARIS_SUBSPACE;
    while (d < head_dim) d *= 2;
    return d;
}

static inline size_t paris_subspaces(size_t head_dim)
{
    return paris_dim(head_dim) / PARIS_SUBSPACE;
}

/* Index of one layer; entry t belongs to the token in slot t, which is its position. nb = paris_subspaces(head_dim).
 * id       u8 [n_kv_heads][cap][nb]: bit j is x_j >= 0 of the subspace
 * code     u8 [n_kv_heads][cap][5 nb]: nb weights (bf16, little-endian), then 3 bytes a subspace: bin j in bits
 *          [3j, 3j + 3), lowest first. The signs are those of id ("shared signs").
 * count    i32 [n_kv_heads][nb][256]: number of counted tokens with this id
 * counted  i64 [2]: first and number of the counted tokens
 * sign     f32 [rounds][dim] of +1 and -1
 * mean     f32 [n_kv_heads][head_dim], subtracted from keys; p NULL: nothing */
typedef struct {
    buf id, code, count, counted, sign, mean;
    size_t n_kv_heads, head_dim, cap;
    size_t rounds; /* 0: no rotation */
    bool alpha;    /* weights |k| r / alpha; false: |k| r */
} paris_index;

/* Search with one query for each kv head, among the tokens of a range; rows of score, cand and est have x->cap entries.
 * y, norm  f32, from `query`
 * bonus    u8 [n_kv_heads][nb][256]: patterns of a subspace are ordered by their product with y (sum of +-y_j in the
 *          order j = 0..7), descending, ties to the lower id. With c the number of counted tokens before a pattern, its
 *          bonus is the number of levels i < n_levels with c < limit[i]
 * score    u8: entry i is the sum of the bonuses of token range.first + i
 * cand     i32: the min(m, range.n) tokens of the highest scores, ascending; the lower token first among equal scores
 * est      f32: entry i is the estimate norm * sum_b w_b (v_b . y_b) of q . k for candidate i < m, v the signed
 *          centres; elements are (w_b v_j) y_j */
typedef struct {
    const paris_index *x;
    buf y, norm;
    int64_t limit[PARIS_LEVELS];
    size_t n_levels;
    slot_range range;
    int64_t m;
    buf bonus, score, cand, est, read;
} paris_job;

/* read: bytes of the index are added to it (u64 [1]; p NULL: not counted). These ops take no list of jobs: intermediate
 * results of a search have the size of all tokens, and sequences share their memory. */
#define PARIS_OPS(OP, own, plain)                                                                                      \
    /* x->mean = mean of the unquantized keys in the range of slots of rows, in double; 0 for an empty range. */       \
    OP(plain, void, mean, (backend *, const paris_index *x, const kv_rows *rows, slot_range range))                    \
    /* Writes id and code of the slots in the range from their keys, which must not be quantized: nu = max(|k|,        \
     * 1e-8), x = rotation of k / nu; per subspace r = |x|, u = |x_j| / max(r, 1e-8), bins t_j of u, alpha =           \
     * max(sum_j centre[t_j] u_j, 1e-6), weight = nu r / alpha. */                                                     \
    OP(own, void, encode, (backend *, const paris_index *x, const kv_rows *rows, slot_range range))                    \
    /* y [n_heads][dim] = rotation of q / norm, norm [n_heads] = max(|q|, 1e-8); q [n_heads][head_dim] f32. */         \
    OP(own, void, query, (backend *, buf y, buf norm, buf q, size_t n_heads, const paris_index *x))                    \
    /* Makes count cover exactly the tokens of the range: adds and removes the difference to counted. */               \
    OP(plain, void, count, (backend *, const paris_index *x, slot_range range, buf read))                              \
    /* Computes score from bonus. */                                                                                   \
    OP(own, void, collide, (backend *, const paris_job *j))                                                            \
    /* Computes bonus, score, cand and est. */                                                                         \
    OP(own, void, search, (backend *, const paris_job *j))                                                             \
    /* idx[l][i] = cand[l][idx[l][i]] for i < range[l].n; idx i32 [n_lists][idx_stride], cand [n_lists][stride]. */    \
    OP(plain, void, resolve,                                                                                           \
       (backend *, buf idx, size_t idx_stride, buf range, size_t n_lists, buf cand, size_t stride))

struct paris_ops {
    PARIS_OPS(OP_POINTER, , )
};

#endif
