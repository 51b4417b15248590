/* SPDX-License-Identifier: MIT */
/* Drafts (--draft): tokens are drafted, then several are verified in one step. The output equals that of single steps
 * byte for byte, with the same kernel of attention. If the strategy leaves the kernel open (ATTN_DECODE_AUTO) and the
 * CPU has tiles, the first step of a run of enough tokens measures both. */
#ifndef GENERATE_DRAFTER_H
#define GENERATE_DRAFTER_H

#include <jansson.h>

#include "kernels/comm.h"
#include "model/session.h"
#include "tokenizer/tokenizer.h"

typedef struct drafter drafter;

/* Counts since drafter_begin. tokens: yield of the verifications, their own tokens included. withheld: verifications
 * without drafts because none would have paid (pace_length). */
typedef struct {
    int64_t proposed, accepted, verifications, tokens, withheld;
    double ns;                   /* total time, estimated from the shortest recent times of equal steps */
    double single_ns;            /* shortest recent time of a step of one token; 0: none */
    int64_t draft_ns, verify_ns; /* measured totals of all drafts and of all verifications */
    bool tiles;                  /* kernel of attention in all steps (attn_decode_kernel) */
} draft_counts;

/* For `bench`: measures the kernels of attention in a run of any length, and accepts each reached draft with
 * probability `rate`, regardless of the model. All other tokens are ids below `period` in ascending order, repeated, so
 * that n-gram lookups find drafts. */
void drafter_force(drafter *d, double rate, int32_t period, uint64_t seed);

/* Drafts requested by the user. All strings are borrowed. */
typedef struct {
    const char *spec;    /* "ngram", a strategy, or one of each; NULL: none */
    const char *name;    /* of the option, for errors */
    const char *weights; /* value of --draft-weights, for drafts of a strategy; NULL: the model's own */
    comm *ranks;         /* NULL: a single process */
} draft_options;

/* Creates the drafts of a session of `verifier`. *out is NULL without a spec. ST_USAGE, ST_UNSUPPORTED. */
status drafter_create(drafter **out, const draft_options *o, const attn_spec *verifier, err *e);
void drafter_free(drafter *d);
/* Returns the size of a session of n_tokens with these drafts; d may be NULL. */
session_size drafter_session(const drafter *d, int64_t n_tokens);

/* Resets the counts. */
void drafter_begin(drafter *d);
/* Chooses the token after the last of `all`, which has not been fed unless it was verified ahead. At most `most` (at
 * least 1) further tokens are wanted. The caller must push each chosen token, or that of another rank, to `all` before
 * the next call. */
status drafter_next(drafter *d, session *s, sampler *by, const token_list *all, size_t most, int32_t *id, err *e);
/* Feeds the last of `all` like drafter_next, but leaves the choice of the next token to the caller, from its logits
 * *row [vocab]. rows: [SESSION_VERIFY_ROWS, vocab] for this drafter only, so that other sessions may step in
 * between. */
status drafter_feed(drafter *d, session *s, sampler *by, const token_list *all, float *rows, const float **row, err *e);
/* True if the last of `all` was verified ahead and needs no step. */
bool drafter_ready(const drafter *d, const token_list *all);
/* Copies the logits [vocab] to `row` before each choice; NULL: off. */
void drafter_copy_logits(drafter *d, float *row);
/* Forgets tokens verified ahead; the session keeps their rows. */
void drafter_forget(drafter *d);
/* Forgets rows verified from the last of `all` on. That token is then unfed, as without drafts. */
status drafter_drop(drafter *d, session *s, const token_list *all, err *e);

draft_counts drafter_counts(const drafter *d);
const char *drafter_spec(const drafter *d);
/* Returns the value of decode= that names the kernel of the steps. */
const char *draft_kernel(const draft_counts *n);
/* Returns the average number of tokens per verification, its own included; 0 without verifications. */
double draft_length(const draft_counts *n);
/* Returns {"spec", "proposed", "accepted", "verifications", "withheld", "accepted_length", "decode"}; NULL if out of
 * memory. */
json_t *draft_json(const char *spec, const draft_counts *n);
/* Returns draft_json of a drafter. weights: model of the drafts, which adds "weights" and "weights_bytes"; NULL: the
 * model's own weights. */
json_t *drafter_json(const drafter *d, const model *weights);

#endif
