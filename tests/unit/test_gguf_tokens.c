/* SPDX-License-Identifier: MIT */
/* Tokenizers of GGUF files: ids of the reference library, special tokens, stops, chat templates, broken lists. */
#include "config.h"

#include "tests/unit/gguf_file.h"
#include "tests/unit/test_tokenizer_util.h"
#include "tokenizer/gguf_tokens.h"

enum { MAX = 16 };

/* A vocabulary built in memory. Lists end with NULL; n_types, n_scores: lengths of the lists, 0: missing. */
typedef struct {
    const char *model, *pre, *tokens[MAX], *merges[MAX];
    int types[MAX], n_types, n_scores;
    float score;
    int eos;
    bool bos;
    const char *key; /* an id of any kind; NULL: none */
    int64_t id;
} vocabulary;

static size_t count(const char *const *list)
{
    size_t n = 0;
    while (n < MAX && list[n]) n++;
    return n;
}

static void put_strings(gguf_file *f, const char *key, const char *const *list)
{
    array_begin(f, key, K_STRING, count(list));
    for (size_t i = 0; i < count(list); i++) put_text(f, list[i]);
}

static tokenizer *open_lists(const vocabulary *v, err *e, status *st)
{
    gguf_file f = {0};
    const uint64_t pairs = 3 + !!v->pre + !!v->merges[0] + !!v->n_types + !!v->n_scores + (v->bos ? 2 : 0) + !!v->key;
    file_begin(&f, 3, 1, pairs);
    pair_text(&f, "tokenizer.ggml.model", v->model);
    put_strings(&f, "tokenizer.ggml.tokens", v->tokens);
    pair_u32(&f, "tokenizer.ggml.eos_token_id", (uint32_t)v->eos);
    if (v->pre) pair_text(&f, "tokenizer.ggml.pre", v->pre);
    if (v->merges[0]) put_strings(&f, "tokenizer.ggml.merges", v->merges);
    if (v->n_types) array_begin(&f, "tokenizer.ggml.token_type", K_I32, (uint64_t)v->n_types);
    for (int i = 0; i < v->n_types; i++) put_le(&f, (uint64_t)v->types[i], 4);
    if (v->n_scores) array_begin(&f, "tokenizer.ggml.scores", K_F32, (uint64_t)v->n_scores);
    for (int i = 0; i < v->n_scores; i++) put(&f, &v->score, 4);
    if (v->bos) {
        pair_u32(&f, "tokenizer.ggml.bos_token_id", 3);
        pair_begin(&f, "tokenizer.ggml.add_bos_token", K_BOOL);
        put_le(&f, 1, 1);
    }
    if (v->key) pair_begin(&f, v->key, K_I64);
    if (v->key) put_le(&f, (uint64_t)v->id, 8);
    entry(&f, "x", 1, (uint64_t[]){4}, GGUF_F32, 0);
    file_data(&f, 32, 16);
    gguf *g = NULL;
    tokenizer *t = NULL;
    *st = gguf_open_memory(&g, f.p, f.n, "v.gguf", e);
    if (*st == ST_OK) *st = tokenizer_open_gguf(&t, g, e);
    gguf_close(g);
    free(f.p);
    return t;
}

#define AB                                                                                                             \
    "gpt2", "gpt-2",                                                                                                   \
    {                                                                                                                  \
        "a", "b", "ab", "<s>"                                                                                          \
    }

