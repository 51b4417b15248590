/* SPDX-License-Identifier: MIT */
/* The published tokenizers (from the optional real data) against the reference libraries. */
#include "config.h"

#include <time.h>

#include "tests/unit/test_tokenizer_util.h"

static char work[64];

/* Unpacks data file `from` (below tokenizers/, without .xz) under the name `to`, of which a version is cut. */
static bool unpack(const char *from, const char *to)
{
    char rel[256], cmd[9000];
    const char *version = strstr(to, ".v");
    snprintf(rel, sizeof rel, "tokenizers/%s.xz", from);
    const char *path = tap_data(rel);
    if (!path) return false;
    snprintf(cmd, sizeof cmd, "xz -dc '%s' > '%s/%.*s'", path, work, (int)(version ? version - to : 99), to);
    return system(cmd) == 0;
}

static tokenizer *open_timed(const char *name)
{
    err e = {0};
    tokenizer *t;
    clock_t t0 = clock();
    status st = tokenizer_open(&t, work, &e);
    printf("# %s: loaded in %.3f s of CPU\n", name, (double)(clock() - t0) / CLOCKS_PER_SEC);
    is_ok(st, &e, "%s opens", name);
    return t;
}

/* The numbers of a line. */
static json_t *ids_of(const char *line)
{
    json_t *ids = json_array();
    for (char *end; (void)(0), strtol(line, &end, 10), end != line; line = end)
        json_array_append_new(ids, json_integer(strtol(line, NULL, 10)));
    return ids;
}

/* lines.jsonl against NAME.ids. */
static void check_lines(const tokenizer *t, const char *name)
{
    char rel[128], *line = NULL;
    size_t cap = 0;
    tally y = {0};
    FILE *f = fopen(tap_path("tests/data/tokenizers/lines.jsonl"), "rb");
    snprintf(rel, sizeof rel, "tests/data/tokenizers/%s.ids", name);
    FILE *g = fopen(tap_path(rel), "rb");
    if (!ok(f && g, "%s: fixtures are there", name)) return;
    for (json_t *j; (j = next_json(f)); json_decref(j)) {
        const json_t *s = json_object_get(j, "text");
        json_t *ids = ids_of(getline(&line, &cap, g) > 0 ? line : "");
        check_text(&y, t, json_string_value(s), json_string_length(s), ids);
        json_decref(ids);
    }
    ok(y.n >= 2000, "%s: %d lines", name, y.n);
    report(&y, name);
    free(line);
    fclose(f);
    fclose(g);
}

/* The key of a fixture is its name with _ in place of -. */
static void check_cases(const tokenizer *t, const char *name, const char *ids)
{
    const char *path = tap_data("tokenizers/tests/encode_cases.jsonl");
    FILE *f = path ? fopen(path, "rb") : NULL;
    tally y = {0};
    char label[64], key[32];
    snprintf(key, sizeof key, "%s", ids);
    if (strchr(key, '-')) *strchr(key, '-') = '_';
    if (!ok(f, "%s: encode_cases.jsonl", name)) return;
    for (json_t *j; (j = next_json(f)); json_decref(j)) {
        const json_t *s = json_object_get(j, "text");
        check_text(&y, t, json_string_value(s), json_string_length(s), json_object_get(j, key));
    }
    snprintf(label, sizeof label, "%s: encode_cases", name);
    ok(y.n >= 60, "%s: %d texts", label, y.n);
    report(&y, label);
    fclose(f);
}

static void check_decoding(const tokenizer *t, const char *name)
{
    FILE *f = fopen(tap_path("tests/data/tokenizers/decode_cases.jsonl"), "rb");
    int n = 0, good = 0, streams = 0;
    if (!ok(f, "decode_cases.jsonl")) return;
    for (json_t *j; (j = next_json(f)); json_decref(j)) {
        const json_t *ids = json_object_get(j, "ids"), *want = json_object_get(j, "text");
        if (strcmp(json_string_value(json_object_get(j, "tokenizer")), name) != 0) continue;
        int32_t list[64];
        size_t k = json_array_size(ids), len;
        char *out;
        if (k > 64) continue;
        for (size_t i = 0; i < k; i++) list[i] = (int32_t)json_integer_value(json_array_get(ids, i));
        n++;
        if (tokenizer_decode(t, list, k, false, &out, &len, NULL) != ST_OK) continue;
        bool same = len == json_string_length(want) && memcmp(out, json_string_value(want), len) == 0;
        if (!same) {
            print_text("got ", out, len);
            print_text("want", json_string_value(want), json_string_length(want));
        }
        good += same;
        streams += stream_equals_whole(t, list, k);
        mem_free(out);
    }
    ok(n >= 50, "%s: %d lists of ids", name, n);
    is_int(good, n, "%s: decoded as the reference", name);
    is_int(streams, n, "%s: streaming equals decoding", name);
    fclose(f);
}

