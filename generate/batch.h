/* SPDX-License-Identifier: MIT */
/* Many prompts answered by many strategies, with one model. A prompt is prefilled once for all
 * strategies that leave it exact; and what a prompt has in common with the one before it, up to one of its breaks or to
 * the end of a head with a tail behind it, is prefilled once for both. Results do not depend on that, nor on how many
 * prompts go side by side. */
#ifndef GENERATE_BATCH_H
#define GENERATE_BATCH_H

#include "generate/sequence.h"

/* A strategy at a budget, with the sums of time and memory over its prompts. */
typedef struct {
    attn_spec spec;
    attn_stats stats;      /* summed over the prompts */
    attn_bytes held, peak; /* the most held at the end of a prompt, and at any time */
    int64_t time_ns;       /* its decode steps and its part of the prefills */
} batch_run;

/* What is asked; all lists are borrowed. */
typedef struct {
    const int32_t *head, *tail; /* prefilled; then fed token by token */
    size_t n_head, n_tail;      /* one may be 0 */
    const size_t *breaks;       /* ascending places in the head where one prompt ends and the next begins: each is */
    size_t n_breaks;            /* prefilled by itself, so that a strategy evicts at the end of each */
    const int32_t *stop;        /* ids that end an answer */
    size_t n_stop, n_new;       /* n_new: most new tokens, at least 1 */
    bool not_first;             /* the first new token is none of stop, however likely */
    const int32_t *only;        /* [n_only] the first new token is the likeliest of these; n_only 0: of all */
    size_t n_only;
    /* It goes on behind the answer to the prompt before it, in the same session; then it has no breaks. ends: a token
     * in front of its head where that answer came to its limit; -1: none. */
    bool follows;
    int32_t ends;
    uint64_t random; /* of a job that samples: what this answer's choices follow from, whatever else runs */
    attn_hint hint;  /* in tokens of the head */
} batch_prompt;

/* One answer. */
typedef struct {
    const int32_t *ids; /* without the token that stopped it */
    size_t n;
    bool stopped; /* by such a token */
    attn_stats stats;
    attn_bytes held, peak;
    int64_t time_ns;
    const drafter *draft; /* through which it came; NULL: step by step */
} batch_reply;

typedef struct {
    decoder *d; /* for at least `jobs` sequences */
    const batch_prompt *prompts;
    size_t n_prompts;
    int64_t limit;     /* tokens that every session must hold: at least batch_limit */
    size_t max_shared; /* most sessions of one prefill, at least 1 */
    size_t jobs;       /* prompts side by side, whose decode steps are one batch; at least 1 */
    bool share;        /* prefill a prompt once for all strategies that can share it */
    /* Answers come through drafts: then jobs is 1, and drafter_create accepts every strategy. NULL, or without a
     * spec: single steps. */
    const draft_options *drafts;
    prefix_cache *cache; /* where the first prompts of heads are looked up, and kept; NULL: nowhere */
    /* How tokens are drawn; NULL: the most likely ones. */
    const sampler_options *sampling;
    /* Whether an answer ends behind the tokens ids [n], beside its stops; NULL: it does not. */
    status (*ends)(void *ctx, size_t prompt, const int32_t *ids, size_t n, bool *end, err *e);
    /* True for answers that are not needed (known already, or the strategy cannot run); NULL: all are needed. */
    bool (*skip)(void *ctx, size_t run, size_t prompt);
    /* Takes an answer. Order: sets of `jobs` prompts, in each the runs, in each the prompts. (Runs that do not fit
     * in memory together take turns: then all prompts of the first ones come first.) */
    status (*done)(void *ctx, size_t run, size_t prompt, const batch_reply *r, err *e);
    bool (*progress)(void *ctx, double part); /* 0 to 1 of all; false: ST_INTERRUPTED */
    void *ctx;
    int64_t prompt_tokens, cached_tokens; /* out: tokens that were looked up in the prefix cache, and found */
    int64_t prefills, prefills_done;      /* out: prompts fed, and prefills that were computed for them */
    /* Out: what the prefills that were shared took, times the others in each. A little too much: what a session does
     * by itself, its copy and its index, was done and counts as saved. */
    int64_t saved_ns;
} batch_job;

/* Adds an answer to the sums of a run; batch_execute does so for each. */
void batch_add(batch_run *r, const batch_reply *x);

/* Tokens that a session needs for the longest of the prompts. */
int64_t batch_limit(const batch_prompt *prompts, size_t n);

/* Answers all prompts with all runs. */
status batch_execute(batch_job *job, batch_run *runs, size_t n_runs, err *e);

/* Sessions that exist at the same time. */
typedef struct {
    const decoder *d;
    decoder_options options;
    int64_t limit;          /* tokens of a session */
    size_t sessions;        /* of each run */
    const attn_spec *draft; /* session_size */
} batch_fitting;
/* How many of the runs run[0..n) fit in memory together; at least one. ST_NOMEM if not even the sessions of one fit; a
 * single session is left to session_create. */
status batch_fit(size_t *fit, const batch_fitting *f, const batch_run *all, const size_t *run, size_t n, err *e);

/* Returns the tokens that a decode step attends in a layer with keys and values, on average; -1 without a step. */
double batch_attended(const attn_stats *s, int n_kv);

#endif
