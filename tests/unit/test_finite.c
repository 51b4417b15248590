/* SPDX-License-Identifier: MIT */
/* Logits that stop being finite in any forward: an error with layer and remedy, never a token or a score. */
#include "config.h"

#include <math.h>

#include "kernels/base/rng.h"
#include "kernels/draw.h"
#include "model/sampler.h"
#include "tests/unit/poison.h"

enum { BAD = 192, LIMIT = 128 };

static float row[4 * U_VOCAB], want[4][U_VOCAB];

static buf buf_of(float *p)
{
    return (buf){(unsigned char *)p};
}

static void check_draw_finite(void)
{
    static float x[300];
    const float odd[] = {NAN, INFINITY, -INFINITY, -NAN};
    int wrong = 0;
    rng r = {3};
    for (size_t n = 0; n < 300; n++) {
        for (size_t i = 0; i < n; i++) x[i] = i % 3 ? (rng_float(&r) - 0.5f) * 3e38f : 0;
        wrong += !draw_finite(x, n);
        for (size_t i = 0; i < n; i += 1 + n / 40) {
            float kept = x[i];
            x[i] = odd[(i + n) % 4];
            wrong += draw_finite(x, n);
            x[i] = kept;
        }
    }
    ok(wrong == 0, "draw_finite of 0 to 299 numbers finds one that is not finite (%d wrong)", wrong);
}

/* A NaN among the scores of a query is not left out, wherever it lies, and neither is a part of a merge. */
static void check_attention(const char *device)
{
    enum { N = 70, DIM = 16 };
    static float k[N * DIM], v[N * DIM], q[2 * DIM], out[2 * DIM], lse[2], parts[2 * DIM];
    backend *be;
    err e = {0};
    int wrong = 0;
    if (!is_ok(backend_open(&be, &(backend_options){.device = device, .n_threads = 1}, &e), &e, "%s", device)) return;
    rng r = {8};
    for (int i = 0; i < N * DIM; i++) k[i] = rng_float(&r), v[i] = rng_float(&r);
    for (int i = 0; i < 2 * DIM; i++) q[i] = rng_float(&r);
    attn_job j = {.q = buf_of(q), .out = buf_of(out), .lse = buf_of(lse), .n_tok = 1, .n_heads = 2, .scale = 1};
    j.rows = (kv_rows){.k = buf_of(k), .v = buf_of(v), .type = DT_F32, .n_kv_heads = 1, .head_dim = DIM, .cap = N};
    for (int n = 1; n <= N; n++) {
        float kept = k[n / 2 * DIM];
        k[n / 2 * DIM] = NAN;
        j.n_lists = 1, j.n_max = n;
        be->ops->attn_decode(be, &j, 1);
        wrong += !isnan(out[0]) || !isnan(lse[0]) || !isnan(out[DIM]) || !isnan(lse[1]);
        be->ops->attn_prefill(be, &j);
        wrong += !isnan(out[0]) || !isnan(lse[0]) || !isnan(out[DIM]) || !isnan(lse[1]);
        k[n / 2 * DIM] = kept;
    }
    ok(wrong == 0, "%s: NaN among 1 to %d scores (%d wrong)", device, N, wrong);
    float lses[] = {NAN, 1};
    be->ops->attn_merge(be, buf_of(out), buf_of(lse), buf_of(parts), buf_of(lses), 2, 1, DIM);
    ok(isnan(out[0]) && isnan(lse[0]), "%s: merged with a part that is NaN", device);
    backend_close(be);
}

static bool opened(engine_parts *p, poison_kind kind, int layer, int first_bad)
{
    err e = {0};
    const backend_options cpu = {.device = "cpu", .n_threads = 1};
    status st =
        parts_open_with(p, POISON_MODEL, cpu, (decoder_options){.chunk = U_CHUNK, .max_batch = 4, .verify = 4}, &e);
    if (st == ST_OK) poison(p->m, kind, layer, first_bad);
    return is_ok(st, &e, "the model is opened");
}

/* n good tokens, and `bad` after them unless it is -1; all: logits of every row. */
static status feed(session *s, size_t n, int bad, bool all, err *e)
{
    int32_t ids[64];
    prefill_options o = {.which = all ? LOGITS_ALL : LOGITS_LAST, .rows = keep_last_row, .ctx = row};
    for (size_t i = 0; i < n; i++) ids[i] = some_id(session_length(s) + (int64_t)i) % BAD;
    if (bad >= 0) ids[n++] = bad;
    return session_prefill(&s, 1, ids, n, &o, e);
}

static status step(session *s, int32_t id, err *e)
{
    return session_decode(&s, 1, &id, row, e);
}

/* ---- the cause ---- */

static void check_cause(poison_kind kind, int layer, const char *store, const char *cause)
{
    engine_parts p;
    session *s = NULL;
    err e = {0};
    if (opened(&p, kind, layer, BAD) && is_ok(session_new(&s, &p, "full", store, LIMIT, &e), &e, "%s", store)) {
        is_ok(feed(s, 20, -1, false, &e), &e, "a first prompt");
        status st = feed(s, 20, 300, false, &e);
        if (cause) is_err(st, &e, ST_FORMAT, cause, "a second prompt over %s", store);
        else is_ok(st, &e, "a second prompt over %s", store);
        if (cause) ok(strstr(e.msg, "position 40 "), "the position is reported");
    }
    session_free(s);
    parts_close(&p);
}

