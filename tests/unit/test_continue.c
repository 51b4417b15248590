/* SPDX-License-Identifier: MIT */
/* A fork and a loaded session continue with the bits of the session that they were taken from, for every strategy and
 * every length of a prompt from 0 to MOST. Beyond ALL_SAVED, where no strategy here has a border, every third length is
 * saved and loaded, and the others are forked twice. Of a fork that goes its own way nothing is left in the next one.
 * The model has dynamic RoPE: frequencies differ from length to length. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "model/session_file.h"
#include "tests/unit/oom.h"
#include "tests/unit/session_util.h"

enum { MOST = 200, ALL_SAVED = 80, STEPS = 2, CONTEXT = MOST + 16, TOGETHER = 5 };

/* Several configurations of one strategy take the lengths in turn. */
static const char *const strategies[][3] = {
    {"full"},
    {"streaming:budget=24", "streaming:budget=24:demote=token2"},
    {"h2o:budget=24", "h2o:budget=24:gqa=per_q:skip=1", "h2o:budget=24:demote=token4:recall=5"},
    {"snapkv:budget=24", "snapkv:budget=24:recompress_on_turn=1:skip=1", "snapkv:budget=24:demote=kivi4:demote_g=4"},
    {"tova:budget=24", "tova:budget=24:demote=f16:gqa=mean_s"},
    {"mikv:budget=24"},
    {"oracle:skip=0:budget=24"},
    {"quest:skip=0:budget=24:page=4", "quest:budget=24:page=4", "quest:skip=0:budget=24:page=4:tail=sample:5"},
    {"fier:skip=0:budget=20:g=8", "fier:skip=0:budget=20:g=8:tail=sample:3", "fier:skip=0:budget=12:g=8:coarse=8"},
    {"codes:budget=24:skip=0:kv=kivi4/r=16/g=8", "codes:budget=24:skip=0:kv=kivi2/r=16/g=8",
     "codes:budget=24:skip=0:kv=logquant/r=12/g=4"},
    {"pariskv", "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0", "pariskv:budget=6:local=8:u=5:full_thr=0:center=1"},
    {"pqcache:budget=20:sink=4:bits=3:p=0.7:min=1", "pqcache:budget=20:sink=4:bits=2:m=4"},
    {"retroinfer:budget=24:sink=3:local=5:size=4:update=8"},
    {"magicpig:K=3:L=12:sink=3:local=6:skip=0", "magicpig:K=4:L=5:sink=0:local=0"},
    {"actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31",
     "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31:pool=fixed"},
    {"infllm:sink=3:local=16:window=8:block=4:reps=2:budget=31"},
    {"tokenselect:sink=3:local=8:window=8:budget=12", "tokenselect:sink=3:local=8:window=8:budget=12:reuse=50"},
    {"kivi:bits=2:r=16:g=8"},
    {"logquant:bits=4:r=12:g=4"},
};
enum { N_STRATEGIES = sizeof strategies / sizeof *strategies, N_CONFIGS = 3 };

/* The session, its fork, and a session that is loaded from its file. */
enum { OF, FORK, LOADED, LIVES };

typedef struct {
    const char *text;
    session *s[LIVES];
    int64_t n_bad, first_bad; /* lengths of prompts */
    err why;                  /* of the first */
} subject;

static char path[64];
static session_file *copy;

static status open_subject(subject *x, const engine_parts *p, const char *text, err *e)
{
    x->text = text;
    for (int i = 0; i < LIVES; i++) TRY(session_new(&x->s[i], p, text, "f16", CONTEXT, e));
    return ST_OK;
}

static void close_subject(subject *x)
{
    for (int i = 0; i < LIVES; i++) session_free(x->s[i]);
}

static void failed(subject *x, int64_t n, const err *why)
{
    if (x->n_bad++ > 0) return;
    x->first_bad = n;
    x->why = *why;
}

/* Feeds one prompt of n tokens to all. Strategies that leave it exact share the work. */
static status feed(subject *const *x, size_t n_subjects, int64_t n, err *e)
{
    int32_t ids[MOST];
    session *shared[U_BATCH];
    size_t n_shared = 0;
    const prefill_options o = {.which = LOGITS_LAST};
    for (int64_t i = 0; i < n; i++) ids[i] = some_id(i);
    for (size_t i = 0; i < n_subjects; i++) session_reset(x[i]->s[OF]);
    for (size_t i = 0; i < n_subjects && n > 0; i++) {
        session *s = x[i]->s[OF];
        if (n_shared < U_BATCH && session_can_share(n_shared ? shared[0] : s, s, (size_t)n)) shared[n_shared++] = s;
        else TRY(session_prefill(&s, 1, ids, (size_t)n, &o, e));
    }
    return n_shared > 0 ? session_prefill(shared, n_shared, ids, (size_t)n, &o, e) : ST_OK;
}

