/* SPDX-License-Identifier: MIT */
/* Steps of one sequence in one forward: the bits of steps one by one, whatever their number, rows, store and model. */
/* Builds: shim race */
#include "config.h"

#include <stdlib.h>

#include "kernels/base/rng.h"
#include "model/sampler.h"
#include "tests/unit/devices.h"
#include "tests/unit/model_names.h"
#include "tests/unit/session_util.h"

enum { STEPS = 12, LIMIT = 128 };
#ifdef ON_CUDA
enum { PIECES = 4096, MODELS_APART = 3 }; /* the shim's time */
#else
enum { PIECES = 2048, MODELS_APART = 1 };
#endif

static float single[STEPS][U_VOCAB], row[U_VOCAB];

/* Decodes STEPS tokens after a prompt, one by one. */
static status one_by_one(session *s, err *e)
{
    for (int i = 0; i < STEPS; i++) {
        int32_t id = some_id(session_length(s));
        TRY(session_decode(&s, 1, &id, single[i], e));
    }
    return ST_OK;
}

/* Decodes the same tokens, `rows` at a time; *wrong: number of rows with other bits. After the first two rows of each
 * forward pass, wrong tokens are fed first, and the right ones after a rewind, as with drafts. */
static status together(session *s, size_t rows, int *wrong, err *e)
{
    for (int64_t from = session_length(s), done = 0; done < STEPS;) {
        int32_t ids[SESSION_VERIFY_ROWS];
        size_t n = STEPS - done < (int64_t)rows ? (size_t)(STEPS - done) : rows, good = n < 3 ? n : 2;
        for (size_t i = 0; i < n; i++) ids[i] = (some_id(from + done + (int64_t)i) + (i >= good)) % 300;
        TRY(session_verify(s, ids, n, e));
        for (size_t i = 0; i < good; i++) {
            TRY(session_verified_logits(s, i, row, e));
            *wrong += memcmp(row, single[done + (int64_t)i], sizeof row) != 0;
        }
        done += (int64_t)good;
        TRY(session_rewind(s, from + done, e));
    }
    return ST_OK;
}

static void some_rows(void *source, int layer, int64_t first, size_t n, buf k, buf v)
{
    const engine_parts *p = source;
    const attn_shape *sh = decoder_attn_shape(p->dec);
    rng r = {(uint64_t)(first * 64 + layer)};
    size_t half = n * (size_t)(sh->n_kv_heads * sh->head_dim);
    float *kv = malloc(2 * half * sizeof *kv);
    if (!kv) abort();
    for (size_t i = 0; i < 2 * half; i++) kv[i] = 4 * rng_float(&r) - 2;
    p->be->ops->upload(p->be, k, kv, half * sizeof *kv);
    p->be->ops->upload(p->be, v, kv + half, half * sizeof *kv);
    free(kv);
}

/* A prompt of n tokens; many of them are rows that nobody computed. */
static status begin(const engine_parts *p, session *s, size_t n, err *e)
{
    const store_options o = {.n_tokens = (int64_t)n, .rows = some_rows, .source = (void *)(uintptr_t)p};
    return n <= 64 ? live(s, n, 0, row, e) : session_store(&s, 1, &o, e);
}

/* A prompt, and what follows it, in two sessions. */
static void check_rows(const engine_parts *p, const char *store, size_t n_prompt, size_t rows, const char *what)
{
    session *a = NULL, *b = NULL;
    float last[2][U_VOCAB];
    int wrong = 0;
    int64_t limit = (int64_t)n_prompt + LIMIT;
    err e = {0};
    status st = session_new(&a, p, "full", store, limit, &e);
    if (st == ST_OK) st = session_new(&b, p, "full", store, limit, &e);
    if (st == ST_OK) st = begin(p, a, n_prompt, &e);
    if (st == ST_OK) st = begin(p, b, n_prompt, &e);
    if (st == ST_OK) st = one_by_one(a, &e);
    if (st == ST_OK) st = together(b, rows, &wrong, &e);
    int32_t id = st == ST_OK ? some_id(session_length(a)) : 0;
    if (st == ST_OK) st = session_decode(&a, 1, &id, last[0], &e);
    if (st == ST_OK) st = session_decode(&b, 1, &id, last[1], &e);
    if (is_ok(st, &e, "%s, %s, %zu rows after %zu tokens", what, store, rows, n_prompt)) {
        is_int(wrong, 0, "%s, %s, %zu rows after %zu tokens: the logits of single steps", what, store, rows, n_prompt);
        ok(memcmp(last[0], last[1], sizeof *last) == 0, "and the step after them");
    }
    session_free(a);
    session_free(b);
}

/* The choice from a row is that of the sampler, with and without a penalty, by either rule. */
static void check_choice(const engine_parts *p, const char *what)
{
    static const sampler_options options[] = {
        {.temp = 0, .top_p = 1, .repeat_penalty = 1},
        {.temp = 0.9, .top_p = 0.95, .repeat_penalty = 1, .seed = 3},
        {.temp = 0.9, .top_p = 1, .repeat_penalty = 1.3, .seed = 3},
        {.temp = 0.9, .top_p = 0.95, .repeat_penalty = 1, .seed = 3, .draw = DRAW_RANK},
    };
    for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
        int32_t ids[SESSION_VERIFY_ROWS], id;
        session *s;
        sampler *by[2];
        int wrong = 0;
        err e = {0};
        if (!is_ok(session_new(&s, p, "full", "f16", LIMIT, &e), &e, "a session")) return;
        for (int i = 0; i < 2; i++) is_ok(sampler_create(&by[i], &options[k], U_VOCAB, &e), &e, "a sampler");
        is_ok(live(s, 9, 0, row, &e), &e, "a prompt");
        for (int i = 0; i < SESSION_VERIFY_ROWS; i++) ids[i] = some_id(i);
        is_ok(session_verify(s, ids, SESSION_VERIFY_ROWS, &e), &e, "rows");
        for (int i = 0; i < SESSION_VERIFY_ROWS; i++) {
            for (int j = 0; j < 2; j++) sampler_accept_new(by[j], ids[i]);
            status st = session_verified_logits(s, (size_t)i, row, &e);
            int32_t want = sampler_next(by[0], row, 9 + i + 1);
            if (st == ST_OK) st = session_verified(s, (size_t)i, by[1], &id, &e);
            wrong += st != ST_OK || id != want;
        }
        is_int(wrong, 0, "%s, options %zu: the sampler's tokens", what, k);
        for (int i = 0; i < 2; i++) sampler_free(by[i]);
        session_free(s);
    }
}

