/* SPDX-License-Identifier: MIT */
/* Broken tokenizer files: each is refused with a message that names the file and the field. */
#include "config.h"

#include "tests/unit/test_tokenizer_util.h"

#define PRE "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(p)                                                                                                       \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\","                         \
    "\"pattern\":" p "}," PRE "]}"
#define REGEX(r) SPLIT("{\"Regex\":\"" r "\"}")
#define ABC      "{\"a\":0,\"b\":1,\"ab\":2}"

/* A tokenizer.json of parts. */
static const char *make_json(const char *vocab, const char *merges, const char *pre, const char *extra)
{
    static char text[4096];
    snprintf(text, sizeof text, "{\"model\":{\"type\":\"BPE\",\"vocab\":%s,\"merges\":%s},\"pre_tokenizer\":%s%s}",
             vocab, merges, pre, extra);
    return text;
}

static void refuse(const char *text, status want, const char *part)
{
    tokenizer *t;
    err e = {0};
    status st = tokenizer_open_json(&t, text, strlen(text), "tokenizer.json", &e);
    is_err(st, &e, want, part, "refused: %s", part);
    ok(!t && strncmp(e.msg, "tokenizer.json: ", 16) == 0, "and the file is named");
    tokenizer_free(t);
}

/* Broken parts and what must be said about them. */
static const struct {
    const char *vocab, *merges, *pre, *extra;
    status want;
    const char *part;
} bad_json[] = {
    {"[]", "[]", PRE, "", ST_FORMAT, "model.vocab is missing or not an object"},
    {"{\"a\":\"0\"}", "[]", PRE, "", ST_FORMAT, "model.vocab: the id of \"a\" is not an integer"},
    {"{\"a\":-1}", "[]", PRE, "", ST_FORMAT, "the id of \"a\""},
    {"{\"a\":99999999999}", "[]", PRE, "", ST_FORMAT, "is not an integer in 0..4194303"},
    {"{\"a\":1.5}", "[]", PRE, "", ST_FORMAT, "is not an integer"},
    {"{\"a\":7,\"b\":7}", "[]", PRE, "", ST_FORMAT, "id 7 is assigned to two tokens"},
    {"{\"a\":0,\"a\":1}", "[]", PRE, "", ST_FORMAT, "not valid JSON"},
    {ABC, "{}", PRE, "", ST_FORMAT, "model.merges is missing or not a list"},
    {ABC, "[\"ab\"]", PRE, "", ST_FORMAT, "model.merges[0] is not two tokens"},
    {ABC, "[\"a b a\"]", PRE, "", ST_FORMAT, "model.merges[0] is not two tokens"},
    {ABC, "[\"a b\", [\"a\"]]", PRE, "", ST_FORMAT, "model.merges[1] is not two tokens"},
    {ABC, "[[\"a\", 1]]", PRE, "", ST_FORMAT, "model.merges[0] is not two tokens"},
    {ABC, "[7]", PRE, "", ST_FORMAT, "model.merges[0] is not two tokens"},
    {ABC, "[[\"\", \"ab\"]]", PRE, "", ST_FORMAT, "model.merges[0] is not two tokens"}, /* would make itself */
    {ABC, "[\"c b\"]", PRE, "", ST_FORMAT, "the first is not in the vocabulary"},
    {ABC, "[\"a c\"]", PRE, "", ST_FORMAT, "the second is not in the vocabulary"},
    {ABC, "[\"b a\"]", PRE, "", ST_FORMAT, "their union is not in the vocabulary"},
    {ABC, "[]", "7", "", ST_FORMAT, "pre_tokenizer: type is missing"},
    {ABC, "[]", "{\"type\":\"Metaspace\",\"replacement\":\"_\"}", "", ST_UNSUPPORTED, "replacement \"_\""},
    {ABC, "[]", "{\"type\":\"Metaspace\",\"prepend_scheme\":\"second\"}", "", ST_FORMAT,
     "expected never, first or always"},
    {ABC, "[]", "{\"type\":\"Metaspace\"}", ",\"decoder\":{\"type\":\"CTC\"}", ST_UNSUPPORTED,
     "decoder: unsupported \"CTC\""},
    {ABC, "[]", "{\"type\":\"Metaspace\"}", ",\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":2}",
     ST_UNSUPPORTED, "decoder: unsupported \"Strip\""},
    {ABC, "[]", PRE, ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"\"}",
     ST_UNSUPPORTED, "Replace needs pattern.String"},
    {ABC, "[]", PRE, ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}", ST_FORMAT,
     "normalizer: empty pattern"},
    {ABC, "[]", PRE, ",\"normalizer\":{\"type\":\"Prepend\"}", ST_FORMAT, "Prepend without prepend"},
    {ABC, "[]", "{\"type\":\"UnicodeScripts\"}", ",\"decoder\":{\"type\":\"ByteLevel\"}", ST_UNSUPPORTED,
     "pre_tokenizer: unsupported type \"UnicodeScripts\""},
    {ABC, "[]", "{}", ",\"decoder\":{\"type\":\"ByteLevel\"}", ST_FORMAT, "pre_tokenizer: type is missing"},
    {ABC, "[]", REGEX("(a"), "", ST_FORMAT, "pre_tokenizer: bad pattern"},
    {ABC, "[]", REGEX("a(?R)"), "", ST_UNSUPPORTED, "pre_tokenizer: unsupported group (?R"},
    {ABC, "[]", REGEX("(*ACCEPT)"), "", ST_UNSUPPORTED, "pre_tokenizer: unsupported group (*AC"},
    {ABC, "[]", REGEX("\\\\h+"), "", ST_UNSUPPORTED, "unsupported escape \\h in the pattern"},
    {ABC, "[]", REGEX("\\\\p{L"), "", ST_UNSUPPORTED, "unsupported property \\p{L in the pattern"},
    {ABC, "[]", REGEX("\\\\p"), "", ST_UNSUPPORTED, "unsupported property \\p in the pattern"},
    {ABC, "[]", REGEX("\\\\p{sc=Han}"), "", ST_UNSUPPORTED, "unsupported property"},
    {ABC, "[]", REGEX("\\\\p{Nothing}"), "", ST_FORMAT, "bad pattern"},
    {ABC, "[]", REGEX("a\\\\"), "", ST_UNSUPPORTED, "unsupported escape \\  in the pattern"},
    {ABC, "[]", REGEX("[a&&b]"), "", ST_UNSUPPORTED, "unsupported set operation"},
    {ABC, "[]", REGEX("[[:alpha:]]"), "", ST_UNSUPPORTED, "unsupported set operation"},
    {ABC, "[]", SPLIT("{}"), "", ST_FORMAT, "Split without pattern"},
    {ABC, "[]", SPLIT("{\"String\":\"\"}"), "", ST_FORMAT, "empty pattern"},
    {ABC, "[]", "{\"type\":\"ByteLevel\",\"use_regex\":1}", "", ST_FORMAT, "use_regex is not a boolean"},
    {ABC, "[]", PRE, ",\"normalizer\":{\"type\":\"Nmt\"}", ST_UNSUPPORTED, "normalizer: unsupported type \"Nmt\""},
    {ABC, "[]", PRE, ",\"normalizer\":{\"type\":3}", ST_FORMAT, "normalizer: type is missing"},
    {ABC, "[]", PRE, ",\"added_tokens\":{}", ST_FORMAT, "added_tokens is not a list"},
    {ABC, "[]", PRE, ",\"added_tokens\":[{\"id\":3}]", ST_FORMAT, "added_tokens[0]: content is missing"},
    {ABC, "[]", PRE, ",\"added_tokens\":[{\"content\":\"x\"}]", ST_FORMAT, "added_tokens[0]: id is missing"},
    {ABC, "[]", PRE, ",\"added_tokens\":[{\"content\":\"x\",\"id\":-3}]", ST_FORMAT, "added_tokens[0]: id -3"},
    {ABC, "[]", PRE, ",\"added_tokens\":[{\"content\":\"x\",\"id\":4194304}]", ST_FORMAT,
     "added_tokens[0]: id 4194304"},
    {ABC, "[]", PRE, ",\"added_tokens\":[{\"content\":\"x\",\"id\":3,\"special\":\"y\"}]", ST_FORMAT,
     "special is not a boolean"},
    {ABC, "[]", PRE, ",\"added_tokens\":[{\"content\":\"x\",\"id\":3},{\"content\":\"x\",\"id\":4}]", ST_FORMAT,
     "\"x\" has the ids 3 and 4"},
    {ABC, "[]", PRE, ",\"added_tokens\":[{\"content\":\"x\",\"id\":3},{\"content\":\"y\",\"id\":3}]", ST_FORMAT,
     "have the id 3"},
    {ABC, "[]", PRE, ",\"added_tokens\":[{\"content\":\"x\",\"id\":1}]", ST_FORMAT,
     "has id 1, which is \"b\" in the vocabulary"},
    {ABC, "[]", PRE,
     ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
     "\"id\":\"<s>\"}}]}",
     ST_FORMAT, "post_processor: special_tokens has no id for \"<s>\""},
    {ABC, "[]", PRE,
     ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
     "\"id\":\"<s>\"}}],"
     "\"special_tokens\":{\"<s>\":{\"ids\":[99]}}}",
     ST_FORMAT, "id 99 is not below the number of ids, 3"},
};