/* Makes the fork and the loaded session. A fork before them takes a step of its own. */
static bool take(subject *x, int64_t n)
{
    static float row[U_VOCAB];
    err e = {0};
    session_notes none = {0};
    const int32_t own = (some_id(n) + 31) % 300;
    session_file_close(copy);
    status st = session_keep(&copy, x->s[OF], &none, &e);
    if (st == ST_OK) st = session_load(x->s[FORK], copy, &none, &e);
    if (st == ST_OK) st = session_decode(&x->s[FORK], 1, &own, row, &e);
    if (st == ST_OK) st = session_load(x->s[FORK], copy, &none, &e);
    bool saved = n <= ALL_SAVED || n % 3 == 0;
    if (st == ST_OK && saved) st = save_plain(x->s[OF], path, &e);
    if (st == ST_OK) st = saved ? load_plain(x->s[LOADED], path, &e) : session_load(x->s[LOADED], copy, &none, &e);
    if (st != ST_OK) failed(x, n, &e);
    return st == ST_OK;
}

/* Compares steps of up to TOGETHER subjects with those of their copies, all in one batch. */
static status compare(subject *const *x, size_t n_subjects, int64_t n, err *e)
{
    static float row[TOGETHER][LIVES][U_VOCAB];
    session *s[TOGETHER * LIVES];
    int32_t ids[TOGETHER * LIVES];
    bool same[TOGETHER];
    for (size_t i = 0; i < n_subjects * LIVES; i++) s[i] = x[i / LIVES]->s[i % LIVES];
    for (size_t i = 0; i < n_subjects; i++) same[i] = true;
    for (int step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < n_subjects * LIVES; i++) ids[i] = some_id(session_length(s[i]));
        TRY(session_decode(s, n_subjects * LIVES, ids, row[0][0], e));
        for (size_t i = 0; i < n_subjects; i++)
            for (int k = FORK; k < LIVES; k++) same[i] &= memcmp(row[i][OF], row[i][k], sizeof row[i][k]) == 0;
    }
    for (size_t i = 0; i < n_subjects; i++)
        if (!same[i]) failed(x[i], n, &(err){.msg = "other logits"});
    return ST_OK;
}

/* Compares after a prompt of n tokens, and for some lengths again after the steps that follow it. */
static status check_length(subject *subjects, int64_t n, err *e)
{
    subject *all[N_STRATEGIES], *good[N_STRATEGIES];
    for (size_t i = 0; i < N_STRATEGIES; i++) {
        int configs = 0;
        while (configs < N_CONFIGS && strategies[i][configs]) configs++;
        all[i] = &subjects[i * N_CONFIGS + (size_t)(n % configs)];
    }
    TRY(feed(all, N_STRATEGIES, n, e));
    for (int round = 0; round < (n % 8 ? 1 : 2); round++) {
        size_t n_good = 0;
        for (size_t i = 0; i < N_STRATEGIES; i++)
            if (take(all[i], n)) good[n_good++] = all[i];
        for (size_t i = 0; i < n_good; i += TOGETHER)
            TRY(compare(good + i, n_good - i < TOGETHER ? n_good - i : TOGETHER, n, e));
    }
    return ST_OK;
}

/* No memory is lost where there is none for a fork. */
static void check_oom(subject *x)
{
    session_notes none = {0};
    oom_run o = {0};
    session_file_close(copy);
    copy = NULL;
    while (oom_next(&o)) oom_saw(&o, session_keep(&copy, x->s[OF], &none, &o.e), &copy);
    oom_ok(&o, 1, x->text);
}

int main(void)
{
    static subject subjects[N_STRATEGIES * N_CONFIGS];
    engine_parts p;
    err e = {0};
    bool opened = is_ok(parts_open(&p, "llama-dynamic-f32", "cpu", &e), &e, "the model opens");
    snprintf(path, sizeof path, "%s/continue.%ld.kv", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ".", (long)getpid());
    for (size_t i = 0; i < N_STRATEGIES * N_CONFIGS && opened; i++) {
        const char *text = strategies[i / N_CONFIGS][i % N_CONFIGS];
        if (text) opened &= is_ok(open_subject(&subjects[i], &p, text, &e), &e, "%s", text);
    }
    for (int64_t n = 0; n <= MOST && opened; n++)
        if (!tap_leaves_out(n % 5 != 0)) opened = check_length(subjects, n, &e) == ST_OK;
    is_ok(e.code, &e, "prompts and steps");
    for (size_t i = 0; i < 3 && opened; i++) check_oom(&subjects[i * N_CONFIGS]);
    for (size_t i = 0; i < N_STRATEGIES * N_CONFIGS; i++) {
        subject *x = &subjects[i];
        if (x->text)
            ok(x->n_bad == 0, "%s: fork and file continue with the same bits; fails at %lld lengths, first %lld: %s",
               x->text, (long long)x->n_bad, (long long)x->first_bad, x->why.msg);
        close_subject(x);
    }
    session_file_close(copy);
    parts_close(&p);
    remove(path);
    return tap_done();
}
