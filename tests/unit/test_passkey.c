/* SPDX-License-Identifier: MIT */
/* Passkey: prompts as the papers build them, the answer rule, and that sharing a prefill changes
 * nothing. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/passkey_run.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

/* ---- text ---- */

static uint64_t fnv1a(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h;
}

/* The four prompts of evals.md 4.1, whose SHA-256 begins with 44e2cfa4524ada69, f42e5951936dd064,
 * 50719d849a93080c and b435c549d94d031e; the FNV-1a values are of the texts that have these. */
static void test_text(void)
{
    static const struct {
        int64_t n, percent, key;
        size_t len;
        uint64_t fnv;
    } cases[] = {
        {0, 50, 7, 239, 0x1418f58664d5986f},
        {100, 50, 12345, 347, 0x749f367a857d4487},
        {1000, 10, 42, 1241, 0x1833cd1db9d6a02f},
        {40000, 100, 50000, 40247, 0xdc6204b66ca1027e},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = {0};
        char *text = NULL;
        size_t len = 0;
        int64_t n = cases[i].n;
        is_ok(passkey_text(&text, &len, n, passkey_before(n, cases[i].percent - 1, 100),
                           cases[i].key, &e),
              &e, "text with %lld characters of garbage", (long long)n);
        is_int((long long)len, (long long)cases[i].len, "its length");
        ok(text && strlen(text) == len, "it ends with a NUL");
        ok(text && fnv1a(text, len) == cases[i].fnv, "its content");
        mem_free(text);
    }
}

static void test_schedule(void)
{
    is_int(passkey_before(1000, 0, 20), 50, "20 trials: the first depth is 5 %%");
    is_int(passkey_before(1000, 19, 20), 1000, "the last depth is 100 %%");
    is_int(passkey_before(128, 0, 100), 1, "fractions of a character are dropped");
    is_int(passkey_before(1000, 1, 3), 666, "numbers of trials that do not divide 100");
    is_int(passkey_before((int64_t)1 << 60, 6, 7), (int64_t)1 << 60, "no overflow");

    /* Known values: SplitMix64 in Python. */
    static const int64_t first[] = {49764, 16317, 15325, 46852, 4622};
    for (int t = 0; t < 5; t++) is_int(passkey_key(0, 4096, t), first[t], "key of trial %d", t);
    is_int(passkey_key(1, 4096, 0), 8600, "the seed changes the key");
    is_int(passkey_key(0, 8192, 0), 10589, "the length changes the key");
    bool inside = true;
    for (int t = 0; t < 2000; t++)
        inside &= passkey_key(7, 1, t) >= 1 && passkey_key(7, 1, t) <= 50000;
    ok(inside, "keys are within 1..50000");
}

