/* SPDX-License-Identifier: MIT */
/* Internal declarations of the library. */
#ifndef API_IMPL_H
#define API_IMPL_H

#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>

#include "api/kvasir.h"
#include "generate/sequence.h"

struct kvasir_model {
    pthread_mutex_t lock;     /* held while the decoder runs; detects calls from callbacks */
    pthread_mutex_t encoding; /* held while the tokenizer runs */
    locale_t numbers, before; /* numbers: C locale during calls; before: locale of the caller */
    atomic_int users;         /* number of references: the caller, sessions, texts */
    backend *be;
    model *m;
    tokenizer *tok;
    decoder *dec;
    decoder_options decoder;
    kvasir_options opt; /* options of the caller, without strings */
    stepper x;          /* logits of batch sessions */
    sequence **batch;   /* [batch] sequences of a step */
    draft_options drafts;
    char *draft;          /* draft specification; NULL: none */
    bool draft_strategy;  /* a strategy drafts; it has no index in forked and loaded sessions */
    prefix_cache *cache;  /* NULL: none */
    grammar_vocab *words; /* for constraints; NULL: not needed yet */
    pthread_mutex_t noting;
    char notices[1024]; /* warnings of the prefix cache, one per line, until a call logs them */
};

/* Positions that a query head read in the last step. */
typedef struct {
    int32_t *pos;
    size_t n, room;
} read_list;

/* Logits of the next token. A step that chooses on a device leaves them there until a call needs them. */
typedef struct {
    float *host; /* [vocab] */
    buf device;  /* f32 [vocab]; p NULL: steps return their logits */
    bool away;   /* only `device` holds them, and `next` is the token chosen from them according to `by` */
    int32_t next;
    sampler_options by;
} next_logits;

struct kvasir_session {
    kvasir_model *m;
    sequence q; /* between calls all of its ids are fed */
    next_logits *logits;
    float *work; /* [vocab]: a copy of the logits for sampling */
    float *rows; /* logits of verified drafts (drafter_feed); NULL: no drafts */
    bool has_logits;
    sampler_options sampling; /* options of the sampler, which the first sample creates */
    grammar *under;           /* constraint on sampled tokens; NULL: none */
    size_t under_reply;       /* `reply` of the sequence when the constraint last began */
    int64_t prompt_ns, step_ns;
    int64_t n_cached; /* prompt tokens from the prefix cache */
    bool watched, has_read;
    read_list *read; /* [layers * heads]; NULL: never watched */
    char strategy[ATTN_WRITTEN], store[128];
};

/* Fails with ST_USAGE and the name if an argument is NULL. */
status lib_need(const void *p, const char *name, err *e);
/* Returns the status and copies the message to the caller's buffer. */
kvasir_status lib_result(status st, const err *e, char *msg, size_t size);
/* Copies a struct of the caller, which may have another size, to ours and fills up with zeros. ST_UNSUPPORTED if
 * members beyond ours are set. */
status lib_take(void *to, size_t size, const void *from, const char *name, err *e);
/* Copies a struct of ours to the caller's, as far as its size allows. */
status lib_give(void *to, const void *from, size_t size, const char *name, err *e);

/* Locks a model for a call that uses the decoder. ST_USAGE for NULL and in a callback. lib_leave unlocks it. */
status lib_enter(kvasir_model *m, err *e);
status lib_enter_session(const kvasir_session *s, err *e);
status lib_leave(kvasir_model *m, status st); /* returns st */
void lib_retain(kvasir_model *m);             /* adds a reference */

/* Allocates the logits of a session. lib_logits_free releases them; NULL is ignored. */
status lib_logits_create(next_logits **out, const kvasir_model *m, err *e);
void lib_logits_free(next_logits *x, const kvasir_model *m);
/* Copies logits [vocab] to the host part. */
void lib_logits_set(kvasir_session *s, const float *logits);
/* Keeps row `row` of the step that has just run on the device, with the token chosen from it. */
void lib_logits_keep(kvasir_session *s, size_t row);
/* Returns the logits in host memory, downloading them if needed. Requires the lock of the model. */
status lib_logits_get(const kvasir_session *s, const float **logits, err *e);

/* Records the positions that the next step of n sessions reads, for watched sessions. w NULL: stops recording. */
typedef struct {
    kvasir_session *const *sessions;
    size_t n;
    status st;
    err e;
} read_watch;
void lib_watch(kvasir_model *m, read_watch *w);
void lib_read_free(kvasir_session *s);

#endif
