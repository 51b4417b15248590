/* SPDX-License-Identifier: MIT */
/* Device failures: no device, too few, no memory, a call or a kernel that fails. Each gives one line and a status. */
/* Builds: shim */
#include "config.h"

#include "attention/sequence.h"
#include "kernels/base/mem.h"
#include "kernels/ops_select.h"
#include "kernels/ops_weights.h"
#include "model/session.h"
#include "tests/cushim/shim.h"
#include "tests/tap.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static status open_device(backend **be, const char *name, err *e)
{
    backend_options o = {.device = name};
    *e = (err){0};
    return backend_open(be, &o, e);
}

static void test_devices(void)
{
    backend *be;
    err e;
    is_err(open_device(&be, "cuda:9", &e), &e, ST_USAGE, "the last GPU of this machine is cuda:1",
           "a number beyond the last");
    is_ok(open_device(&be, "cuda:1", &e), &e, "the second device");
    is_str(be->name, "cuda:1", "its name");
    backend_close(be);
    shim_devices(0);
    is_err(open_device(&be, "cuda", &e), &e, ST_DEVICE, "no CUDA-capable device is detected", "no device");
    shim_devices(-1);
    is_err(open_device(&be, "cuda:0", &e), &e, ST_DEVICE, "driver version is insufficient", "no driver");
    shim_devices(2);
    is_int((long long)shim_held(), 0, "nothing is held");
}

/* Each thread starts with device 0; a backend of another one works in any thread. */
static void *use(void *p)
{
    backend *be = p;
    float x[4] = {1, 2, 3, 4};
    buf a;
    err e = {0};
    if (be->ops->alloc(be, &a, sizeof x, "x", &e) != ST_OK) return NULL;
    be->ops->upload(be, a, x, sizeof x);
    backend_step_begin(be);
    be->ops->add(be, a, a, 4);
    backend_step_end(be);
    be->ops->download(be, x, a, sizeof x);
    be->ops->free(be, a, sizeof x);
    return x[3] == 8 ? p : NULL;
}

static void test_threads(void)
{
    backend *be;
    pthread_t other;
    err e;
    void *done = NULL;
    long elsewhere = shim_count(SHIM_ELSEWHERE);
    if (!is_ok(open_device(&be, "cuda:1", &e), &e, "the second device")) return;
    ok(use(be) != NULL, "works in the thread that opened it");
    if (pthread_create(&other, NULL, use, be) != 0 || pthread_join(other, &done) != 0) exit(1);
    ok(done != NULL, "and in another thread");
    is_ok(backend_fault(be, &e), &e, "no fault");
    is_int(shim_count(SHIM_ELSEWHERE) - elsewhere, 0, "all memory is the second device's");
    backend_close(be);
}

/* Pinned memory is released after the last copy from it. */
static void test_close(void)
{
    backend *be;
    buf a;
    err e;
    float x[4] = {1, 2, 3, 4};
    long early = shim_count(SHIM_EARLY);
    if (!is_ok(open_device(&be, "cuda", &e), &e, "a device")) return;
    shim_lazy(true);
    is_ok(be->ops->alloc(be, &a, sizeof x, "x", &e), &e, "memory");
    be->ops->upload(be, a, x, sizeof x);
    backend_close(be);
    is_int(shim_count(SHIM_EARLY) - early, 0, "closing waits for uploads");
    shim_lazy(false);
    shim_free(a.p);
}

/* The height of a grid is limited to 65,535. */
static void test_rows(void)
{
    enum { N = 65537, COLS = QBLOCK_COLS, ROWS = QBLOCK_ROWS };
    backend *be;
    buf w, x, out;
    err e;
    if (!is_ok(open_device(&be, "cuda", &e), &e, "a device")) return;
    shim_idle(true);
    if (be->ops->alloc(be, &w, weight_bytes(DT_Q8, ROWS, COLS), "w", &e) == ST_OK &&
        be->ops->alloc(be, &x, 4 * (size_t)N * COLS, "x", &e) == ST_OK &&
        be->ops->alloc(be, &out, 4 * (size_t)N * ROWS, "out", &e) == ST_OK) {
        static const dtype types[] = {DT_Q8, DT_Q4};
        for (int i = 0; i < 2; i++) {
            const linear_job j = {.out = out, .w = {w, types[i], ROWS, COLS, {NULL}}};
            be->ops->linear(be, &j, 1, x, N, true);
            be->ops->linear(be, &j, 1, x, N, false);
        }
        be->ops->free(be, w, weight_bytes(DT_Q8, ROWS, COLS));
        be->ops->free(be, x, 4 * (size_t)N * COLS);
        be->ops->free(be, out, 4 * (size_t)N * ROWS);
    }
    is_ok(backend_fault(be, &e), &e, "products of %d rows", N);
    backend_close(be);
    shim_idle(false);
}

