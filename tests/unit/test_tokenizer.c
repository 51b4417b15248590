/* SPDX-License-Identifier: MIT */
/* Tokenizers on the committed fixtures: ids of the reference libraries, decoding, streaming,
 * settings. */
#include "config.h"

#include "tests/unit/model_names.h"
#include "tests/unit/oom.h"
#include "tests/unit/test_tokenizer_util.h"

static bool spells_added(const tokenizer *t, const char *text, size_t n)
{
    for (size_t i = 0; i < t->added.n; i++)
        if (!t->added.items[i].special && memmem(text, n, t->added.items[i].text, t->added.items[i].n)) return true;
    return false;
}

/* tokens.jsonl of one folder. bare: its ids were made without any added tokens, so texts that spell
 * those that always count (<think>) are left out; they are in small/qwen and in the real data. */
static void check_folder(const char *rel, int n_texts, bool bare)
{
    char path[4200];
    tokenizer *t;
    err e = {0};
    tally y = {0};
    snprintf(path, sizeof path, "%s/tokens.jsonl", tap_path(rel));
    FILE *f = fopen(path, "rb");
    if (!ok(f, "%s has tokens.jsonl", rel)) return;
    status st = tokenizer_open(&t, tap_path(rel), &e);
#ifndef HAVE_SPM
    if (st == ST_UNSUPPORTED) {
        is_err(st, &e, ST_UNSUPPORTED, "built without SentencePiece", "%s says what is missing", rel);
        fclose(f);
        return;
    }
#endif
    if (is_ok(st, &e, "%s opens", rel)) {
        for (json_t *j; (j = next_json(f)); json_decref(j)) {
            const json_t *s = json_object_get(j, "text");
            const char *text = json_string_value(s);
            if (bare && spells_added(t, text, json_string_length(s))) n_texts--;
            else check_text(&y, t, text, json_string_length(s), json_object_get(j, "ids"));
        }
        is_int(y.n, n_texts, "%s: number of texts", rel);
        report(&y, rel);
        const char *small = strstr(rel, "small/");
        if (small && !strstr(small, "tiktoken")) check_long(t, small);
    }
    tokenizer_free(t);
    fclose(f);
}

static void test_folders(void)
{
    static const char *const small[] = {"llama3", "tiktoken", "qwen", "spm"};
    char rel[128];
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        snprintf(rel, sizeof rel, "tests/data/tokenizers/small/%s", small[i]);
        check_folder(rel, 165, false);
    }
    for (size_t i = 0; i < sizeof MODEL_NAMES / sizeof *MODEL_NAMES; i++) {
        snprintf(rel, sizeof rel, "tests/data/models/%s", MODEL_NAMES[i]);
        check_folder(rel, 140, true);
    }
}

static void check_encode(const tokenizer *t, const char *text, size_t n, unsigned flags, const char *want)
{
    token_list l = {0};
    char got[512] = "";
    size_t k = 0;
    err e = {0};
    status st = tokenizer_encode(t, text, n, flags, &l, &e);
    for (size_t i = 0; i < l.n && k < sizeof got - 16; i++)
        k += (size_t)snprintf(got + k, sizeof got - k, i ? " %d" : "%d", l.ids[i]);
    if (is_ok(st, &e, "encodes")) is_str(got, want, "flags %u", flags);
    token_list_free(&l);
}

static void check_decode(const tokenizer *t, const int32_t *ids, size_t n, bool keep, const char *want,
                         const char *name)
{
    char *out;
    size_t len;
    if (!ok(tokenizer_decode(t, ids, n, keep, &out, &len, NULL) == ST_OK, "decodes")) return;
    is_str(out, want, "%s", name);
    is_int((long long)len, (long long)strlen(want), "%s: length", name);
    ok(stream_equals_whole(t, ids, n), "%s: stream", name);
    mem_free(out);
}