static const struct {
    vocabulary v;
    status want;
    const char *part;
} bad[] = {
    {{"t5", "gpt-2", {"a"}, .merges = {0}}, ST_UNSUPPORTED, "tokenizer.ggml.model \"t5\" is not supported"},
    {{"gpt2", NULL, {"a"}, .merges = {0}}, ST_UNSUPPORTED, "tokenizer.ggml.pre is missing"},
    {{"gpt2", "default", {"a"}, .merges = {0}}, ST_UNSUPPORTED, "tokenizer.ggml.pre \"default\" is not supported"},
    {{"gpt2", "gpt-2 phi-2", {"a"}, .merges = {0}}, ST_UNSUPPORTED, "is not supported"},
    {{AB, .merges = {0}}, ST_FORMAT, "tokenizer.ggml.merges is missing"},
    {{AB, .merges = {"a c"}}, ST_FORMAT, "the second is not in the vocabulary"},
    {{AB, .merges = {"ab"}}, ST_FORMAT, "is not two tokens"},
    {{AB, .merges = {"a b"}, {1, 1, 1}, .n_types = 3}, ST_FORMAT, "tokenizer.ggml.token_type has 3 elements"},
    {{AB, .merges = {"a b"}, {1, 1, 1, 7}, .n_types = 4},
     ST_FORMAT,
     "tokenizer.ggml.token_type[3] is 7, expected 1 to 6"},
    {{AB, .merges = {"a b"}, {1, 1, 1, -1}, .n_types = 4}, ST_FORMAT, "tokenizer.ggml.token_type[3] is -1"},
    {{"gpt2", "gpt-2", {"a", "b", "ab", "a"}, .merges = {"a b"}}, ST_FORMAT, "\"a\", is a duplicate"},
    {{"gpt2", "gpt-2", {"a", "b", "ab", "a"}, .merges = {"a b"}, {1, 1, 1, 4}, .n_types = 4},
     ST_FORMAT,
     "is a duplicate"},
    {{"gpt2", "gpt-2", {"a", "b", "ab", "<s>", "<s>"}, .merges = {"a b"}, {1, 1, 1, 3, 3}, .n_types = 5},
     ST_FORMAT,
     "has the ids 3 and 4"},
    {{"llama", NULL, {"<unk>", "a"}, {0}, {2, 1}, .n_types = 2, .n_scores = 2, .score = -1000},
     ST_UNSUPPORTED,
     "all tokenizer.ggml.scores are -1000"},
    {{"llama", NULL, {"<unk>", "a"}, {0}, {2, 1}, .n_types = 2, .n_scores = 1},
     ST_FORMAT,
     "tokenizer.ggml.scores has 1 elements"},
    {{"llama", NULL, {"<unk>", "a", "<0x00>"}, {0}, {2, 1, 6}, .n_types = 3, .n_scores = 3},
     ST_FORMAT,
     "has 1 tokens of single bytes, expected 256"},
};

static void check_bad(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        status st;
        tokenizer *t = open_lists(&bad[i].v, &e, &st);
        if (!strstr(bad[i].v.model, "llama") || st != ST_UNSUPPORTED || strstr(e.msg, "scores"))
            is_err(st, &e, bad[i].want, bad[i].part, "refused: %s", bad[i].part);
        else tap_skip("%s", e.msg);
        tokenizer_free(t);
    }
}

