/* SPDX-License-Identifier: MIT */
/* Sampling of the next token from logits. */
#ifndef MODEL_SAMPLER_H
#define MODEL_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/draw.h"

typedef struct {
    double temp;           /* 0: greedy */
    int top_k;             /* 0: off */
    double top_p, min_p;   /* 1: top_p off, 0: greedy; 0: min_p off */
    double repeat_penalty; /* 1: off; applies to all tokens seen (Keskar et al. 2019, as in transformers) */
    /* Subtracted from the logit of a generated token: once, and for each time that it was generated; 0: off. Source:
     * OpenAI's API reference. */
    double presence_penalty, frequency_penalty;
    uint64_t seed;
    draw_how draw; /* method of drawing from random numbers */
} sampler_options;

typedef struct sampler sampler;

/* A constraint on the generated tokens, e.g. a grammar. All functions take ctx. */
typedef struct {
    /* Returns the set of tokens that may be next, one bit each, 64 a word, [vocab]. */
    const uint64_t *(*allowed)(void *ctx);
    void (*accept)(void *ctx, int32_t id); /* adds a generated token */
    void (*forget)(void *ctx, size_t n);   /* removes the last n tokens */
    /* Returns how many of ids [n] may follow one after the other. */
    size_t (*fitting)(void *ctx, const int32_t *ids, size_t n);
    void *ctx;
} sampler_limit;

/* Creates a sampler. Errors: ST_USAGE with the option and its range. */
status sampler_create(sampler **out, const sampler_options *o, size_t vocab, err *e);
void sampler_free(sampler *s);
/* Counts a token of a prompt for the repetition penalty. */
void sampler_accept(sampler *s, int32_t id);
/* Counts a generated token for all penalties. */
void sampler_accept_new(sampler *s, int32_t id);
/* Starts a reply: all tokens counted so far are those of its prompt. */
void sampler_begin(sampler *s);
/* Numbers of distinct tokens and of generated tokens counted so far. */
typedef struct {
    size_t seen, generated;
} sampler_counts;
sampler_counts sampler_counted(const sampler *s);
/* Forgets the generated tokens `ids`, which are those counted since `to`. */
void sampler_forget(sampler *s, sampler_counts to, const int32_t *ids);
/* Sets the constraint on the tokens from here on; NULL: none. */
void sampler_restrict(sampler *s, const sampler_limit *limit);
/* Returns how many of ids [n] the constraint allows one after the other. */
size_t sampler_fitting(const sampler *s, const int32_t *ids, size_t n);
/* Chooses the token at position pos from logits [vocab], which are modified. Order: constraint, penalties, temperature,
 * top-k, top-p, min-p. Of equal logits the lower id comes first; NaN counts as -INFINITY. Returns -1 if the constraint
 * allows no token. Does not allocate. */
int32_t sampler_next(sampler *s, float *logits, int64_t pos);
/* Parts of sampler_next for a choice made elsewhere: the rule and, with DRAW_RANK, the next random number, a fraction
 * of the probability mass. Only for a plain sampler, which has no penalty and no constraint. */
bool sampler_is_plain(const sampler *s);
draw_rule sampler_rule(const sampler *s, int64_t pos);
float sampler_uniform(sampler *s);
/* Get and set the state of random choices: the seed, or the state of the random numbers. Tokens seen are not part of
 * it. */
uint64_t sampler_random(const sampler *s);
void sampler_set_random(sampler *s, uint64_t state);
/* Returns the most likely id, the lowest of equals; 0 if all logits are NaN. */
int32_t logits_argmax(const float *logits, size_t vocab);
/* Returns -log softmax(logits)[id], computed in double. */
double logits_nll(const float *logits, size_t vocab, int32_t id);

#endif
