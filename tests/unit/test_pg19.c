/* SPDX-License-Identifier: MIT */
/* Perplexity: the worked examples, transformers' values on the test checkpoints by Quest's loop and YaRN's windows
 * (scripts/fixtures/make_pg19_fixture.py), strategies side by side, failed allocations. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/perplexity.h"
#include "eval/pg19/pg19.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

static bool near(double got, double want, double relative)
{
    return fabs(got - want) <= relative * fabs(want);
}

/* ---- without a model ---- */

static void test_nll(void)
{
    /* p = e^-2, 0.5, the rest */
    double p[3] = {exp(-2), 0.5, 0.5 - exp(-2)};
    float logits[3];
    bool good = true;
    for (int shift = -80; shift <= 80; shift += 40) {
        for (int i = 0; i < 3; i++) logits[i] = (float)(log(p[i]) + shift);
        for (int i = 0; i < 3; i++) good &= near(logits_nll(logits, 3, i), -log(p[i]), 1e-5);
    }
    ok(good, "-log softmax, wherever the logits lie");
    float same[4] = {7, 7, 7, 7}, far[2] = {3e38F, -3e38F};
    ok(near(logits_nll(same, 4, 2), log(4), 1e-15), "equal logits");
    ok(logits_nll(far, 2, 0) == 0 && logits_nll(far, 2, 1) == 2 * (double)3e38F, "the ends of float32");
}

/* evals.md 5: values 2, 1, 0 and the perplexities of their beginnings. */
static void test_worked(void)
{
    static const double want[3] = {7.389056, 4.481689, 2.718282};
    double sum = 0;
    bool good = true;
    for (int i = 0; i < 3; i++) {
        double p = exp(i - 2);
        float logits[2] = {0, i == 2 ? -1000 : (float)log((1 - p) / p)};
        sum += logits_nll(logits, 2, 0);
        good &= near(exp(sum / (i + 1)), want[i], 1e-6);
    }
    ok(good, "the worked example");
}

static void test_lengths(void)
{
    static const size_t n[] = {1, 127, 128, 129, 256, 300, 4096, 32768, 32769, 100000, 1 << 20};
    for (size_t k = 0; k < sizeof n / sizeof *n; k++) {
        int64_t at[400];
        size_t count = perplexity_lengths(n[k], at);
        bool good = count == perplexity_lengths(n[k], NULL) && count < 270 && at[count - 1] == (int64_t)n[k];
        for (size_t i = 1; i < count; i++) good &= at[i] > at[i - 1];
        for (size_t p = 128; p <= n[k]; p *= 2) {
            bool there = false;
            for (size_t i = 0; i < count; i++) there |= at[i] == (int64_t)p;
            good &= there;
        }
        ok(good, "points of a curve over %zu tokens: ascending, all powers of two, the end", n[k]);
    }
}

/* YaRN's loop, as it is written there. */
static void test_windows(void)
{
    int bad = 0, n_cases = 0;
    for (long n = 1; n < 60; n++)
        for (long room = 1; room < 25; room++)
            for (long stride = 1; stride <= room; stride++, n_cases++) {
                perplexity_window w = {0};
                long prev_end = 0;
                bool ended = false;
                for (long begin = 0; begin < n && !ended; begin += stride) {
                    long end = begin + room < n ? begin + room : n;
                    bad += !perplexity_next(&w, (size_t)n, (size_t)room, (size_t)stride) || (long)w.begin != begin ||
                           (long)w.end != end || (long)(w.end - w.from) != end - prev_end;
                    prev_end = end;
                    ended = end == n;
                }
                bad += perplexity_next(&w, (size_t)n, (size_t)room, (size_t)stride);
            }
    is_int(bad, 0, "windows of %d texts and strides", n_cases);
}

/* ---- with a model ---- */

static const char *const identity[] = {"book", "attn", "budget", "length", NULL};

/* A run as the command makes it, but with the tokens given. */
static status open_run(pg19_run *r, pg19_options *o, const char *dir, pg19_protocol protocol, int64_t length, err *e)
{
    static const json_t *none;
    int64_t budget = 0;
    *r = (pg19_run){.m.o = &o->run, .o = o, .protocol = protocol, .n_lengths = 1};
    out_hush();
    o->run.engine.model.dir = dir;
    o->run.engine.device.gemm = "builtin";
    o->run.engine.device.threads = 1;
    results_options file = {.command = "eval pg19", .config = none, .identity = identity};
    TRY(MEM_NEW(&r->length, 1, e));
    r->length[0] = length;
    TRY(lineup_read(&r->m.rows, &o->run.attn, "full", &budget, 1, e));
    TRY(engine_open(&r->m.g, &o->run.engine, r->m.rows.n, true, e));
    TRY(lineup_check(&r->m.rows, &r->m.g, length, e));
    return results_open(&r->m.out, &file, e);
}

