/* SPDX-License-Identifier: MIT */
/* The thread that runs the model. */
#include "config.h"

#include "serve/sched.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "serve/sched_impl.h"

/* ---- ends ---- */

/* Sequences that are done, and all of job j, give their places back; NULL: the first alone. */
static void release(scheduler *s, const job *j)
{
    size_t k = 0;
    for (size_t i = 0; i < s->n_running; i++) {
        choice *c = s->running[i];
        if (c->j != j && c->state != CHOICE_DONE) {
            s->running[k++] = c;
            continue;
        }
        choice_close(c);
        s->used -= c->bytes;
    }
    s->n_running = k;
}

/* A job that ended leaves the list; its client may still read. */
static void drop(scheduler *s, job **at, bool cancelled)
{
    job *j = *at;
    release(s, j);
    choice_drop_forks(j, s);
    pthread_mutex_lock(&s->lock);
    *at = j->next;
    s->n_jobs--;
    s->counts.cancelled += cancelled;
    s->counts.admitted -= j->admitted;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&j->lock);
    j->dropped = true;
    bool last = j->left;
    pthread_mutex_unlock(&j->lock);
    if (last) job_free(j);
}

static void end_job(job *j, int http, const char *code, const char *message)
{
    api_error e = {0};
    api_fail(&e, http, code, "%s", message);
    pthread_mutex_lock(&j->lock);
    job_fail(j, &e);
    pthread_mutex_unlock(&j->lock);
}

static void fail(job *j, const err *why)
{
    bool memory = why->code == ST_NOMEM, request = why->code == ST_USAGE || why->code == ST_UNSUPPORTED;
    end_job(j, memory ? 503 : request ? 400 : 500, memory ? "memory_exceeded" : NULL, why->msg);
}

/* True if the client left, its socket was closed, or it has not read for long. */
static bool gone(job *j)
{
    pthread_mutex_lock(&j->lock);
    bool yes = j->left;
    struct pollfd p = {.fd = j->client.fd, .events = POLLRDHUP};
    if (!yes && p.fd >= 0 && poll(&p, 1, 0) > 0) yes = (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    if (!yes && j->unread_ns) yes = clock_ns() - j->unread_ns > (int64_t)JOB_UNREAD_SECONDS * 1000000000;
    pthread_mutex_unlock(&j->lock);
    return yes;
}

static void drop_ended(scheduler *s)
{
    for (job **at = &s->jobs; *at;) {
        job *j = *at;
        bool cancelled = !j->ended && gone(j);
        if (cancelled) end_job(j, 499, NULL, "the client left");
        if (j->ended) drop(s, at, cancelled);
        else at = &j->next;
    }
}

/* ---- admission ---- */

static size_t running_of(const scheduler *s, const char *client)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_running; i++) n += strcmp(s->running[i]->j->client.client, client) == 0;
    return n;
}

static choice *waiting_of(job *j)
{
    for (size_t i = 0; i < j->n_choices; i++)
        if (j->choices[i].state == CHOICE_WAITS && !choice_waits(&j->choices[i])) return &j->choices[i];
    return NULL;
}

/* The oldest sequence of the client that has the fewest. */
static choice *next_waiting(scheduler *s)
{
    choice *best = NULL;
    size_t fewest = 0;
    for (job *j = s->jobs; j; j = j->next) {
        choice *c = j->ended ? NULL : waiting_of(j);
        size_t n = c ? running_of(s, j->client.client) : 0;
        if (c && (!best || n < fewest)) best = c, fewest = n;
    }
    return best;
}

static void set_admitted(scheduler *s, job *j)
{
    if (!j->admitted) {
        j->admitted_ns = clock_ns();
        sched_count(s, &s->counts.admitted, 1);
        sched_count_time(s, &s->counts.queue, j->admitted_ns - j->submitted_ns);
    }
    pthread_mutex_lock(&j->lock);
    j->admitted = true;
    if (j->r.stream) job_wake(j);
    pthread_mutex_unlock(&j->lock);
}

static void admit(scheduler *s)
{
    choice *c;
    while (s->n_running < s->o.batch && (c = next_waiting(s))) {
        err e = {0};
        if (!choice_admit(c, s)) return;
        s->running[s->n_running++] = c;
        s->used += c->bytes;
        if ((c->j->lens ? choice_open_lens(c, s, &e) : choice_open(c, s, &e)) != ST_OK) {
            fail(c->j, &e);
            release(s, c->j);
            continue;
        }
        set_admitted(s, c->j);
    }
}

