/* SPDX-License-Identifier: MIT */
/* Sessions: bits that must not depend on chunks and threads; memory; limits. Batches: test_batch; shared prompts:
 * test_batch_replies. */
#include "config.h"

#include <stdio.h>

#include "kernels/base/mem.h"
#include "model/session_file.h"
#include "tests/unit/oom.h"
#include "tests/unit/session_util.h"

enum { N = 50, STEPS = 6 };

static int32_t prompt[N];

static status open_parts(engine_parts *p, const char *name, int threads, size_t chunk, size_t batch, err *e)
{
    return parts_open_with(p, name, (backend_options){.device = "cpu", .n_threads = threads},
                           (decoder_options){.chunk = chunk, .max_batch = batch}, e);
}

static status new_session(session **s, engine_parts *p, const char *text, int64_t n, err *e)
{
    return session_new(s, p, text, "f16", n, e);
}

static status feed(session **s, size_t n_sessions, float *logits, err *e)
{
    prefill_options o = {.which = LOGITS_LAST, .rows = keep_last_row, .ctx = logits};
    return session_prefill(s, n_sessions, prompt, N, &o, e);
}

/* Prompt logits and those of STEPS decode steps with fixed ids. */
static void trace(session *s, float out[STEPS + 1][U_VOCAB], err *e)
{
    is_ok(feed(&s, 1, out[0], e), e, "prompt");
    for (int i = 0; i < STEPS; i++) is_ok(session_decode(&s, 1, &prompt[i], out[i + 1], e), e, "decode");
}

static void check_bits(const char *name, const char *attn)
{
    static const struct {
        int threads;
        size_t chunk;
    } set[] = {{2, 64}, {1, 64}, {2, 7}, {2, 1}, {1, 16}};
    static float want[STEPS + 1][U_VOCAB], got[STEPS + 1][U_VOCAB];
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
        engine_parts p;
        session *s = NULL;
        err e = {0};
        if (is_ok(open_parts(&p, name, set[i].threads, set[i].chunk, 1, &e), &e, "%s opens", name) &&
            is_ok(new_session(&s, &p, attn, N + STEPS, &e), &e, "session")) {
            trace(s, i ? got : want, &e);
            if (i)
                ok(memcmp(want, got, sizeof want) == 0, "%s, %s: %d threads and chunks of %zu give the same bits", name,
                   attn, set[i].threads, set[i].chunk);
        }
        session_free(s);
        parts_close(&p);
    }
}

static void check_memory(void)
{
    engine_parts p;
    err e = {0};
    session *s;
    static float logits[U_VOCAB];
    memory_plan plan;
    attn_spec spec;
    attn_options o = {.kv = kv_plain(DT_F16)};
    decoder_options opt = {.chunk = 16, .exact = true};
    if (!is_ok(open_parts(&p, "qwen3-bf16", 2, 16, 1, &e), &e, "model")) return;
    is_ok(new_session(&s, &p, "streaming:budget=20", N + 20, &e), &e, "session");
    feed(&s, 1, logits, &e);
    session_decode(&s, 1, prompt, logits, &e);
    long before = mem_test_count();
    for (int i = 0; i < 10; i++) session_decode(&s, 1, prompt, logits, &e);
    is_int(mem_test_count() - before, 0, "decode steps allocate nothing");
    is_int(session_length(s), N + 11, "length");
    session_free(s);
    attn_spec_parse(&spec, "full", &o, &e);
    is_ok(session_plan(&plan, p.m, &opt, &spec, session_of(1000), &e), &e, "plan");
    const model_config *c = &p.m->config;
    is_int((long long)plan.kv, 1000LL * c->n_layers * c->n_kv_heads * c->head_dim * 4, "planned KV bytes in f16");
    err big = {0};
    is_err(new_session(&s, &p, "full", (int64_t)1 << 45, &big), &big, ST_NOMEM, "are needed",
           "a session that cannot fit is refused");
    parts_close(&p);
}

