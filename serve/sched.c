/* SPDX-License-Identifier: MIT */
/* The scheduler's thread. */
#include "config.h"

#include "serve/sched.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "serve/sched_impl.h"

/* ---- end of requests ---- */

enum { CLIENT_LEFT = 499 };

/* Closes finished sequences and all sequences of job j (NULL: none). */
static void release(scheduler *s, const job *j)
{
    size_t k = 0;
    for (size_t i = 0; i < s->n_running; i++) {
        gen *g = s->running[i];
        if (g->j != j && g->state != GEN_DONE) {
            s->running[k++] = g;
            continue;
        }
        gen_close(g, g->state == GEN_DONE || g->j->error.http == CLIENT_LEFT);
        s->used -= g->bytes;
    }
    s->n_running = k;
}

/* Removes an ended job from the list; its client may still read. */
static void drop(scheduler *s, job **at, bool cancelled)
{
    job *j = *at;
    release(s, j);
    gen_drop_forks(j, s);
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

/* True if the client left, its socket is closed, or it has not read for JOB_UNREAD_SECONDS. */
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
        if (cancelled) end_job(j, CLIENT_LEFT, NULL, "the client left");
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

static gen *waiting_of(job *j)
{
    for (size_t i = 0; i < j->n_gens; i++)
        if (j->gens[i].state == GEN_WAITS && !gen_waits(&j->gens[i])) return &j->gens[i];
    return NULL;
}

/* Returns the oldest waiting sequence of the client with the fewest running ones. */
static gen *next_waiting(scheduler *s)
{
    gen *best = NULL;
    size_t fewest = 0;
    for (job *j = s->jobs; j; j = j->next) {
        gen *g = j->ended ? NULL : waiting_of(j);
        size_t n = g ? running_of(s, j->client.client) : 0;
        if (g && (!best || n < fewest)) best = g, fewest = n;
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
    gen *g;
    while (s->n_running < s->o.batch && (g = next_waiting(s))) {
        err e = {0};
        if (!gen_admit(g, s)) return;
        s->running[s->n_running++] = g;
        s->used += g->bytes;
        if ((g->j->lens ? gen_open_lens(g, s, &e) : gen_open(g, s, &e)) != ST_OK) {
            fail(g->j, &e);
            release(s, g->j);
            continue;
        }
        set_admitted(s, g->j);
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

/* True if a device may choose the tokens of a step of the first n sequences of s->stepped. */
static bool chooses_on_device(const scheduler *s, size_t n)
{
    if (!sequence_on_device(&s->x, s->batch, n)) return false;
    for (size_t i = 0; i < n; i++)
        if (gen_needs_row(s->stepped[i])) return false;
    return true;
}

/* Runs one step of the first n sequences of s->stepped: to their rows of logits, or to the tokens chosen on_device. */
static status run_step(scheduler *s, size_t n, bool on_device, err *e)
{
    if (!on_device) return sequence_decode(&s->x, s->batch, n, e);
    for (size_t i = 0; i < n; i++) s->batch[i]->most = (size_t)s->stepped[i]->j->r.max_tokens - s->stepped[i]->n_new;
    return sequence_next(&s->x, s->batch, n, e);
}

/* Runs one decode step of all decoding sequences. Returns its time, 0 if there are none. */
static int64_t decode(scheduler *s)
{
    size_t n = 0;
    err e = {0};
    for (size_t i = 0; i < s->n_running; i++) {
        gen *g = s->running[i];
        if (g->state != GEN_DECODES || gen_drafts(g) || g->j->ended || paused(g->j)) continue;
        s->stepped[n] = g;
        s->batch[n++] = &g->q;
    }
    if (n == 0) return 0;
    const bool on_device = chooses_on_device(s, n);
    int64_t t = clock_ns();
    status st = run_step(s, n, on_device, &e);
    t = clock_ns() - t;
    for (size_t i = 0; i < n; i++) {
        gen *g = s->stepped[i];
        g->j->decode_ns += t;
        float *row = stepper_row(&s->x, i);
        if (st != ST_OK && !(st == ST_FORMAT && (on_device ? g->q.next >= 0 : draw_finite(row, s->x.vocab)))) {
            fail(g->j, &e);
        } else if (!g->j->ended) {
            err own = {0};
            if ((on_device ? gen_chosen(g, s, &own) : gen_row(g, s, row, &own)) != ST_OK) fail(g->j, &own);
        }
    }
    sched_count(s, &s->counts.steps, 1);
    sched_count_time(s, &s->counts.step, t);
    return t ? t : 1;
}

/* Runs draft steps of sequences in rotation, at least one and until they take `most` ns. Returns their time. */
static int64_t draft(scheduler *s, int64_t most)
{
    int64_t t = 0;
    for (size_t k = 0, first = s->next_draft; k < s->n_running && t <= most; k++) {
        size_t i = (first + k) % s->n_running;
        gen *g = s->running[i];
        err e = {0};
        if (!gen_drafts(g) || g->j->ended || paused(g->j)) continue;
        int64_t began = clock_ns();
        if (gen_draft(g, s, &e) != ST_OK) fail(g->j, &e);
        int64_t took = clock_ns() - began;
        g->j->decode_ns += took;
        t += took > 0 ? took : 1;
        sched_count(s, &s->counts.steps, 1);
        s->next_draft = i + 1;
    }
    return t;
}

/* Computes a chunk of one prompt, in rotation. Returns its time, 0 if there is none. */
static int64_t prefill(scheduler *s)
{
    for (size_t k = 0; k < s->n_running; k++) {
        gen *g = s->running[(s->next_prefill + k) % s->n_running];
        err e = {0};
        if (g->state != GEN_PROMPT || g->j->ended || (g->lens && paused(g->j))) continue;
        size_t before = g->q.n_fed;
        int64_t t = clock_ns();
        if ((g->lens ? gen_piece_lens(g, s, &e) : gen_prefill(g, s, &e)) != ST_OK) fail(g->j, &e);
        t = clock_ns() - t;
        g->j->prefill_ns += t;
        s->next_prefill = (s->next_prefill + k + 1) % s->n_running;
        sched_count(s, &s->counts.prompt_tokens, (int64_t)(g->q.n_fed - before));
        return t;
    }
    return 0;
}

/* Records the time to the first token of a request. */
static void count_first(scheduler *s, job *j)
{
    bool any = false;
    for (size_t i = 0; i < j->n_gens && !j->first_ns && !any; i++) any = j->gens[i].n_new > 0;
    if (!any) return;
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

/* Returns the time for decode steps after a prompt chunk. */
static int64_t owed(const scheduler *s, int64_t piece)
{
    return (int64_t)((double)piece * (1 - s->o.prefill_share) / s->o.prefill_share);
}

/* Runs one cycle. True if there was work. */
static bool run_cycle(scheduler *s)
{
    drop_ended(s);
    admit(s);
    int64_t step = decode(s), piece = 0;
    step += draft(s, step);
    s->owed_ns = step ? s->owed_ns - step : 0;
    if (s->owed_ns <= 0) s->owed_ns = owed(s, piece = prefill(s));
    hand_out(s);
    release(s, NULL); /* after the last token was sent, since keeping a reply copies its rows */
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

/* Waits for work, 5 ms if all requests wait for their clients. False: stop. */
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
    for (job *j = s->jobs; j; j = j->next) end_job(j, 503, "stopping", "the server is stopping");
    while (s->jobs) drop(s, &s->jobs, false);
}

static void *run(void *arg)
{
    scheduler *s = arg;
    for (bool idle = false; wait_for_work(s, idle);) idle = !run_cycle(s);
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
    grammar_vocab_free(s->words);
    sched_free_maps(s);
    kept_free(&s->kept);
    compiled_free(s);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->encoding);
    pthread_cond_destroy(&s->work);
    mem_free(s);
}

/* Returns the bytes available to a new entry of the prefix cache. */
static size_t free_bytes(void *ctx)
{
    const scheduler *s = ctx;
    return s->used < s->o.memory ? s->o.memory - s->used : 0;
}

/* Opens the prefix cache. Sessions that share prompts are sized for the whole context, which requires memory that is
 * allocated on first write. */
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
    pthread_mutex_init(&s->kept.lock, NULL);
    pthread_cond_init(&s->work, NULL);
    prefix_cache_build(build, o->dec, o->decoder.exact);
    snprintf(s->fingerprint, sizeof s->fingerprint, "kv-%.8s", build);
    status st = allocate(s, e);
    if (st == ST_OK && pthread_create(&s->thread, NULL, run, s) != 0)
        st = err_set(e, ST_NOMEM, "cannot create a thread for the model");
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
