/* SPDX-License-Identifier: MIT */
/* Feeding, rewinding and sampling of sessions. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "api/impl.h"
#include "kernels/base/clock.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum { SCHEMA_DEPTH = 128 };

/* ---- rewinding ---- */

/* Truncates the ids to n. Drops the sampler if it has counted one of the removed ids. */
static void forget_ids(kvasir_session *s, size_t n)
{
    sequence *q = &s->q;
    q->n_fed = n;
    if (q->n_seen > n) {
        sampler_free(q->by);
        q->by = NULL;
        q->n_seen = 0;
    }
    sequence_truncate(q, n);
}

static status rewind_to(kvasir_session *s, int64_t n, err *e)
{
    sequence *q = &s->q;
    if (n < 0 || n > (int64_t)q->n_fed)
        return err_set(e, ST_USAGE, "rewind: n %lld, expected 0 to %zu", (long long)n, q->n_fed);
    TRY(sequence_settle(q, e));
    if (n == (int64_t)q->n_fed) return ST_OK;
    if (n == 0) sequence_restart(q);
    else TRY(session_rewind(q->s, n, e));
    forget_ids(s, (size_t)n);
    s->has_logits = s->has_read = false;
    return ST_OK;
}

kvasir_status kvasir_session_rewind(kvasir_session *s, int64_t n, char *msg, size_t msg_size)
{
    err e = {0};
    status st = lib_enter_session(s, &e);
    if (st == ST_OK) st = lib_leave(s->m, rewind_to(s, n, &e));
    return lib_result(st, &e, msg, msg_size);
}

/* Removes the tokens from n on after an error, or all tokens if the strategy cannot rewind. */
static void take_back(kvasir_session *s, size_t n)
{
    sequence *q = &s->q;
    if (q->draft) drafter_forget(q->draft);
    bool back = session_length(q->s) == (int64_t)n || (n > 0 && session_rewind(q->s, (int64_t)n, NULL) == ST_OK);
    if (!back) {
        sequence_restart(q);
        s->has_logits = s->has_read = false;
        n = 0;
    }
    forget_ids(s, n);
}

/* ---- feeding ---- */

static kvasir_score score_of(const float *logits, size_t vocab, int32_t id)
{
    return (kvasir_score){(float)-logits_nll(logits, vocab, id), logits_argmax(logits, vocab)};
}

/* Computes the score of the next token to feed, from the session's current logits. */
static status next_score(kvasir_score *out, const kvasir_session *s, int32_t id, err *e)
{
    const float *logits;
    *out = (kvasir_score){NAN, -1};
    if (!s->has_logits) return ST_OK;
    TRY(lib_logits_get(s, &logits, e));
    *out = score_of(logits, s->m->x.vocab, id);
    return ST_OK;
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

static void take_score(void *ctx, size_t at, const float *logits)
{
    const feeding *f = ctx;
    f->scores[at] = score_of(logits, f->s->m->x.vocab, f->ids[at]);
}

/* Runs a prompt. At the beginning of a session it is looked up in the prefix cache, unless its logits are needed. */
static status prefill(feeding *f, err *e)
{
    kvasir_session *s = f->s;
    sequence *q = &s->q;
    const prompt_options o = {.logits = true, .row = f->scores ? take_score : NULL, .progress = keep_going, .ctx = f};
    const bool cached = q->n_fed == 0 && !f->scores;
    TRY(sequence_settle(q, e));
    TRY(sequence_push(q, f->ids, f->n, e));
    if (cached) sequence_begin_cached(q, q->ids.n, o.hint);
    else sequence_begin(q, q->ids.n);
    s->n_cached += (int64_t)(q->n_fed - q->start);
    while (q->n_fed < q->end) TRY(sequence_prefill(&s->m->x, &q, 1, &o, e));
    return ST_OK;
}

static status feed_prompt(feeding *f, err *e)
{
    kvasir_session *s = f->s;
    const size_t before = s->q.n_fed, reply = s->q.reply;
    int64_t t = clock_ns();
    status st = prefill(f, e);
    if (st != ST_OK) {
        take_back(s, before);
        if (reply < s->q.reply) s->q.reply = reply;
        return st;
    }
    s->prompt_ns += clock_ns() - t;
    lib_logits_set(s, s->m->x.logits);
    s->has_read = false;
    return ST_OK;
}

/* Sets the error of a step of n sessions. Names the session whose logits are not finite. chosen: the device chose the
 * next tokens, -1 for such a session. */
static status step_error(const kvasir_model *m, size_t n, bool chosen, status st, const err *why, err *e)
{
    size_t i = 0;
    if (st != ST_FORMAT || n == 1) return err_set(e, st, "%s", why->msg);
    while (i + 1 < n && (chosen ? m->batch[i]->next >= 0 : draw_finite(stepper_row(&m->x, i), m->x.vocab))) i++;
    return err_set(e, st, "session %zu: %s", i, why->msg);
}

/* Appends the token of each session to its ids, or to none after an error. */
static status push(kvasir_session *const *sessions, size_t n, const int32_t *ids, err *e)
{
    status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        st = sequence_accept(&sessions[i]->q, ids[i], e);
        sessions[i]->m->batch[i] = &sessions[i]->q;
    }
    for (size_t i = 0; i < n && st != ST_OK; i++) forget_ids(sessions[i], sessions[i]->q.n_fed);
    return st;
}

