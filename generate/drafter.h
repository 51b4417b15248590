/* SPDX-License-Identifier: MIT */
/* --draft: tokens that are proposed, then verified several in one step; the text stays that of single steps, byte for
 * byte. */
#ifndef GENERATE_DRAFTER_H
#define GENERATE_DRAFTER_H

#include <jansson.h>

#include "kernels/comm.h"
#include "model/session.h"
#include "tokenizer/tokenizer.h"

typedef struct drafter drafter;

/* Since drafter_begin. tokens: that verifications yielded, their own included. */
typedef struct {
    int64_t proposed, accepted, verifications, tokens;
    double ns;                   /* of all of it, by the shortest times of such steps; */
    double single_ns;            /* of a step of one token likewise; 0: there was none */
    int64_t draft_ns, verify_ns; /* as measured, of all drafts and of all verifications */
} draft_counts;

/* For `bench`: from now on a share of the reached drafts is right, by chance, whatever the session says. All other
 * tokens are ids below `period`, each followed by the next and the last by the first, so that a look-up finds some. */
void drafter_force(drafter *d, double share, int32_t period, uint64_t seed);

/* Which drafts are wanted; all texts are borrowed. */
typedef struct {
    const char *spec;    /* "ngram", a strategy, or one of each; NULL: none */
    const char *name;    /* of the option, in errors */
    const char *weights; /* value of --draft-weights, with which a strategy's drafts run; NULL: the model's own */
    comm *ranks;         /* NULL: there is one process only */
} draft_options;

/* Creates the drafts of a session of `verifier`; *out is NULL without a spec. ST_USAGE, ST_UNSUPPORTED. */
status drafter_create(drafter **out, const draft_options *o, const attn_spec *verifier, err *e);
void drafter_free(drafter *d);
/* The size of a session that it is for; d may be NULL. */
session_size drafter_session(const drafter *d, int64_t n_tokens);

/* Counts from here on. */
void drafter_begin(drafter *d);
/* The token behind the last of `all`, which no step was fed yet but for those that were verified ahead. Of `most`
 * tokens, at least 1, are still wanted. Each token that is given must be pushed to `all` before the next call, as it is
 * or as another rank had it. */
status drafter_next(drafter *d, session *s, sampler *by, const token_list *all, size_t most, int32_t *id, err *e);
/* Feeds the last of `all`, as drafter_next does, and leaves the choice of the next token to the caller: *row is its
 * logits [vocab]. rows: [SESSION_VERIFY_ROWS, vocab], of this drafter alone, so that other sessions may step between.
 */
status drafter_feed(drafter *d, session *s, sampler *by, const token_list *all, float *rows, const float **row, err *e);
/* Whether the next one was verified ahead, so that it needs no step. */
bool drafter_ready(const drafter *d, const token_list *all);
/* From now on the logits [vocab] that a token is chosen from are copied to `row` before; NULL: they are not. */
void drafter_copy_logits(drafter *d, float *row);
/* Forgets what was verified ahead; the session keeps its rows. */
void drafter_forget(drafter *d);
/* Forgets what was verified behind the last of `all`, which is then what it is without drafts: not fed. */
status drafter_drop(drafter *d, session *s, const token_list *all, err *e);

draft_counts drafter_counts(const drafter *d);
const char *drafter_spec(const drafter *d);
/* Tokens that a verification yields, its own included; 0: there was none. */
double draft_length(const draft_counts *n);
/* {"spec", "proposed", "accepted", "verifications", "accepted_length"}; NULL when out of memory. */
json_t *draft_json(const char *spec, const draft_counts *n);
/* The same of one drafter. weights: those of drafts, which add "weights" and "weights_bytes"; NULL: the model's own. */
json_t *drafter_json(const drafter *d, const model *weights);

#endif