/* Prompts with and without BOS: its id is 640. */
static void check_prompts(const tokenizer *t)
{
    static const struct {
        const char *text;
        bool bos;
        int n, first;
    } cases[] = {{"!", true, 2, 640},
                 {"!", false, 1, 0},
                 {"<|begin_of_text|>!", true, 2, 640},
                 {"", true, 1, 640},
                 {"!<|eot_id|>", true, 3, 640},
                 {"<|eot_id|>!", true, 3, 640}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        token_list l = {0};
        const char *text = cases[i].text;
        ok(tokenizer_encode_prompt(t, text, strlen(text), cases[i].bos, &l, NULL) == ST_OK && (int)l.n == cases[i].n &&
               l.ids[0] == cases[i].first,
           "prompt \"%s\"%s", text, cases[i].bos ? " with BOS" : "");
        token_list_free(&l);
    }
}

/* Ids of Llama-3's small twin: bytes by GPT-2's alphabet, so '!' is 0 and byte 0x80 is 188 + ... */
static void test_bpe_details(void)
{
    tokenizer *t = open_small("llama3");
    if (!ok(t, "the small Llama-3 tokenizer opens")) return;
    const int32_t bos = tokenizer_special_id(t, "<|begin_of_text|>");
    char want[64];
    is_int(bos, 640, "BOS follows the vocabulary");
    is_int(tokenizer_bos(t), bos, "BOS comes from the post-processor");
    ok(tokenizer_adds_bos(t), "and is added by default");
    is_int(tokenizer_n_ids(t), 645, "number of ids");
    is_str(tokenizer_describe(t), "byte-level BPE (tokenizer.json), 645 tokens", "description");
    ok(tokenizer_is_special(t, bos) && !tokenizer_is_special(t, 0) && !tokenizer_is_special(t, 100000), "special ids");
    ok(tokenizer_is_eos(t, tokenizer_special_id(t, "<|eot_id|>")), "the end of a turn ends generation");
    ok(!tokenizer_is_eos(t, bos) && !tokenizer_is_eos(t, 5), "others do not");
    is_int(tokenizer_special_id(t, "<|no_such|>"), -1, "an unknown special token");
    snprintf(want, sizeof want, "%d 0", bos);
    check_encode(t, "!", 1, TOKENIZE_BOS, want);
    snprintf(want, sizeof want, "0 %d 1", bos);
    check_encode(t, "!<|begin_of_text|>\"", 19, TOKENIZE_SPECIAL, want);
    check_encode(t, "", 0, 0, "");
    check_prompts(t);

    /* Bytes that are not UTF-8 go one by one: 0xff, 0xc3 without its second byte, a surrogate. */
    token_list l = {0};
    const char bad[] = "a\xff"
                       "b\xc3"
                       "!\xed\xa0\x80";
    ok(tokenizer_encode(t, bad, sizeof bad - 1, 0, &l, NULL) == ST_OK, "bytes that are not UTF-8 are accepted");
    size_t n = 0;
    bool same = true;
    for (size_t i = 0; i < l.n; i++) {
        size_t k;
        const char *b = bpe_token(t->bpe, l.ids[i], &k);
        same &= n + k < sizeof bad && memcmp(b, bad + n, k) == 0;
        n += k;
    }
    ok(same && n == sizeof bad - 1, "and the tokens hold exactly these bytes");
    check_decode(t, l.ids, l.n, false,
                 "a\xef\xbf\xbd"
                 "b\xef\xbf\xbd!\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
                 "broken bytes decode to U+FFFD");
    token_list_free(&l);

    int32_t ids[] = {bos, 0, 644, 1, -5, 1 << 30, 1};
    check_decode(t, ids, 7, false, "!\"\"", "special and unknown ids decode to nothing");
    check_decode(t, ids, 4, true, "<|begin_of_text|>!<|eot_id|>\"", "special ids are kept on demand");
    check_decode(t, ids, 0, true, "", "no ids");
    tokenizer_free(t);
}