static void test_json(void)
{
    tokenizer *t;
    err e = {0};
    token_list l = {0};
    const char *good = make_json(ABC, "[\"a b\"]", PRE, "");
    is_ok(tokenizer_open_json(&t, good, strlen(good), "x", &e), &e, "the pattern for the broken ones is right");
    if (t) {
        ok(tokenizer_encode(t, "abxa", 4, 0, &l, &e) == ST_OK && l.n == 2 && l.ids[0] == 2 && l.ids[1] == 0,
           "a byte without a token is dropped, as the reference does");
        token_list_free(&l);
    }
    tokenizer_free(t);

    for (size_t i = 0; i < sizeof bad_json / sizeof *bad_json; i++)
        refuse(make_json(bad_json[i].vocab, bad_json[i].merges, bad_json[i].pre, bad_json[i].extra), bad_json[i].want,
               bad_json[i].part);
    refuse("", ST_FORMAT, "not valid JSON");
    refuse("[]", ST_FORMAT, "the top level is not a JSON object");
    refuse("{}", ST_FORMAT, "model is missing or not an object");
    refuse("{\"model\":{\"type\":\"WordPiece\"}}", ST_UNSUPPORTED, "model.type \"WordPiece\" is not supported");
    refuse("{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", ST_FORMAT, "nested");
}

