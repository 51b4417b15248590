/* SPDX-License-Identifier: MIT */
/* Continuous batching: one thread runs the model. In turn it drops requests whose client left, admits what fits, runs a
 * decode step of all sequences that decode, whatever their strategies, then one piece of one prompt, and hands out what
 * came. The same request gives the same text alone or beside others. */
#ifndef SERVE_SCHED_H
#define SERVE_SCHED_H

#include <stdio.h>

#include "generate/prefix_cache.h"
#include "serve/api.h"

typedef struct scheduler scheduler;
typedef struct job job; /* a request in progress */

/* Another name of the model in requests, and the words that it stands for after the model's own: SPEC, SPEC@decode=N.
 */
typedef struct {
    const char *name, *words;
} sched_alias;

typedef struct {
    decoder *dec;
    decoder_options decoder; /* of dec */
    const tokenizer *tok;
    const char *model;      /* its name in answers */
    attn_options attn;      /* what requests that name no strategy get */
    const char *strategy;   /* likewise */
    const char *template;   /* of chats; NULL: the tokenizer's own */
    int64_t ctx, max_new;   /* most tokens of a sequence; of a chat's reply, where it does not say */
    size_t batch, memory;   /* most sequences at once; bytes that they may take together */
    double prefill_share;   /* of the time, where sequences decode and prompts wait: above 0, below 1 */
    size_t queue, a_client; /* most requests that wait, in all and of one client */
    const sched_alias *aliases;
    size_t n_aliases;
    prefix_cache_options prefix; /* log, memory (a part of `memory`; 0: no prefix cache), dir, disk and least */
    bool prefix_shared;          /* clients share cached prompts */
} sched_options;

status sched_start(scheduler **out, const sched_options *o, err *e);
const sched_options *sched_options_of(const scheduler *s);
/* Number of requests that are running or waiting. */
size_t sched_jobs(scheduler *s);
/* Refuses all further requests (503). */
void sched_drain(scheduler *s);
/* Ends requests in progress with an error, then the thread. */
void sched_stop(scheduler *s);
/* Frees it after sched_stop and job_leave of every job. */
void sched_free(scheduler *s);
/* Its part of /metrics. */
void sched_metrics(scheduler *s, FILE *f);

/* Returns the positions that a step of a lens read, as JSON, freed with free(): path is `ID/STEP`, strategy a number or
 * NULL (1). NULL: *e says why, or out of memory. */
char *sched_lens_map(scheduler *s, const char *path, const char *strategy, api_error *e);

/* How a job reaches its client: called under the job's lock, sleep by job_read and job_start, wake by the scheduler and
 * only after sleep. fd: its socket, which shows that the client left; -1: none. */
typedef struct {
    void (*sleep)(void *ctx);
    void (*wake)(void *ctx);
    void *ctx;
    int fd;
    char client[72]; /* whose request it is: a key's name or an address */
} job_client;

/* Takes a request, which is then the job's, and puts it into the queue; NULL: *e says why, and r is freed. */
job *sched_submit(scheduler *s, api_request *r, const job_client *client, api_error *e);
/* True if the answer can begin: its status is known (*e: http 0, or an error), and of one that is no stream its whole
 * text. Else false, and the client was put to sleep. */
bool job_start(job *j, api_error *e);
/* Copies what came since, at most n bytes: their number, 0 when the client was put to sleep, -1 at the end, -2 at an
 * end that is no good one. */
long job_read(job *j, char *out, size_t n);
/* The whole text of an answer that job_start found; it lives as long as the job. */
const char *job_text(job *j, size_t *n);
bool job_streams(const job *j);
/* The client is gone or served: what still runs is cancelled, the job freed once nobody needs it. */
void job_leave(job *j);

/* Ids of what a body of /tokenize has, and the text of ids; encoding goes through one thread at a time. */
status sched_encode(scheduler *s, const char *text, size_t n, unsigned flags, token_list *out, err *e);
status sched_encode_chat(scheduler *s, const chat_message *m, size_t n, token_list *out, err *e);
/* The strategy of a request's fields, or of `model@SPEC@decode=N` (*decode). ST_USAGE, ST_UNSUPPORTED. */
status sched_spec(const scheduler *s, const api_request *r, attn_spec *out, int64_t *decode, err *e);

#endif