/* Runs a step of one session that also verifies its drafts. Writes the logits to the first row of the stepper. */
static status verify(kvasir_session *s, err *e)
{
    sequence *q = &s->q;
    const float *row;
    TRY(drafter_feed(q->draft, q->s, q->by, &q->ids, s->rows, &row, e));
    memcpy(s->m->x.logits, row, s->m->x.vocab * sizeof *row);
    q->n_fed++;
    return ST_OK;
}

/* Computes the logits of each session in the stepper. chosen: leaves them on the device, which chooses the tokens that
 * the sessions' samplers would choose. */
static status run_step(kvasir_session *const *sessions, size_t n, bool drafts, bool chosen, err *e)
{
    kvasir_session *s = sessions[0];
    read_watch watch = {.sessions = sessions, .n = n};
    if (drafts && n == 1 && s->q.draft && !s->watched && (int64_t)s->q.n_fed < session_limit(s->q.s))
        return verify(s, e);
    for (size_t i = 0; i < n; i++) TRY(sequence_settle(&sessions[i]->q, e));
    lib_watch(s->m, &watch);
    status st = (chosen ? sequence_next : sequence_decode)(&s->m->x, s->m->batch, n, e);
    lib_watch(s->m, NULL);
    return st != ST_OK ? st : watch.st == ST_OK ? ST_OK : err_set(e, watch.st, "%s", watch.e.msg);
}

/* Runs one step of several sessions. drafts: also verify tokens that may follow. */
static status step(kvasir_session *const *sessions, size_t n, const int32_t *ids, bool drafts, err *e)
{
    kvasir_model *m = sessions[0]->m;
    err why = {0};
    TRY(push(sessions, n, ids, e));
    const bool chosen = sequence_on_device(&m->x, m->batch, n) && (n > 1 || !sessions[0]->q.draft);
    int64_t t = clock_ns();
    status st = run_step(sessions, n, drafts, chosen, &why);
    t = clock_ns() - t;
    if (st != ST_OK) (void)step_error(m, n, chosen, st, &why, e);
    for (size_t i = 0; i < n; i++) {
        kvasir_session *s = sessions[i];
        if (st != ST_OK) {
            take_back(s, s->q.ids.n - 1);
            continue;
        }
        if (chosen) lib_logits_keep(s, i);
        else lib_logits_set(s, stepper_row(&m->x, i));
        s->has_read = s->watched;
        s->step_ns += t;
    }
    return st;
}

