/* SPDX-License-Identifier: MIT */
/* Creating sessions (new, forked, loaded), saving them, and their statistics. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "api/impl.h"
#include "kernels/base/mem.h"
#include "model/session_file.h"

/* ---- strategies ---- */

static status read_spec(const kvasir_model *m, const char *strategy, const char *store, attn_spec *spec, err *e)
{
    attn_options o = {.kv = kv_plain(DT_F16)};
    if (store) TRY(kv_format_parse(&o.kv, store, "store", e));
    TRY(attn_spec_parse(spec, strategy ? strategy : "full", &o, e));
    return attn_spec_check(spec, decoder_attn_shape(m->dec), e);
}

static status read_limit(const kvasir_model *m, int64_t *limit, err *e)
{
    if (*limit == 0) *limit = m->opt.ctx;
    if (*limit > 0 && *limit < INT32_MAX) return ST_OK;
    return err_set(e, ST_USAGE, "limit: %lld tokens, expected 0 to %d", (long long)*limit, INT32_MAX - 1);
}

static status plan(kvasir_model *m, const char *strategy, const char *store, int64_t limit, kvasir_plan *out, err *e)
{
    attn_spec spec;
    memory_plan p;
    drafter *d;
    TRY(read_limit(m, &limit, e));
    TRY(read_spec(m, strategy, store, &spec, e));
    TRY(drafter_create(&d, &m->drafts, &spec, e));
    status st = session_plan(&p, m->m, &m->decoder, &spec, drafter_session(d, limit), e);
    drafter_free(d);
    TRY(st);
    const kvasir_plan known = {.kv = (int64_t)p.kv,
                               .index = (int64_t)p.index,
                               .scratch = (int64_t)p.scratch,
                               .available = (int64_t)m->be->ops->available(m->be)};
    return lib_give(out, &known, sizeof known, "plan", e);
}

kvasir_status kvasir_session_plan(kvasir_model *m, const char *strategy, const char *store, int64_t limit,
                                  kvasir_plan *out, char *msg, size_t msg_size)
{
    err e = {0};
    status st = lib_enter(m, &e);
    if (st == ST_OK) st = lib_leave(m, plan(m, strategy, store, limit, out, &e));
    return lib_result(st, &e, msg, msg_size);
}

/* ---- creation ---- */

/* Frees a session inside a call, without releasing its model. */
static void free_parts(kvasir_session *s)
{
    lib_read_free(s);
    sequence_close(&s->q);
    grammar_drop(s->under);
    mem_free(s->rows);
    lib_logits_free(s->logits, s->m);
    mem_free(s->work);
    mem_free(s);
}

/* Creates a session. given: its state comes from a copy or a file. */
static status make(kvasir_session **out, kvasir_model *m, const attn_spec *spec, int64_t limit, bool given, err *e)
{
    const sequence_options o = {.spec = spec,
                                .size = session_of(limit),
                                .drafts = given && m->draft_strategy ? NULL : &m->drafts,
                                .cache = m->cache};
    kvasir_session *s;
    size_t vocab = m->x.vocab;
    TRY(MEM_NEW(&s, 1, e));
    s->m = m;
    status st = sequence_open(&s->q, m->dec, &o, e);
    if (st == ST_OK) st = lib_logits_create(&s->logits, m, e);
    if (st == ST_OK) st = MEM_NEW(&s->work, vocab, e);
    if (st == ST_OK && s->q.draft) st = MEM_NEW(&s->rows, SESSION_VERIFY_ROWS * vocab, e);
    if (st != ST_OK) {
        free_parts(s);
        return st;
    }
    attn_spec_write(spec, s->strategy, s->store);
    *out = s;
    return ST_OK;
}

/* Locks the model for a call that creates a session. from: name of the argument that the session is made from. */
static status begin(kvasir_session **out, kvasir_model *m, const char *from, err *e)
{
    if (out) *out = NULL;
    TRY(lib_need(out, "out", e));
    TRY(lib_need(m, from, e));
    return lib_enter(m, e);
}

