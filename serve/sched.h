/* SPDX-License-Identifier: MIT */
/* Scheduler with continuous batching; one thread runs the model. Each cycle drops requests of clients that left and
 * admits requests that fit. It then runs a decode step of all decoding sequences, whatever their strategies, and one
 * chunk of one prompt, and sends the results. The output of a request does not depend on other requests. */
#ifndef SERVE_SCHED_H
#define SERVE_SCHED_H

#include <stdio.h>

#include "generate/prefix_cache.h"
#include "serve/api_stream.h"

typedef struct scheduler scheduler;
typedef struct job job; /* a request in progress */

/* Alias of the model in requests. words: SPEC or SPEC@decode=N. */
typedef struct {
    const char *name, *words;
} sched_alias;

typedef struct {
    decoder *dec;
    decoder_options decoder; /* options of dec */
    const tokenizer *tok;
    const call_support *calls; /* tool calls of the model; NULL: none */
    const char *model;         /* name of the model in answers */
    attn_options attn;         /* defaults of requests without a strategy */
    const char *strategy;      /* default strategy */
    int64_t ctx, max_new;      /* maximum tokens of a sequence; default maximum of a chat reply */
    size_t batch, memory;      /* maximum number of sequences at once; bytes available to them */
    double prefill_share;      /* fraction of the time for prompts while sequences decode, in (0, 1) */
    int64_t ping_ns;           /* silence after which a stream gets a ping; 0: never */
    size_t queue, a_client;    /* maximum number of waiting requests, in total and per client */
    const sched_alias *aliases;
    size_t n_aliases;
    prefix_cache_options prefix; /* log, memory (part of `memory`; 0: no prefix cache), dir, disk and least are set */
    bool prefix_shared;          /* clients share cached prompts */
} sched_options;

status sched_start(scheduler **out, const sched_options *o, err *e);
const sched_options *sched_options_of(const scheduler *s);
/* Returns the number of running and waiting requests. */
size_t sched_jobs(scheduler *s);
/* Refuses all further requests (503). */
void sched_drain(scheduler *s);
/* Ends requests in progress with an error, then stops the thread. */
void sched_stop(scheduler *s);
/* Frees the scheduler. Call it after sched_stop and job_leave of every job. */
void sched_free(scheduler *s);
/* Writes the scheduler's part of /metrics. */
void sched_metrics(scheduler *s, FILE *f);

/* Returns the positions that a lens step read, as JSON, freed with free(). path: `ID/STEP`. strategy: a number, or NULL
 * for 1. NULL: *e has the reason, or out of memory. */
char *sched_lens_map(scheduler *s, const char *path, const char *strategy, api_error *e);

/* Connection of a job to its client. All calls hold the job's lock. job_read and job_start call sleep; the scheduler
 * calls wake, only after sleep. fd: the client's socket, polled for its end; -1: none. */
typedef struct {
    void (*sleep)(void *ctx);
    void (*wake)(void *ctx);
    void *ctx;
    int fd;
    char client[72]; /* name of the key or address, for limits and the prefix cache */
} job_client;

/* Queues a request, which the job then owns. NULL: *e has the reason, and r is freed. */
job *sched_submit(scheduler *s, api_request *r, const job_client *client, api_error *e);
/* True if the answer can begin: its status is known (*e: http 0 or an error) and, unless it is streamed, its text is
 * complete. Otherwise puts the client to sleep and returns false. */
bool job_start(job *j, api_error *e);
/* Copies at most n bytes of new output. Returns their number, 0 if the client was put to sleep, or -1 at the end. */
long job_read(job *j, char *out, size_t n);
/* Returns the complete text of an answer after job_start; it lives as long as the job. */
const char *job_text(job *j, size_t *n);
bool job_streams(const job *j);
/* Writes token counts, tools, constraint, calls and end of a request for its log line: no text of the client. */
void job_describe(job *j, char *out, size_t n);
/* Releases a job whose client is served or gone. Cancels unfinished sequences; the job is freed with its last user. */
void job_leave(job *j);

/* Encodes a prompt (bos: as tokenizer_encode_prompt), renders a chat, or encodes a rendered one. One thread does so at
 * a time. */
status sched_encode(scheduler *s, const char *text, size_t n, bool bos, token_list *out, err *e);
status sched_render_chat(scheduler *s, const chat_input *in, chat_text *out, err *e);
status sched_encode_chat(scheduler *s, const chat_text *text, token_list *out, err *e);
/* chat_ladder.c: renders the chat of a request. If the template refuses the messages, they are changed step by step;
 * the error is that of the first attempt. */
status api_render_chat(scheduler *s, api_request *r, chat_text *out, err *e);
/* Reads the strategy of a request from its fields, its alias or `model@SPEC@decode=N` (*decode). ST_USAGE,
 * ST_UNSUPPORTED. */
status sched_spec(const scheduler *s, const api_request *r, attn_spec *out, int64_t *decode, err *e);

#endif
