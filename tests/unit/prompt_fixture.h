/* SPDX-License-Identifier: MIT */
/* Shared by the tests of evaluation prompts: tokenizers, and files of prompts that the reference made with real ones. A
 * line has {"tokenizer", "n", "ids"}: the number of tokens, and the first 16 digits of the SHA-256 of their ids. */
#ifndef TESTS_UNIT_PROMPT_FIXTURE_H
#define TESTS_UNIT_PROMPT_FIXTURE_H

#include "eval/prompt.h"
#include "eval/samples.h"
#include "kernels/base/sha256.h"
#include "tests/unit/test_tokenizer_util.h"

/* Returns a text member, "" if it is missing. */
static inline const char *string_in(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}

/* Reads the sample of a line of "x.jsonl"; sample_drop(l, s) frees it. l: its size and drop. */
static inline status read_sample(void *s, const sample_reader *r, const sample_list *l, const char *line, err *e)
{
    sample_list one = *l;
    *e = (err){0};
    memset(s, 0, l->size);
    status st = samples_add(&one, r, "x.jsonl", line, strlen(line), e);
    if (st == ST_OK) memcpy(s, samples_at(&one, 0), l->size);
    one.n = 0; /* now owned by the caller */
    samples_free(&one);
    return st;
}

/* A file of the real data, and its form in transformers. */
typedef struct {
    const char *name, *file, *as, *chat;
    bool clean;
} real_tokenizer;

/* Unpacks the tokenizer into a new folder. Returns NULL, with a skipped test, if the data is missing. */
static inline tokenizer *open_real(const real_tokenizer *r)
{
    char dir[64], cmd[9000], rel[96];
    snprintf(rel, sizeof rel, "tokenizers/%s.xz", r->file);
    const char *path = tap_data(rel);
    if (!path) {
        tap_skip("no %s (KVASIR_DATA or ../shared/data)", r->file);
        return NULL;
    }
    make_dir(dir, sizeof dir);
    snprintf(cmd, sizeof cmd, "xz -dc '%s' > '%s/%s'", path, dir, r->as);
    bool unpacked = system(cmd) == 0;
    if (!unpacked) tap_skip("xz does not unpack %s", r->file);
    tokenizer *t = unpacked ? open_tokenizer(dir, r->name) : NULL;
    remove_dir(dir);
    if (t && r->chat) ok(tokenizer_set_template(t, r->chat, NULL) == ST_OK, "%s: template %s", r->name, r->chat);
    return t;
}

/* True if the tokens are those of the line; frees them. */
static inline bool is_prompt(const json_t *j, prompt_tokens *p, status st)
{
    char hex[SHA256_HEX];
    sha256 h;
    size_t n = p->head.n + p->tail.n, want = (size_t)json_integer_value(json_object_get(j, "n"));
    sha256_init(&h);
    sha256_add(&h, p->head.ids, p->head.n * sizeof(int32_t));
    sha256_add(&h, p->tail.ids, p->tail.n * sizeof(int32_t));
    sha256_hex(&h, hex);
    prompt_tokens_free(p);
    bool same = st == ST_OK && n == want && strncmp(hex, string_in(j, "ids"), 16) == 0;
    char *line = same ? NULL : json_dumps(j, JSON_COMPACT);
    if (!same) printf("#   %zu tokens, the reference has %s\n", n, line);
    free(line);
    return same;
}

/* True if our prompt is that of a line. */
typedef bool (*prompt_test)(const void *ctx, const json_t *j, const real_tokenizer *r, const tokenizer *t);

/* Compares all lines of a file of tests/data with each real tokenizer; expects `want` lines of each. */
static inline void check_real_prompts(const char *file, int want, prompt_test agrees, const void *ctx)
{
    static const real_tokenizer tokenizers[] = {
        {"llama3", "llama3/tokenizer.json", "tokenizer.json", "llama3", true},
        {"mistral", "mistral/tokenizer.model.v3", "tokenizer.model", "mistral-v3", false},
        {"qwen", "qwen/tokenizer.json", "tokenizer.json", "qwen2.5", false},
    };
    for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) {
        const real_tokenizer *r = &tokenizers[i];
        tokenizer *t = open_real(r);
        FILE *f = fopen(tap_path(file), "rb");
        int n = 0, good = 0;
        ok(f, "fixtures are there");
        for (json_t *j; t && f && (j = next_json(f)); json_decref(j)) {
            if (strcmp(string_in(j, "tokenizer"), r->name) != 0) continue;
            n++;
            good += agrees(ctx, j, r, t);
        }
        if (t) is_int(n, want, "%s: prompts", r->name);
        if (t) is_int(good, n, "%s: token by token as the official steps", r->name);
        if (f) fclose(f);
        tokenizer_free(t);
    }
}

#endif
