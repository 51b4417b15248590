/* SPDX-License-Identifier: MIT */
/* A sample of what a step does not attend, each token with the logarithm of the number that it stands for: a
 * measurement of the attention that was missed. methods.md 17.2. */
#ifndef ATTENTION_TAIL_H
#define ATTENTION_TAIL_H

#include "attention/method.h"
#include "kernels/ops_tail.h"

/* Parameter of methods whose slots are positions: 0, or the tokens of a sample. */
#define RETRIEVE_TAIL_PARAM                                                                                            \
    "tail", attn_or_sample,                                                                                            \
        "measure missed attention: sample N of the tokens that a step does not attend (not in layers with a sliding "  \
        "window)",                                                                                                     \
        0, 0, TAIL_SAMPLE_MAX
#define TAIL_SEED_PARAM "tail_seed", NULL, "tail=sample: of what is drawn", 42, 0, (int64_t)1 << 40

typedef struct {
    buf idx, range, left, bias, scores, missed; /* of the layer at work: ops_tail.h */
    int64_t most;                               /* tokens of a sample; 0: none */
    uint64_t seed;
} attn_tail;

/* Both do nothing for most = 0. at: offset of the attn_tail in the method's struct; lists: of a selection. */
void tail_declare(attn_decl *d, size_t at, size_t lists, int64_t most);
void tail_reset(attn_tail *t, int64_t most, int64_t seed);
/* Adds to the selections of n steps a segment with a sample of what they leave. They have one to three segments of the
 * same rows, of which at most one has lists. */
void tail_select(attn_tail *const *t, const attn_turn *const *turns, size_t n, int layer);

#endif