/* Every truncation of a real file is refused. */
/* ---- tekken.json ---- */

#define A "{\"rank\":0,\"token_bytes\":\"QQ==\"}"
#define CONFIG(all, special)                                                                                           \
    "\"config\":{\"pattern\":\"a\",\"version\":\"v7\",\"default_vocab_size\":" all                                     \
    ",\"default_num_special_tokens\":" special "}"

static void test_tekken(void)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"{\"vocab\":[" A "]}", "config.pattern is missing or not a string"},
        {"{\"config\":{\"pattern\":7},\"vocab\":[" A "]}", "config.pattern is missing or not a string"},
        {"{\"config\":{\"pattern\":\"a\"},\"vocab\":[" A "]}",
         "config.default_vocab_size is not an integer from 1 to 4194304"},
        {"{" CONFIG("4194305", "1") ",\"vocab\":[" A "]}", "config.default_vocab_size is not an integer"},
        {"{" CONFIG("4", "4") ",\"vocab\":[" A "]}", "default_num_special_tokens is not an integer from 1 to 3"},
        {"{" CONFIG("4", "\"3\"") ",\"vocab\":[" A "]}", "default_num_special_tokens is not an integer"},
        {"{" CONFIG("4", "1") ",\"vocab\":[" A "]}", "1 tokens, but config.default_vocab_size needs 3"},
        {"{" CONFIG("2", "1") ",\"vocab\":[7]}", "vocab[0]: its rank is not 0"},
        {"{" CONFIG("2", "1") ",\"vocab\":[{\"rank\":1,\"token_bytes\":\"QQ==\"}]}", "vocab[0]: its rank is not 0"},
        {"{" CONFIG("2", "1") ",\"vocab\":[{\"rank\":0}]}", "vocab[0]: token_bytes is not base64"},
        {"{" CONFIG("2", "1") ",\"vocab\":[{\"rank\":0,\"token_bytes\":\"QQ\"}]}",
         "vocab[0]: token_bytes is not base64"},
        {"{" CONFIG("3", "1") ",\"vocab\":[" A ",{\"rank\":1,\"token_bytes\":\"QQ==\"}]}", "vocab[1]"},
        {"{" CONFIG("2", "1") ",\"vocab\":[" A "]}", "255 of the 256 bytes have no token"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refuse(bad[i].text, ST_FORMAT, bad[i].part);

    static const struct {
        const char *list, *part;
    } lists[] = {
        {"[{\"rank\":0,\"token_str\":\"<s>\"},{\"rank\":1,\"token_str\":\"<t>\"},{\"rank\":2,\"token_str\":\"<u>\"}]",
         "3 special tokens, but config.default_num_special_tokens is 2"},
        {"[{\"rank\":1,\"token_str\":\"<s>\"}]", "special_tokens[0] has no token_str, or its rank is not 0"},
        {"[{\"rank\":0,\"token_str\":5}]", "special_tokens[0] has no token_str"},
        {"[{\"rank\":0,\"token_str\":\"<s>\"},{\"rank\":1,\"token_str\":\"<s>\"}]", "<s>"},
    };
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static char text[16384];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        int n = snprintf(text, sizeof text, "{" CONFIG("258", "2") ",\"special_tokens\":%s,\"vocab\":[", lists[i].list);
        for (int b = 0; b < 256; b++)
            n += snprintf(text + n, sizeof text - (size_t)n, "%s{\"rank\":%d,\"token_bytes\":\"%c%c==\"}", b ? "," : "",
                          b, digits[b >> 2], digits[(b & 3) << 4]);
        snprintf(text + n, sizeof text - (size_t)n, "]}");
        refuse(text, ST_FORMAT, lists[i].part);
    }
}