/* The longest session needs at most the room, and one token more would not. */
static void check_longest(void)
{
    static const char *const specs[] = {"full", "fier:budget=64", "streaming:budget=100"};
    engine_parts p;
    err e = {0};
    int64_t n;
    const decoder_options opt = {.chunk = 16, .exact = true};
    if (!is_ok(open_parts(&p, "qwen3-bf16", 2, 16, 1, &e), &e, "model")) return;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        attn_spec spec;
        memory_plan plan;
        const attn_options o = {.kv = kv_plain(DT_F16)};
        attn_spec_parse(&spec, specs[i], &o, &e);
        session_plan(&plan, p.m, &opt, &spec, session_of(5000), &e);
        size_t room = plan.to_load + plan.kv + plan.index + plan.scratch;
        is_ok(session_longest(&n, p.m, &opt, &spec, session_of(1 << 20), room, &e), &e, "%s fits", specs[i]);
        is_int(n, 5000, "%s: as many tokens as were planned", specs[i]);
        is_ok(session_longest(&n, p.m, &opt, &spec, session_of(300), room, &e), &e, "%s, bounded", specs[i]);
        is_int(n, 300, "no more than asked for");
    }
    parts_close(&p);
}

static void check_oom(void)
{
    engine_parts p;
    err e = {0};
    oom_run o = {0};
    if (!is_ok(open_parts(&p, "qwen2-f16", 1, 16, 1, &e), &e, "model")) return;
    decoder_options opt = {.chunk = 16};
    while (oom_next(&o)) {
        session *s = NULL;
        engine_parts q = p;
        q.dec = NULL;
        status st = decoder_create(&q.dec, p.m, &opt, &o.e);
        if (st == ST_OK) st = new_session(&s, &q, "streaming:budget=20:skip=1", 60, &o.e);
        oom_saw(&o, st, NULL);
        session_free(s);
        decoder_free(q.dec);
    }
    oom_ok(&o, 19, "a session");
    parts_close(&p);
}

static void check_limits(void)
{
    engine_parts p;
    err e = {0}, bad = {0};
    session *s;
    static float logits[U_VOCAB];
    if (!is_ok(open_parts(&p, "mistral-swa-bf16", 2, 16, 1, &e), &e, "model")) return;
    is_ok(new_session(&s, &p, "full", N + 1, &e), &e, "session");
    int32_t wrong = U_VOCAB;
    is_err(session_decode(&s, 1, &wrong, logits, &bad), &bad, ST_USAGE, "outside the model's vocabulary",
           "an id outside the vocabulary");
    feed(&s, 1, logits, &e);
    bad = (err){0};
    is_err(feed(&s, 1, logits, &bad), &bad, ST_UNSUPPORTED, "does not fit the context of 51",
           "a second prompt that does not fit");
    is_ok(session_decode(&s, 1, prompt, logits, &e), &e, "the last free place");
    bad = (err){0};
    is_err(session_decode(&s, 1, prompt, logits, &bad), &bad, ST_UNSUPPORTED, "is full", "a full context");
    is_ok(session_rewind(s, N, &e), &e, "rewind");
    is_ok(session_decode(&s, 1, prompt, logits, &e), &e, "makes room");
    session_free(s);
    attn_spec spec;
    attn_options o = {0};
    const session_size size = {.n_tokens = N + 1, .longest_prompt = N - 1};
    bad = (err){0};
    is_ok(kv_format_parse(&o.kv, "kivi4:g=8:r=8", "--kv", &e), &e, "a store with codes");
    is_ok(attn_spec_parse(&spec, "full", &o, &e), &e, "full over it");
    is_ok(session_create(&s, p.dec, &spec, size, &e), &e, "a session for prompts of 49 tokens");
    is_err(feed(&s, 1, logits, &bad), &bad, ST_UNSUPPORTED, "the store has room for 49", "one of 50");
    session_free(s);
    parts_close(&p);
}