/* Conversations in a chat template. */
static void check_chat(const tokenizer *t, const char *name)
{
    const char *path = tap_data("tokenizers/tests/chat_cases.jsonl");
    FILE *f = path ? fopen(path, "rb") : NULL;
    int n = 0, good = 0;
    char key[32];
    snprintf(key, sizeof key, "%s_ids", strcmp(name, "chatml") == 0 ? "qwen3" : name);
    if (strchr(key, '-')) *strchr(key, '-') = '_';
    if (!ok(f, "%s: chat_cases.jsonl", name)) return;
    for (json_t *j; (j = next_json(f)); json_decref(j)) {
        const chat_input in = {.messages = json_object_get(j, "messages"), .name = name};
        token_list l = {0};
        n++;
        bool same = chat_encode(t, &in, &l, NULL) == ST_OK;
        if (strcmp(name, "qwen3") == 0) { /* the ids are with thinking on */
            static const int32_t tail[] = {151667, 271, 151668, 271};
            same = same && l.n > 4 && memcmp(l.ids + l.n - 4, tail, sizeof tail) == 0;
            l.n -= same ? 4 : 0;
        }
        same = same && same_ids(json_object_get(j, key), &l);
        if (!same) print_ids("got", &l);
        good += same;
        token_list_free(&l);
    }
    ok(n > 0, "%s: %d conversations", name, n);
    is_int(good, n, "%s: ids as the reference for %d of %d", name, good, n);
    fclose(f);
}

/* llama.cpp's vectors: texts separated by a marker line, a line of ids for each. */
static void check_llama_cpp(const tokenizer *t, const char *stem)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    char rel[128], *text = NULL, *line = NULL;
    size_t n, cap = 0;
    tally y = {0};
    snprintf(rel, sizeof rel, "tokenizers/tests/llama.cpp-%s.inp", stem);
    const char *inp = tap_data(rel);
    snprintf(rel, sizeof rel, "tokenizers/tests/llama.cpp-%s.out", stem);
    const char *out = tap_data(rel);
    FILE *f = inp ? fopen(inp, "rb") : NULL, *g = out ? fopen(out, "rb") : NULL;
    if (!f || !g || !(text = calloc(1, 65536)) || (n = fread(text, 1, 65535, f)) == 0) {
        tap_skip("no %s", stem);
        return;
    }
    for (char *p = text, *end; p && getline(&line, &cap, g) > 0; p = end ? end + sizeof mark - 1 : NULL) {
        end = strstr(p, mark);
        json_t *ids = ids_of(line);
        check_text(&y, t, p, end ? (size_t)(end - p) : strlen(p), ids);
        json_decref(ids);
    }
    ok(y.n >= 40, "%s: %d texts", stem, y.n);
    report(&y, stem);
    free(text);
    free(line);
    fclose(f);
    fclose(g);
}

static char *english_megabyte(void)
{
    const char *path = tap_data("pg19_test/10146.txt.xz");
    char cmd[4200], *text = calloc(1, (1 << 20) + 1);
    if (!path || !text) return text;
    snprintf(cmd, sizeof cmd, "xz -dc '%s'", path);
    FILE *f = popen(cmd, "r");
    size_t n = f ? fread(text, 1, 1 << 20, f) : 0;
    if (f) pclose(f);
    for (size_t i = n; n && i < 1 << 20; i++) text[i] = text[i - n];
    return text;
}

/* One megabyte of English, and texts that would be slow with a quadratic merge. */
static void check_speed(const tokenizer *t, const char *name)
{
    token_list l = {0};
    err e = {0};
    char *text = english_megabyte();
    if (!text || !*text) {
        tap_skip("no book");
        free(text);
        return;
    }
    clock_t t0 = clock();
    status st = tokenizer_encode(t, text, 1 << 20, 0, &l, &e);
    const double s = (double)(clock() - t0) / CLOCKS_PER_SEC;
    printf("# %s: 1 MiB of English, %zu tokens, in %.3f s of CPU\n", name, l.n, s);
    is_ok(st, &e, "%s: encodes a megabyte", name);
    ok(l.n > 200000 && l.n < 400000, "%s: %zu tokens", name, l.n);
    ok(stream_equals_whole(t, l.ids, l.n), "%s: and streams them", name);
    if (strcmp(name, "llama3 (json)") == 0) {
        for (int k = 0; k < 3; k++) {
            memset(text, "a ="[k], 1 << 20);
            t0 = clock();
            l.n = 0;
            st = tokenizer_encode(t, text, 1 << 20, 0, &l, &e);
            printf("# %s: 1 MiB of '%c' in %.3f s of CPU\n", name, "a ="[k], (double)(clock() - t0) / CLOCKS_PER_SEC);
            is_ok(st, &e, "%s: one long word", name);
        }
    }
    token_list_free(&l);
    free(text);
}

