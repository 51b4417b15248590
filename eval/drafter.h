/* SPDX-License-Identifier: MIT */
/* --draft: tokens that are proposed, then verified several in one step; the text stays that of single steps, byte for
 * byte. */
#ifndef EVAL_DRAFTER_H
#define EVAL_DRAFTER_H

#include "eval/cli.h"

typedef struct drafter drafter;

/* Since drafter_begin. tokens: that verifications yielded, their own included. */
typedef struct {
    int64_t proposed, accepted, verifications, tokens;
    double ns;        /* of all of it, by the shortest times of such steps; */
    double single_ns; /* of a step of one token likewise; 0: there was none */
} draft_counts;

/* For `bench`: from now on a share of the reached drafts is right, by chance, whatever the session says. */
void drafter_force(drafter *d, double share, uint64_t seed);

/* Of --draft SPEC for a session of `verifier`; NULL without that option. ST_USAGE, ST_UNSUPPORTED: one line that says
 * what cannot be. */
status drafter_create(drafter **out, const cli *c, const attn_spec *verifier, err *e);
void drafter_free(drafter *d);
/* The size of a session that it is for; d may be NULL. */
session_size drafter_session(const drafter *d, int64_t n_tokens);
/* Rows that a decoder needs for it (decoder_options.verify). */
size_t drafter_rows(const cli *c);

/* Counts from here on. */
void drafter_begin(drafter *d);
/* The token behind the last of `all`, which no step was fed yet but for those that were verified ahead. Of `most`
 * tokens, at least 1, are still wanted. Each token that is given must be pushed to `all` before the next call, as it is
 * or as another rank had it. */
status drafter_next(drafter *d, session *s, sampler *by, const token_list *all, size_t most, int32_t *id, err *e);
/* Forgets what was verified behind the last of `all`, which is then what it is without drafts: not fed. */
status drafter_drop(drafter *d, session *s, const token_list *all, err *e);

draft_counts drafter_counts(const drafter *d);
const char *drafter_spec(const drafter *d);

#endif