static void test_memory(void)
{
    backend *be;
    err e;
    buf a, b;
    shim_memory(1000000);
    is_ok(open_device(&be, "cuda", &e), &e, "a small device");
    is_int((long long)be->ops->available(be), 1000000 - 1000000 / 64, "free memory, less a reserve");
    is_ok(be->ops->alloc(be, &a, 600000, "rows", &e), &e, "what fits");
    is_err(be->ops->alloc(be, &b, 600000, "more rows", &e), &e, ST_NOMEM,
           "cuda:0: out of device memory: more rows needs 0.6 MB, 0.4 of 1.0 MB are free", "what does not fit");
    is_int((long long)be->fault.code, ST_OK, "and the backend still works");
    be->ops->free(be, a, 600000);
    backend_close(be);
    shim_memory((size_t)1 << 30);
}

/* A model and a session larger than the free memory are refused before any part is allocated. */
static void test_plan(void)
{
    backend *be;
    model *m;
    decoder *dec;
    session *s;
    attn_spec spec;
    attn_options ao = {.kv = kv_plain(DT_F16)};
    decoder_options opt = {.chunk = 4};
    err e;
    if (!is_ok(open_device(&be, "cuda", &e), &e, "a device")) return;
    shim_memory(shim_held() + 100000);
    long before = shim_count(SHIM_ALLOCS);
    is_err(model_open(&m, tap_path("tests/data/models/qwen2-f16"), be, &e), &e, ST_NOMEM,
           "qwen2-f16: out of memory: weights of 0.2 MB are needed, 0.1 MB are available on cuda:0",
           "weights that do not fit");
    is_int(shim_count(SHIM_ALLOCS) - before, 0, "none of them was copied");
    shim_memory(shim_held() + 1000000);
    e = (err){0};
    is_ok(attn_spec_parse(&spec, "full", &ao, &e), &e, "full");
    is_ok(model_find(&m, tap_path("tests/data/models/qwen2-f16"), NULL, be, &e), &e, "a model without its weights");
    is_ok(session_check(m, &opt, &spec, session_of(16), &e), &e, "room for both");
    is_err(session_check(m, &opt, &spec, session_of(100000), &e), &e, ST_NOMEM, "out of memory: weights 0.2 MB, KV ",
           "KV that does not fit next to the weights");
    is_int(shim_count(SHIM_ALLOCS) - before, 0, "none of either was taken");
    model_close(m);
    shim_memory((size_t)1 << 30);
    e = (err){0};
    if (is_ok(model_open(&m, tap_path("tests/data/models/qwen2-f16"), be, &e), &e, "a model") &&
        is_ok(decoder_create(&dec, m, &opt, &e), &e, "a decoder")) {
        shim_memory(shim_held() + 1000000);
        before = shim_count(SHIM_ALLOCS);
        is_err(session_create(&s, dec, &spec, session_of(100000), &e), &e, ST_NOMEM, "1.0 MB are available",
               "KV that does not fit");
        is_int(shim_count(SHIM_ALLOCS) - before, 0, "none of it was taken");
        decoder_free(dec);
    }
    model_close(m);
    backend_close(be);
    shim_memory((size_t)1 << 30);
}

/* A session reserves the scratch of its prompts, so that memory cannot run out later. */
static void test_prompt_room(void)
{
    enum { N = 60 };
    backend *be;
    model *m;
    decoder *dec = NULL;
    session *s = NULL;
    attn_spec spec;
    attn_options ao = {.kv = kv_plain(DT_F16)};
    decoder_options opt = {.chunk = 64};
    prefill_options po = {.rows = NULL};
    int32_t ids[N];
    err e;
    for (int i = 0; i < N; i++) ids[i] = i + 1;
    if (!is_ok(open_device(&be, "cuda", &e), &e, "a device")) return;
    if (!is_ok(model_open(&m, tap_path("tests/data/models/qwen2-f16"), be, &e), &e, "a model")) return;
    if (is_ok(attn_spec_parse(&spec, "full", &ao, &e), &e, "full") &&
        is_ok(decoder_create(&dec, m, &opt, &e), &e, "a decoder") &&
        is_ok(session_create(&s, dec, &spec, session_of(N), &e), &e, "a session")) {
        long before = shim_count(SHIM_ALLOCS);
        is_ok(session_prefill(&s, 1, ids, N, &po, &e), &e, "a prompt");
        is_int(shim_count(SHIM_ALLOCS) - before, 0, "takes no memory");
    }
    session_free(s);
    decoder_free(dec);
    model_close(m);
    backend_close(be);
}

/* Each runtime call of a small run fails once: an error that names the backend, no crash, nothing leaked. */
static long last_call; /* number of the last call of the small run before memory is released */

