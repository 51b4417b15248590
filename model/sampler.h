/* SPDX-License-Identifier: MIT */
/* The next token from logits. */
#ifndef MODEL_SAMPLER_H
#define MODEL_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/draw.h"

typedef struct {
    double temp;           /* 0: greedy */
    int top_k;             /* 0: off */
    double top_p, min_p;   /* 1 and 0: off */
    double repeat_penalty; /* 1: off; over all tokens seen (Keskar et al. 2019, as transformers does) */
    uint64_t seed;
    draw_how draw; /* how it follows from random numbers */
} sampler_options;

typedef struct sampler sampler;

/* Errors: ST_USAGE naming the option and its range. */
status sampler_create(sampler **out, const sampler_options *o, size_t vocab, err *e);
void sampler_free(sampler *s);
/* Counts a token (prompt or generated) for the repetition penalty. */
void sampler_accept(sampler *s, int32_t id);
/* How many tokens were counted so, and what was counted behind the first n of them no more. */
size_t sampler_seen(const sampler *s);
void sampler_forget(sampler *s, size_t n);
/* Chooses the token of position pos from logits [vocab], which are changed. Order: penalty, temperature, top-k, top-p,
 * min-p. Equal logits: the lower id first; NaN counts as -INFINITY. Does not allocate. */
int32_t sampler_next(sampler *s, float *logits, int64_t pos);
/* The same in parts, for a choice that is made elsewhere: by the rule and, with DRAW_RANK, the next random share of the
 * mass. Only of a plain sampler, which has no penalty for tokens that were seen. */
bool sampler_is_plain(const sampler *s);
draw_rule sampler_rule(const sampler *s, int64_t pos);
float sampler_share(sampler *s);
/* What random choices follow from: the seed, or where the random numbers are; seen tokens are counted apart. */
uint64_t sampler_random(const sampler *s);
void sampler_set_random(sampler *s, uint64_t state);
/* The most likely id, the lower one of equals; 0 if all are NaN. */
int32_t logits_argmax(const float *logits, size_t vocab);
/* -log softmax(logits)[id], in double. */
double logits_nll(const float *logits, size_t vocab, int32_t id);

#endif
