/* SPDX-License-Identifier: MIT */
/* Shared by the tokenizer tests: JSON lines, comparing ids, checks that hold for every text. */
#ifndef TESTS_UNIT_TEST_TOKENIZER_UTIL_H
#define TESTS_UNIT_TEST_TOKENIZER_UTIL_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "tests/tap.h"
#include "tests/unit/files.h"
#include "tokenizer/chat.h"
#include "tokenizer/impl.h"
#include "tokenizer/normalize.h"

/* Opens a tokenizer. Returns NULL, with a skipped test, if the build cannot read it. */
static inline tokenizer *open_tokenizer(const char *dir, const char *name)
{
    tokenizer *t = NULL;
    err e = {0};
    status st = tokenizer_open(&t, dir, &e);
    if (st == ST_UNSUPPORTED) tap_skip("%s", e.msg);
    else is_ok(st, &e, "%s opens", name);
    return t;
}

static inline tokenizer *open_small(const char *name)
{
    char rel[128];
    snprintf(rel, sizeof rel, "tests/data/tokenizers/small/%s", name);
    return open_tokenizer(tap_path(rel), name);
}

/* Returns the next line of a JSON-lines file (texts may contain NUL), NULL at the end. */
static inline json_t *next_json(FILE *f)
{
    static char *line;
    static size_t cap;
    ssize_t n = getline(&line, &cap, f);
    json_t *j = n > 0 ? json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL) : NULL;
    if (!j) {
        free(line);
        line = NULL;
        cap = 0;
    }
    return j;
}

static inline bool same_ids(const json_t *want, const token_list *got)
{
    if (json_array_size(want) != got->n) return false;
    for (size_t i = 0; i < got->n; i++)
        if (json_integer_value(json_array_get(want, i)) != got->ids[i]) return false;
    return true;
}

static inline void print_ids(const char *label, const token_list *l)
{
    printf("#   %s", label);
    for (size_t i = 0; i < l->n && i < 60; i++) printf(" %d", l->ids[i]);
    putchar('\n');
}

static inline void print_text(const char *label, const char *s, size_t n)
{
    printf("#   %s \"", label);
    for (size_t i = 0; i < n && i < 100; i++)
        if (s[i] >= 32 && s[i] < 127) putchar(s[i]);
        else printf("\\x%02x", (unsigned char)s[i]);
    printf("\"\n");
}

/* Decodes the ids of text and expects text itself, or its normalized form. */
static inline bool round_trip(const tokenizer *t, const token_list *ids, const char *text, size_t n)
{
    char *out, *nfc = NULL;
    size_t len, n_nfc = 0;
    if (tokenizer_decode(t, ids->ids, ids->n, true, &out, &len, NULL) != ST_OK) return false;
    if (!t->pieces.on && normalizer_run(&t->normalizer, &nfc, &n_nfc, text, n, NULL) != ST_OK) return false;
    const char *want = nfc ? nfc : text;
    size_t n_want = nfc ? n_nfc : n;
    bool same = len == n_want && memcmp(out, want, len) == 0;
    if (!same) {
        print_text("decoded", out, len);
        print_text("want   ", want, n_want);
    }
    mem_free(out);
    mem_free(nfc);
    return same;
}

/* True if the concatenated pieces of a stream are the decoded text. */
static inline bool stream_equals_whole(const tokenizer *t, const int32_t *ids, size_t n)
{
    char *whole, *parts;
    const char *text;
    size_t len, n_parts = 0, k;
    token_stream *s;
    if (tokenizer_decode(t, ids, n, false, &whole, &len, NULL) != ST_OK) return false;
    if (token_stream_create(&s, t, NULL) != ST_OK) return false;
    parts = malloc(len + 64);
    bool good = parts;
    for (size_t i = 0; good && i <= n; i++) {
        status st = i < n ? token_stream_push(s, ids[i], &text, &k, NULL) : token_stream_end(s, &text, &k, NULL);
        good = st == ST_OK && n_parts + k <= len;
        if (good) memcpy(parts + n_parts, text, k);
        n_parts += good ? k : 0;
    }
    good = good && n_parts == len && memcmp(parts, whole, len) == 0;
    if (!good) {
        print_text("stream", parts ? parts : "", parts ? n_parts : 0);
        print_text("whole ", whole, len);
    }
    free(parts);
    mem_free(whole);
    token_stream_free(s);
    return good;
}

