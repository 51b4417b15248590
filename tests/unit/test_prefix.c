/* SPDX-License-Identifier: MIT */
/* The prefix store: what it finds, and in which order entries go. */
#include "config.h"

#include <stdlib.h>

#include "generate/prefix_cache.h"
#include "tests/unit/prefix_util.h"

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
    is_ok(keep(p, "full", key, true, 0, MORE, FEW, SIZE_MAX, &e), &e, "an entry");
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
    is_ok(keep(p, "full", key, true, 0, MORE, FEW, SIZE_MAX, &e), &e, "a prompt is kept");
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
    for (int i = 1; i <= 3; i++) is_ok(keep(p, "full", key, true, i, 0, FEW, SIZE_MAX, &e), &e, "prompt %d", i);
    is_int((long long)known(p, key, true, 1, 0, true), FEW, "prompt 1 serves");
    is_ok(keep(p, "full", key, true, 4, 0, FEW, SIZE_MAX, &e), &e, "prompt 4");
    is_int((long long)prefix_count(p).entries, 3, "there is room for three");
    is_int((long long)known(p, key, true, 2, 0, false), 0, "the oldest that never served goes");
    is_int((long long)known(p, key, true, 3, 0, true), FEW, "prompt 3 serves");
    is_int((long long)known(p, key, true, 1, 0, true), FEW, "and prompt 1 again");
    is_ok(keep(p, "full", key, true, 5, 0, FEW, SIZE_MAX, &e), &e, "prompt 5");
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
    is_int((long long)keep(p, "full", key, true, 6, 0, FEW, one, &e), (long long)ST_NOMEM,
           "there is no room for another");
    prefix_release(p, x);
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
    is_ok(keep(p, "full", key, true, 0, MORE, FEW, SIZE_MAX, &e), &e, "a prompt");
    prefix_entry *x = prefix_find(p, &(prefix_prompt){key, true, ids, MORE}, &n);
    is_ok(keep(p, "full", key, true, 0, MORE, MORE, SIZE_MAX, &e), &e, "a longer one that begins with it");
    is_int((long long)prefix_count(p).entries, 2, "which replaces it once nobody uses it");
    is_int((long long)known(p, key, true, 0, MORE, false), MORE, "the longer one is found");
    prefix_release(p, x);
    is_int((long long)prefix_count(p).entries, 1, "then one is left");
    is_int((long long)known(p, key, true, 1, FEW, true), FEW, "and serves both");
    prefix_close(p);
    p = store(SIZE_MAX);
    is_ok(keep(p, "full", key, false, 0, MORE, FEW, SIZE_MAX, &e), &e, "where a part does not serve");
    is_ok(keep(p, "full", key, false, 0, MORE, MORE, SIZE_MAX, &e), &e, "both are kept");
    ok(prefix_shrink(p, prefix_count(p).bytes - 1), "one must go");
    is_int((long long)prefix_count(p).bytes, (long long)one, "the longer one does, though it is newer");
    prefix_close(p);
}

static size_t available;

static size_t spy_available(backend *be)
{
    (void)be;
    return available;
}

/* Keeps a prompt in a cache of its own on a device with `free_bytes` available. Returns the bytes of its entry. */
static size_t bytes_kept(size_t free_bytes)
{
    prefix_cache *u = NULL;
    prefix_hit k;
    session *s = NULL;
    attn_spec spec;
    int32_t ids[MORE + 1];
    err e = {0};
    attn_options ao = {.kv = kv_plain(DT_F16)};
    const prefix_cache_options o = {.memory = SIZE_MAX, .ctx = CTX, .exact = true, .quiet = true};
    ids_of(ids, 0, MORE);
    available = SIZE_MAX;
    is_ok(attn_spec_parse(&spec, "full", &ao, &e), &e, "full");
    is_ok(prefix_cache_open(&u, &o, parts.dec, &e), &e, "a cache");
    is_ok(session_create(&s, parts.dec, &spec, session_of(CTX), &e), &e, "a session");
    prefix_cache_find(&k, u, &(prefix_lookup){.spec = &spec, .limit = CTX, .ids = ids, .n = MORE});
    is_ok(session_prefill(&s, 1, ids, k.keep, &(prefill_options){.after = MORE - k.keep}, &e), &e, "a prompt");
    available = free_bytes;
    prefix_cache_keep(&k, u, s);
    available = SIZE_MAX;
    size_t bytes = prefix_count(prefix_cache_store(u)).bytes;
    session_free(s);
    prefix_cache_release(&k, u);
    prefix_cache_close(u);
    return bytes;
}

/* A tenth of what the device has available stays free. */
static void check_room(void)
{
    const backend_ops *real = parts.be->ops;
    backend_ops spy = *real;
    spy.available = spy_available;
    parts.be->ops = &spy;
    size_t one = bytes_kept(SIZE_MAX);
    ok(one > 0, "an entry where there is room");
    is_int((long long)bytes_kept(one + one / 5), (long long)one, "one and a fifth of its bytes are available");
    is_int((long long)bytes_kept(one + one / 20), 0, "one and a twentieth: it is not kept");
    parts.be->ops = real;
}

/* Short prompts do not use up the file descriptors of the process. */
static void check_many(void)
{
    prefix_store *p;
    err e = {0};
    size_t failed = 0;
    is_ok(prefix_open(&p, &(prefix_options){.memory = SIZE_MAX, .chunk = U_CHUNK}, &e), &e, "a store");
    for (int i = 1; i <= 260; i++) failed += keep(p, "full", key, true, i, 0, U_CHUNK, SIZE_MAX, &e) != ST_OK;
    is_int((long long)failed, 0, "260 prompts are kept");
    is_int((long long)prefix_count(p).entries, 256, "of which 256 remain");
    is_int((long long)known(p, key, true, 1, 0, false), 0, "the oldest is gone");
    is_int((long long)known(p, key, true, 260, 0, false), U_CHUNK, "the newest is found");
    prefix_close(p);
}

/* Other chunks give other bits. */
static void check_build(void)
{
    char of[3][SHA256_HEX];
    for (size_t i = 0; i < 3; i++) {
        decoder *d;
        err e = {0};
        const decoder_options o = {.chunk = i < 2 ? 16 : 32, .max_batch = 1, .exact = true};
        is_ok(decoder_create(&d, parts.m, &o, &e), &e, "a decoder");
        prefix_cache_build(of[i], d, true);
        decoder_free(d);
    }
    is_str(of[0], of[1], "the same chunk: the same key");
    ok(strcmp(of[0], of[2]) != 0, "another chunk: another key");
}

int main(void)
{
    err e = {0};
    if (is_ok(parts_open(&parts, "llama31-f32-tied", "cpu", &e), &e, "model")) {
        size_t one = bytes_of_one();
        check_found();
        check_order(one);
        check_longer(one);
        check_room();
        check_many();
        check_build();
    }
    parts_close(&parts);
    return tap_done();
}
