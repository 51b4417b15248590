/* SPDX-License-Identifier: MIT */
/* What moves a session: prompts, steps, rewinding, sampling. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "api/impl.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

static size_t vocab_of(const kvasir_model *m)
{
    return (size_t)m->m->config.vocab;
}

/* ---- rewinding ---- */

static void forget(kvasir_session *s, size_t n)
{
    if (n == s->n_ids) return;
    s->n_ids = n;
    s->has_logits = s->has_read = false;
    sampler_free(s->sampler);
    s->sampler = NULL;
}

static status rewind_to(kvasir_session *s, int64_t n, err *e)
{
    if (n < 0 || n > (int64_t)s->n_ids)
        return err_set(e, ST_USAGE, "rewind to %lld of %zu tokens", (long long)n, s->n_ids);
    if (n == (int64_t)s->n_ids) return ST_OK;
    if (n == 0) session_reset(s->s);
    else TRY(session_rewind(s->s, n, e));
    forget(s, (size_t)n);
    return ST_OK;
}

kvasir_status kvasir_session_rewind(kvasir_session *s, int64_t n, char *msg, size_t msg_size)
{
    err e = {0};
    status st = lib_need(s, "session", &e);
    if (st == ST_OK) st = lib_enter(s->m, &e);
    if (st == ST_OK) {
        st = rewind_to(s, n, &e);
        lib_leave(s->m);
    }
    return lib_said(st, &e, msg, msg_size);
}

/* After an error: tokens that went in and are not known here go. */
static void take_back(kvasir_session *s)
{
    if (session_length(s->s) == (int64_t)s->n_ids) return;
    if (s->n_ids > 0 && session_rewind(s->s, (int64_t)s->n_ids, NULL) == ST_OK) return;
    session_reset(s->s);
    forget(s, 0);
}

/* ---- feeding ---- */

static status make_room(kvasir_session *s, size_t more, err *e)
{
    if (s->n_ids + more <= s->room) return ST_OK;
    size_t room = s->n_ids + more + s->n_ids / 2 + 64;
    TRY(MEM_GROW(&s->ids, room, e));
    s->room = room;
    return ST_OK;
}

static kvasir_score score_of(const float *logits, size_t vocab, int32_t id)
{
    return (kvasir_score){(float)-logits_nll(logits, vocab, id), logits_argmax(logits, vocab)};
}

/* The first of the tokens that are fed, from the logits there are. */
static kvasir_score first_score(const kvasir_session *s, int32_t id)
{
    return s->has_logits ? score_of(s->logits, vocab_of(s->m), id) : (kvasir_score){NAN, -1};
}

typedef struct {
    kvasir_session *s;
    const int32_t *ids;
    size_t n;
    kvasir_score *scores;
} feeding;

static bool keep_going(void *ctx, int64_t done, int64_t total)
{
    const kvasir_options *o = &((feeding *)ctx)->s->m->opt;
    return !o->progress || o->progress(o->arg, done, total) != 0;
}

static void take_rows(void *ctx, int64_t first, size_t n, const float *logits)
{
    feeding *f = ctx;
    size_t vocab = vocab_of(f->s->m);
    for (size_t i = 0; i < n; i++) {
        const float *row = logits + i * vocab;
        size_t at = (size_t)first + i + 1;
        if (at == f->n) memcpy(f->s->work, row, vocab * sizeof *row);
        else if (f->scores) f->scores[at] = score_of(row, vocab, f->ids[at]);
    }
}

static status feed_prompt(feeding *f, err *e)
{
    kvasir_session *s = f->s;
    const prefill_options o = {
        .which = f->scores ? LOGITS_ALL : LOGITS_LAST, .rows = take_rows, .progress = keep_going, .ctx = f};
    int64_t t = clock_ns();
    TRY(session_prefill(&s->s, 1, f->ids, f->n, &o, e));
    s->prompt_ns += clock_ns() - t;
    memcpy(s->logits, s->work, vocab_of(s->m) * sizeof *s->logits);
    memcpy(s->ids + s->n_ids, f->ids, f->n * sizeof *f->ids);
    s->n_ids += f->n;
    s->has_logits = true;
    s->has_read = false;
    return ST_OK;
}