static void check_device(const char *name, const char *device, int threads)
{
    static const char *const stores[] = {"f32", "f16", "bf16"};
    static const size_t rows[] = {1, 2, 5, SESSION_VERIFY_ROWS};
    engine_parts p;
    char what[128];
    err e = {0};
    const backend_options bo = {.device = device, .n_threads = threads};
    const decoder_options opt = {.chunk = U_CHUNK, .max_batch = 1, .verify = SESSION_VERIFY_ROWS};
    snprintf(what, sizeof what, "%s, %d threads, %s", device, threads, name);
    if (!is_ok(parts_open_with(&p, name, bo, opt, &e), &e, "%s", what)) return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_rows(&p, stores[i % 3], 58, rows[i], what);
    check_rows(&p, "f16", 1, 3, what);
    check_choice(&p, what);
    parts_close(&p);
}

/* Weights in blocks, whose products round activations, and rows of bf16; contexts at whose end attention is cut into
 * pieces in another way. */
static void check_products(const char *device)
{
    static const dtype types[] = {DT_BF16, DT_Q8, DT_Q4};
    static const decoder_options opt = {.chunk = U_CHUNK, .max_batch = 1, .verify = SESSION_VERIFY_ROWS};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        engine_parts p = {0};
        char what[64];
        err e = {0};
        const weights_options w = {.type = types[i]};
        snprintf(what, sizeof what, "%s, %s weights", device, dtype_name(types[i]));
        status st = backend_open(&p.be, &(backend_options){.device = device, .n_threads = 2}, &e);
        if (st == ST_OK) st = model_open(&p.m, tap_path("tests/data/models/qwen3-bf16"), p.be, &e);
        if (st == ST_OK && types[i] != DT_BF16) st = model_convert(p.m, &w, &e);
        if (st == ST_OK) st = decoder_create(&p.dec, p.m, &opt, &e);
        if (!is_ok(st, &e, "%s", what)) continue;
        check_rows(&p, "f16", 30, SESSION_VERIFY_ROWS, what);
        check_rows(&p, types[i] == DT_Q4 ? "q4" : "q8:rot=k", 30, SESSION_VERIFY_ROWS, what);
        if (types[i] == DT_BF16) check_rows(&p, "f16", PIECES - 6, 5, what);
        parts_close(&p);
    }
}

/* Strategies that cannot verify drafts report why. */
static void check_refusals(const char *device)
{
    static const char *const cases[][3] = {{"full", "kivi4", "is quantized as tokens arrive"},
                                           {"kivi", "f16", "is quantized as tokens arrive"},
                                           {"quest:budget=32", "f16", "selects tokens in each step"},
                                           {"streaming:budget=32", "f16", "selects tokens in each step"},
                                           {"pariskv:budget=512", "f16", "selects tokens in each step"}};
    engine_parts p;
    session *s;
    err e = {0};
    int32_t ids[SESSION_VERIFY_ROWS] = {0};
    const decoder_options opt = {.chunk = U_CHUNK, .max_batch = 1, .verify = 4};
    if (!is_ok(parts_open_with(&p, "qwen2-f16", (backend_options){.device = device}, opt, &e), &e, "%s", device))
        return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!is_ok(session_new(&s, &p, cases[i][0], cases[i][1], LIMIT, &e), &e, "%s", cases[i][0])) continue;
        is_err(session_verify(s, ids, 2, &e), &e, ST_UNSUPPORTED, cases[i][2], "%s over %s", cases[i][0], cases[i][1]);
        session_free(s);
        e = (err){0};
    }
    if (is_ok(session_new(&s, &p, "full", "f16", 6, &e), &e, "a short session")) {
        is_err(session_verify(s, ids, 5, &e), &e, ST_USAGE, "at most 4", "more rows than there is room for");
        e = (err){0};
        is_ok(session_verify(s, ids, 4, &e), &e, "rows at the start");
        is_err(session_verify(s, ids, 3, &e), &e, ST_UNSUPPORTED, "3 rows after 4 tokens do not fit the context of 6",
               "beyond the context");
        session_free(s);
    }
    parts_close(&p);
}

int main(void)
{
    for (size_t d = 0; d < N_METHOD_DEVICES; d++) {
        for (size_t i = 0; i < sizeof MODEL_NAMES / sizeof *MODEL_NAMES; i += MODELS_APART)
            if (!tap_leaves_out(MODELS_APART > 1 && i > 0))
                check_device(MODEL_NAMES[i], METHOD_DEVICES[d], 1 + (int)(i % 2));
        check_products(METHOD_DEVICES[d]);
        check_refusals(METHOD_DEVICES[d]);
    }
    return tap_done();
}
