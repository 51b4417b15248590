/* SPDX-License-Identifier: MIT */
/* The published tokenizers (from the optional real data) against the reference libraries. */
#include "config.h"

#include <sys/stat.h>
#include <time.h>

#include "tests/unit/test_tokenizer_util.h"

static char work[64];

/* Unpacks data file `from` (below tokenizers/, without .xz) as DIR/to. */
static bool unpack(const char *dir, const char *from, const char *to)
{
    char rel[256], cmd[9000];
    snprintf(rel, sizeof rel, "tokenizers/%s.xz", from);
    const char *path = tap_data(rel);
    if (!path) return false;
    snprintf(cmd, sizeof cmd, "xz -dc '%s' > '%s/%s'", path, dir, to);
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

static void check_cases(const tokenizer *t, const char *name, const char *key)
{
    const char *path = tap_data("tokenizers/tests/encode_cases.jsonl");
    FILE *f = path ? fopen(path, "rb") : NULL;
    tally y = {0};
    char label[64];
    if (!f) {
        tap_skip("no encode_cases.jsonl");
        return;
    }
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

/* llama.cpp's vectors: texts separated by a marker line, a line of ids for each. */
static void check_llama_cpp(const tokenizer *t, const char *stem)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    char rel[128], *text = NULL, *line = NULL;
    size_t n, cap = 0;
    tally y = {0};
    snprintf(rel, sizeof rel, "tokenizers/tests/%s.inp", stem);
    const char *inp = tap_data(rel);
    snprintf(rel, sizeof rel, "tokenizers/tests/%s.out", stem);
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
    if (strcmp(name, "llama3") == 0) {
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

static void test_llama3(void)
{
    if (!unpack(work, "llama3/tokenizer.json", "tokenizer.json")) {
        tap_skip("no Llama-3 tokenizer.json");
        return;
    }
    tokenizer *t = open_timed("llama3 (json)");
    if (t) {
        is_int(tokenizer_n_ids(t), 128256, "llama3: ids");
        is_int(tokenizer_bos(t), 128000, "llama3: BOS");
        ok(tokenizer_adds_bos(t), "llama3: adds it");
        ok(tokenizer_is_eos(t, 128001) && tokenizer_is_eos(t, 128009) && tokenizer_is_eos(t, 128008), "llama3: EOS");
        check_lines(t, "llama3");
        check_long(t, "llama3");
        check_cases(t, "llama3", "llama3");
        check_decoding(t, "llama3");
        check_llama_cpp(t, "llama.cpp-llama-bpe");
        check_speed(t, "llama3");
    }
    tokenizer_free(t);
    remove_dir(work);
    mkdir(work, 0700);
    if (!unpack(work, "llama3/tokenizer.model", "tokenizer.model")) {
        tap_skip("no Llama-3 tokenizer.model");
        return;
    }
    t = open_timed("llama3 (tiktoken)");
    if (t) {
        is_int(tokenizer_n_ids(t), 128256, "tiktoken: ids");
        is_int(tokenizer_special_id(t, "<|eot_id|>"), 128009, "tiktoken: end of turn");
        is_int(tokenizer_special_id(t, "<|reserved_special_token_247|>"), 128255, "tiktoken: last special token");
        is_int(tokenizer_special_id(t, "<|python_tag|>"), 128010, "tiktoken: <|python_tag|>");
        check_lines(t, "llama3");
        check_cases(t, "llama3 (tiktoken)", "llama3");
        check_llama_cpp(t, "llama.cpp-llama-bpe");
        check_speed(t, "llama3 (tiktoken)");
    }
    tokenizer_free(t);
    remove_dir(work);
    mkdir(work, 0700);
}

/* tokenizer_config.json with the added tokens of a tokenizer.json: what Qwen's folders have. */
static void write_qwen_config(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/tokenizer.json", work);
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

static void test_qwen(void)
{
    char path[128];
    if (!unpack(work, "qwen/tokenizer.json", "tokenizer.json")) {
        tap_skip("no Qwen tokenizer.json");
        return;
    }
    tokenizer *t = open_timed("qwen (json)");
    if (t) {
        is_int(tokenizer_n_ids(t), 151669, "qwen: ids");
        is_int(tokenizer_bos(t), -1, "qwen: no BOS");
        ok(tokenizer_is_eos(t, 151645) && tokenizer_is_eos(t, 151643), "qwen: EOS");
        check_lines(t, "qwen");
        check_long(t, "qwen");
        check_cases(t, "qwen", "qwen");
        check_decoding(t, "qwen");
        check_llama_cpp(t, "llama.cpp-qwen2");
        check_speed(t, "qwen");
    }
    tokenizer_free(t);
    write_qwen_config();
    snprintf(path, sizeof path, "%s/tokenizer.json", work);
    unlink(path);
    if (unpack(work, "qwen/vocab.json", "vocab.json") && unpack(work, "qwen/merges.txt", "merges.txt")) {
        t = open_timed("qwen (vocab.json, merges.txt)");
        if (t) {
            is_int(tokenizer_n_ids(t), 151669, "vocab.json: ids");
            check_lines(t, "qwen");
            check_cases(t, "qwen (vocab.json)", "qwen");
        }
        tokenizer_free(t);
    }
    remove_dir(work);
    mkdir(work, 0700);
}

#ifdef HAVE_SPM
static void test_mistral(const char *version, const char *key)
{
    char rel[64], name[32];
    snprintf(rel, sizeof rel, "mistral/tokenizer.model.%s", version);
    snprintf(name, sizeof name, "mistral-%s", version);
    if (!unpack(work, rel, "tokenizer.model")) {
        tap_skip("no Mistral %s model", version);
        return;
    }
    tokenizer *t = open_timed(name);
    if (t) {
        is_int(tokenizer_n_ids(t), strcmp(version, "v1") ? 32768 : 32000, "%s: ids", name);
        is_int(tokenizer_bos(t), 1, "%s: BOS", name);
        ok(tokenizer_is_eos(t, 2), "%s: EOS", name);
        check_lines(t, name);
        check_long(t, name);
        check_cases(t, name, key);
        check_decoding(t, name);
        check_speed(t, name);
    }
    tokenizer_free(t);
    remove_dir(work);
    mkdir(work, 0700);
}
#else
static void test_mistral(const char *version, const char *key)
{
    (void)key;
    tap_skip("%s: built without SentencePiece", version);
}
#endif

int main(void)
{
    if (!tap_data("tokenizers/tests/encode_cases.jsonl"))
        return tap_skip_all("no real data (KVASIR_DATA or ../shared/data)");
    make_dir(work, sizeof work);
    test_llama3();
    test_qwen();
    test_mistral("v1", "mistral_v1");
    test_mistral("v3", "mistral_v3");
    remove_dir(work);
    return tap_done();
}