/* The error of a step of n sessions; where the logits of one are not finite, the message names it. */
static status step_error(const kvasir_model *m, size_t n, status st, const err *why, err *e)
{
    size_t i = 0;
    if (st != ST_FORMAT || n == 1) return err_set(e, st, "%s", why->msg);
    while (i + 1 < n && draw_finite(m->logits + i * vocab_of(m), vocab_of(m))) i++;
    return err_set(e, st, "session %zu: %s", i, why->msg);
}

/* One step of several sessions, which have room for it. */
static status step(kvasir_session *const *sessions, size_t n, const int32_t *ids, err *e)
{
    kvasir_model *m = sessions[0]->m;
    size_t vocab = vocab_of(m);
    read_watch watch = {.sessions = sessions, .n = n};
    err why = {0};
    for (size_t i = 0; i < n; i++) m->together[i] = sessions[i]->s;
    lib_watch(m, &watch);
    int64_t t = clock_ns();
    status st = session_decode(m->together, n, ids, m->logits, &why);
    t = clock_ns() - t;
    lib_watch(m, NULL);
    if (st != ST_OK) (void)step_error(m, n, st, &why, e);
    if (st == ST_OK && watch.st != ST_OK) st = err_set(e, watch.st, "%s", watch.e.msg);
    for (size_t i = 0; i < n; i++) {
        kvasir_session *s = sessions[i];
        if (st != ST_OK) {
            take_back(s);
            continue;
        }
        memcpy(s->logits, m->logits + i * vocab, vocab * sizeof *s->logits);
        s->ids[s->n_ids++] = ids[i];
        s->has_logits = true;
        s->has_read = s->watched;
        s->step_ns += t;
    }
    return st;
}

static status feed_steps(feeding *f, err *e)
{
    kvasir_session *s = f->s;
    int64_t room = session_limit(s->s) - (int64_t)s->n_ids;
    if (room < (int64_t)f->n)
        return err_set(e, ST_UNSUPPORTED, "%zu tokens behind %zu do not fit the context of %lld", f->n, s->n_ids,
                       (long long)session_limit(s->s));
    for (size_t i = 0; i < f->n; i++) {
        if (f->scores) f->scores[i] = first_score(s, f->ids[i]);
        TRY(step(&s, 1, &f->ids[i], e));
        if (!keep_going(f, (int64_t)i + 1, (int64_t)f->n)) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

static status check_ids(const kvasir_model *m, const int32_t *ids, size_t n, err *e)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->m->config.vocab)
            return err_set(e, ST_USAGE, "token id %d is outside the model's vocabulary of %d", (int)ids[i],
                           m->m->config.vocab);
    return ST_OK;
}

static status feed(feeding *f, int32_t how, err *e)
{
    kvasir_session *s = f->s;
    if (how != KVASIR_PROMPT && how != KVASIR_STEPS)
        return err_set(e, ST_USAGE, "how: %d, expected KVASIR_PROMPT or KVASIR_STEPS", (int)how);
    if (f->n == 0) return ST_OK;
    TRY(lib_need(f->ids, "ids", e));
    if (f->n >= INT32_MAX) return err_set(e, ST_USAGE, "n: %zu tokens are too many", f->n);
    TRY(check_ids(s->m, f->ids, f->n, e));
    TRY(make_room(s, f->n, e));
    if (how == KVASIR_STEPS) return feed_steps(f, e);
    if (f->scores) f->scores[0] = first_score(s, f->ids[0]);
    status st = feed_prompt(f, e);
    if (st != ST_OK) take_back(s);
    return st;
}

kvasir_status kvasir_session_feed(kvasir_session *s, const int32_t *ids, size_t n, int32_t how, kvasir_score *scores,
                                  char *msg, size_t msg_size)
{
    err e = {0};
    feeding f = {s, ids, n, scores};
    status st = lib_need(s, "session", &e);
    if (st == ST_OK) st = lib_enter(s->m, &e);
    if (st == ST_OK) {
        st = feed(&f, how, &e);
        lib_leave(s->m);
    }
    return lib_said(st, &e, msg, msg_size);
}