/* A lower rank goes first wherever it is, of equal ones the leftmost. */
static void test_merge_order(void)
{
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"aa\":5},"
        "\"merges\":[\"b c\",\"a b\",\"a a\"]},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false}}";
    static const struct {
        const char *text;
        int n;
        int32_t ids[4];
    } cases[] = {{"abc", 2, {0, 4}}, {"aab", 2, {0, 3}}, {"aaa", 2, {5, 0}}, {"aabc", 2, {5, 4}}};
    tokenizer *t;
    err e = {0};
    if (!is_ok(tokenizer_open_json(&t, json, sizeof json - 1, "merges", &e), &e, "merges: opens")) return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        token_list l = {0};
        is_ok(tokenizer_encode(t, cases[i].text, strlen(cases[i].text), 0, &l, &e), &e, "%s", cases[i].text);
        ok(l.n == (size_t)cases[i].n && memcmp(l.ids, cases[i].ids, l.n * sizeof *l.ids) == 0,
           "%s: the order of merges", cases[i].text);
        token_list_free(&l);
    }
    tokenizer_free(t);
}

static void test_streaming(void)
{
    tokenizer *t = open_small("tiktoken");
    token_stream *s;
    const char *text;
    size_t n;
    if (!ok(t, "the small tiktoken tokenizer opens") || token_stream_create(&s, t, NULL) != ST_OK) return;
    is_str(tokenizer_describe(t), "tiktoken (tokenizer.model), 896 tokens", "description");
    static const unsigned char euro[] = {0xe2, 0x82, 0xac};
    for (int i = 0; i < 3; i++) {
        const char c = (char)euro[i];
        ok(token_stream_push(s, bpe_find(t->bpe, &c, 1), &text, &n, NULL) == ST_OK, "byte %d goes in", i);
        is_str(text, i < 2 ? "" : "\xe2\x82\xac", "a character comes out when it is complete");
    }
    const char first = (char)0xe2;
    ok(token_stream_push(s, bpe_find(t->bpe, &first, 1), &text, &n, NULL) == ST_OK && n == 0,
       "a first byte is held back");
    ok(token_stream_push(s, tokenizer_bos(t), &text, &n, NULL) == ST_OK && n == 0, "a special token changes nothing");
    ok(token_stream_push(s, bpe_find(t->bpe, "!", 1), &text, &n, NULL) == ST_OK, "another character follows");
    is_str(text, "\xef\xbf\xbd!", "so it was broken");
    ok(token_stream_push(s, bpe_find(t->bpe, &first, 1), &text, &n, NULL) == ST_OK && n == 0, "one more");
    ok(token_stream_end(s, &text, &n, NULL) == ST_OK, "the end");
    is_str(text, "\xef\xbf\xbd", "shows what was held back");
    token_stream_free(s);
    tokenizer_free(t);
}

#ifdef HAVE_SPM
static void test_spm(void)
{
    tokenizer *t = open_small("spm");
    if (!ok(t, "the small SentencePiece tokenizer opens")) return;
    const int32_t inst = tokenizer_special_id(t, "[INST]"), a = 259 + 2;
    is_int(tokenizer_bos(t), 1, "BOS");
    ok(tokenizer_adds_bos(t) && tokenizer_is_eos(t, 2), "is added; EOS ends generation");
    is_int(inst, 3, "a control symbol is a special token");
    is_str(tokenizer_describe(t), "SentencePiece (tokenizer.model), 700 tokens", "description");
    token_list plain = {0}, special = {0};
    ok(tokenizer_encode(t, "x[INST]y", 8, 0, &plain, NULL) == ST_OK && plain.n > 3, "its spelling is plain text");
    ok(tokenizer_encode(t, "x[INST]y", 8, TOKENIZE_SPECIAL, &special, NULL) == ST_OK, "unless asked for");
    int found = 0;
    for (size_t i = 0; i < plain.n; i++) found += plain.ids[i] == inst;
    is_int(found, 0, "no special id in plain text");
    for (size_t i = 0; i < special.n; i++) found += special.ids[i] == inst;
    is_int(found, 1, "one where special tokens count");
    token_list_free(&plain);
    token_list_free(&special);

    const int32_t byte0 = spm_byte_id(t->spm, 0);
    ok(byte0 > 0, "there are byte pieces");
    const char bad[] = "ab\xff"
                       "cd\xe2\x82";
    ok(tokenizer_encode(t, bad, sizeof bad - 1, 0, &plain, NULL) == ST_OK, "bytes that are not UTF-8 are accepted");
    int n_ff = 0, n_82 = 0;
    for (size_t i = 0; i < plain.n; i++) {
        n_ff += plain.ids[i] == byte0 + 0xff;
        n_82 += plain.ids[i] == byte0 + 0x82;
    }
    ok(n_ff == 1 && n_82 == 1, "as byte pieces");
    check_decode(t, plain.ids, plain.n, false,
                 "ab\xef\xbf\xbd"
                 "cd\xef\xbf\xbd\xef\xbf\xbd",
                 "no space appears after them, and each broken byte is one U+FFFD");
    token_list_free(&plain);
    const int32_t bytes[] = {1, byte0 + 0xe2, byte0 + 0x82, byte0 + 0xac, byte0 + 0xe2, 2, byte0 + 'A'};
    check_decode(t, bytes, 7, false,
                 "\xe2\x82\xac\xef\xbf\xbd"
                 "A",
                 "byte pieces make characters");
    const int32_t unk[] = {0, a};
    char *out;
    ok(tokenizer_decode(t, unk, 1, false, &out, NULL, NULL) == ST_OK, "unknown");
    is_str(out, " \xe2\x81\x87 ", "decodes to the library's mark");
    mem_free(out);
    tokenizer_free(t);
}
#else
static void test_spm(void)
{
    tap_skip("built without SentencePiece");
}
#endif