static void check_causes(void)
{
    const char *k0 = "the keys of layer 0 exceed 65504, the range of f16 rows; use bf16 rows (--kv bf16";
    check_cause(POISON_KEYS, 0, "f16", k0);
    check_cause(POISON_KEYS, 1, "f16", "keys of layer 1 exceed");
    check_cause(POISON_VALUES, 0, "f16", "values of layer 0 exceed");
    check_cause(POISON_VALUES, 1, "f16", "values of layer 1 exceed");
    check_cause(POISON_KEYS, 0, "kivi2:r=16:g=16", "keys of layer 0 exceed");
    check_cause(POISON_KEYS, 0, "bf16", NULL);
    check_cause(POISON_VALUES, 0, "f32", NULL);
    check_cause(POISON_LOGIT, 0, "f16", "the output matrix");
}

/* An expert's logit beyond the range of float32, of either sign. */
static void check_router(float value)
{
    enum { LAYER = 1, HIDDEN = 32, EXPERTS = 8 };
    static float router[EXPERTS * HIDDEN], norm[HIDDEN];
    engine_parts p;
    session *s = NULL;
    err e = {0};
    if (!is_ok(parts_open(&p, "qwen3-moe-f32", "cpu", &e), &e, "a model with experts")) return;
    moe_weights *w = p.m->blocks[2 * LAYER + 1].w;
    is_int((int64_t)(w->router.rows * w->router.cols), EXPERTS * HIDDEN, "its router");
    float *row_2 = poison_copy(&w->router, router) + 2 * HIDDEN;
    poison_copy(&w->norm, norm);
    for (int i = 0; i < HIDDEN; i++) row_2[i] = i == 0 ? value : 0, norm[i] = 100;
    if (is_ok(session_new(&s, &p, "full", "f32", LIMIT, &e), &e, "a session"))
        is_err(feed(s, 1, -1, false, &e), &e, ST_FORMAT, "the output of layer 1 is not finite", "a router of %g",
               (double)value);
    session_free(s);
    parts_close(&p);
}

/* ---- steps ---- */

static void check_steps(const engine_parts *p)
{
    session *s;
    err e = {0};
    if (!is_ok(session_new(&s, p, "full", "f16", LIMIT, &e), &e, "a session")) return;
    status st = feed(s, 5, -1, false, &e);
    for (int i = 0; i < 50 && st == ST_OK; i++) st = step(s, i, &e);
    is_ok(st, &e, "50 steps");
    is_err(step(s, BAD, &e), &e, ST_FORMAT, "position 55 are not finite: the keys of layer 0", "the next one fails");
    e = (err){0};
    is_ok(session_rewind(s, 55, &e), &e, "it is taken back");
    is_ok(step(s, 7, &e), &e, "and steps of other tokens follow");
    session_free(s);
}

static void check_queue(const engine_parts *p)
{
    static const sampler_options how[] = {
        {.temp = 0, .top_p = 1, .repeat_penalty = 1},
        {.temp = 1, .top_p = 1, .repeat_penalty = 1},
        {.temp = 1, .top_p = 1, .repeat_penalty = 1, .draw = DRAW_RANK},
        {.temp = 1, .top_p = 0.9, .repeat_penalty = 1},
        {.temp = 2, .top_p = 1, .top_k = 4, .repeat_penalty = 1, .draw = DRAW_RANK},
        {.temp = 2, .top_p = 1, .min_p = 0.1, .repeat_penalty = 1},
    };
    const int32_t bad = 300, good = 3;
    for (size_t i = 0; i <= sizeof how / sizeof *how; i++) {
        session *s = NULL;
        sampler *by = NULL;
        err e = {0};
        int32_t id = -1;
        status st = session_new(&s, p, "full", "f16", LIMIT, &e);
        if (st == ST_OK && i > 0) st = sampler_create(&by, &how[i - 1], U_VOCAB, &e);
        if (st == ST_OK) st = feed(s, 9, -1, false, &e);
        if (st == ST_OK) st = session_queue(&s, 1, &good, by ? &by : NULL, &e);
        if (st == ST_OK) st = session_take(p->dec, 1, &id, &e);
        is_ok(st, &e, "rule %zu: a token is chosen", i);
        is_err(session_queue(&s, 1, &bad, by ? &by : NULL, &e), &e, ST_FORMAT, "position 10 ", "rule %zu: none is", i);
        sampler_free(by);
        session_free(s);
    }
}

