/* SPDX-License-Identifier: MIT */
/* Declarations that the files of the scheduler share. */
#ifndef SERVE_SCHED_IMPL_H
#define SERVE_SCHED_IMPL_H

#include <pthread.h>

#include "generate/sequence.h"
#include "generate/text_out.h"
#include "lens/lens.h"
#include "model/session_file.h"
#include "serve/metrics.h"
#include "serve/sched.h"

enum {
    JOB_BUFFER = 64 << 10,  /* bytes that wait for a slow reader before its sequences pause */
    JOB_UNREAD_SECONDS = 60 /* after which such a request is cancelled */
};

typedef enum { CHOICE_WAITS, CHOICE_PROMPT, CHOICE_DECODES, CHOICE_DONE } choice_state;

/* One generated answer of a request. */
typedef struct {
    job *j;
    int index;
    const token_list *prompt;
    choice_state state;
    size_t bytes;     /* planned for it */
    sequence q;       /* its ids: the prompt, then new tokens */
    prefix_hit found; /* prefix cache lookup before the sequence exists */
    lens *lens;       /* of a lens, which has sessions of its own */
    text_out out;
    int64_t n_prefill; /* tokens of the prompt that are not decode steps */
    size_t n_cached;   /* tokens of the prompt that were not computed */
    size_t n_new;
    buffer text;
    api_token *tokens; /* of logprobs */
    size_t n_tokens, cap_tokens, sent_tokens, sent_ids;
    int64_t sent_offset;
    const char *finish;
    bool opened, closed; /* of a stream: the first and the last chunk were written */
    attn_stats stats;    /* when it was done */
    attn_bytes held;
    bool exact_prompt;
} choice;

/* State after a prompt with several choices: the first one computes it, the others continue from a copy. */
typedef struct {
    session_file *of;   /* NULL: not yet, or not any more */
    float *logits;      /* [vocab] of the token after the prompt */
    bool each;          /* it could not be copied: each choice computes the prompt */
    size_t bytes, left; /* planned for it; choices that did not take it yet */
    size_t n_tokens;    /* scores of the prompt: the first of the first choice's `tokens` */
    int64_t limit;      /* of the sessions */
} job_fork;

/* Strategies of a lens. */
typedef struct {
    attn_spec full, spec[LENS_STRATEGIES];
    size_t n, drive;
} job_lens;

typedef struct lens_map lens_map;

struct job {
    scheduler *sched;
    job *next;
    api_request r;
    job_client client;
    attn_spec spec;
    drafter *draft; /* what its choices draft with, which have their own; NULL: nothing */
    job_lens *lens; /* NULL: a completion */
    int64_t decode;
    bool cached; /* uses the prefix cache */
    uint64_t seed;
    token_list *prompts;
    size_t n_prompts;
    choice *choices;
    size_t n_choices;
    job_fork *forks; /* [n_prompts]; NULL: one choice a prompt. The scheduler's thread's */
    api_head head;
    int64_t submitted_ns, admitted_ns, first_ns, prefill_ns, decode_ns;
    /* under the lock */
    pthread_mutex_t lock;
    buffer out;
    api_error error;
    bool admitted, ended, asleep, left, dropped; /* left: by the client; dropped: by the scheduler */
    int64_t unread_ns;                           /* since when the buffer is full; 0: it is not */
};

typedef struct {
    int64_t cancelled;                                       /* requests */
    int64_t prompt_tokens, cached_tokens, new_tokens, steps; /* prompt_tokens: those that were computed */
    int64_t lookups[2];                                      /* in the prefix store: misses, hits */
    int64_t admitted;                                        /* requests in progress that do not wait any more */
    size_t running, used;                                    /* sequences, and the bytes planned for them */
    histogram queue, first_token, step;                      /* the first two: since the request came */
} sched_counts;

struct scheduler {
    sched_options o;
    char fingerprint[16];
    prefix_cache *prefix; /* NULL: none. The thread's own except for its counts */
    pthread_t thread;
    pthread_mutex_t lock, encoding;
    pthread_cond_t work;
    job *incoming, *jobs; /* oldest first; the thread alone changes jobs, and the links under the lock */
    size_t n_jobs;        /* of both, under the lock */
    bool draining, stopping;
    sched_counts counts; /* under the lock */
    lens_map *maps;      /* likewise: bitmaps of lenses, the oldest first, and their bytes */
    size_t map_bytes;
    /* the thread's own */
    choice **running;
    size_t n_running, turn, draft_turn; /* whose prompt goes on next, and who drafts next */
    size_t used;                        /* bytes planned for what runs */
    int64_t owed_ns;                    /* decode steps come first until this is 0 */
    float *row;                         /* [vocab] */
    stepper x;
    choice **stepped; /* [batch] of one step, and their sequences */
    sequence **batch;
};

/* choice.c: prompts, logits and text of one choice. ST_NOMEM, or an error of the session. */

/* True while it waits for the first choice of its prompt. */
bool choice_waits(const choice *c);
/* Looks up its prompt, and makes room in the prefix cache. False: there is no memory for it now. */
bool choice_admit(choice *c, scheduler *s);
status choice_open(choice *c, scheduler *s, err *e);
/* The next piece of its prompt. */
status choice_prefill(choice *c, scheduler *s, err *e);
/* Takes the logits after the token that was fed last, which are changed. */
status choice_row(choice *c, scheduler *s, float *logits, err *e);
/* True if its next tokens come from choice_draft, a step that verifies drafts. */
bool choice_drafts(const choice *c);
status choice_draft(choice *c, scheduler *s, err *e);
void choice_close(choice *c); /* frees its session, whose counts remain */
void choice_free(choice *c);
/* Frees the states that choices of a job did not take. */
void choice_drop_forks(job *j, scheduler *s);

/* spec.c: add to counts, under the lock. */
void sched_count(scheduler *s, int64_t *count, int64_t n);
void sched_count_time(scheduler *s, histogram *h, int64_t ns);

/* spec.c: the alias of a name in requests; NULL: it is none. */
const sched_alias *sched_alias_of(const scheduler *s, const char *name);

/* lens.c: the same of a lens. */
bool job_read_lens(scheduler *s, job *j, api_error *e);
status choice_plan_lens(choice *c, const scheduler *s, err *e);
status choice_open_lens(choice *c, scheduler *s, err *e);
status choice_piece_lens(choice *c, scheduler *s, err *e);
void sched_free_maps(scheduler *s);

/* job.c: what goes to the client; under its lock. */
status job_hand_out(job *j, err *e);
void job_fail(job *j, const api_error *e);
/* Wakes the client, if it sleeps. */
void job_wake(job *j);
void job_free(job *j);
bool job_done(const job *j); /* all choices are */

#endif