/* ---- dynamic RoPE: frequencies follow each sequence's length ---- */

static const char *const rotating[] = {
    "full",
    "streaming:budget=16",
    "streaming:budget=16:pos=abs",
    "infllm:budget=40:window=16:block=4:local=16:sink=4:reps=2",
    "actqkv:budget=40:window=16:block=4:local=16:sink=4:reps=2",
    "tokenselect:budget=8:window=16:local=16:sink=4",
    "tokenselect:budget=8:window=16:local=16:sink=4:reuse=50",
};
enum { N_ROTATING = sizeof rotating / sizeof *rotating, SEQS = 2 * N_ROTATING, LONGEST = 80 };

/* Returns the length of prompt i: 20 to 79 tokens. The model was trained for 48. */
static size_t length_of(size_t i)
{
    return 20 + i * 13 % 60;
}

static status feed_some(session *s, size_t n, err *e)
{
    int32_t ids[LONGEST];
    for (size_t i = 0; i < n; i++) ids[i] = some_id((int64_t)i);
    return session_prefill(&s, 1, ids, n, &(prefill_options){.which = LOGITS_LAST}, e);
}

/* Decodes STEPS tokens of n sessions in one batch; out [STEPS][n]. */
static status step_some(session *const *s, size_t n, float (*out)[U_VOCAB], err *e)
{
    int32_t ids[SEQS];
    for (int t = 0; t < STEPS; t++) {
        for (size_t i = 0; i < n; i++) ids[i] = some_id(session_length(s[i]));
        TRY(session_decode(s, n, ids, out[(size_t)t * n], e));
    }
    return ST_OK;
}

/* Compares steps of a session alone with its steps in a batch. Repeats them after a rewind, where the strategy has one.
 */
static void check_alone(session *s, size_t i, float (*batch)[U_VOCAB])
{
    static float alone[STEPS][U_VOCAB];
    err e = {0}, why = {0};
    bool same = true;
    bool back = session_rewind(s, (int64_t)length_of(i), &why) == ST_OK;
    for (int again = 0; again < 1 + back; again++) {
        if (again || !back) {
            session_reset(s);
            is_ok(feed_some(s, length_of(i), &e), &e, "prompt");
        }
        is_ok(step_some(&s, 1, alone, &e), &e, "steps");
        for (int t = 0; t < STEPS; t++) same &= memcmp(batch[(size_t)t * SEQS], alone[t], sizeof alone[t]) == 0;
    }
    ok(same, "dynamic RoPE, %s, prompt of %zu: a batch of other lengths gives the bits of a session alone",
       rotating[i % N_ROTATING], length_of(i));
}

static void check_lengths(void)
{
    static float batch[STEPS * SEQS][U_VOCAB];
    engine_parts p;
    err e = {0};
    session *s[SEQS] = {0};
    if (!is_ok(open_parts(&p, "llama-dynamic-f32", 1, 16, SEQS, &e), &e, "model")) return;
    for (size_t i = 0; i < SEQS; i++) {
        is_ok(new_session(&s[i], &p, rotating[i % N_ROTATING], LONGEST + 2 * N, &e), &e, "session");
        is_ok(feed_some(s[i], length_of(i), &e), &e, "prompt");
    }
    is_ok(step_some(s, SEQS, batch, &e), &e, "a batch");
    for (size_t i = 0; i < SEQS; i++) check_alone(s[i], i, batch + i);
    for (size_t i = 0; i < SEQS; i++) session_free(s[i]);
    parts_close(&p);
}