static void close_run(pg19_run *r)
{
    pg19_books_free(&r->books);
    mem_free(r->length);
    measure_close(&r->m);
}

/* A book of the ids of a JSON list, with `first` in front where it is not -1; of at most `most` of them. */
static status add_book(pg19_run *r, int32_t first, const json_t *ids, size_t most, err *e)
{
    pg19_books *b = &r->books;
    TRY(MEM_GROW(&b->book, b->n + 1, e));
    pg19_book *k = &b->book[b->n++];
    *k = (pg19_book){.name = mem_strdup("book"), .title = mem_strdup("Book")};
    if (first >= 0) TRY(token_list_push(&k->ids, first, e));
    for (size_t i = 0; i < json_array_size(ids) && i < most; i++)
        TRY(token_list_push(&k->ids, (int32_t)json_integer_value(json_array_get(ids, i)), e));
    return ST_OK;
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static int32_t bos_of(const json_t *m)
{
    const json_t *bos = json_object_get(m, "bos");
    return json_is_integer(bos) ? (int32_t)json_integer_value(bos) : -1;
}

/* True if each point of the curve is exp of the mean of the first values. */
static bool same_curve(const json_t *line, const json_t *nll, double relative)
{
    const json_t *curve = json_object_get(line, "curve"), *length = json_object_get(curve, "length");
    size_t n = json_array_size(length);
    bool good = n > 1;
    for (size_t i = 0; i < n; i++) {
        size_t most = (size_t)json_integer_value(json_array_get(length, i));
        double sum = 0;
        for (size_t k = 0; k < most; k++) sum += json_number_value(json_array_get(nll, k));
        good &= near(json_number_value(json_array_get(json_object_get(curve, "ppl"), i)), exp(sum / (double)most),
                     relative);
    }
    return good;
}

static void check_decode(const char *name, const char *dir, const json_t *m)
{
    static const int chunks[] = {512, 7};
    const json_t *nll = json_object_get(m, "nll");
    int64_t n = (int64_t)json_array_size(nll);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += json_number_value(json_array_get(nll, (size_t)i));
    for (size_t k = 0; k < 2 && n > 0; k++) {
        pg19_options c = {.run.attn.kv = "f32", .run.engine.device.chunk = chunks[k]};
        pg19_run r;
        err e = {0};
        status st = open_run(&r, &c, dir, PG19_DECODE, n, &e);
        if (st == ST_OK) st = add_book(&r, bos_of(m), json_object_get(m, "plain"), SIZE_MAX, &e);
        if (st == ST_OK) st = pg19_run_book(&r, 0, &e);
        if (is_ok(st, &e, "%s: token by token", name)) {
            const json_t *line = pg19_result(&r, 0, 0, n);
            double want = exp(sum / (double)n), ppl = number(line, "ppl"), pass = number(line, "chunked_ppl");
            ok(near(ppl, want, 3e-6), "%s: transformers' perplexity (%.10g, %.10g)", name, ppl, want);
            ok(near(pass, want, 3e-6), "%s: in chunks of %d (%.10g)", name, chunks[k], pass);
            ok(same_curve(line, nll, 5e-6), "%s: its curve", name);
            is_int((long long)number(line, "tokens"), n, "%s: tokens", name);
            is_int((long long)number(line, "attended"), (long long)number(line, "visible"),
                   "%s: everything is attended", name);
        }
        close_run(&r);
    }
}

/* One setting of a windowed protocol over one or two texts. */
static void check_window(const char *name, const char *dir, const json_t *m, const json_t *want, size_t second)
{
    pg19_options c = {.run.attn.kv = "f32", .run.engine.device.chunk = 50};
    pg19_run r;
    err e = {0};
    const json_t *stride = json_object_get(want, "stride"), *plain = json_object_get(m, "plain");
    pg19_protocol protocol = stride ? PG19_WINDOW : PG19_TRUNCATE;
    int64_t length = (int64_t)number(want, "max_length");
    double loss = 0, windows = 0, tokens = 0;
    status st = open_run(&r, &c, dir, protocol, length, &e);
    r.stride = stride ? json_integer_value(stride) : 0;
    if (st == ST_OK) st = add_book(&r, -1, plain, SIZE_MAX, &e);
    if (st == ST_OK && second) st = add_book(&r, -1, plain, second, &e);
    for (size_t i = 0; i < r.books.n && st == ST_OK; i++) {
        st = pg19_run_book(&r, i, &e);
        const json_t *line = pg19_result(&r, 0, i, length);
        loss += number(line, "loss");
        windows += number(line, "windows");
        tokens += number(line, "tokens");
    }
    if (is_ok(st, &e, "%s: windows of %lld", name, (long long)length)) {
        double ppl = exp(loss / windows);
        ok(near(ppl, number(want, "ppl"), 3e-6), "%s: YaRN's perplexity (%.10g, %.10g)", name, ppl,
           number(want, "ppl"));
        is_int((long long)windows, (long long)number(want, "windows"), "%s: windows", name);
        is_int((long long)tokens, (long long)number(want, "tokens"), "%s: tokens", name);
    }
    close_run(&r);
}

/* The reference's ids of the beginning of the sample book. */
static void check_ids(const char *name, const char *dir, const json_t *m, size_t bytes)
{
    pg19_books books;
    tokenizer *tok = NULL;
    token_list plain = {0}, whole = {0};
    err e = {0};
    status st = pg19_read(&books, tap_path("eval/pg19"), 1, &e);
    if (st == ST_OK) st = tokenizer_open(&tok, dir, &e);
    if (st == ST_OK) st = tokenizer_encode(tok, books.book[0].text, bytes, TOKENIZE_SPECIAL, &plain, &e);
    if (st == ST_OK)
        st = tokenizer_encode(tok, books.book[0].text, bytes,
                              TOKENIZE_SPECIAL | (tokenizer_adds_bos(tok) ? TOKENIZE_BOS : 0), &whole, &e);
    if (is_ok(st, &e, "%s: tokenizes", name)) {
        const json_t *want = json_object_get(m, "plain");
        bool same = plain.n == json_array_size(want);
        for (size_t i = 0; i < plain.n && same; i++) same = plain.ids[i] == json_integer_value(json_array_get(want, i));
        ok(same, "%s: transformers' ids", name);
        is_int((long long)whole.n, (long long)(plain.n + (bos_of(m) >= 0)), "%s: BOS or none", name);
        is_int(whole.n && bos_of(m) >= 0 ? whole.ids[0] : -1, bos_of(m), "%s: which", name);
    }
    token_list_free(&plain);
    token_list_free(&whole);
    tokenizer_free(tok);
    pg19_books_free(&books);
}

static void check_model(const char *name, const json_t *m, size_t bytes)
{
    char rel[160], dir[4096];
    tokenizer *tok = NULL;
    snprintf(rel, sizeof rel, "tests/data/models/%s", name);
    snprintf(dir, sizeof dir, "%s", tap_path(rel));
    err why = {0};
    status st = tokenizer_open(&tok, dir, &why);
    tokenizer_free(tok);
    if (st == ST_UNSUPPORTED) {
        tap_skip("%s: %s", name, why.msg);
        return;
    }
    check_ids(name, dir, m, bytes);
    check_decode(name, dir, m);
    size_t i;
    json_t *want;
    json_array_foreach(json_object_get(m, "window"), i, want) check_window(name, dir, m, want, 0);
    json_array_foreach(json_object_get(m, "truncate"), i, want) check_window(name, dir, m, want, 0);
    check_window(name, dir, m, json_object_get(m, "two_texts"), 70);
}

static void check_stories(void)
{
    const char *expected = tap_data("models/stories260K/expected.json"), *dir = tap_data("models/stories260K/hf");
    pg19_options c = {.run.attn.kv = "f32"};
    pg19_run r = {0};
    json_t *j = NULL;
    err e = {0};
    if (!dir || !expected) {
        tap_skip("stories260K is not there");
        return;
    }
    if (!is_ok(json_read_object(&j, expected, 1 << 20, 8, &e), &e, "stories260K: expected values")) return;
    const json_t *ids = json_object_get(j, "greedy_from_bos_ids");
    int64_t n = (int64_t)json_array_size(ids) - 1;
    status st = open_run(&r, &c, dir, PG19_DECODE, n, &e);
    if (st == ST_UNSUPPORTED) tap_skip("stories260K: %s", e.msg);
    else {
        if (st == ST_OK) st = add_book(&r, -1, ids, SIZE_MAX, &e);
        if (st == ST_OK) st = pg19_run_book(&r, 0, &e);
        if (is_ok(st, &e, "stories260K: token by token")) {
            const json_t *line = pg19_result(&r, 0, 0, n);
            double want = number(j, "ppl_of_greedy_ids");
            ok(near(number(line, "ppl"), want, 3e-6), "stories260K: the reference's perplexity (%.10g, %.10g)",
               number(line, "ppl"), want);
            ok(near(number(line, "chunked_ppl"), want, 3e-6), "stories260K: in one chunked pass");
        }
    }
    close_run(&r);
    json_decref(j);
}

/* ---- strategies side by side ---- */

static const char *const lineup_all = "full,streaming:budget=32,quest:budget=48:skip=0,h2o:budget=24,"
                                      "fier:budget=16:skip=1,full:kv=kivi2/r=32/g=16,tova:budget=20";

/* Returns a copy of a line without its times. */
static json_t *timeless(const json_t *line)
{
    json_t *o = json_copy((json_t *)(uintptr_t)line);
    json_object_del(o, "seconds");
    json_object_del(o, "together");
    return o;
}

static void check_together(pg19_protocol protocol, int64_t length, const char *dir, const json_t *ids)
{
    pg19_options c = {.run.attn.kv = "f32", .run.attn.names = lineup_all};
    pg19_run all, one;
    err e = {0};
    status st = open_run(&all, &c, dir, protocol, length, &e);
    all.stride = 32;
    if (st == ST_OK) st = add_book(&all, -1, ids, 200, &e);
    if (st == ST_OK) st = pg19_run_book(&all, 0, &e);
    is_ok(st, &e, "strategies side by side");
    is_int((long long)results_count(all.m.out), (long long)all.m.rows.n, "a result for each");
    for (size_t i = 0; i < all.m.rows.n && st == ST_OK; i++) {
        pg19_options k = {.run.attn.kv = "f32", .run.attn.names = all.m.rows.run[i].spec.text};
        st = open_run(&one, &k, dir, protocol, length, &e);
        one.stride = 32;
        if (st == ST_OK) st = add_book(&one, -1, ids, 200, &e);
        if (st == ST_OK) st = pg19_run_book(&one, 0, &e);
        if (is_ok(st, &e, "%s by itself", k.run.attn.names)) {
            json_t *a = timeless(pg19_result(&all, i, 0, length)), *b = timeless(pg19_result(&one, 0, 0, length));
            ok(json_equal(a, b), "%s: the same bits", k.run.attn.names);
            json_decref(a);
            json_decref(b);
        }
        close_run(&one);
    }
    if (st == ST_OK && protocol == PG19_DECODE) {
        const json_t *full = pg19_result(&all, 0, 0, length), *quest = pg19_result(&all, 2, 0, length);
        ok(number(quest, "attended") < number(full, "attended") && number(quest, "ppl") != number(full, "ppl"),
           "a budget acts through the decode path");
        ok(json_is_null(json_object_get(quest, "chunked_ppl")), "what leaves tokens out has no chunked pass");
        ok(json_is_null(json_object_get(pg19_result(&all, 5, 0, length), "chunked_ppl")), "nor what is held in codes");
    }
    close_run(&all);
}

/* Fails the allocations of a book's run one at a time until the run succeeds; returns their number, or -1 if it never
 * succeeds. The first book runs without a failure, which allocates the backend's own scratch. */
static long fail_all(pg19_run *r)
{
    err e = {0};
    status st = pg19_run_book(r, 0, &e);
    if (st != ST_OK) return -1;
    long at = 1;
    for (st = ST_NOMEM; at < 1000 && st == ST_NOMEM; at++) {
        e = (err){0};
        mem_test_fail_at(at);
        st = pg19_run_book(r, 1, &e);
    }
    mem_test_fail_at(0);
    return st == ST_OK ? at - 2 : -1;
}

static void check_failures(const char *dir, const json_t *ids)
{
    pg19_options c = {.run.attn.kv = "f32", .run.attn.names = "full,streaming:budget=8"};
    pg19_run r;
    err e = {0};
    status st = open_run(&r, &c, dir, PG19_DECODE, 12, &e);
    for (int i = 0; i < 2 && st == ST_OK; i++) st = add_book(&r, -1, ids, 20, &e);
    if (is_ok(st, &e, "opens")) {
        long n = fail_all(&r);
        ok(n > 10, "token by token: every failed allocation is reported (%ld)", n);
        r.protocol = PG19_WINDOW;
        r.length[0] = 9;
        r.stride = 4;
        n = fail_all(&r);
        ok(n > 10, "in windows: every failed allocation is reported (%ld)", n);
    }
    close_run(&r);
}

int main(void)
{
    json_t *j = NULL, *m;
    const char *name;
    char dir[4096];
    err e = {0};
    test_nll();
    test_worked();
    test_lengths();
    test_windows();
    if (is_ok(json_read_object(&j, tap_path("tests/data/pg19/expected.json"), 1 << 22, 8, &e), &e, "expected values")) {
        size_t bytes = (size_t)json_integer_value(json_object_get(j, "text_bytes"));
        json_object_foreach(json_object_get(j, "models"), name, m) check_model(name, m, bytes);
        snprintf(dir, sizeof dir, "%s", tap_path("tests/data/models/llama31-f32-tied"));
        const json_t *ids = json_object_get(json_object_get(json_object_get(j, "models"), "llama31-f32-tied"), "plain");
        check_together(PG19_DECODE, 150, dir, ids);
        check_together(PG19_WINDOW, 100, dir, ids);
        check_failures(dir, ids);
    }
    json_decref(j);
    check_stories();
    return tap_done();
}
