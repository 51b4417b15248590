/* SPDX-License-Identifier: MIT */
/* Prompts that are stored in a prefix store and looked up again. */
#ifndef TESTS_UNIT_PREFIX_UTIL_H
#define TESTS_UNIT_PREFIX_UTIL_H

#include "generate/prefix.h"
#include "tests/unit/session_util.h"

enum { CTX = 20000, FEW = 64, MORE = 96 };

static engine_parts parts;
/* Strings in the format of hashes. */
#define DIGITS "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"
static const char key[SHA256_HEX] = DIGITS "1", other_key[SHA256_HEX] = DIGITS "2";

/* Writes prompt `name`, whose first `same` tokens are those of prompt 0. */
static inline void ids_of(int32_t ids[MORE + 1], int name, int64_t same)
{
    for (int64_t i = 0; i <= MORE; i++) ids[i] = (some_id(i) + (i < same ? 0 : 31 * name)) % 300;
}

/* Stores the snapshots of a prompt of n tokens. */
static inline status keep(prefix_store *p, const char *strategy, const char *of, bool any, int name, int64_t same,
                          size_t n, size_t memory, err *e)
{
    session *s;
    int32_t ids[MORE + 1];
    ids_of(ids, name, same);
    TRY(session_new(&s, &parts, strategy, "f16", CTX, e));
    const prefill_options o = {.after = 1};
    const prefix_prompt prompt = {of, any, ids, n};
    status st = session_prefill(&s, 1, ids, n, &o, e);
    if (st == ST_OK) st = prefix_keep(p, &prompt, s, memory, e);
    session_free(s);
    return st;
}

/* Returns the number of a prompt's tokens found in the cache; used: they must also work. */
static inline size_t known(prefix_store *p, const char *of, bool any, int name, int64_t same, bool used)
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
        is_ok(live(s, 5, 3, (float[4 * U_VOCAB]){0}, &e), &e, "and continues");
        session_free(s);
    }
    prefix_release(p, x);
    return n;
}

#endif
