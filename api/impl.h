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

struct kvasir_session {
    kvasir_model *m;
    sequence q;           /* between calls all of its ids are fed */
    float *logits, *work; /* [vocab] of the next token, and a copy for sampling */
    float *rows;          /* logits of verified drafts (drafter_feed); NULL: no drafts */
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