static void test_truncation(void)
{
    FILE *f = fopen(tap_path("tests/data/tokenizers/small/llama3/tokenizer.json"), "rb");
    char text[32768];
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    int opened = 0, tried = 0;
    for (size_t k = 0; k + 1 < n; k += 101, tried++) {
        tokenizer *t;
        err e = {0};
        if (tokenizer_open_json(&t, text, k, "x", &e) == ST_OK || e.code != ST_FORMAT) opened++;
        tokenizer_free(t);
    }
    ok(tried > 100 && opened == 0, "%d truncated files are refused", tried);
}

typedef struct {
    const char *file, *text;
} content;

/* Opens a folder of the given files. */
static void refuse_dir(const content *c, int n, status want, const char *part)
{
    char dir[64], path[160];
    tokenizer *t;
    err e = {0};
    make_dir(dir, sizeof dir);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, c[i].file);
        write_file(path, c[i].text, strlen(c[i].text));
    }
    status st = tokenizer_open(&t, dir, &e);
    if (want == ST_OK) is_ok(st, &e, "opens: %s", part);
    else is_err(st, &e, want, part, "refused: %s", part);
    ok(want == ST_OK || strstr(e.msg, dir), "and the folder is named");
    tokenizer_free(t);
    remove_dir(dir);
}

#define GOOD "{\"model\":{\"type\":\"BPE\",\"vocab\":" ABC ",\"merges\":[]},\"pre_tokenizer\":" PRE "}"