/* Ends a call that creates a session: takes a reference to the model, or frees the session after an error. */
static status end(kvasir_session **out, kvasir_model *m, status st)
{
    if (st == ST_OK) lib_retain(m);
    if (st != ST_OK && *out) {
        free_parts(*out);
        *out = NULL;
    }
    return lib_leave(m, st);
}

static status create(kvasir_session **out, kvasir_model *m, const char *strategy, const char *store, int64_t limit,
                     err *e)
{
    attn_spec spec;
    TRY(read_limit(m, &limit, e));
    TRY(read_spec(m, strategy, store, &spec, e));
    TRY(make(out, m, &spec, limit, false, e));
    if (limit > m->m->config.max_positions && m->opt.log) {
        char line[128];
        snprintf(line, sizeof line, "limit %lld exceeds the model's max_position_embeddings of %lld", (long long)limit,
                 (long long)m->m->config.max_positions);
        m->opt.log(m->opt.arg, KVASIR_WARNING, line);
    }
    return ST_OK;
}

kvasir_status kvasir_session_create(kvasir_session **out, kvasir_model *m, const char *strategy, const char *store,
                                    int64_t limit, char *msg, size_t msg_size)
{
    err e = {0};
    status st = begin(out, m, "model", &e);
    if (st == ST_OK) st = end(out, m, create(out, m, strategy, store, limit, &e));
    return lib_result(st, &e, msg, msg_size);
}

void kvasir_session_free(kvasir_session *s)
{
    err e = {0};
    if (!s) return;
    kvasir_model *m = s->m;
    if (lib_enter(m, &e) != ST_OK) return; /* called in a callback, where the session may be in use */
    free_parts(s);
    (void)lib_leave(m, ST_OK);
    kvasir_model_free(m);
}

static status copy_state(kvasir_session *to, kvasir_session *from, err *e)
{
    session_file *c;
    session_notes none = {0};
    const float *logits;
    TRY(sequence_settle(&from->q, e));
    TRY(lib_logits_get(from, &logits, e));
    TRY(sequence_push(&to->q, from->q.ids.ids, from->q.n_fed, e));
    to->q.n_fed = from->q.n_fed;
    to->q.reply = from->q.reply;
    status st = session_keep(&c, from->q.s, &none, e);
    if (st == ST_OK) st = session_load(to->q.s, c, &none, e);
    session_file_close(c);
    if (from->has_logits) lib_logits_set(to, logits);
    return st;
}

static status fork_session(kvasir_session **out, kvasir_session *from, err *e)
{
    TRY(make(out, from->m, attn_seq_spec(session_attn(from->q.s)), session_limit(from->q.s), true, e));
    return copy_state(*out, from, e);
}

kvasir_status kvasir_session_fork(kvasir_session **out, kvasir_session *s, char *msg, size_t msg_size)
{
    err e = {0};
    status st = begin(out, s ? s->m : NULL, "session", &e);
    if (st == ST_OK) st = end(out, s->m, fork_session(out, s, &e));
    return lib_result(st, &e, msg, msg_size);
}

/* ---- files ---- */

static status save(kvasir_session *s, const char *path, err *e)
{
    session_notes n = {
        .ids = s->q.ids.ids, .n_ids = s->q.n_fed, .random = s->sampling.seed, .n_generated = s->q.n_fed - s->q.reply};
    TRY(lib_need(path, "path", e));
    if (s->q.n_fed > 0 && !s->has_logits)
        return err_set(e, ST_USAGE, "a rewound session cannot be saved; feed a token first");
    TRY(sequence_settle(&s->q, e));
    if (s->has_logits) TRY(lib_logits_get(s, &n.logits, e));
    return session_save(s->q.s, path, &n, e);
}

kvasir_status kvasir_session_save(kvasir_session *s, const char *path, char *msg, size_t msg_size)
{
    err e = {0};
    status st = lib_enter_session(s, &e);
    if (st == ST_OK) st = lib_leave(s->m, save(s, path, &e));
    return lib_result(st, &e, msg, msg_size);
}