/* Writes tokenizer_config.json with the added tokens of qwen/tokenizer.json: what Qwen's folders have. */
static void write_qwen_config(void)
{
    char path[128];
    if (!unpack("qwen/tokenizer.json", "x")) return;
    snprintf(path, sizeof path, "%s/x", work);
    json_t *j = json_load_file(path, 0, NULL), *cfg = json_object(), *dec = json_object(), *a;
    size_t i;
    json_array_foreach(json_object_get(j, "added_tokens"), i, a)
    {
        char key[24];
        snprintf(key, sizeof key, "%lld", (long long)json_integer_value(json_object_get(a, "id")));
        json_object_set(dec, key, a);
    }
    json_object_set_new(cfg, "added_tokens_decoder", dec);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", work);
    json_dump_file(cfg, path, 0);
    json_decref(cfg);
    json_decref(j);
}

typedef struct {
    const char *name, *files[2];
    int n_ids, bos, eos[3];      /* bos -1: none; eos 0: no more */
    const char *ids, *llama_cpp; /* of the fixtures; of llama.cpp's vectors, or NULL */
} published;

static const published tokenizers[] = {
    {"llama3 (json)", {"llama3/tokenizer.json"}, 128256, 128000, {128001, 128009, 128008}, "llama3", "llama-bpe"},
    {"llama3 (tiktoken)", {"llama3/tokenizer.model"}, 128256, 128000, {128001, 128009}, "llama3", "llama-bpe"},
    {"qwen (json)", {"qwen/tokenizer.json"}, 151669, -1, {151645, 151643}, "qwen", "qwen2"},
    {"qwen (vocab.json)", {"qwen/vocab.json", "qwen/merges.txt"}, 151669, -1, {151645}, "qwen", "qwen2"},
#ifdef HAVE_SPM
    {"mistral-v1", {"mistral/tokenizer.model.v1"}, 32000, 1, {2}, "mistral-v1", NULL},
    {"mistral-v3", {"mistral/tokenizer.model.v3"}, 32768, 1, {2}, "mistral-v3", NULL},
#endif
};

/* Ids of a tokenizer, and its chat templates. */
static const char *const chats[][2] = {
    {"llama3", "llama3"}, {"llama3", "llama3.1"},       {"qwen", "qwen2.5"},         {"qwen", "qwen3"},
    {"qwen", "chatml"},   {"mistral-v1", "mistral-v1"}, {"mistral-v3", "mistral-v3"}};

static void check_published(const published *p)
{
    bool there = true;
    make_dir(work, sizeof work);
    for (int i = 0; i < 2 && p->files[i]; i++) there &= unpack(p->files[i], strchr(p->files[i], '/') + 1);
    if (p->files[1]) write_qwen_config();
    tokenizer *t = there ? open_timed(p->name) : NULL;
    if (!there) tap_skip("no files of %s", p->name);
    if (t) {
        is_int(tokenizer_n_ids(t), p->n_ids, "%s: ids", p->name);
        is_int(tokenizer_bos(t), p->bos, "%s: BOS", p->name);
        ok(tokenizer_adds_bos(t) == (p->bos >= 0), "%s: adds it, if it has one", p->name);
        for (int i = 0; i < 3 && p->eos[i]; i++) ok(tokenizer_is_eos(t, p->eos[i]), "%s: EOS", p->name);
        check_lines(t, p->ids);
        check_long(t, p->ids);
        check_cases(t, p->name, p->ids);
        check_decoding(t, p->ids);
        for (size_t i = 0; i < sizeof chats / sizeof *chats; i++)
            if (strcmp(chats[i][0], p->ids) == 0) check_chat(t, chats[i][1]);
        if (p->llama_cpp) check_llama_cpp(t, p->llama_cpp);
        check_speed(t, p->name);
    }
    if (t && strstr(p->name, "tiktoken")) { /* its file does not name special tokens */
        is_int(tokenizer_special_id(t, "<|eot_id|>"), 128009, "tiktoken: end of turn");
        is_int(tokenizer_special_id(t, "<|reserved_special_token_247|>"), 128255, "tiktoken: last special token");
        is_int(tokenizer_special_id(t, "<|python_tag|>"), 128010, "tiktoken: <|python_tag|>");
    }
    tokenizer_free(t);
    remove_dir(work);
}

int main(void)
{
    if (!tap_data("tokenizers/tests/encode_cases.jsonl"))
        return tap_skip_all("no real data (KVASIR_DATA or ../shared/data)");
    for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) check_published(&tokenizers[i]);
    return tap_done();
}
