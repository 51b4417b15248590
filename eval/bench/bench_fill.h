/* SPDX-License-Identifier: MIT */
/* Contexts of random rows, to measure speed at long contexts without computing a prompt. */
#ifndef EVAL_BENCH_FILL_H
#define EVAL_BENCH_FILL_H

#include "kernels/base/rng.h"
#include "model/session.h"

/* Fills x with standard normal numbers; n is even. */
void fill_normals(rng *r, float *x, size_t n);

/* Keys and values are standard normal. In each KV head, FILL_OUTLIERS percent of the channels (at least one; chosen by
 * layer, head and seed) have keys FILL_SCALE times as large, as in trained models (KIVI, figure 2). Keys are then
 * rotated at their positions, so that the tokens a query selects are scattered over the context. Rows differ between
 * positions, layers and heads. The same seed and chunk give the same rows. */
enum { FILL_OUTLIERS = 6, FILL_SCALE = 8 };
typedef struct {
    int64_t n_tokens, after, piece; /* see store_options */
    uint64_t seed;
    bool (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;
} fill_options;
status fill_sessions(session *const *s, size_t n_sessions, const fill_options *o, err *e);

#endif
