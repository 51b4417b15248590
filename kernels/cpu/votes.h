/* SPDX-License-Identifier: MIT */
/* Votes in chunks of items (select_ops.combine, GQA_VOTE): first the chunks of every head, then each head's sum, then
 * the votes of every chunk. Scores are read one chunk at a time, so that their producer need not keep them. */
#ifndef KERNELS_CPU_VOTES_H
#define KERNELS_CPU_VOTES_H

#include "kernels/cpu/level.h"

enum {
    VOTE_CHUNK = 2048, /* items of one partial sum of a vote: part of the result's definition */
    VOTE_HEADS = 1024
};

/* Data shared by all lists: n candidates, `heads` heads each. */
typedef struct {
    float *out; /* [lists][stride], from the first candidate on */
    size_t stride, heads, n, chunks;
    float by; /* converts a score to a logit to the base 2 */
} vote_lists;

/* One list and its work space. */
typedef struct {
    const vote_lists *of;
    float *out;
    float *e, *top, *sum; /* [heads][n]; [heads][chunks] */
    float *lse;           /* [heads] */
} vote_list;

vote_lists votes_of(float *out, size_t stride, size_t heads, size_t n, float scale);
/* Returns the floats of a list's work space, in whole cache lines. */
size_t vote_floats(const vote_lists *all);
vote_list vote_at(const vote_lists *all, size_t list, float *work);
size_t vote_items(const vote_lists *all, size_t chunk);

/* x: scores of head h in the chunk. */
void vote_exp(const cpu_kernels *k, const vote_list *v, size_t h, size_t chunk, const float *x);
/* Called after all chunks of the head. */
void vote_head(const vote_list *v, size_t h);
/* Called after all heads. x [heads][stride]: the chunk's scores again, or NULL. False: the scores are needed. */
bool vote_sum(const cpu_kernels *k, const vote_list *v, size_t chunk, const float *x, size_t stride);

#endif