/* The small Qwen tokenizer with other settings next to it. */
static void test_settings(void)
{
    char dir[64], path[160];
    make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "cp %s %s/tokenizer.json", tap_path("tests/data/tokenizers/small/qwen/tokenizer.json"),
             dir);
    ok(system(path) == 0, "copy");
    tokenizer *t;
    err e = {0};
    static const char *const files[][2] = {
        {"tokenizer_config.json",
         "{\"bos_token\": {\"content\": \"<|im_start|>\"}, \"add_bos_token\": true, \"eos_token\": "
         "\"<think>\","
         " \"added_tokens_decoder\": {\"660\": {\"content\": \"<|extra|>\", \"special\": true}}}"},
        {"generation_config.json", "{\"eos_token_id\": [7, 9]}"},
        {"config.json", "{\"eos_token_id\": 11}"},
        {"chat_template.jinja", "{{ '<|im_start|>' }}{% if enable_thinking %}"},
    };
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i][0]);
        write_file(path, files[i][1], strlen(files[i][1]));
    }
    if (is_ok(tokenizer_open(&t, dir, &e), &e, "opens with its settings")) {
        is_int(tokenizer_bos(t), tokenizer_special_id(t, "<|im_start|>"), "BOS of tokenizer_config.json");
        ok(!tokenizer_adds_bos(t), "add_bos_token has no effect on tokenizer.json, as in the reference");
        ok(tokenizer_is_eos(t, tokenizer_special_id(t, "<think>")), "eos_token");
        ok(tokenizer_is_eos(t, 7) && tokenizer_is_eos(t, 9), "the list of generation_config.json");
        ok(!tokenizer_is_eos(t, 11), "config.json counts only where that says nothing");
        ok(tokenizer_is_eos(t, tokenizer_special_id(t, "<|im_end|>")), "end of turn");
        is_int(tokenizer_special_id(t, "<|extra|>"), 660, "added_tokens_decoder");
        is_int(tokenizer_n_ids(t), 661, "ids reach to it");
        is_str(tokenizer_chat_template(t), "chat_template.jinja", "chat_template.jinja");
        const char *s = "a<think>b<|im_end|>";
        char want[64];
        snprintf(want, sizeof want, "64 %d 65 %d", tokenizer_special_id(t, "<think>"),
                 tokenizer_special_id(t, "<|im_end|>"));
        check_encode(t, s, strlen(s), TOKENIZE_SPECIAL, want);
    }
    tokenizer_free(t);
    static const char text[] = "{\"text_config\": {\"eos_token_id\": 13}}";
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    write_file(path, "{}", 2);
    snprintf(path, sizeof path, "%s/config.json", dir);
    write_file(path, text, strlen(text));
    if (is_ok(tokenizer_open(&t, dir, &e), &e, "opens with the config of a vision model"))
        ok(tokenizer_is_eos(t, 13), "eos_token_id of its text part");
    tokenizer_free(t);
    remove_dir(dir);
}

