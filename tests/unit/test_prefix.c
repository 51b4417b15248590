/* SPDX-License-Identifier: MIT */
/* The prefix store: what it finds, and in which order entries go. */
#include "config.h"

#include <stdlib.h>

#include "serve/prefix.h"
#include "tests/unit/session_util.h"

enum { CTX = 20000, FEW = 64, MORE = 96 };

static engine_parts parts;
/* Hashes, by their look. */
#define DIGITS "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"
static const char key[SHA256_HEX] = DIGITS "1", other_key[SHA256_HEX] = DIGITS "2";

/* Prompt `name`: the first `same` tokens are those of prompt 0. */
static void ids_of(int32_t ids[MORE + 1], int name, int64_t same)
{
    for (int64_t i = 0; i <= MORE; i++) ids[i] = (some_id(i) + (i < same ? 0 : 31 * name)) % 300;
}

/* What a prompt of n tokens leaves. */
static status keep(prefix_store *p, const char *of, bool any, int name, int64_t same, size_t n, size_t memory, err *e)
{
    session *s;
    int32_t ids[MORE + 1];
    ids_of(ids, name, same);
    TRY(session_new(&s, &parts, "full", "f16", CTX, e));
    const prefill_options o = {.after = 1};
    const prefix_prompt prompt = {of, any, ids, n};
    status st = session_prefill(&s, 1, ids, n, &o, e);
    if (st == ST_OK) st = prefix_keep(p, &prompt, s, memory, e);
    session_free(s);
    return st;
}

/* How many tokens of a prompt are known; used: they also serve. */
static size_t known(prefix_store *p, const char *of, bool any, int name, int64_t same, bool used)
{
    int32_t ids[MORE + 1];
    size_t n;
    ids_of(ids, name, same);
    prefix_entry *x = prefix_find(p, &(prefix_prompt){of, any, ids, MORE}, &n);
    if (!x) return 0;
    if (used) {
        session *s;
        err e = {0};
        is_ok(session_new(&s, &parts, "full", "f16", CTX, &e), &e, "a session");
        is_ok(prefix_load(p, x, s, n, &e), &e, "is loaded");
        is_int(session_length(s), (long long)n, "and has what is known");
        is_ok(live(s, 5, 3, (float[4 * U_VOCAB]){0}, &e), &e, "and goes on");
        session_free(s);
    }
    prefix_let_go(p, x);
    return n;
}

static prefix_store *store(size_t memory)
{
    prefix_store *p = NULL;
    err e = {0};
    is_ok(prefix_open(&p, &(prefix_options){.memory = memory, .chunk = U_CHUNK}, &e), &e, "a store");
    return p;
}

static size_t bytes_of_one(void)
{
    err e = {0};
    prefix_store *p = store(SIZE_MAX);
    is_ok(keep(p, key, true, 0, MORE, FEW, SIZE_MAX, &e), &e, "an entry");
    size_t bytes = prefix_count(p).bytes;
    ok(bytes > 0 && bytes < 1 << 20, "its %zu bytes are those that were written, not the context's", bytes);
    prefix_close(p);
    return bytes;
}

static void check_found(void)
{
    err e = {0};
    prefix_store *p = store(SIZE_MAX);
    is_int((long long)known(p, key, true, 0, MORE, false), 0, "an empty store knows nothing");
    is_ok(keep(p, key, true, 0, MORE, FEW, SIZE_MAX, &e), &e, "a prompt is kept");
    is_int((long long)known(p, key, true, 1, FEW + 3, true), FEW, "one that begins so finds all of it");
    is_int((long long)known(p, key, true, 1, 50, true), 48, "one that begins with a part, up to the chunk");
    is_int((long long)known(p, key, true, 1, U_CHUNK - 1, false), 0, "less than a chunk is nothing");
    is_int((long long)known(p, key, false, 1, 50, false), 0, "where only the end serves, a part does not");
    is_int((long long)known(p, key, false, 1, FEW, true), FEW, "and all of it does");
    is_int((long long)known(p, other_key, true, 0, MORE, false), 0, "nothing is known under another key");
    prefix_close(p);
}

