/* SPDX-License-Identifier: MIT */
/* Passkey retrieval: running the trials of one length with many strategies. */
#ifndef EVAL_PASSKEY_RUN_H
#define EVAL_PASSKEY_RUN_H

#include "eval/passkey_prompt.h"
#include "model/session.h"

/* One strategy at one budget, and what its trials gave. */
typedef struct {
    attn_spec spec;
    int64_t correct;
    attn_stats stats;         /* summed over the trials */
    attn_bytes held, peak;    /* the most held at the end of a trial, and at any time */
    int64_t time_ns;          /* its decode steps and its part of the prefills */
} passkey_run;

typedef struct {
    decoder *d;
    const passkey_trial *trials;
    int64_t n_trials;
    int64_t limit;       /* tokens that every session must hold */
    size_t max_together; /* most sessions of one prefill, at least 1 */
    bool share;          /* prefill a prompt once for all strategies that can share it */
    bool (*is_eos)(void *ctx, int32_t id);
    /* Whether the new tokens are right. */
    status (*score)(void *ctx, bool *correct, size_t run, int64_t trial, const int32_t *ids,
                    size_t n, err *e);
    bool (*progress)(void *ctx, double part); /* 0 to 1 of all; false: ST_INTERRUPTED */
    void *ctx;
    int64_t prefills, prefills_done; /* out: prompts fed, and forward passes that this took */
    int64_t saved_ns; /* out: time that the others would have taken at the same speed */
} passkey_job;

/* Tokens that a session needs for the longest of the trials. */
int64_t passkey_limit(const passkey_trial *trials, int64_t n_trials);

/* Runs all trials; sessions that do not fit in memory together take turns, prompts are then
 * prefilled again. Results do not depend on sharing. */
status passkey_execute(passkey_job *job, passkey_run *runs, size_t n_runs, err *e);

#endif