/* Loads a file. A token that was sampled but not fed is fed, as the program that saved the file would do. */
static status load_into(kvasir_session *s, session_file *f, err *e)
{
    session_notes n;
    sequence *q = &s->q;
    TRY(session_load(q->s, f, &n, e));
    if (n.n_ids == 0 && session_length(q->s) > 0)
        return err_set(e, ST_UNSUPPORTED, "the session was saved without its tokens");
    TRY(sequence_push(q, n.ids, n.n_ids, e));
    q->reply -= n.n_generated;
    s->has_logits = n.n_ids > 0;
    q->n_fed = n.n_ids - (s->has_logits && !n.logits);
    if (!n.logits && s->has_logits) TRY(sequence_decode(&s->m->x, &q, 1, e));
    if (s->has_logits) lib_logits_set(s, n.logits ? n.logits : s->m->x.logits);
    return ST_OK;
}

static status load(kvasir_session **out, kvasir_model *m, const char *path, err *e)
{
    session_file *f;
    attn_spec spec;
    TRY(lib_need(path, "path", e));
    TRY(session_file_open(&f, path, e));
    status st = attn_spec_read(&spec, session_file_strategy(f), session_file_store(f), e);
    if (st == ST_OK) st = attn_spec_check(&spec, decoder_attn_shape(m->dec), e);
    if (st == ST_OK) st = make(out, m, &spec, session_file_context(f), true, e);
    if (st == ST_OK) st = load_into(*out, f, e);
    session_file_close(f);
    return st;
}

kvasir_status kvasir_session_load(kvasir_session **out, kvasir_model *m, const char *path, char *msg, size_t msg_size)
{
    err e = {0};
    status st = begin(out, m, "model", &e);
    if (st == ST_OK) st = end(out, m, load(out, m, path, &e));
    return lib_result(st, &e, msg, msg_size);
}

/* ---- statistics ---- */

static status stats(const kvasir_session *s, kvasir_stats *out, err *e)
{
    const attn_seq *seq = session_attn(s->q.s);
    double layers = s->m->m->config.n_kv;
    attn_stats a = attn_seq_stats(seq);
    const draft_counts drafts = s->q.draft ? drafter_counts(s->q.draft) : (draft_counts){0};
    attn_bytes held = attn_seq_held(seq), peak = attn_seq_peak(seq);
    const kvasir_stats known = {
        .length = (int64_t)s->q.n_fed,
        .limit = session_limit(s->q.s),
        .steps = a.steps,
        .attended = a.attended / layers,
        .visible = a.visible / layers,
        .kv_read_bytes = a.kv_read,
        .index_read_bytes = a.index_read,
        .kv_bytes = (int64_t)held.kv,
        .kv_peak_bytes = (int64_t)peak.kv,
        .index_bytes = (int64_t)held.index,
        .prompt_seconds = (double)s->prompt_ns / 1e9,
        .step_seconds = (double)s->step_ns / 1e9,
        .strategy = s->strategy,
        .store = s->store,
        .prefix_tokens = s->n_cached,
        .drafted = drafts.proposed,
        .draft_accepted = drafts.accepted,
    };
    return lib_give(out, &known, sizeof known, "stats", e);
}

kvasir_status kvasir_session_stats(const kvasir_session *s, kvasir_stats *out, char *msg, size_t msg_size)
{
    err e = {0};
    status st = lib_enter_session(s, &e);
    if (st == ST_OK) st = lib_leave(s->m, stats(s, out, &e));
    return lib_result(st, &e, msg, msg_size);
}

kvasir_status kvasir_session_tokens(const kvasir_session *s, const int32_t **ids, size_t *n, char *msg, size_t msg_size)
{
    err e = {0};
    status st = lib_need(s, "session", &e);
    if (st == ST_OK) st = lib_need(ids, "ids", &e);
    if (st == ST_OK) st = lib_need(n, "n", &e);
    if (st == ST_OK) {
        *ids = s->q.ids.ids;
        *n = s->q.n_fed;
    }
    return lib_result(st, &e, msg, msg_size);
}
