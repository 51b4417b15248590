/* SPDX-License-Identifier: MIT */
/* Contexts of random rows: speed at long contexts without the computation of a prompt. */
#ifndef EVAL_BENCH_FILL_H
#define EVAL_BENCH_FILL_H

#include "kernels/base/rng.h"
#include "model/session.h"

/* Writes standard normal numbers, in pairs. */
void fill_normals(rng *r, float *x, size_t n);

/* Keys and values are standard normal, but that FILL_OUTLIERS of a hundred channels of each KV head (at least one;
 * which ones depends on layer, head and seed) hold keys FILL_SCALE times as wide, as those of trained models do (KIVI,
 * figure 2). Keys are then rotated at their positions, so that what a query selects is scattered over the context. Rows
 * differ between positions, layers and heads; the same seed and chunk give the same rows. */
enum { FILL_OUTLIERS = 6, FILL_SCALE = 8 };
typedef struct {
    int64_t n_tokens, after, piece; /* as of store_options */
    uint64_t seed;
    bool (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;
} fill_options;
status fill_sessions(session *const *s, size_t n_sessions, const fill_options *o, err *e);

#endif