/* ---- steps ---- */

static bool paused(job *j)
{
    pthread_mutex_lock(&j->lock);
    bool yes = j->unread_ns != 0 && j->out.n - j->out.at >= JOB_BUFFER;
    pthread_mutex_unlock(&j->lock);
    return yes;
}

/* One decode step of all that decode; returns its time, 0 without one. */
static int64_t decode(scheduler *s)
{
    size_t n = 0;
    err e = {0};
    for (size_t i = 0; i < s->n_running; i++) {
        choice *c = s->running[i];
        if (c->state != CHOICE_DECODES || choice_drafts(c) || c->j->ended || paused(c->j)) continue;
        s->stepped[n] = c;
        s->batch[n++] = &c->q;
    }
    if (n == 0) return 0;
    int64_t t = clock_ns();
    status st = sequence_decode(&s->x, s->batch, n, &e);
    t = clock_ns() - t;
    for (size_t i = 0; i < n; i++) {
        choice *c = s->stepped[i];
        c->j->decode_ns += t;
        float *row = stepper_row(&s->x, i);
        if (st != ST_OK && !(st == ST_FORMAT && draw_finite(row, s->x.vocab))) {
            fail(c->j, &e);
        } else if (!c->j->ended) {
            err own = {0};
            if (choice_row(c, s, row, &own) != ST_OK) fail(c->j, &own);
        }
    }
    sched_count(s, &s->counts.steps, 1);
    sched_count_time(s, &s->counts.step, t);
    return t ? t : 1;
}

/* Steps of sequences that draft, each in turn: as many as take the time `most`, at least one. Returns their time. */
static int64_t draft(scheduler *s, int64_t most)
{
    int64_t t = 0;
    for (size_t k = 0, first = s->draft_turn; k < s->n_running && t <= most; k++) {
        size_t i = (first + k) % s->n_running;
        choice *c = s->running[i];
        err e = {0};
        if (!choice_drafts(c) || c->j->ended || paused(c->j)) continue;
        int64_t began = clock_ns();
        if (choice_draft(c, s, &e) != ST_OK) fail(c->j, &e);
        int64_t took = clock_ns() - began;
        c->j->decode_ns += took;
        t += took > 0 ? took : 1;
        sched_count(s, &s->counts.steps, 1);
        s->draft_turn = i + 1;
    }
    return t;
}

/* A piece of one prompt, each in turn; returns its time, 0 where there is none. */
static int64_t prefill(scheduler *s)
{
    for (size_t k = 0; k < s->n_running; k++) {
        choice *c = s->running[(s->turn + k) % s->n_running];
        err e = {0};
        if (c->state != CHOICE_PROMPT || c->j->ended || (c->lens && paused(c->j))) continue;
        size_t before = c->q.n_fed;
        int64_t t = clock_ns();
        if ((c->lens ? choice_piece_lens(c, s, &e) : choice_prefill(c, s, &e)) != ST_OK) fail(c->j, &e);
        t = clock_ns() - t;
        c->j->prefill_ns += t;
        s->turn = (s->turn + k + 1) % s->n_running;
        sched_count(s, &s->counts.prompt_tokens, (int64_t)(c->q.n_fed - before));
        return t;
    }
    return 0;
}

/* The time of a request's first token of all. */
static void count_first(scheduler *s, job *j)
{
    bool said = false;
    for (size_t i = 0; i < j->n_choices && !j->first_ns && !said; i++) said = j->choices[i].n_new > 0;
    if (!said) return;
    j->first_ns = clock_ns();
    sched_count_time(s, &s->counts.first_token, j->first_ns - j->submitted_ns);
}

static void hand_out(scheduler *s)
{
    for (job *j = s->jobs; j; j = j->next) {
        err e = {0};
        count_first(s, j);
        pthread_mutex_lock(&j->lock);
        status st = j->ended || !j->admitted ? ST_OK : job_hand_out(j, &e);
        pthread_mutex_unlock(&j->lock);
        if (st != ST_OK) fail(j, &e);
    }
}

/* Returns the time that decode steps get after a piece of a prompt. */
static int64_t owed(const scheduler *s, int64_t piece)
{
    return (int64_t)((double)piece * (1 - s->o.prefill_share) / s->o.prefill_share);
}