/* Checks that a fork and a loaded session refuse the same rewinds as the session. */
static void check_copies(const engine_parts *p, session *s)
{
    static const char path[] = "test_session.kv";
    session_file *copy;
    session_notes none = {0};
    session *other;
    err e = {0}, bad = {0}, worse = {0};
    is_ok(session_new(&other, p, "full", "f16", 3 * LONGEST, &e), &e, "another session");
    is_ok(session_keep(&copy, s, &none, &e), &e, "a copy");
    is_ok(session_load(other, copy, &none, &e), &e, "a fork");
    is_err(session_rewind(other, 50, &bad), &bad, ST_UNSUPPORTED, "depend on its later tokens",
           "a fork does not go back either");
    is_ok(save_plain(s, path, &e), &e, "saved");
    is_ok(load_plain(other, path, &e), &e, "loaded");
    is_err(session_rewind(other, 50, &worse), &worse, ST_UNSUPPORTED, "depend on its later tokens",
           "nor does a loaded session");
    is_ok(session_rewind(other, 30, &e), &e, "but to the start of the prompt");
    remove(path);
    session_file_close(copy);
    session_free(other);
}

/* Checks rewinds into prompts that end beyond the trained length of 48. */
static void check_going_back(void)
{
    engine_parts p;
    err e = {0}, bad = {0};
    session *s;
    if (!is_ok(open_parts(&p, "llama-dynamic-f32", 1, 16, 1, &e), &e, "model")) return;
    is_ok(new_session(&s, &p, "full", 3 * LONGEST, &e), &e, "session");
    is_ok(feed_some(s, 40, &e), &e, "a prompt of 40");
    is_ok(session_rewind(s, 30, &e), &e, "back into it");
    is_ok(feed_some(s, 30, &e), &e, "a second prompt, up to 60");
    is_err(session_rewind(s, 50, &bad), &bad, ST_UNSUPPORTED, "depend on its later tokens",
           "not back into a prompt beyond 48");
    is_int(session_length(s), 60, "which changes nothing");
    check_copies(&p, s);
    is_ok(feed_some(s, 20, &e), &e, "a third one, up to 80");
    is_ok(session_rewind(s, 60, &e), &e, "back to where it began");
    bad = (err){0};
    is_err(session_rewind(s, 40, &bad), &bad, ST_UNSUPPORTED, "depend on its later tokens", "not further");
    is_ok(session_rewind(s, 0, &e), &e, "back to nothing");
    session_free(s);
    parts_close(&p);
}

/* Checks rewinds into prompts of a strategy whose windows choose together: only what attended everything goes back. */
static void check_windows(void)
{
    engine_parts p;
    err e = {0}, bad = {0};
    session *s;
    if (!is_ok(open_parts(&p, "llama31-f32-tied", 1, 16, 1, &e), &e, "model")) return;
    is_ok(new_session(&s, &p, "tokenselect:budget=28:window=16:local=16:sink=4", 3 * LONGEST, &e), &e, "tokenselect");
    is_ok(feed_some(s, 28, &e), &e, "a prompt that is attended whole");
    is_ok(session_rewind(s, 21, &e), &e, "back into it");
    is_ok(feed_some(s, 40, &e), &e, "a longer one, up to 61");
    is_err(session_rewind(s, 50, &bad), &bad, ST_UNSUPPORTED, "depend on its later tokens", "not back into that one");
    is_ok(session_rewind(s, 37, &e), &e, "but by whole windows");
    is_ok(session_rewind(s, 21, &e), &e, "and to where it began");
    session_free(s);
    parts_close(&p);
}

int main(void)
{
    for (int i = 0; i < N; i++) prompt[i] = (7 * i + 11) % 300;
    check_bits("llama31-f32-tied", "full");
    check_bits("mistral-swa-bf16", "full");
    check_bits("llama2-linear-f16", "streaming:budget=16");
    check_bits("llama-dynamic-f32", "full");
    check_chunk("cpu", 512);
    check_memory();
    check_longest();
    check_oom();
    check_limits();
    check_lengths();
    check_going_back();
    check_windows();
    return tap_done();
}