/* Different sessions of one model, each with room for a token. */
static status check_together(kvasir_session *const *sessions, size_t n, err *e)
{
    const kvasir_model *m = sessions[0]->m;
    if (n > m->decoder.max_batch)
        return err_set(e, ST_USAGE, "%zu sessions, at most %zu in one step", n, m->decoder.max_batch);
    for (size_t i = 0; i < n; i++) {
        TRY(lib_need(sessions[i], "session", e));
        if (sessions[i]->m != m) return err_set(e, ST_USAGE, "sessions of two models in one step");
        for (size_t k = 0; k < i; k++)
            if (sessions[k] == sessions[i]) return err_set(e, ST_USAGE, "session %zu is session %zu again", i, k);
    }
    return ST_OK;
}

static status decode(kvasir_session *const *sessions, size_t n, const int32_t *ids, err *e)
{
    TRY(check_together(sessions, n, e));
    TRY(check_ids(sessions[0]->m, ids, n, e));
    for (size_t i = 0; i < n; i++) TRY(make_room(sessions[i], 1, e));
    return step(sessions, n, ids, e);
}

kvasir_status kvasir_decode(kvasir_session *const *sessions, size_t n, const int32_t *ids, char *msg, size_t msg_size)
{
    err e = {0};
    status st = n > 0 ? ST_OK : err_set(&e, ST_USAGE, "sessions: there are none");
    if (st == ST_OK) st = lib_need(sessions, "sessions", &e);
    if (st == ST_OK) st = lib_need(ids, "ids", &e);
    if (st == ST_OK) st = lib_need(sessions[0], "session", &e);
    if (st == ST_OK) st = lib_enter(sessions[0]->m, &e);
    if (st == ST_OK) {
        st = decode(sessions, n, ids, &e);
        lib_leave(sessions[0]->m);
    }
    return lib_said(st, &e, msg, msg_size);
}

/* ---- sampling ---- */

static status read_sampling(const kvasir_sampling *given, sampler_options *out, err *e)
{
    kvasir_sampling o = {0};
    if (given) TRY(lib_take(&o, sizeof o, given, "sampling", e));
    if (o.flags != 0) return err_set(e, ST_UNSUPPORTED, "sampling: flags %d, expected 0", (int)o.flags);
    *out = (sampler_options){.temp = o.temperature,
                             .top_k = o.top_k,
                             .top_p = o.top_p == 0 ? 1 : o.top_p,
                             .min_p = o.min_p,
                             .repeat_penalty = o.repeat_penalty == 0 ? 1 : o.repeat_penalty,
                             .seed = o.seed,
                             .draw = DRAW_GUMBEL};
    return ST_OK;
}

static bool same_sampling(const sampler_options *a, const sampler_options *b)
{
    return a->temp == b->temp && a->top_k == b->top_k && a->top_p == b->top_p && a->min_p == b->min_p &&
           a->repeat_penalty == b->repeat_penalty && a->seed == b->seed;
}

static status sample(kvasir_session *s, const kvasir_sampling *given, int32_t *id, err *e)
{
    sampler_options o;
    size_t vocab = vocab_of(s->m);
    TRY(read_sampling(given, &o, e));
    if (!s->has_logits) return err_set(e, ST_USAGE, "there are no logits: nothing was fed, or the session was rewound");
    if (s->sampler && !same_sampling(&o, &s->sampling)) {
        sampler_free(s->sampler);
        s->sampler = NULL;
    }
    if (!s->sampler) {
        TRY(sampler_create(&s->sampler, &o, vocab, e));
        s->sampling = o;
        s->n_sampler = 0;
    }
    for (; s->n_sampler < s->n_ids; s->n_sampler++) sampler_accept(s->sampler, s->ids[s->n_sampler]);
    memcpy(s->work, s->logits, vocab * sizeof *s->work);
    *id = sampler_next(s->sampler, s->work, (int64_t)s->n_ids);
    return ST_OK;
}

kvasir_status kvasir_session_sample(kvasir_session *s, const kvasir_sampling *sampling, int32_t *id, char *msg,
                                    size_t msg_size)
{
    err e = {0};
    status st = lib_need(s, "session", &e);
    if (st == ST_OK) st = lib_need(id, "id", &e);
    if (st == ST_OK) st = lib_enter(s->m, &e);
    if (st == ST_OK) {
        st = sample(s, sampling, id, &e);
        lib_leave(s->m);
    }
    return lib_said(st, &e, msg, msg_size);
}