/* Runs one turn; true if anything could be done. */
static bool turn(scheduler *s)
{
    drop_ended(s);
    admit(s);
    int64_t step = decode(s), piece = 0;
    step += draft(s, step);
    s->owed_ns = step ? s->owed_ns - step : 0;
    if (s->owed_ns <= 0) s->owed_ns = owed(s, piece = prefill(s));
    release(s, NULL);
    hand_out(s);
    pthread_mutex_lock(&s->lock);
    s->counts.running = s->n_running;
    s->counts.used = s->used;
    pthread_mutex_unlock(&s->lock);
    return step || piece;
}

/* ---- the thread ---- */

static void take_incoming(scheduler *s)
{
    job **end = &s->jobs;
    while (*end) end = &(*end)->next;
    *end = s->incoming;
    s->incoming = NULL;
}

/* Waits until there is work; 5 ms where all requests wait for their readers. */
static bool wait_for_work(scheduler *s, bool idle)
{
    struct timespec until;
    pthread_mutex_lock(&s->lock);
    if (s->jobs && idle && !s->incoming && !s->stopping) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 5000000;
        if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
        pthread_cond_timedwait(&s->work, &s->lock, &until);
    }
    while (!s->stopping && !s->incoming && !s->jobs) pthread_cond_wait(&s->work, &s->lock);
    bool stop = s->stopping;
    take_incoming(s);
    pthread_mutex_unlock(&s->lock);
    return !stop;
}

static void end_all(scheduler *s)
{
    for (job *j = s->jobs; j; j = j->next) end_job(j, 503, "stopping", "the server stops");
    while (s->jobs) drop(s, &s->jobs, false);
}

static void *run(void *arg)
{
    scheduler *s = arg;
    for (bool idle = false; wait_for_work(s, idle);) idle = !turn(s);
    end_all(s);
    return NULL;
}

/* ---- the scheduler ---- */

static void free_all(scheduler *s)
{
    prefix_cache_close(s->prefix);
    stepper_close(&s->x);
    mem_free(s->running);
    mem_free(s->stepped);
    mem_free(s->batch);
    mem_free(s->row);
    sched_free_maps(s);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->encoding);
    pthread_cond_destroy(&s->work);
    mem_free(s);
}

/* Bytes that a new entry of the prefix cache may take. */
static size_t free_bytes(void *ctx)
{
    const scheduler *s = ctx;
    return s->used < s->o.memory ? s->o.memory - s->used : 0;
}

/* Sessions that share prompts have room for the whole context, which must cost nothing until it is written. */
static status open_prefix(scheduler *s, err *e)
{
    prefix_cache_options *o = &s->o.prefix;
    if (o->memory == 0 || decoder_model(s->o.dec)->be->ops->at_once) return ST_OK;
    o->ctx = s->o.ctx;
    o->exact = s->o.decoder.exact;
    o->quiet = true;
    o->room = free_bytes;
    o->room_ctx = s;
    return prefix_cache_open(&s->prefix, o, s->o.dec, e);
}

static status allocate(scheduler *s, err *e)
{
    TRY(open_prefix(s, e));
    TRY(stepper_open(&s->x, s->o.dec, s->o.batch, e));
    TRY(MEM_NEW(&s->running, s->o.batch, e));
    TRY(MEM_NEW(&s->stepped, s->o.batch, e));
    TRY(MEM_NEW(&s->batch, s->o.batch, e));
    return MEM_NEW(&s->row, s->x.vocab, e);
}

status sched_start(scheduler **out, const sched_options *o, err *e)
{
    scheduler *s;
    char build[SHA256_HEX];
    *out = NULL;
    TRY(MEM_NEW(&s, 1, e));
    s->o = *o;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->encoding, NULL);
    pthread_cond_init(&s->work, NULL);
    prefix_cache_build(build, o->dec, o->decoder.exact);
    snprintf(s->fingerprint, sizeof s->fingerprint, "kv-%.8s", build);
    status st = allocate(s, e);
    if (st == ST_OK && pthread_create(&s->thread, NULL, run, s) != 0)
        st = err_set(e, ST_NOMEM, "no thread for the model");
    if (st != ST_OK) free_all(s);
    else *out = s;
    return st;
}

const sched_options *sched_options_of(const scheduler *s)
{
    return &s->o;
}

size_t sched_jobs(scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    size_t n = s->n_jobs;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void sched_drain(scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
}

void sched_stop(scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    s->draining = s->stopping = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
}

void sched_free(scheduler *s)
{
    if (s) free_all(s);
}