typedef struct {
    int n, same, trips, n_trips, streams;
} tally;

/* Checks one text: the expected ids, decoding restores it, streaming equals decoding. */
static inline void check_text(tally *y, const tokenizer *t, const char *text, size_t n, const json_t *want)
{
    token_list got = {0};
    err e = {0};
    status st = tokenizer_encode(t, text, n, 0, &got, &e);
    bool same = st == ST_OK && same_ids(want, &got);
    y->n++;
    y->same += same;
    if (!same && y->n - y->same <= 5) {
        print_text("differs:", text, n);
        print_ids("got ", &got);
        printf("#   want");
        for (size_t i = 0; i < json_array_size(want) && i < 60; i++)
            printf(" %lld", (long long)json_integer_value(json_array_get(want, i)));
        printf(" (%s)\n", e.msg);
    }
    /* Text that cannot be restored: U+2581 is SentencePiece's space; the small Qwen tokenizer has stripping tokens. */
    bool lossy = ((t->spm || t->pieces.on) && memmem(text, n, "\xe2\x96\x81", 3)) || memmem(text, n, "<L>", 3) ||
                 memmem(text, n, "<R>", 3);
    if (!lossy) {
        y->n_trips++;
        y->trips += round_trip(t, &got, text, n);
    }
    y->streams += stream_equals_whole(t, got.ids, got.n);
    token_list_free(&got);
}

static inline void report(const tally *y, const char *name)
{
    is_int(y->same, y->n, "%s: ids as the reference for %d of %d texts", name, y->same, y->n);
    is_int(y->trips, y->n_trips, "%s: decoding gives the text back, %d of %d", name, y->trips, y->n_trips);
    is_int(y->streams, y->n, "%s: streaming equals decoding, %d of %d", name, y->streams, y->n);
}

/* Checks lines.jsonl as one text against its hash in long.jsonl. */
static inline void check_long(const tokenizer *t, const char *name)
{
    size_t n = 0, cap = 1 << 20;
    char *text = malloc(cap), hash[24] = "";
    token_list l = {0};
    long long want_n = -1;
    FILE *f = fopen(tap_path("tests/data/tokenizers/lines.jsonl"), "rb");
    FILE *g = fopen(tap_path("tests/data/tokenizers/long.jsonl"), "rb");
    if (!ok(f && g && text, "%s: long text", name)) return;
    for (json_t *j; (j = next_json(f)); json_decref(j)) {
        const json_t *s = json_object_get(j, "text");
        size_t k = json_string_length(s);
        if (memchr(json_string_value(s), 0, k) || n + k + 1 > cap) continue;
        memcpy(text + n, json_string_value(s), k);
        text[n + k] = ' ';
        n += k + 1;
    }
    for (json_t *j; (j = next_json(g)); json_decref(j)) {
        if (strcmp(json_string_value(json_object_get(j, "tokenizer")), name) != 0) continue;
        want_n = json_integer_value(json_object_get(j, "n"));
        snprintf(hash, sizeof hash, "%s", json_string_value(json_object_get(j, "fnv")));
    }
    ok(n > 50000 && tokenizer_encode(t, text, n - 1, 0, &l, NULL) == ST_OK, "%s: %zu bytes", name, n - 1);
    uint64_t h = 0xcbf29ce484222325u;
    char got[24];
    for (size_t i = 0; i < l.n; i++) h = (h ^ (uint64_t)l.ids[i]) * 0x100000001b3u;
    snprintf(got, sizeof got, "%016llx", (unsigned long long)h);
    is_int((long long)l.n, want_n, "%s: ids of a long text", name);
    is_str(got, hash, "%s: and their hash", name);
    token_list_free(&l);
    free(text);
    fclose(f);
    fclose(g);
}

/* Makes a new folder below the current directory; remove_dir deletes it. */
static inline void make_dir(char *dir, size_t cap)
{
    snprintf(dir, cap, "tok-XXXXXX");
    if (!mkdtemp(dir)) {
        printf("Bail out! cannot make a folder here\n");
        exit(1);
    }
}

#endif
