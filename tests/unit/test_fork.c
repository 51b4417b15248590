/* SPDX-License-Identifier: MIT */
/* Choices of one prompt: sessions that go on from a fork have the bits of sessions that were fed the prompt, whatever
 * the others do meanwhile. */
#include "config.h"

#include <stdlib.h>

#include "kernels/base/mem.h"
#include "model/session_file.h"
#include "tests/unit/oom.h"
#include "tests/unit/session_util.h"

enum { N = 45, STEPS = 6, SHORT = 80, LONG = 20000 };

/* All strategies: test_continue. */
static const char *const cases[] = {
    "full",
    "tokenselect:sink=3:local=8:window=8:budget=12:reuse=50",
    "h2o:budget=24",
    "kivi:bits=2:r=16:g=8",
};

typedef struct {
    float row[1 + STEPS][U_VOCAB];
} outcome;

static status feed(session *s, outcome *out, err *e)
{
    int32_t ids[N];
    prefill_options o = {.which = LOGITS_LAST, .rows = keep_last_row, .ctx = out->row[0]};
    for (int i = 0; i < N; i++) ids[i] = some_id(i);
    return session_prefill(&s, 1, ids, N, &o, e);
}

/* Steps, each choice's own ones. */
static status go_on(session *s, int choice, outcome *out, err *e)
{
    for (int i = 0; i < STEPS; i++) {
        int32_t id = (some_id(N + i) + 31 * choice) % 300;
        TRY(session_decode(&s, 1, &id, out->row[1 + i], e));
    }
    return ST_OK;
}

static status run_alone(const engine_parts *p, const char *strategy, int64_t ctx, int choice, outcome *out, err *e)
{
    session *s;
    TRY(session_new(&s, p, strategy, "f16", ctx, e));
    status st = feed(s, out, e);
    if (st == ST_OK) st = go_on(s, choice, out, e);
    session_free(s);
    return st;
}

/* The first choice, then two that go on from its fork, which is gone before the last one's steps. */
static status run_forked(session *s[3], const engine_parts *p, const char *strategy, int64_t ctx, outcome out[3],
                         err *e)
{
    session_file *f;
    session_notes none = {0};
    for (int i = 0; i < 3; i++) TRY(session_new(&s[i], p, strategy, "f16", ctx, e));
    TRY(feed(s[0], &out[0], e));
    TRY(session_keep(&f, s[0], &none, e));
    for (int i = 1; i < 3; i++) memcpy(out[i].row[0], out[0].row[0], sizeof out[0].row[0]);
    status st = session_load(s[1], f, &none, e);
    if (st == ST_OK) st = go_on(s[0], 0, &out[0], e);
    if (st == ST_OK) st = go_on(s[1], 1, &out[1], e);
    if (st == ST_OK) st = session_load(s[2], f, &none, e);
    session_file_close(f);
    return st == ST_OK ? go_on(s[2], 2, &out[2], e) : st;
}

static void check(const engine_parts *p, const char *strategy, int64_t ctx, outcome *forked, outcome *alone)
{
    session *s[3] = {0};
    err e = {0};
    bool good = is_ok(run_forked(s, p, strategy, ctx, forked, &e), &e, "%s: choices go on from a fork", strategy);
    for (int i = 0; i < 3; i++) session_free(s[i]);
    for (int i = 0; i < 3 && good; i++) {
        if (!is_ok(run_alone(p, strategy, ctx, i, alone, &e), &e, "%s: a session of its own", strategy)) return;
        ok(memcmp(alone, &forked[i], sizeof *alone) == 0, "%s, %lld tokens: choice %d has the same bits", strategy,
           (long long)ctx, i);
    }
}

/* A session of another size has nothing of it, and no memory is lost where there is none. */
static void check_bad(const engine_parts *p, const char *strategy)
{
    session *from, *other;
    session_file *f = NULL;
    session_notes none = {0};
    outcome out;
    err e = {0};
    is_ok(session_new(&from, p, strategy, "f16", SHORT, &e), &e, "a session");
    is_ok(session_new(&other, p, strategy, "f16", 2 * SHORT, &e), &e, "one of another size");
    is_ok(feed(from, &out, &e), &e, "a prompt");
    oom_run o = {0};
    while (oom_next(&o)) oom_saw(&o, session_keep(&f, from, &none, &o.e), &f);
    oom_ok(&o, 1, strategy);
    if (!f) return;
    if (strcmp(strategy, "full") == 0) {
        is_int(session_load(other, f, &none, &e), ST_FORMAT, "%s: another size is refused", strategy);
        is_int(session_length(other), 0, "%s: and the session is empty", strategy);
    }
    session_file_close(f);
    session_free(from);
    session_free(other);
}

int main(void)
{
    engine_parts p;
    err e = {0};
    outcome *out = calloc(4, sizeof *out);
    if (out && is_ok(parts_open(&p, "llama31-f32-tied", "cpu", &e), &e, "the model is opened")) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            check(&p, cases[i], SHORT, out, out + 3);
            check(&p, cases[i], LONG, out, out + 3);
        }
        check_bad(&p, "full");
        check_bad(&p, "h2o:budget=24");
        parts_close(&p);
    }
    free(out);
    return tap_done();
}
