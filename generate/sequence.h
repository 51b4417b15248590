/* SPDX-License-Identifier: MIT */
/* The generation driver, used by commands, evaluations and the library. A sequence is a session with its tokens,
 * sampler, drafts and prefix cache. Prompts are fed in pieces; steps over one or more sequences then feed the chosen
 * token and choose the next one. */
#ifndef GENERATE_SEQUENCE_H
#define GENERATE_SEQUENCE_H

#include "generate/drafter.h"
#include "generate/prefix_cache.h"
#include "grammar/grammar.h"
#include "tokenizer/tokenizer.h"

/* A constraint on a reply. */
typedef struct {
    grammar_run *run;
    int64_t mask_ns; /* time spent on masks */
} restriction;

typedef struct {
    session *s;
    sampler *by;             /* NULL: greedy */
    restriction *under;      /* NULL: none */
    drafter *draft;          /* NULL: single steps */
    prefix_cache *cache;     /* borrowed; NULL: none */
    token_list ids;          /* tokens that were fed, then tokens to feed */
    size_t n_fed;            /* number of ids that were fed */
    size_t n_seen;           /* number of ids that the sampler has counted */
    size_t reply;            /* ids[reply, n) were generated: those after the last pushed prompt */
    size_t seen_reply;       /* `reply` of the sampler's counts */
    size_t start, end;       /* the current prompt: ids[start, end) */
    size_t most;             /* number of tokens still wanted, the next one included */
    bool ahead;              /* nothing follows the reply: steps may be queued beyond its end */
    int queued;              /* steps in progress */
    int32_t next;            /* chosen by sequence_next, not in ids yet */
    prefix_hit hit;          /* prefix cache lookup of the current prompt */
    char before[SHA256_HEX]; /* hash of how the tokens before the prompt were fed; "": the prompt begins the session */
} sequence;

typedef struct {
    const attn_spec *spec;
    session_size size;               /* its draft follows from `drafts` */
    const sampler_options *sampling; /* NULL: greedy */
    const draft_options *drafts;     /* NULL, or without a spec: single steps */
    prefix_cache *cache;             /* NULL: none */
} sequence_options;

/* Creates session, sampler and drafts. After an error *q is empty. */
status sequence_open(sequence *q, decoder *d, const sequence_options *o, err *e);
/* Keeps the tokens fed so far in the prefix cache (prefix_cache_keep_fed). Only sequence_end may follow. */
void sequence_keep(sequence *q);
/* Frees the session and releases its cached prompt; tokens and counts remain. */
void sequence_end(sequence *q);
/* Frees all parts; q may be zeroed. */
void sequence_close(sequence *q);
/* Empties the session; all ids are then unfed. */
void sequence_restart(sequence *q);
/* Appends tokens of a prompt to feed; a reply then starts. After an error ids are unchanged. */
status sequence_push(sequence *q, const int32_t *ids, size_t n, err *e);
/* Constrains the current reply to a grammar, which begins with its first token; g NULL: no constraint. Borrows g and v.
 * Requires a sampler. ST_NOMEM. */
status sequence_restrict(sequence *q, const grammar *g, const grammar_vocab *v, err *e);
/* Returns the time of the masks since the last call, nanoseconds. */
int64_t sequence_mask_ns(sequence *q);
/* Appends a generated token, and counts it for the penalties. ST_FORMAT for the id -1: the grammar allows no token. */
status sequence_accept(sequence *q, int32_t id, err *e);
/* Removes the ids from n on, none of which was fed. */
void sequence_truncate(sequence *q, size_t n);

/* Buffers for steps over several sequences. */
typedef struct {
    decoder *d;
    size_t room, vocab; /* most sequences per step; logits per row */
    session **s;
    int32_t *ids;
    sampler **by;
    float *logits; /* [room, vocab] of the last sequence_decode */
} stepper;

status stepper_open(stepper *x, decoder *d, size_t room, err *e);
void stepper_close(stepper *x);
/* Returns the logits of sequence i of the last step. */
float *stepper_row(const stepper *x, size_t i);

/* Begins the prompt ids[n_fed, end). */
void sequence_begin(sequence *q, size_t end);
/* Begins a prompt with the prefix found in the prefix cache: n_fed grows. After a damaged entry n_fed and `start` are
 * 0. hint: in positions of the sequence. */
void sequence_begin_cached(sequence *q, size_t end, attn_hint hint);
/* Begins a prompt with a lookup made before the session was created. */
void sequence_begin_found(sequence *q, size_t end, const prefix_hit *found);

/* Logits returned for a prompt, and callbacks. */
typedef struct {
    size_t most;    /* tokens of one piece; 0: no limit */
    bool logits;    /* write the logits of the token after the prompt to the first row of the stepper */
    attn_hint hint; /* in positions of the sequence */
    /* Takes the logits [vocab] of token `at` of the prompt, for all of its tokens except the first. May be NULL. */
    void (*row)(void *ctx, size_t at, const float *logits);
    /* Called after each chunk; false ends the prompt with ST_INTERRUPTED. May be NULL. */
    bool (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;
} prompt_options;

/* Feeds the next piece of a prompt to n sequences with the same ids[n_fed, end), which must be able to share it
 * (session_can_share). A piece ends at the end of the prompt, after `most` tokens, or where the prefix cache keeps the
 * prompt. */
status sequence_prefill(stepper *x, sequence *const *q, size_t n, const prompt_options *o, err *e);

/* Returns the end of the next piece. */
size_t sequence_piece_end(sequence *const *q, size_t n, size_t most);

/* Feeds the next token of each of n sequences and leaves their logits in x->logits. A row does not depend on the other
 * sequences. ST_FORMAT if logits are not finite: all sequences hold their token, and all rows are valid. */
status sequence_decode(stepper *x, sequence *const *q, size_t n, err *e);
/* Chooses the next token of a sequence from its logits, which are modified. */
int32_t sequence_choose(sequence *q, float *logits);
/* Combines sequence_decode and sequence_choose; writes the tokens to `next` of each sequence. Chooses on the device if
 * possible, queues steps ahead, or uses drafts, which require n 1. ST_FORMAT as for sequence_decode; if
 * sequence_on_device, `next` is then -1 where logits are not finite, and valid elsewhere. */
status sequence_next(stepper *x, sequence *const *q, size_t n, err *e);
/* True if sequence_next chooses for these sequences on a device, so that their logits need not reach the host. */
bool sequence_on_device(const stepper *x, sequence *const *q, size_t n);
/* Forgets steps queued or verified beyond n_fed. */
status sequence_settle(sequence *q, err *e);

#endif
