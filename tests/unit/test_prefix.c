/* SPDX-License-Identifier: MIT */
/* The prefix store: what it finds, and in which order entries go. */
#include "config.h"

#include <stdlib.h>

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
           "beside it there is no room");
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
    is_ok(keep(p, "full", key, true, 0, MORE, FEW, SIZE_MAX, &e), &e, "a prompt");
    prefix_entry *x = prefix_find(p, &(prefix_prompt){key, true, ids, MORE}, &n);
    is_ok(keep(p, "full", key, true, 0, MORE, MORE, SIZE_MAX, &e), &e, "a longer one that begins with it");
    is_int((long long)prefix_count(p).entries, 2, "which replaces it once nobody uses it");
    is_int((long long)known(p, key, true, 0, MORE, false), MORE, "the longer one is found");
    prefix_let_go(p, x);
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
