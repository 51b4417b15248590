/* SPDX-License-Identifier: MIT */
/* Declarations that the files of the library share. */
#ifndef API_IMPL_H
#define API_IMPL_H

#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>

#include "api/kvasir.h"
#include "generate/sequence.h"

struct kvasir_model {
    pthread_mutex_t lock;     /* who has it runs the decoder; it tells a callback that calls back */
    pthread_mutex_t encoding; /* and who has that the tokenizer */
    locale_t numbers, before; /* texts are read with decimal points, whatever the program has set */
    atomic_int users;         /* the caller, sessions, texts */
    backend *be;
    model *m;
    tokenizer *tok;
    decoder *dec;
    decoder_options decoder;
    kvasir_options opt; /* without its texts */
    stepper x;          /* of batch sessions */
    sequence **batch;   /* [batch] of a step */
    draft_options drafts;
    char *draft;         /* text of the drafts; NULL: none */
    bool draft_strategy; /* a strategy drafts: sessions from copies and files have no index for it */
    prefix_cache *cache; /* prefix cache; NULL: none */
    pthread_mutex_t noting;
    char notices[1024]; /* lines of the prefix cache, each with its end, until a call can log them */
};

/* Positions that a step read: a list for each query head of each layer. */
typedef struct {
    int32_t *pos;
    size_t n, room;
} read_list;

struct kvasir_session {
    kvasir_model *m;
    sequence q;           /* between calls all of its ids were fed */
    float *logits, *work; /* [vocab] of the next token, and room to sample from them */
    float *rows;          /* logits of tokens that were verified ahead (drafter_feed); NULL: no drafts */
    bool has_logits;
    sampler_options sampling; /* of the sampler of the sequence, which the first sample makes */
    int64_t prompt_ns, step_ns;
    int64_t n_cached; /* tokens of prompts from the prefix cache */
    bool watched, has_read;
    read_list *read; /* [layers * heads]; NULL: it was never watched */
    char strategy[ATTN_WRITTEN], store[128];
};

/* Checks that an argument is not NULL: ST_USAGE with its name. */
status lib_need(const void *p, const char *name, err *e);
/* Returns the status, and copies the message to the caller's room. */
kvasir_status lib_said(status st, const err *e, char *msg, size_t size);
/* A struct of the caller, of another size maybe, as ours: zeros where it has nothing. ST_UNSUPPORTED where it asks for
 * what is not known here. */
status lib_take(void *to, size_t size, const void *from, const char *name, err *e);
/* The other way: what is known here and has room there. */
status lib_give(void *to, const void *from, size_t size, const char *name, err *e);

/* Every use of the decoder is between the two. ST_USAGE for NULL, and in a callback. */
status lib_enter(kvasir_model *m, err *e);
status lib_enter_session(const kvasir_session *s, err *e);
status lib_leave(kvasir_model *m, status st); /* returns st */
void lib_hold(kvasir_model *m);               /* a user more */

/* Notes what the next step of n sessions reads, those of them that are watched; NULL: no more. */
typedef struct {
    kvasir_session *const *sessions;
    size_t n;
    status st;
    err e;
} read_watch;
void lib_watch(kvasir_model *m, read_watch *w);
void lib_read_free(kvasir_session *s);

#endif
