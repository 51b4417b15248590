/* SPDX-License-Identifier: MIT */
/* The generation driver. A sequence is a session with its tokens, sampler, drafts and prefix cache. Prompts are fed to
 * it in pieces; steps over one or many sequences then feed what was chosen and choose what follows. Commands,
 * evaluations and the library generate through it. */
#ifndef GENERATE_SEQUENCE_H
#define GENERATE_SEQUENCE_H

#include "generate/drafter.h"
#include "generate/prefix_cache.h"
#include "tokenizer/tokenizer.h"

typedef struct {
    session *s;
    sampler *by;             /* NULL: greedy */
    drafter *draft;          /* NULL: single steps */
    prefix_cache *cache;     /* prefix cache, borrowed; NULL: none */
    token_list ids;          /* tokens that were fed, then tokens to feed */
    size_t n_fed;            /* number of ids that were fed */
    size_t n_seen;           /* number of ids that the sampler has counted */
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
/* Frees the session and lets go of its cached prompt; tokens and counts remain. */
void sequence_end(sequence *q);
/* Frees all parts; q may be zeroed. */
void sequence_close(sequence *q);
/* Empties the session; all ids are then to be fed. */
void sequence_restart(sequence *q);
/* Appends tokens that are to be fed. After an error ids are as before. */
status sequence_push(sequence *q, const int32_t *ids, size_t n, err *e);
/* Appends a token that was chosen, and counts it for the repetition penalty. */
status sequence_accept(sequence *q, int32_t id, err *e);
/* Forgets the ids from n on, none of which was fed. */
void sequence_truncate(sequence *q, size_t n);

/* Buffers of a step over several sequences. */
typedef struct {
    decoder *d;
    size_t room, vocab; /* sequences of one step; numbers of a row */
    session **s;
    int32_t *ids;
    sampler **by;
    float *logits; /* [room, vocab] of the last sequence_decode */
} stepper;

status stepper_open(stepper *x, decoder *d, size_t room, err *e);
void stepper_close(stepper *x);
/* Logits of sequence i of the last step. */
float *stepper_row(const stepper *x, size_t i);

/* Begins the prompt ids[n_fed, end). */
void sequence_begin(sequence *q, size_t end);
/* The same, and takes the beginning of the prompt from the prefix cache: n_fed grows, or falls to 0 after a damaged
 * entry, and so does `start`. hint: in positions of the sequence. */
void sequence_begin_cached(sequence *q, size_t end, attn_hint hint);
/* The same with a lookup that was done before the session was created. */
void sequence_begin_found(sequence *q, size_t end, const prefix_hit *found);

/* Which logits of a prompt are wanted, and what is called. */
typedef struct {
    size_t most;    /* tokens of one piece; 0: no limit */
    bool logits;    /* those of the token after the prompt go to the first row of the stepper */
    attn_hint hint; /* in positions of the sequence */
    /* Takes the logits [vocab] of token `at` of the prompt, for all of its tokens but the first. May be NULL. */
    void (*row)(void *ctx, size_t at, const float *logits);
    /* Called after each chunk; false ends the prompt with ST_INTERRUPTED. May be NULL. */
    bool (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;
} prompt_options;

/* Feeds the next piece of a prompt to n sequences with the same ids[n_fed, end), which must be able to share it
 * (session_can_share). A piece ends at the end of the prompt, after `most` tokens, or where the prefix cache keeps the
 * prompt. */
status sequence_prefill(stepper *x, sequence *const *q, size_t n, const prompt_options *o, err *e);

/* Returns the end of that piece. */
size_t sequence_piece_end(sequence *const *q, size_t n, size_t most);

/* Feeds the next token of each of n sequences; their logits are then in x->logits. A row has the same bits whatever the
 * other sequences are. ST_FORMAT if logits are not finite: all sequences have their token, and all rows are valid. */
status sequence_decode(stepper *x, sequence *const *q, size_t n, err *e);
/* Chooses the next token of a sequence from its logits, which are changed. */
int32_t sequence_choose(sequence *q, float *logits);
/* The same as sequence_decode and sequence_choose, to `next` of each: on the device where possible, ahead of what is
 * known here, or through drafts, which take one sequence at a time. */
status sequence_next(stepper *x, sequence *const *q, size_t n, err *e);
/* Forgets steps that were queued or verified beyond n_fed. */
status sequence_settle(sequence *q, err *e);

#endif