/* Bytes without a token leave none; user-defined tokens are found in every text, control tokens on request. */
static void check_types(void)
{
    const vocabulary v = {"gpt2",
                          "gpt-2",
                          {"a", "b", "ab", "<s>", "abab", "[PAD5]", "<u>"},
                          {"a b", "ab ab"},
                          {1, 1, 1, 3, 4, 5, 2},
                          .n_types = 7,
                          .eos = 99,
                          .bos = true};
    err e = {0};
    status st;
    tokenizer *t = open_lists(&v, &e, &st);
    if (!is_ok(st, &e, "vocabulary of types 1 to 5")) return;
    const struct {
        const char *text;
        unsigned flags;
        size_t n;
        int32_t ids[4];
    } cases[] = {
        {"ab\x01z\xff", 0, 1, {2}},
        {"abab", 0, 1, {4}},
        {"<s>ab", 0, 1, {2}},
        {"<s>ab", TOKENIZE_SPECIAL, 2, {3, 2}},
        {"<u>", TOKENIZE_SPECIAL, 1, {6}},
        {"[PAD5]", TOKENIZE_SPECIAL, 0, {0}},
        {"ab", TOKENIZE_BOS, 2, {3, 2}},
        {"<s>ab", TOKENIZE_BOS | TOKENIZE_SPECIAL, 3, {3, 3, 2}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        token_list got = {0};
        st = tokenizer_encode(t, cases[i].text, strlen(cases[i].text), cases[i].flags, &got, &e);
        bool same = st == ST_OK && got.n == cases[i].n;
        for (size_t k = 0; same && k < got.n; k++) same = got.ids[k] == cases[i].ids[k];
        ok(same, "types: case %zu", i);
        token_list_free(&got);
    }
    ok(tokenizer_adds_bos(t), "add_bos_token");
    ok(tokenizer_is_special(t, 6) && !tokenizer_is_special(t, 4), "unknown is special, user-defined is not");
    tokenizer_free(t);
}

/* Ids outside the vocabulary are ignored, with a warning that names the key. */
static void check_outside(void)
{
    static const char *const keys[] = {"bos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"};
    static const int64_t ids[] = {4, 99, -1, UINT32_MAX, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < 36; i++) {
        char key[64], want[128];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", keys[i / 6]);
        snprintf(want, sizeof want, "v.gguf: %s is %lld, ignored: the file has 4 tokens", key, (long long)ids[i % 6]);
        const vocabulary v = {AB, .merges = {"a b"}, .eos = 3, .key = key, .id = ids[i % 6]};
        err e = {0};
        status st;
        tokenizer *t = open_lists(&v, &e, &st);
        token_list eos = {0};
        if (t) st = tokenizer_eos_ids(t, &eos, &e);
        ok(t && st == ST_OK && eos.n == 1 && eos.ids[0] == 3 && tokenizer_bos(t) == -1, "%s: ignored", key);
        is_str(t && tokenizer_warning(t) ? tokenizer_warning(t) : "", want, "and named");
        token_list_free(&eos);
        tokenizer_free(t);
    }
    const vocabulary good = {AB, .merges = {"a b"}, .eos = 3, .key = "tokenizer.ggml.bos_token_id", .id = 0};
    err e = {0};
    status st;
    tokenizer *t = open_lists(&good, &e, &st);
    ok(t && !tokenizer_warning(t) && tokenizer_bos(t) == 0, "an id inside the vocabulary gives no warning");
    tokenizer_free(t);
}

static bool stops(const char *a, const char *b, const char *c, int id)
{
    const vocabulary v = {"gpt2", "gpt-2", {"x", "y", "xy", a, b, c}, {"x y"}, .eos = 2};
    err e = {0};
    status st;
    tokenizer *t = open_lists(&v, &e, &st);
    const bool is = t && tokenizer_is_eos(t, id);
    ok(t && tokenizer_is_eos(t, 2), "%s %s %s: eos_token_id stops", a, b, c);
    tokenizer_free(t);
    return is;
}

static void check_stops(void)
{
    ok(stops("<|im_end|>", "p", "q", 3), "a stop by its spelling, whatever its type");
    ok(!stops("<|im_start|>", "p", "q", 3), "another spelling is none");
    ok(stops("<|end|>", "<|return|>", "q", 3), "<|end|> stops");
    ok(!stops("<|end|>", "<|return|>", "<|call|>", 3), "<|end|> with <|return|> and <|call|> does not");
    ok(!stops("<|end|>", "<|calls|>", "<|flush|>", 3), "nor with <|calls|> and <|flush|>");
    ok(stops("</s>", "p", "q", 3), "</s> stops");
    ok(!stops("</s>", "<|tool_response>", "q", 3), "</s> with <|tool_response> does not");
    ok(stops("<reponame>", "p", "q", 3), "the token of repositories stops");
}

/* Opens a vocabulary with the token `text` of a type, id 3, and perhaps a key. */
static tokenizer *open_one(const char *text, int type, const char *key, int64_t id)
{
    const vocabulary v = {
        "gpt2",     "gpt-2", {"x", "y", "xy", text, "z"}, {"x y"}, {1, 1, 1, type, 1}, .n_types = 5, .eos = 2,
        .key = key, .id = id};
    err e = {0};
    status st;
    tokenizer *t = open_lists(&v, &e, &st);
    is_ok(st, &e, "%s, %s", text, key ? key : "no key");
    return t;
}

/* Tokens for filling in the middle: found by keys of old and new files, else by their spellings. */
static void check_fim(void)
{
    static const struct {
        const char *text, *key;
        int type, id;
        bool special, stop3, stop4;
    } cases[] = {
        {"<|fim_prefix|>", NULL, 1, 0, true, false, false},    {"<SUF>", NULL, 4, 0, true, false, false},
        {"\u2581<MID>", NULL, 4, 0, true, false, false},       {"<PRE>", "prefix", 1, 4, false, false, false},
        {"<PRE>", "suffix", 1, 4, true, false, false},         {"<fim_middle>", "middle", 4, 4, false, false, false},
        {"<fim_middle>", "fim_mid", 3, 4, true, false, false}, {"<PAD>", NULL, 1, 0, true, true, false},
        {"<PAD>", "fim_pad", 1, 4, false, false, true},        {"<PAD>", "fim_pad", 1, 99, true, true, false},
        {"<reponame>", "fim_rep", 3, 4, true, false, true},    {"<|file_sep|>", "fim_pad", 4, 4, true, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char key[64] = "";
        if (cases[i].key) snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", cases[i].key);
        tokenizer *t = open_one(cases[i].text, cases[i].type, cases[i].key ? key : NULL, cases[i].id);
        if (!t) continue;
        ok(tokenizer_is_special(t, 3) == cases[i].special, "special: %d", cases[i].special);
        ok(tokenizer_is_eos(t, 3) == cases[i].stop3 && tokenizer_is_eos(t, 4) == cases[i].stop4, "stops");
        tokenizer_free(t);
    }
}

/* Spellings that templates read. EOS is that of its key, also if other tokens end generation. */
static void check_names(void)
{
    static const char *const cases[][3] = {
        {"bos", "bos_token", "<|im_end|>"},
        {"bos", "eos_token", "xy"},
        {"eot", "eos_token", "xy"},
        {"eot", "bos_token", ""},
        {"unknown", "unk_token", "<|im_end|>"},
        {"padding", "pad_token", "<|im_end|>"},
        {"seperator", "sep_token", "<|im_end|>"},
        {"mask", "mask_token", "<|im_end|>"},
        {"mask", "unk_token", NULL},
        {"unknown", "pad_token", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char key[64];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", cases[i][0]);
        tokenizer *t = open_one("<|im_end|>", 3, key, 3);
        if (!t) continue;
        const char *got = json_string_value(json_object_get(t->chat.tokens, cases[i][1])), *want = cases[i][2];
        ok(want ? got && strcmp(got, want) == 0 : !got, "%s: %s is %s", cases[i][0], cases[i][1],
           want ? want : "unset");
        tokenizer_free(t);
    }
}

/* Compares the ids of a file with those of the small tokenizer that it was made from. */
static void check_ids(const char *name, bool has_template, bool adds_bos)
{
    char path[128];
    snprintf(path, sizeof path, "tests/data/gguf/tokens-%s.gguf", name);
    tokenizer *t = open_tokenizer(tap_path(path), path);
    snprintf(path, sizeof path, "tests/data/tokenizers/small/%s/tokens.jsonl", name);
    FILE *f = t ? fopen(tap_path(path), "r") : NULL;
    int n = 0, wrong = 0;
    for (json_t *j; f && (j = next_json(f)); json_decref(j)) {
        const char *text = json_string_value(json_object_get(j, "text"));
        const size_t len = json_string_length(json_object_get(j, "text"));
        /* Files do not tell which white space or words belong to these tokens. */
        if (strstr(text, "<L>") || strstr(text, "WORD") || strstr(text, "rm n")) continue;
        token_list got = {0};
        err e = {0};
        const bool same =
            tokenizer_encode(t, text, len, 0, &got, &e) == ST_OK && same_ids(json_object_get(j, "ids"), &got);
        if (!same) print_text(name, text, len);
        wrong += !same;
        n++;
        token_list_free(&got);
    }
    if (t) {
        ok(n > 150 && wrong == 0, "%s: ids of %d texts, %d differ", name, n, wrong);
        const char *chat = tokenizer_chat_template(t);
        ok(has_template ? chat && strcmp(chat, "tokenizer.chat_template") == 0 : !chat, "%s: chat template", name);
        ok(tokenizer_adds_bos(t) == adds_bos, "%s: adds BOS by default: %d", name, adds_bos);
    }
    if (f) fclose(f);
    tokenizer_free(t);
}

static void check_decoded(const tokenizer *t, const int32_t *ids, size_t n, const char *want)
{
    char *text = NULL;
    err e = {0};
    if (is_ok(tokenizer_decode(t, ids, n, false, &text, NULL, &e), &e, "decodes")) is_str(text, want, "user-defined");
    mem_free(text);
}

/* User-defined and control tokens of SentencePiece type: ids of texts that are cut at them before SentencePiece reads
 * the parts. In the file "user" each part begins with a space mark. */
static void check_user(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "tests/data/gguf/tokens-spm-%s.gguf", name);
    tokenizer *t = open_tokenizer(tap_path(path), path);
    snprintf(path, sizeof path, "tests/data/gguf/tokens-spm-%s.jsonl", name);
    FILE *f = t ? fopen(tap_path(path), "r") : NULL;
    int n = 0, wrong = 0;
    for (json_t *j; f && (j = next_json(f)); json_decref(j)) {
        const char *text = json_string_value(json_object_get(j, "text"));
        const size_t len = json_string_length(json_object_get(j, "text"));
        for (int special = 0; special < 2; special++) {
            token_list got = {0};
            err e = {0};
            const json_t *want = json_object_get(j, special ? "special" : "ids");
            const bool same = tokenizer_encode(t, text, len, special ? TOKENIZE_SPECIAL : 0, &got, &e) == ST_OK &&
                              same_ids(want, &got);
            if (!same) print_text(name, text, len);
            wrong += !same;
            n++;
            token_list_free(&got);
        }
    }
    if (t) ok(n == 300 && wrong == 0, "spm-%s: ids of %d texts, %d differ", name, n, wrong);
    if (t) check_decoded(t, (const int32_t[]){701, 701}, 2, "<u><u>");
    if (t) check_decoded(t, (const int32_t[]){700, 706, 703}, 3, " <PRE>\n\n");
    if (f) fclose(f);
    tokenizer_free(t);
}

int main(void)
{
    check_ids("llama3", true, true);
    check_ids("qwen", true, false);
    check_ids("spm", false, true);
    check_user("user");
    check_user("bare");
    check_bad();
    check_types();
    check_outside();
    check_stops();
    check_fim();
    check_names();
    return tap_done();
}