static void test_answer(void)
{
    static const struct {
        const char *text;
        int64_t value;
    } cases[] = {
        {" 12345.", 12345},
        {" 012345", 12345},
        {" 12,345", 12},
        {"", -1},
        {" is green.", -1},
        {"the key is 7. Remember 8", 7},
        {"-5", 5},
        {"0", 0},
        {"9223372036854775807", INT64_MAX},
        {"99999999999999999999999", INT64_MAX},
        {"\xc3\xa9 42", 42},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        is_int(passkey_answer(cases[i].text, strlen(cases[i].text)), cases[i].value,
               "answer in '%s'", cases[i].text);
    is_int(passkey_answer("12345", 2), 12, "nothing behind the end is read");
}

/* ---- tokens ---- */

static int64_t tokens_of(const tokenizer *tok, int64_t n)
{
    char *text = NULL;
    size_t len;
    token_list ids = {0};
    err e = {0};
    if (passkey_text(&text, &len, n, n / 2, 50000, &e) == ST_OK)
        tokenizer_encode(tok, text, len, tokenizer_adds_bos(tok) ? TOKENIZE_BOS : 0, &ids, &e);
    int64_t count = (int64_t)ids.n;
    token_list_free(&ids);
    mem_free(text);
    return count;
}

static void test_fit(const tokenizer *tok, const char *name)
{
    static const int64_t ctx[] = {700, 1001, 4096, 20000};
    for (size_t i = 0; i < sizeof ctx / sizeof *ctx; i++) {
        err e = {0};
        int64_t n = -1;
        is_ok(passkey_fit(&n, tok, ctx[i], &e), &e, "%s: %lld tokens", name, (long long)ctx[i]);
        is_int(n % 128, 0, "a multiple of 128");
        ok(tokens_of(tok, n) + 18 <= ctx[i], "%lld characters fit", (long long)n);
        ok(tokens_of(tok, n + 128) + 18 > ctx[i], "128 more do not");
    }
    err e = {0};
    int64_t n, least = tokens_of(tok, 0) + 18;
    is_ok(passkey_fit(&n, tok, least, &e), &e, "%s: the shortest context", name);
    is_int(n, 0, "it has no garbage");
    is_err(passkey_fit(&n, tok, least - 1, &e), &e, ST_USAGE, "too short",
           "one token less is refused");
}

static void test_trials(const tokenizer *tok, const char *name)
{
    err e = {0};
    passkey_trial *p = NULL;
    char *text = NULL, *got = NULL;
    size_t len = 0, got_len = 0;
    unsigned bos = tokenizer_adds_bos(tok) ? TOKENIZE_BOS : 0;
    is_ok(passkey_trials(&p, tok, 3, 999, 1024, 4, 400, &e), &e, "%s: trials", name);
    if (!p) return;
    is_int(p[2].key, passkey_key(3, 999, 2), "their keys");
    passkey_text(&text, &len, 1024, 768, p[2].key, &e);
    token_list head = {0}, tail = {0};
    tokenizer_encode(tok, text, len - 400, bos, &head, &e);
    tokenizer_encode(tok, text + len - 400, 400, 0, &tail, &e);
    ok(head.n == p[2].head.n && memcmp(head.ids, p[2].head.ids, head.n * sizeof *head.ids) == 0,
       "head");
    ok(tail.n == p[2].tail.n && memcmp(tail.ids, p[2].tail.ids, tail.n * sizeof *tail.ids) == 0,
       "the last 400 characters are tokenized by themselves");
    ok(!bos || (p[2].head.ids[0] == tokenizer_bos(tok) && p[2].tail.ids[0] != tokenizer_bos(tok)),
       "BOS in front of the head alone");
    is_ok(tokenizer_decode(tok, p[2].tail.ids, p[2].tail.n, false, &got, &got_len, &e), &e,
          "decode");
    ok(got_len >= 400 && strcmp(got + got_len - 400, text + len - 400) == 0, "the tail's text");
    mem_free(got);
    token_list_free(&head);
    token_list_free(&tail);
    passkey_trials_free(p, 4);
    p = NULL;
    is_ok(passkey_trials(&p, tok, 3, 999, 1024, 4, 0, &e), &e, "%s: protocol prefill", name);
    ok(p && p[0].tail.n == 0 && p[0].head.n > 0, "has no tail");
    if (p) passkey_trials_free(p, 4);
    p = NULL;
    is_ok(passkey_trials(&p, tok, 3, 999, 0, 1, 400, &e), &e, "%s: a prompt shorter than the tail",
          name);
    ok(p && p[0].head.n == (bos ? 1 : 0) && p[0].tail.n > 0, "has BOS at most in its head");
    if (p) passkey_trials_free(p, 1);
    mem_free(text);
}

/* ---- runs ---- */

enum { N_TRIALS = 3, MAX_RUNS = 6 };

typedef struct {
    int32_t ids[MAX_RUNS][N_TRIALS][PASSKEY_NEW];
    size_t n[MAX_RUNS][N_TRIALS];
    double last;
    bool ordered;
    int calls, stop_at; /* progress calls; the one that interrupts */
    const tokenizer *tok;
} record;

static bool on_eos(void *ctx, int32_t id)
{
    return tokenizer_is_eos(((record *)ctx)->tok, id);
}

/* Counts as right what ends in an even id, so that counts are worth comparing. */
static status on_score(void *ctx, bool *correct, size_t run, int64_t trial, const int32_t *ids,
                       size_t n, err *e)
{
    record *r = ctx;
    (void)e;
    memcpy(r->ids[run][trial], ids, n * sizeof *ids);
    r->n[run][trial] = n;
    *correct = n > 0 && ids[n - 1] % 2 == 0;
    return ST_OK;
}

static bool on_progress(void *ctx, double part)
{
    record *r = ctx;
    r->ordered &= part >= r->last - 1e-9 && part <= 1 + 1e-9;
    r->last = part;
    return ++r->calls != r->stop_at;
}

typedef struct {
    backend *be;
    model *m;
    decoder *d;
    tokenizer *tok;
    passkey_trial *trials;
} fixture;

static status fixture_open(fixture *f, size_t tail, err *e)
{
    const char *dir = tap_path("tests/data/models/llama31-f32-tied");
    backend_options o = {.device = "cpu", .n_threads = 1};
    decoder_options d = {.chunk = 64, .exact = true};
    *f = (fixture){0};
    TRY(backend_open(&f->be, &o, e));
    TRY(model_open(&f->m, dir, f->be, e));
    TRY(decoder_create(&f->d, f->m, &d, e));
    TRY(tokenizer_open(&f->tok, dir, e));
    return passkey_trials(&f->trials, f->tok, 1, 1, 256, N_TRIALS, tail, e);
}

static void fixture_close(fixture *f)
{
    passkey_trials_free(f->trials, N_TRIALS);
    tokenizer_free(f->tok);
    decoder_free(f->d);
    model_close(f->m);
    backend_close(f->be);
}

static size_t make_runs(passkey_run runs[MAX_RUNS])
{
    static const struct {
        const char *text;
        dtype kv;
    } specs[] = {{"full", DT_F32},
                 {"streaming:budget=24", DT_F32},
                 {"streaming:budget=64:prefill=banded", DT_F32},
                 {"streaming:budget=48:pos=abs", DT_F32},
                 {"full", DT_F16},
                 {"streaming:budget=24", DT_F16}};
    for (size_t i = 0; i < MAX_RUNS; i++) {
        attn_options o = {.kv = kv_exact(specs[i].kv)};
        err e = {0};
        runs[i] = (passkey_run){0};
        is_ok(attn_spec_parse(&runs[i].spec, specs[i].text, &o, &e), &e, "%s", specs[i].text);
    }
    return MAX_RUNS;
}

static passkey_job make_job(const fixture *f, record *r, bool share, size_t together)
{
    *r = (record){.ordered = true, .tok = f->tok};
    return (passkey_job){.d = f->d,
                         .trials = f->trials,
                         .n_trials = N_TRIALS,
                         .limit = passkey_limit(f->trials, N_TRIALS),
                         .max_together = together,
                         .share = share,
                         .is_eos = on_eos,
                         .score = on_score,
                         .progress = on_progress,
                         .ctx = r};
}

static bool same_answers(const record *a, const record *b)
{
    for (int i = 0; i < MAX_RUNS; i++)
        for (int t = 0; t < N_TRIALS; t++)
            if (a->n[i][t] != b->n[i][t] ||
                memcmp(a->ids[i][t], b->ids[i][t], a->n[i][t] * sizeof(int32_t)) != 0)
                return false;
    return true;
}

static bool same_counts(const passkey_run *a, const passkey_run *b)
{
    for (int i = 0; i < MAX_RUNS; i++)
        if (a[i].correct != b[i].correct || a[i].stats.steps != b[i].stats.steps ||
            a[i].held.kv != b[i].held.kv || a[i].peak.kv != b[i].peak.kv ||
            a[i].stats.attended < b[i].stats.attended || a[i].stats.attended > b[i].stats.attended)
            return false;
    return true;
}

static void test_sharing(const char *protocol, size_t tail)
{
    static record alone, apart, shared, pairs;
    passkey_run r_alone[MAX_RUNS], r_apart[MAX_RUNS], r_shared[MAX_RUNS], r_pairs[MAX_RUNS];
    fixture f;
    err e = {0};
    if (is_ok(fixture_open(&f, tail, &e), &e, "%s: opens", protocol)) {
        passkey_job job = make_job(&f, &shared, true, 64);
        size_t n = make_runs(r_shared);
        is_ok(passkey_execute(&job, r_shared, n, &e), &e, "%s: all strategies together", protocol);
        is_int(job.prefills, (int64_t)n * N_TRIALS, "prompts");
        is_int(job.prefills_done, 3 * N_TRIALS,
               "one prefill a row type, and one that is not exact");
        ok(shared.ordered && shared.last > 0.999, "progress grows to 1");
        job = make_job(&f, &apart, false, 64);
        is_ok(passkey_execute(&job, r_apart, make_runs(r_apart), &e), &e, "%s: without sharing",
              protocol);
        is_int(job.prefills_done, (int64_t)n * N_TRIALS, "no prefill is shared");
        ok(same_answers(&shared, &apart), "the same tokens");
        ok(same_counts(r_shared, r_apart), "the same counts");
        job = make_job(&f, &pairs, true, 2);
        is_ok(passkey_execute(&job, r_pairs, make_runs(r_pairs), &e), &e, "%s: two at a time",
              protocol);
        is_int(job.prefills_done, 4 * N_TRIALS, "their prefills");
        ok(same_answers(&shared, &pairs) && same_counts(r_shared, r_pairs),
           "the same tokens and counts");
        make_runs(r_alone);
        static record one;
        alone = (record){0};
        for (size_t i = 0; i < n; i++) {
            job = make_job(&f, &one, true, 1);
            is_ok(passkey_execute(&job, &r_alone[i], 1, &e), &e, "%s by itself",
                  r_alone[i].spec.text);
            memcpy(alone.ids[i], one.ids[0], sizeof one.ids[0]);
            memcpy(alone.n[i], one.n[0], sizeof one.n[0]);
        }
        ok(same_answers(&shared, &alone) && same_counts(r_shared, r_alone),
           "one by one: the same tokens and counts");
        is_int(r_shared[0].stats.steps > 0, 1, "steps are counted");
    }
    fixture_close(&f);
}

/* Ctrl-C anywhere, and no memory anywhere: an error each time, nothing lost (valgrind, ASan). */
static void test_failures(void)
{
    static record r;
    passkey_run runs[MAX_RUNS];
    fixture f;
    err e = {0};
    if (is_ok(fixture_open(&f, 400, &e), &e, "opens")) {
        passkey_job job = make_job(&f, &r, true, 64);
        make_runs(runs);
        is_ok(passkey_execute(&job, runs, 2, &e), &e, "two strategies");
        int calls = r.calls, bad = 0;
        for (int i = 1; i < calls; i += calls / 9) {
            job = make_job(&f, &r, true, 64);
            r.stop_at = i;
            e = (err){0};
            bad += passkey_execute(&job, runs, 2, &e) != ST_INTERRUPTED ||
                   strcmp(e.msg, "interrupted") != 0 || r.calls != i;
        }
        is_int(bad, 0, "an interruption ends the run");
        job = make_job(&f, &r, true, 64);
        job.n_trials = 1;
        status st = ST_NOMEM;
        long at;
        for (at = 1; at < 500 && st == ST_NOMEM; at++) {
            e = (err){0};
            mem_test_fail_at(at);
            st = passkey_execute(&job, runs, 2, &e);
        }
        mem_test_fail_at(0);
        ok(st == ST_OK && at > 5, "every failed allocation is reported (%ld of them)", at - 2);
    }
    fixture_close(&f);
}

int main(void)
{
    static const char *const models[] = {"llama31-f32-tied", "qwen3-bf16", "llama2-linear-f16"};
    test_text();
    test_schedule();
    test_answer();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[64];
        tokenizer *tok = NULL;
        err e = {0};
        snprintf(path, sizeof path, "tests/data/models/%s", models[i]);
        status st = tokenizer_open(&tok, tap_path(path), &e);
        if (st == ST_UNSUPPORTED) {
            tap_skip("%s", e.msg);
            continue;
        }
        if (!is_ok(st, &e, "%s: tokenizer", models[i])) continue;
        test_fit(tok, models[i]);
        test_trials(tok, models[i]);
        tokenizer_free(tok);
    }
    test_sharing("decode", 400);
    test_sharing("prefill", 0);
    test_failures();
    return tap_done();
}
