/* SPDX-License-Identifier: MIT */
/* One-bit keys. Source: FIER v2, section 3.3, Alg. 1; methods.md 7. */
#ifndef KERNELS_OPS_FIER_H
#define KERNELS_OPS_FIER_H

#include "kernels/ops.h"

/* A group is `group` consecutive tokens of one channel.
 * bits    u32 words; the layout is the backend's: only these ops read it
 * levels  [n_kv_heads][cap / group][2][head_dim] lo and hi in the type of the rows */
typedef struct {
    buf bits, levels;
    dtype type;
    size_t n_kv_heads, head_dim, cap, group;
    int how; /* levels: 0 range, 1 mad, 2 two_mean (methods.md 7.7) */
} fier_index;

struct fier_ops {
    size_t (*bits_bytes)(const fier_index *x); /* of the whole buffer */
    /* (Re)builds the groups that hold tokens [first, n[1]) from exact keys of rows; slots are positions and
     * n i64 [2] = {first, end}; n_max bounds end - first. Groups before that of `first` do not change; the last
     * one may be open: its levels then come from the tokens it has, or with window from the newest
     * `group` tokens. */
    void (*add)(backend *, const fier_index *x, const kv_rows *rows, buf n, int64_t n_max, bool window);
    /* score[h][t] = estimate of q_h . k_t for tokens [0, n[0]), n i64 [1]. */
    void (*score)(backend *, buf score, size_t stride, buf q, size_t n_heads, const fier_index *x, buf n,
                  int64_t n_max, buf read);
};

extern const fier_ops ref_fier, cpu_fier;

#endif