static void check_order(size_t one)
{
    err e = {0};
    prefix_store *p = store(3 * one + one / 2);
    for (int i = 1; i <= 3; i++) is_ok(keep(p, key, true, i, 0, FEW, SIZE_MAX, &e), &e, "prompt %d", i);
    is_int((long long)known(p, key, true, 1, 0, true), FEW, "prompt 1 serves");
    is_ok(keep(p, key, true, 4, 0, FEW, SIZE_MAX, &e), &e, "prompt 4");
    is_int((long long)prefix_count(p).entries, 3, "there is room for three");
    is_int((long long)known(p, key, true, 2, 0, false), 0, "the oldest that never served goes");
    is_int((long long)known(p, key, true, 3, 0, true), FEW, "prompt 3 serves");
    is_int((long long)known(p, key, true, 1, 0, true), FEW, "and prompt 1 again");
    is_ok(keep(p, key, true, 5, 0, FEW, SIZE_MAX, &e), &e, "prompt 5");
    is_int((long long)known(p, key, true, 4, 0, false), 0, "then 4, which never served, though it is newer");
    is_int((long long)known(p, key, true, 5, 0, true), FEW, "prompt 5 serves");
    ok(prefix_shrink(p, 2 * one), "two are to be left");
    is_int((long long)known(p, key, true, 3, 0, false), 0, "the one whose use is the longest ago goes");
    int32_t ids[MORE + 1];
    size_t n;
    ids_of(ids, 1, 0);
    prefix_entry *x = prefix_find(p, &(prefix_prompt){key, true, ids, MORE}, &n);
    ok(x && !prefix_shrink(p, 0), "what is in use stays, and then all does");
    is_int((long long)prefix_count(p).entries, 2, "both");
    e = (err){0};
    is_int((long long)keep(p, key, true, 6, 0, FEW, one, &e), (long long)ST_NOMEM, "beside it there is no room");
    prefix_let_go(p, x);
    ok(prefix_shrink(p, 0) && prefix_count(p).entries == 0 && prefix_count(p).bytes == 0, "nothing is left");
    prefix_close(p);
}

static void check_longer(size_t one)
{
    err e = {0};
    prefix_store *p = store(SIZE_MAX);
    int32_t ids[MORE + 1];
    size_t n;
    ids_of(ids, 0, MORE);
    is_ok(keep(p, key, true, 0, MORE, FEW, SIZE_MAX, &e), &e, "a prompt");
    prefix_entry *x = prefix_find(p, &(prefix_prompt){key, true, ids, MORE}, &n);
    is_ok(keep(p, key, true, 0, MORE, MORE, SIZE_MAX, &e), &e, "a longer one that begins with it");
    is_int((long long)prefix_count(p).entries, 2, "which replaces it once nobody uses it");
    is_int((long long)known(p, key, true, 0, MORE, false), MORE, "the longer one is found");
    prefix_let_go(p, x);
    is_int((long long)prefix_count(p).entries, 1, "then one is left");
    is_int((long long)known(p, key, true, 1, FEW, true), FEW, "and serves both");
    prefix_close(p);
    p = store(SIZE_MAX);
    is_ok(keep(p, key, false, 0, MORE, FEW, SIZE_MAX, &e), &e, "where a part does not serve");
    is_ok(keep(p, key, false, 0, MORE, MORE, SIZE_MAX, &e), &e, "both are kept");
    ok(prefix_shrink(p, prefix_count(p).bytes - 1), "one must go");
    is_int((long long)prefix_count(p).bytes, (long long)one, "the longer one does, though it is newer");
    prefix_close(p);
}

int main(void)
{
    err e = {0};
    if (is_ok(parts_open(&parts, "llama31-f32-tied", "cpu", &e), &e, "model")) {
        size_t one = bytes_of_one();
        check_found();
        check_order(one);
        check_longer(one);
    }
    parts_close(&parts);
    return tap_done();
}