static status small_run(err *e)
{
    backend *be;
    model *m = NULL;
    decoder *dec = NULL;
    session *s = NULL;
    attn_spec spec;
    attn_options ao = {.kv = kv_plain(DT_F16)};
    decoder_options opt = {.chunk = 4};
    int32_t ids[5] = {1, 2, 3, 4, 5};
    float *logits = NULL;
    prefill_options po = {.rows = NULL};
    status st = attn_spec_parse(&spec, "full", &ao, e);
    if (st == ST_OK) st = open_device(&be, "cuda", e);
    if (st != ST_OK) return st;
    st = model_open(&m, tap_path("tests/data/models/qwen2-f16"), be, e);
    if (st == ST_OK) st = decoder_create(&dec, m, &opt, e);
    if (st == ST_OK) st = session_create(&s, dec, &spec, session_of(16), e);
    if (st == ST_OK) st = session_prefill(&s, 1, ids, 5, &po, e);
    if (st == ST_OK) st = mem_alloc((void **)&logits, (size_t)m->config.vocab, sizeof(float), "logits", e);
    if (st == ST_OK) st = session_decode(&s, 1, ids, logits, e);
    if (st == ST_OK) st = session_queue(&s, 1, ids, NULL, e);
    if (st == ST_OK) st = session_queue(&s, 1, NULL, NULL, e);
    for (int i = 0; i < 2 && st == ST_OK; i++) st = session_take(dec, 1, ids, e);
    last_call = shim_calls();
    mem_free(logits);
    session_free(s);
    decoder_free(dec);
    model_close(m);
    backend_close(be);
    return st;
}

static void test_failing_calls(void)
{
    err e = {0};
    long before = shim_calls();
    is_ok(small_run(&e), &e, "a small run");
    long n = last_call - before;
    int silent = 0, unnamed = 0, lines = 0;
    for (long i = 1; i <= n; i += 1 + i / 40) {
        err f = {0};
        shim_fail_at(i);
        status st = small_run(&f);
        shim_fail_at(0);
        silent += st == ST_OK;
        unnamed += st != ST_OK && !strstr(f.msg, "cuda:0");
        lines += strchr(f.msg, '\n') != NULL;
        if (st != ST_OK && !strstr(f.msg, "cuda:0")) printf("# call %ld: %s\n", i, f.msg);
    }
    is_int(silent, 0, "each of %ld calls that fails is seen", n);
    is_int(unnamed, 0, "each error names the device");
    is_int(lines, 0, "each error is one line");
    is_int((long long)shim_held(), 0, "nothing is held");
}

static void test_poisoned(void)
{
    backend *be;
    err e, f = {0};
    buf a;
    float x[4] = {1, 2, 3, 4};
    is_ok(open_device(&be, "cuda", &e), &e, "a device");
    is_ok(be->ops->alloc(be, &a, sizeof x, "x", &e), &e, "memory");
    shim_fail_at(2);
    be->ops->upload(be, a, x, sizeof x);
    be->ops->add(be, a, a, 4);
    shim_fail_at(0);
    be->ops->add(be, a, a, 4);
    be->ops->download(be, x, a, sizeof x);
    ok(x[0] == 0, "nothing is computed after a fault");
    is_err(backend_fault(be, &f), &f, ST_DEVICE, "cuda:0: add [4]: unspecified launch failure",
           "the first fault, with op and shape");
    buf b;
    is_err(be->ops->alloc(be, &b, 16, "more", &e), &e, ST_DEVICE, "add [4]", "further work is refused");
    be->ops->free(be, a, sizeof x);
    backend_close(be);
}

/* Strategies that need ops the device lacks are refused when a session is made; the message names the ops. */
static void check_refused(decoder *dec, const char *name, const char *missing)
{
    attn_options ao = {.kv = kv_plain(DT_F16), .budget = 64};
    attn_spec spec;
    session *s;
    err e = {0};
    char want[100];
    snprintf(want, sizeof want, "%s: does not run on cuda:0 yet (missing operations: %s)", name, missing);
    is_ok(attn_spec_parse(&spec, name, &ao, &e), &e, "%s", name);
    status st = session_create(&s, dec, &spec, session_of(512), &e);
    is_err(st, &e, ST_UNSUPPORTED, want, "%s without %s is refused", name, missing);
}

static void test_refused(void)
{
    backend *be;
    model *m;
    decoder *dec;
    err e;
    decoder_options opt = {.chunk = 4};
    if (!is_ok(open_device(&be, "cuda", &e), &e, "a device")) return;
    if (is_ok(model_open(&m, tap_path("tests/data/models/qwen2-f16"), be, &e), &e, "a model") &&
        is_ok(decoder_create(&dec, m, &opt, &e), &e, "a decoder")) {
        const backend_ops *all = be->ops;
        backend_ops some = *all;
        some.quest = NULL, some.evict = NULL;
        be->ops = &some;
        check_refused(dec, "fier:coarse=64", "quest");
        check_refused(dec, "h2o", "evict");
        be->ops = all;
        decoder_free(dec);
    }
    model_close(m);
    backend_close(be);
}

int main(void)
{
    test_devices();
    test_threads();
    test_close();
    test_rows();
    test_memory();
    test_plan();
    test_prompt_room();
    test_poisoned();
    test_refused();
    test_failing_calls();
    return tap_done();
}