static status feed_steps(feeding *f, err *e)
{
    kvasir_session *s = f->s;
    int64_t room = session_limit(s->q.s) - (int64_t)s->q.n_fed;
    if (room < (int64_t)f->n)
        return err_set(e, ST_UNSUPPORTED, "%zu tokens after %zu exceed the session's limit of %lld", f->n, s->q.n_fed,
                       (long long)session_limit(s->q.s));
    for (size_t i = 0; i < f->n; i++) {
        if (f->scores) TRY(next_score(&f->scores[i], s, f->ids[i], e));
        TRY(step(&s, 1, &f->ids[i], i + 1 == f->n, e));
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
    if (f->n >= INT32_MAX) return err_set(e, ST_USAGE, "n: %zu tokens, expected at most 2147483646", f->n);
    TRY(check_ids(s->m, f->ids, f->n, e));
    if (how == KVASIR_STEPS) return feed_steps(f, e);
    if (f->scores) TRY(next_score(&f->scores[0], s, f->ids[0], e));
    return feed_prompt(f, e);
}

kvasir_status kvasir_session_feed(kvasir_session *s, const int32_t *ids, size_t n, int32_t how, kvasir_score *scores,
                                  char *msg, size_t msg_size)
{
    err e = {0};
    feeding f = {s, ids, n, scores};
    status st = lib_enter_session(s, &e);
    if (st == ST_OK) st = lib_leave(s->m, feed(&f, how, &e));
    return lib_result(st, &e, msg, msg_size);
}

/* Checks that the sessions differ and belong to one model. */
static status check_together(kvasir_session *const *sessions, size_t n, err *e)
{
    const kvasir_model *m = sessions[0]->m;
    if (n > m->decoder.max_batch)
        return err_set(e, ST_USAGE, "%zu sessions, at most %zu in one step", n, m->decoder.max_batch);
    for (size_t i = 0; i < n; i++) {
        TRY(lib_need(sessions[i], "session", e));
        if (sessions[i]->m != m) return err_set(e, ST_USAGE, "sessions: expected sessions of one model");
        for (size_t k = 0; k < i; k++)
            if (sessions[k] == sessions[i])
                return err_set(e, ST_USAGE, "sessions: entries %zu and %zu are the same session", i, k);
    }
    return ST_OK;
}

static status decode(kvasir_session *const *sessions, size_t n, const int32_t *ids, err *e)
{
    TRY(lib_need(ids, "ids", e));
    TRY(check_together(sessions, n, e));
    TRY(check_ids(sessions[0]->m, ids, n, e));
    return step(sessions, n, ids, true, e);
}

kvasir_status kvasir_decode(kvasir_session *const *sessions, size_t n, const int32_t *ids, char *msg, size_t msg_size)
{
    err e = {0};
    status st = n > 0 ? ST_OK : err_set(&e, ST_USAGE, "sessions: none given");
    if (st == ST_OK) st = lib_need(sessions, "sessions", &e);
    if (st == ST_OK) st = lib_enter_session(sessions[0], &e);
    if (st == ST_OK) st = lib_leave(sessions[0]->m, decode(sessions, n, ids, &e));
    return lib_result(st, &e, msg, msg_size);
}

/* ---- sampling ---- */

static status read_sampling(const kvasir_sampling *given, sampler_options *out, err *e)
{
    kvasir_sampling o = {0};
    if (given) TRY(lib_take(&o, sizeof o, given, "sampling", e));
    if (o.flags != 0) return err_set(e, ST_UNSUPPORTED, "sampling: flags %d, expected 0", (int)o.flags);
    if (o.seed > INT64_MAX)
        return err_set(e, ST_USAGE, "seed %llu: must be from 0 to %lld", (unsigned long long)o.seed,
                       (long long)INT64_MAX);
    *out = (sampler_options){.temp = o.temperature,
                             .top_k = o.top_k,
                             .top_p = o.top_p == 0 ? 1 : o.top_p,
                             .min_p = o.min_p,
                             .repeat_penalty = o.repeat_penalty == 0 ? 1 : o.repeat_penalty,
                             .presence_penalty = o.presence_penalty,
                             .frequency_penalty = o.frequency_penalty,
                             .seed = o.seed,
                             .draw = DRAW_GUMBEL};
    return ST_OK;
}

static bool same_sampling(const sampler_options *a, const sampler_options *b)
{
    return a->temp == b->temp && a->top_k == b->top_k && a->top_p == b->top_p && a->min_p == b->min_p &&
           a->repeat_penalty == b->repeat_penalty && a->presence_penalty == b->presence_penalty &&
           a->frequency_penalty == b->frequency_penalty && a->seed == b->seed;
}

static status sample(kvasir_session *s, const kvasir_sampling *given, int32_t *id, err *e)
{
    sampler_options o;
    sequence *q = &s->q;
    size_t vocab = s->m->x.vocab;
    const float *logits;
    TRY(lib_need(id, "id", e));
    TRY(read_sampling(given, &o, e));
    if (!s->has_logits) return err_set(e, ST_USAGE, "no logits: nothing was fed, or the session was rewound");
    if (s->logits->away && !s->under && same_sampling(&o, &s->logits->by)) {
        *id = s->logits->next;
        return ST_OK;
    }
    TRY(lib_logits_get(s, &logits, e));
    if (q->by && !same_sampling(&o, &s->sampling)) {
        sampler_free(q->by);
        q->by = NULL;
    }
    const bool begins = !q->by || s->under_reply != q->reply;
    if (!q->by) {
        TRY(sampler_create(&q->by, &o, vocab, e));
        s->sampling = o;
        q->n_seen = 0;
    }
    if (begins) TRY(sequence_restrict(q, s->under, s->m->words, e));
    s->under_reply = q->reply;
    memcpy(s->work, logits, vocab * sizeof *s->work);
    *id = sequence_choose(q, s->work);
    return *id < 0 ? err_set(e, ST_FORMAT, "the schema allows no token after those fed") : ST_OK;
}

static status constrain(kvasir_session *s, const char *text, err *e)
{
    const schema_options o = {.root = "$"};
    json_t *schema = NULL;
    grammar *g = NULL;
    if (text) {
        TRY(json_parse_object(&schema, text, strlen(text), "schema", SCHEMA_DEPTH, e));
        pthread_mutex_lock(&s->m->encoding);
        status st = s->m->words ? ST_OK : grammar_vocab_create(&s->m->words, s->m->tok, s->m->x.vocab, e);
        pthread_mutex_unlock(&s->m->encoding);
        if (st == ST_OK) st = grammar_compile(&g, schema, false, NULL, &o, e);
        json_decref(schema);
        TRY(st);
    }
    sampler_free(s->q.by); /* the next one counts all tokens again */
    s->q.by = NULL;
    (void)sequence_restrict(&s->q, NULL, NULL, NULL);
    grammar_drop(s->under);
    s->under = g;
    return ST_OK;
}

kvasir_status kvasir_session_constrain(kvasir_session *s, const char *schema, char *msg, size_t msg_size)
{
    err e = {0};
    status st = lib_enter_session(s, &e);
    if (st == ST_OK) st = lib_leave(s->m, constrain(s, schema, &e));
    return lib_result(st, &e, msg, msg_size);
}

kvasir_status kvasir_session_sample(kvasir_session *s, const kvasir_sampling *sampling, int32_t *id, char *msg,
                                    size_t msg_size)
{
    err e = {0};
    status st = lib_enter_session(s, &e);
    if (st == ST_OK) st = lib_leave(s->m, sample(s, sampling, id, &e));
    return lib_result(st, &e, msg, msg_size);
}
