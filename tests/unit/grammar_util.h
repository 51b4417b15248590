/* SPDX-License-Identifier: MIT */
/* A small vocabulary, grammars from texts of schemas, and texts and documents under them. */
#ifndef TESTS_UNIT_GRAMMAR_UTIL_H
#define TESTS_UNIT_GRAMMAR_UTIL_H

#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "tests/tap.h"
#include "tokenizer/impl.h"

/* The small tokenizer of Qwen, with its token of each byte. vocab: a few more logits than tokens. */
static struct {
    tokenizer *t;
    grammar_vocab *v;
    size_t vocab;
    int32_t eos, byte[256];
} words;

static inline bool words_open(void)
{
    err e = {0};
    if (tokenizer_open(&words.t, tap_path("tests/data/tokenizers/small/qwen"), &e) != ST_OK) return false;
    words.vocab = (size_t)tokenizer_n_ids(words.t) + 7;
    words.eos = tokenizer_special_id(words.t, "<|im_end|>");
    words.t->eos.n = 0;
    if (token_list_push(&words.t->eos, words.eos, &e) != ST_OK) return false;
    for (int32_t id = tokenizer_n_ids(words.t); id-- > 0;) {
        char *bytes;
        size_t n;
        if (tokenizer_bytes(words.t, id, &bytes, &n, &e) != ST_OK) return false;
        if (n == 1) words.byte[(unsigned char)*bytes] = id;
        mem_free(bytes);
    }
    return grammar_vocab_create(&words.v, words.t, words.vocab, &e) == ST_OK;
}

static inline void words_close(void)
{
    grammar_vocab_free(words.v);
    tokenizer_free(words.t);
}

static inline bool mask_has(const uint64_t *mask, int32_t id)
{
    return mask[id / 64] >> id % 64 & 1;
}

/* Compiles the text of a schema, "" for any object. NULL: *e has the reason. */
static inline grammar *compile_text(const char *text, bool lenient, json_t *ignored, err *e)
{
    grammar *g = NULL;
    const schema_options o = {.root = "$", .lenient = lenient, .ignored = ignored};
    json_t *schema = *text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    if (*text && !schema) err_set(e, ST_FORMAT, "the test's schema is no JSON");
    else grammar_compile(&g, schema, false, NULL, &o, e);
    json_decref(schema);
    return g;
}

/* True if a text, byte by byte, is complete under a grammar; *at: number of bytes that are allowed. */
static inline bool accepts(const grammar *g, const char *text, size_t n, size_t *at)
{
    grammar_run *r;
    err e = {0};
    if (grammar_run_create(&r, g, words.v, &e) != ST_OK) return false;
    for (*at = 0; *at < n && grammar_run_accept(r, words.byte[(unsigned char)text[*at]]);) ++*at;
    const bool all = *at == n && grammar_run_may_end(r);
    grammar_run_free(r);
    return all;
}

/* Writes a random document under a grammar, at most `most` tokens, of which the first ones are free and the later ones
 * tend to end the text. Returns its length, or -1 if the text did not end. */
static inline long write_random(const grammar *g, rng *random, char *out, size_t size, size_t most)
{
    grammar_run *r;
    long n = 0;
    bool ended = false;
    if (grammar_run_create(&r, g, words.v, NULL) != ST_OK) return -1;
    for (size_t i = 0; i < most && !ended; i++) {
        const uint64_t *mask = grammar_run_mask(r);
        int32_t best = -1;
        float top = -1;
        for (size_t id = 0; id < words.vocab; id++) {
            float x = rng_float(random);
            const bool ends = (int32_t)id == words.eos || (int32_t)id == words.byte['}'] ||
                              (int32_t)id == words.byte[']'] || (int32_t)id == words.byte['"'];
            if (!mask_has(mask, (int32_t)id)) continue;
            if (ends && rng_float(random) < (float)i / (float)most) x += 1;
            if (x > top) top = x, best = (int32_t)id;
        }
        char *bytes = NULL;
        size_t k = 0;
        ended = best == words.eos;
        if (best < 0 || !grammar_run_accept(r, best)) break;
        if (!ended && tokenizer_bytes(words.t, best, &bytes, &k, NULL) != ST_OK) break;
        if (k && (size_t)n + k < size) memcpy(out + n, bytes, k);
        n += (long)k;
        mem_free(bytes);
    }
    grammar_run_free(r);
    return ended && (size_t)n < size ? n : -1;
}

#endif