/* Two files of a folder each, and what must be said about them. */
static const struct {
    content c[2];
    status want;
    const char *part;
} bad_folders[] = {
    {{{"config.json", "{}"}, {"x", ""}}, ST_IO, "no tokenizer.json, tokenizer.model, vocab.json"},
    {{{"tokenizer.json", GOOD}, {"config.json", "{}"}}, ST_OK, "a good one"},
    {{{"tokenizer.json", GOOD}, {"tokenizer_config.json", "{"}}, ST_FORMAT, "tokenizer_config.json: not valid JSON"},
    {{{"tokenizer.json", GOOD}, {"tokenizer_config.json", "{\"added_tokens_decoder\":[]}"}},
     ST_FORMAT,
     "added_tokens_decoder is not an object"},
    {{{"tokenizer.json", GOOD}, {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}"}},
     ST_FORMAT,
     "added_tokens_decoder[\"x\"]: the key is not an id"},
    {{{"tokenizer.json", GOOD},
      {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"99999999999999999999\":{\"content\":\"y\"}}}"}},
     ST_FORMAT,
     "is outside 0..4194303"},
    {{{"tokenizer.json", GOOD}, {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"5\":7}}"}},
     ST_FORMAT,
     "content is missing"},
    {{{"tokenizer.json", GOOD}, {"generation_config.json", "{\"eos_token_id\":\"x\"}"}},
     ST_FORMAT,
     "generation_config.json: eos_token_id is not a token id"},
    {{{"tokenizer.json", GOOD}, {"generation_config.json", "{\"eos_token_id\":[1,null]}"}},
     ST_FORMAT,
     "eos_token_id is not a token id"},
    {{{"tokenizer.json", GOOD}, {"config.json", "{\"eos_token_id\":{}}"}}, ST_FORMAT, "config.json: eos_token_id"},
    {{{"tokenizer.json", GOOD}, {"tokenizer_config.json", "{\"chat_template\":[1,{\"name\":2}],\"bos_token\":7}"}},
     ST_OK,
     "odd settings that do not matter"},
    {{{"tokenizer.json", GOOD}, {"added_tokens.json", "[]"}}, ST_FORMAT, "added_tokens.json: the top level"},
    {{{"tokenizer.json", GOOD}, {"added_tokens.json", "{\"x\":\"3\"}"}},
     ST_FORMAT,
     "added_tokens.json: the id of \"x\" is not an integer"},
    {{{"tokenizer.json", GOOD}, {"added_tokens.json", "{\"x\":-1}"}}, ST_FORMAT, "id -1 is outside"},
    {{{"tokenizer.json", GOOD}, {"added_tokens.json", "{\"x\":1}"}}, ST_FORMAT, "is \"b\" in the vocabulary"},
    {{{"tokenizer.json", GOOD},
      {"special_tokens_map.json", "{\"bos_token\":[1],\"additional_special_tokens\":[7,{\"content\":[]}]}"}},
     ST_OK,
     "odd special tokens are ignored"},
    {{{"tokenizer.json", "{\"model\":{\"type\":\"Unigram\"}}"}, {"x", ""}},
     ST_UNSUPPORTED,
     "model.type \"Unigram\" is not supported; add the model's SentencePiece file, tokenizer.model"},
    {{{"tokenizer.json", "{\"model\":{\"unk_id\":0,\"vocab\":[[\"a\",0.0]]}}"}, {"x", ""}},
     ST_UNSUPPORTED,
     "model.type \"Unigram\" is not supported"},
    {{{"tokenizer.json", "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}"}, {"x", ""}},
     ST_UNSUPPORTED,
     "model.type \"WordPiece\" is not supported; supported: BPE"},
    {{{"vocab.json", ABC}, {"merges.txt", "#version: 0.2\na b\n\n"}}, ST_OK, "vocab.json and merges.txt"},
    {{{"vocab.json", ABC}, {"merges.txt", "a b\nab\n"}}, ST_FORMAT, "merges.txt: merge 1 is not two tokens"},
    {{{"vocab.json", ABC}, {"merges.txt", "a z\n"}},
     ST_FORMAT,
     "merge[0] (\"a\" and \"z\"): the second is not in the vocabulary"},
    {{{"vocab.json", "{\"a\":[]}"}, {"merges.txt", ""}}, ST_FORMAT, "vocab.json: vocabulary: the id of \"a\""},
    {{{"tokenizer.model", ""}, {"x", ""}}, ST_FORMAT, "tokenizer.model: 0 bytes"},
    {{{"tokenizer.model", "YQ== 0\n"}, {"x", ""}}, ST_FORMAT, "255 of the 256 bytes have no token"},
    {{{"tokenizer.model", "YQ== 0\nYg= 1\n"}, {"x", ""}}, ST_FORMAT, "line 2: bad base64"},
    {{{"tokenizer.model", "YQ== 0\nY*== 1\n"}, {"x", ""}}, ST_FORMAT, "line 2: bad base64"},
    {{{"tokenizer.model", "YQ== 0\nYg==\n"}, {"x", ""}}, ST_FORMAT, "line 2: not a base64 token and a rank"},
    {{{"tokenizer.model", "YQ== 0\nYg== 0\n"}, {"x", ""}}, ST_FORMAT, "line 2: id 0 is assigned to two tokens"},
    {{{"tokenizer.model", "YQ== 0\nYQ== 1\n"}, {"x", ""}}, ST_FORMAT, "line 2: ids 0 and 1 have the same text"},
    {{{"tokenizer.model", "YQ== 0\nYg== 99999999\n"}, {"x", ""}}, ST_FORMAT, "line 2: id 99999999 is outside"},
    {{{"tokenizer.model", "YQ== 0\nYg== 123456789\n"}, {"x", ""}}, ST_FORMAT, "line 2: not a base64 token and a rank"},
};

static void test_folder(void)
{
    for (size_t i = 0; i < sizeof bad_folders / sizeof *bad_folders; i++)
        refuse_dir(bad_folders[i].c, 2, bad_folders[i].want, bad_folders[i].part);
}

/* Garbage where a SentencePiece model should be. */
static void test_garbage_model(void)
{
    char dir[64], path[160], text[3000];
    unsigned seed = 7;
    int opened = 0;
#ifdef HAVE_SPM
    const status want = ST_FORMAT;
    FILE *f = fopen(tap_path("tests/data/tokenizers/small/spm/tokenizer.model"), "rb");
    size_t n_real = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    ok(n_real == sizeof text, "the first part of a model");
#else
    const status want = ST_UNSUPPORTED;
#endif
    make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/tokenizer.model", dir);
    for (int i = 0; i < 40; i++) {
        tokenizer *t;
        err e = {0};
        size_t n = 1 + (size_t)i * 71;
        if (i % 2) /* odd: random bytes; even: a truncated model */
            for (size_t k = 0; k < n; k++) text[k] = (char)((seed = seed * 1103515245u + 12345u) >> 16);
        write_file(path, text, n);
        status st = tokenizer_open(&t, dir, &e);
        if (st != want || !strstr(e.msg, "tokenizer.model")) {
            opened++;
            printf("#   %d: %s\n", (int)st, e.msg);
        }
        tokenizer_free(t);
    }
    is_int(opened, 0, "garbage and truncated models are refused");
    remove_dir(dir);
}

static status collect(void *ctx, const char *piece, size_t n, err *e)
{
    char *got = ctx;
    (void)e;
    size_t k = strlen(got);
    if (k + n + 2 > 128) return ST_FORMAT;
    memcpy(got + k, piece, n);
    memcpy(got + k + n, "|", 2);
    return ST_OK;
}

/* Steps and patterns that are right but rare. */
static void test_steps(void)
{
    static const struct {
        const char *pre, *text, *pieces;
    } cases[] = {
        {SPLIT("{\"String\":\".\"}"), "ab.cd..e", "ab|.|cd|.|.|e|"},
        {REGEX("x*"), "axxb", "a|xx|b|"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Removed\","
         "\"pattern\":{\"String\":\"-\"}}," PRE "]}",
         "a-b--c", "a|b|c|"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Removed\","
         "\"invert\":true,\"pattern\":{\"Regex\":\"[a-z]+\"}}," PRE "]}",
         "a-bc--c", "a|bc|c|"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":"
         "true}," PRE "]}",
         "a12", "a|1|2|"},
        {"{\"type\":\"ByteLevel\"}", "it's me", " it|'s| me|"},
        {"{\"type\":\"ByteLevel\"}", " x  y", " x| | y|"},
        {REGEX("\\\\s"),
         "a\xe1\xa0\x8e"
         "b\xc2\x85",
         "a\xe1\xa0\x8e"
         "b|\xc2\x85|"},                                             /* U+180E is not white space, U+0085 is */
        {REGEX("(?i:'s)"), "x'\xc5\xbfy'Sz", "x|'\xc5\xbf|y|'S|z|"}, /* U+017F folds to s */
        {REGEX("[^\\\\S\\\\d]+"), "a \t1 b", "a| \t|1| |b|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[128] = "";
        tokenizer *t;
        err e = {0};
        const char *json = make_json(ABC, "[]", cases[i].pre, "");
        if (is_ok(tokenizer_open_json(&t, json, strlen(json), "x", &e), &e, "case %zu", i)) {
            ok(pretok_run(t->pre, cases[i].text, strlen(cases[i].text), true, collect, got, &e) == ST_OK, "runs");
            is_str(got, cases[i].pieces, "pieces of case %zu", i);
        }
        tokenizer_free(t);
    }
}

int main(void)
{
    test_json();
    test_tekken();
    test_truncation();
    test_folder();
    test_garbage_model();
    test_steps();
    return tap_done();
}