static void test_clean_up(void)
{
    static const char *const cases[][2] = {
        {"Yes . No ? Ah ! a , b", "Yes. No? Ah! a, b"},
        {"do n't I 'm it 's we 've you 're", "don't I'm it's we've you're"},
        {"rock ' n ' roll  .", "rock'n'roll ."},
        {"", ""},
        {" . .", ".."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", cases[i][0]);
        size_t n = strlen(text);
        tokenizer_clean_up(text, &n);
        is_str(text, cases[i][1], "clean-up %zu", i);
        is_int((long long)n, (long long)strlen(cases[i][1]), "and its length");
    }
}

#ifdef HAVE_SPM
/* Llama-2 and Mistral folders have a tokenizer.json of another kind next to tokenizer.model. */
static void test_json_beside_model(void)
{
    static const char json[] = "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0},"
                               "\"merges\":[]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
                               "\"ByteFallback\"}]}}";
    static const char config[] = "{\"clean_up_tokenization_spaces\":true,\"added_tokens_decoder\":{\"700\":"
                                 "{\"content\":\"<pad>\",\"special\":true,\"normalized\":true}}}";
    char dir[64], path[160], cmd[4400];
    tokenizer *t;
    err e = {0};
    make_dir(dir, sizeof dir);
    snprintf(cmd, sizeof cmd, "cat '%s' > %s/tokenizer.model",
             tap_path("tests/data/tokenizers/small/spm/tokenizer.model"), dir);
    ok(system(cmd) == 0, "copy");
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    write_file(path, json, sizeof json - 1);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    write_file(path, config, sizeof config - 1);
    if (is_ok(tokenizer_open(&t, dir, &e), &e, "tokenizer.model is read instead")) {
        is_str(tokenizer_describe(t), "SentencePiece (tokenizer.model), 701 tokens", "and described");
        ok(tokenizer_cleans_up(t), "clean_up_tokenization_spaces");
        check_encode(t, "<pad><s>", 8, TOKENIZE_SPECIAL, "700 1");
        const int32_t ids[] = {700, 1};
        check_decode(t, ids, 2, true, "<pad><s>", "an id past the model's");
    }
    tokenizer_free(t);
    remove_dir(dir);
}
#else
static void test_json_beside_model(void)
{
    tap_skip("built without SentencePiece");
}
#endif

/* Fails each allocation in turn: an error each time, and nothing leaks (LeakSanitizer watches). */
static void test_out_of_memory(void)
{
    static const char *const names[] = {"llama3", "tiktoken"};
    for (int k = 0; k < 2; k++) {
        char rel[128];
        tokenizer *t = NULL;
        snprintf(rel, sizeof rel, "tests/data/tokenizers/small/%s", names[k]);
        oom_run open = {0}, encode = {0};
        while (oom_next(&open)) {
            status st = tokenizer_open(&t, tap_path(rel), &open.e);
            oom_saw(&open, st, &t);
        }
        oom_ok(&open, 10, names[k]);
        token_list l = {0};
        const char *text = "Some te\xccxt, na\xc3\xafve 123!!\n";
        while (t && oom_next(&encode)) {
            status st = tokenizer_encode(t, text, strlen(text), TOKENIZE_BOS, &l, &encode.e);
            oom_saw(&encode, st, NULL);
            encode.bad |= st != ST_OK && l.n != 0;
        }
        oom_ok(&encode, 2, "encoding");
        char *out = NULL;
        for (long i = 1; t && !out && i < 1000; i++) {
            mem_test_fail_at(i);
            tokenizer_decode(t, l.ids, l.n, false, &out, NULL, NULL);
            mem_test_fail_at(0);
        }
        is_str(out, "Some te\xef\xbf\xbdxt, na\xc3\xafve 123!!\n", "%s: decoding the same", names[k]);
        mem_free(out);
        token_list_free(&l);
        tokenizer_free(t);
    }
}

int main(void)
{
    test_folders();
    test_bpe_details();
    test_merge_order();
    test_streaming();
    test_spm();
    test_settings();
    test_clean_up();
    test_json_beside_model();
    test_out_of_memory();
    return tap_done();
}