/* A rejected draft has no part in the text, whatever its logits are. */
static void check_verify(const engine_parts *p)
{
    const int32_t ids[] = {4, 300, 5};
    session *s;
    err e = {0};
    int32_t id = -1, drafted[3];
    if (!is_ok(session_new(&s, p, "full", "f16", LIMIT, &e), &e, "a session")) return;
    is_ok(feed(s, 9, -1, false, &e), &e, "a prompt");
    is_ok(session_verify(s, ids, 3, &e), &e, "three rows");
    is_ok(session_verified(s, 0, NULL, &id, &e), &e, "a choice from the first");
    is_err(session_verified(s, 1, NULL, &id, &e), &e, ST_FORMAT, "position 10 ", "none from the second");
    e = (err){0};
    is_err(session_verified_logits(s, 1, row, &e), &e, ST_FORMAT, "position 10 ", "nor its logits");
    e = (err){0};
    is_ok(session_rewind(s, 10, &e), &e, "rejected drafts are taken back");
    is_ok(step(s, id % BAD, &e), &e, "and a step follows");
    is_err(session_draft(s, 300, 3, NULL, drafted, &e), &e, ST_FORMAT, "position 11 ", "no drafts");
    is_int(session_length(s), 11, "which leave nothing");
    e = (err){0};
    is_ok(session_draft(s, 3, 1, NULL, drafted, &e), &e, "others do");
    session_free(s);
}

static void check_batch(const engine_parts *p)
{
    session *s[4] = {0};
    const int32_t ids[] = {3, 4, 300, 5};
    err e = {0};
    status st = ST_OK;
    for (int i = 0; i < 4 && st == ST_OK; i++) st = session_new(&s[i], p, "full", "f16", LIMIT, &e);
    for (int i = 0; i < 4 && st == ST_OK; i++) st = feed(s[i], 5 + (size_t)i, -1, false, &e);
    for (int i = 0; i < 4 && st == ST_OK; i++) {
        if (i == 2) continue;
        st = step(s[i], ids[i], &e);
        memcpy(want[i], row, sizeof want[i]);
        if (st == ST_OK) st = session_rewind(s[i], 5 + i, &e);
    }
    is_ok(st, &e, "three sessions alone");
    is_err(session_decode(s, 4, ids, row, &e), &e, ST_FORMAT, "position 7 ",
           "four together, one of which is not finite");
    for (int i = 0; i < 4; i++) {
        if (i != 2) ok(memcmp(row + i * U_VOCAB, want[i], sizeof want[i]) == 0, "session %d: the bits of alone", i);
        session_free(s[i]);
    }
}

/* ---- every strategy ---- */

/* Also in the middle of a prompt, and where rows are dropped. */
static void check_strategies(const engine_parts *p)
{
    static const char *const names[] = {
        "full",
        "streaming:budget=24",
        "h2o:budget=24",
        "snapkv:budget=24",
        "tova:budget=24",
        "quest:budget=24:page=4:skip=1",
        "fier:budget=24:g=8:skip=0:tail=sample:5",
        "pqcache:budget=24:sink=4:bits=3",
        "pariskv:budget=24:sink=4:local=8:u=5:full_thr=0",
        "magicpig:K=3:L=12:sink=3:local=6:skip=0",
        "tokenselect:budget=24:window=16",
        "retroinfer:budget=40:sink=4:local=8:update=16",
        "oracle:budget=24:skip=0",
    };
    static const char *const stores[] = {"f16", "kivi4:r=16:g=16"};
    for (size_t i = 0; i < 2 * (sizeof names / sizeof *names); i++) {
        const char *name = names[i / 2], *store = stores[i % 2];
        session *s;
        err e = {0};
        status st = session_new(&s, p, name, store, LIMIT, &e);
        if (st == ST_UNSUPPORTED || st == ST_USAGE) {
            if (i % 2 == 0) ok(false, "%s: %s", name, e.msg);
            continue;
        }
        is_ok(feed(s, 40, -1, true, &e), &e, "%s over %s: a prompt", name, store);
        is_err(feed(s, 20, 300, true, &e), &e, ST_FORMAT, "not finite", "%s over %s: another", name, store);
        session_reset(s);
        e = (err){0};
        is_ok(feed(s, 40, -1, false, &e), &e, "%s over %s: afterwards", name, store);
        session_free(s);
    }
}

static void check_saved(const engine_parts *p)
{
    const char *path = "test_finite.tmp";
    session *s;
    err e = {0};
    if (!is_ok(session_new(&s, p, "full", "f16", LIMIT, &e), &e, "a session")) return;
    is_ok(feed(s, 9, -1, false, &e), &e, "a prompt");
    row[5] = NAN;
    is_ok(session_save(s, path, &(session_notes){.logits = row}, &e), &e, "saved with NaN");
    is_err(load_plain(s, path, &e), &e, ST_FORMAT, "logits that are not finite", "not loaded");
    remove(path);
    session_free(s);
}

int main(void)
{
    engine_parts p;
    check_draw_finite();
    check_attention("ref");
    check_attention("cpu");
    check_causes();
    check_router(3e38f);
    check_router(-3e38f);
    if (opened(&p, POISON_KEYS, 0, BAD)) {
        check_steps(&p);
        check_queue(&p);
        check_verify(&p);
        check_batch(&p);
        check_strategies(&p);
        check_saved(&p);
    }
    parts_close(&p);
    return tap_done();
}
