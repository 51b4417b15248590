/* SPDX-License-Identifier: MIT */
/* Answers many prompts with many strategies and one model. A prompt is prefilled once for all strategies that can share
 * it. Two consecutive prompts also share the prefill of a common beginning that ends at a break, or of a whole head
 * followed by a tail. Results depend neither on this nor on the number of prompts that run in parallel. */
#ifndef GENERATE_BATCH_H
#define GENERATE_BATCH_H

#include "generate/sequence.h"

/* A strategy at a budget, with the totals over its prompts. */
typedef struct {
    attn_spec spec;
    attn_stats stats;      /* sum over the prompts */
    attn_bytes held, peak; /* maximum at the end of a prompt, and at any time */
    int64_t time_ns;       /* its decode steps and its part of the prefills */
} batch_run;

/* A prompt. All lists are borrowed. */
typedef struct {
    const int32_t *head, *tail; /* tokens to prefill, and tokens to feed one by one after them */
    size_t n_head, n_tail;      /* one may be 0 */
    /* [n_breaks], ascending: ends of separately prefilled parts of the head. Strategies evict after each part. */
    const size_t *breaks;
    size_t n_breaks;
    const int32_t *stop;  /* ids that end an answer */
    size_t n_stop, n_new; /* n_new: most new tokens, at least 1 */
    bool not_first;       /* the first new token is not one of `stop`, however likely */
    const int32_t *only;  /* [n_only]: the first new token is the most likely of these; n_only 0: of all tokens */
    size_t n_only;
    /* follows: the prompt continues the session after the answer to the previous prompt; it has no breaks. ends: token
     * to insert before its head if that answer reached its limit; -1: none. */
    bool follows;
    int32_t ends;
    uint64_t random; /* with sampling: seed of this answer's choices, independent of other answers */
    attn_hint hint;  /* in tokens of the head */
} batch_prompt;

/* An answer. */
typedef struct {
    const int32_t *ids; /* without the token that ended it */
    size_t n;
    bool stopped; /* ended by such a token */
    attn_stats stats;
    attn_bytes held, peak;
    int64_t time_ns;
    const drafter *draft; /* drafter that produced it; NULL: single steps */
} batch_reply;

typedef struct {
    decoder *d; /* for at least `jobs` sequences */
    const batch_prompt *prompts;
    size_t n_prompts;
    int64_t limit;     /* capacity of each session in tokens, at least batch_limit */
    size_t max_shared; /* most sessions of one prefill, at least 1 */
    size_t jobs;       /* number of prompts decoded in parallel, in one batch; at least 1 */
    bool share;        /* prefill a prompt once for all strategies that can share it */
    /* Drafts for the answers. Requires jobs 1 and that drafter_create accepts every strategy. NULL, or without a spec:
     * single steps. */
    const draft_options *drafts;
    prefix_cache *cache; /* prefix cache for the first prompts of heads; NULL: none */
    /* Sampling options. NULL: greedy. */
    const sampler_options *sampling;
    /* Sets *end if an answer ends after the tokens ids [n], in addition to its stop tokens. May be NULL. */
    status (*ends)(void *ctx, size_t prompt, const int32_t *ids, size_t n, bool *end, err *e);
    /* True for answers that are not needed (already available, or the strategy cannot run). NULL: all are needed. */
    bool (*skip)(void *ctx, size_t run, size_t prompt);
    /* Takes an answer. Order: sets of `jobs` prompts, then runs, then prompts of the set. If not all runs fit in memory
     * together, all prompts of the first group of runs come first. */
    status (*done)(void *ctx, size_t run, size_t prompt, const batch_reply *r, err *e);
    bool (*progress)(void *ctx, double part); /* part: fraction done, 0 to 1. false: ST_INTERRUPTED. */
    void *ctx;
    int64_t prompt_tokens, cached_tokens; /* out: tokens looked up in the prefix cache, and tokens found */
    int64_t prefills, prefills_done;      /* out: prompts fed, and prefills computed for them */
    /* Out: time of the shared prefills, multiplied by the number of sessions saved in each. Slightly too high:
     * per-session work, such as its copy and its index, was not saved. */
    int64_t saved_ns;
} batch_job;

/* Adds an answer to the totals of a run. batch_execute calls it for each answer. */
void batch_add(batch_run *r, const batch_reply *x);

/* Returns the tokens that a session needs for the longest of the prompts. */
int64_t batch_limit(const batch_prompt *prompts, size_t n);

/* Answers all prompts with all runs. */
status batch_execute(batch_job *job, batch_run *runs, size_t n_runs, err *e);

/* Sessions that exist at the same time. */
typedef struct {
    const decoder *d;
    decoder_options options;
    int64_t limit;          /* tokens per session */
    size_t sessions;        /* per run */
    const attn_spec *draft; /* see session_size */
} batch_fitting;
/* Returns in *fit how many of the runs run[0..n) fit in memory together, at least 1. ST_NOMEM if the sessions of one
 * run do not fit; a single session is checked by session_create. */
status batch_fit(size_t *fit, const batch_fitting *f, const batch_run *all, const size_t *run, size_t n, err *e);

/* Returns the average number of tokens that a decode step attends in a layer with keys and values; -1 without steps. */
double batch_attended(const attn_stats *s, int n_kv);

#endif
