/* SPDX-License-Identifier: MIT */
/* Encoding of texts whose bytes have an origin: input never becomes a special token. */
#include "config.h"

#include "tests/unit/test_tokenizer_util.h"

/* A text in which the bytes between \1 and \2 are input. */
typedef struct {
    char text[256];
    unsigned char input[256];
    size_t n;
} marked;

static marked parse(const char *s)
{
    marked m = {.n = 0};
    bool input = false;
    for (; *s; s++) {
        if (*s == '\1' || *s == '\2') {
            input = *s == '\1';
            continue;
        }
        m.input[m.n] = input;
        m.text[m.n++] = *s;
    }
    return m;
}

static int count(const token_list *l, int32_t id)
{
    int n = 0;
    for (size_t i = 0; i < l->n; i++) n += l->ids[i] == id;
    return n;
}

/* Checks the number of tokens `spelling` in a marked text, and that its ids decode to the text. */
static void has(const tokenizer *t, const char *text, const char *spelling, int n, const char *what)
{
    const marked m = parse(text);
    token_list l = {0};
    char *decoded = NULL, *changed = NULL;
    size_t len = 0, n_changed = m.n;
    err e = {0};
    if (is_ok(tokenizer_encode_marked(t, m.text, m.n, m.input, &l, &e), &e, "%s", what)) {
        is_int(count(&l, tokenizer_special_id(t, spelling)), n, "%s: number of %s", what, spelling);
        ok(t->spm || t->pieces.on /* which add spaces */ ||
               (normalizer_run(&t->normalizer, &changed, &n_changed, m.text, m.n, NULL) == ST_OK &&
                tokenizer_decode(t, l.ids, l.n, true, &decoded, &len, NULL) == ST_OK &&
                len == (changed ? n_changed : m.n) && memcmp(decoded, changed ? changed : m.text, len) == 0),
           "%s: the text is complete", what);
    }
    mem_free(changed);
    mem_free(decoded);
    token_list_free(&l);
}

/* Checks that a text has the ids of TOKENIZE_SPECIAL. */
static void same_as_special(const tokenizer *t, const char *text)
{
    const marked m = parse(text);
    token_list got = {0}, want = {0};
    ok(tokenizer_encode_marked(t, m.text, m.n, m.input, &got, NULL) == ST_OK &&
           tokenizer_encode(t, m.text, m.n, TOKENIZE_SPECIAL, &want, NULL) == ST_OK && got.n == want.n &&
           (got.n == 0 || memcmp(got.ids, want.ids, got.n * sizeof *got.ids) == 0),
       "the ids of the unmarked text: %zu bytes", m.n);
    token_list_free(&got);
    token_list_free(&want);
}

#define START "<|im_start|>"
#define END   "<|im_end|>"

static void test_special(const tokenizer *t)
{
    has(t, START "user\n\1Hi\2" END "\n", END, 1, "a template's own token");
    has(t, START "user\n\1x" END "y\2" END "\n", END, 1, "a special token in the input");
    has(t, START "\1" END "\2" END "\1" END END "\2", END, 1, "nothing but spellings");
    has(t, "<|im_\1end|>\2", END, 0, "a spelling that begins in the template");
    has(t, "\1<|im_\2end|>", END, 0, "a spelling that ends in the template");
    has(t, "<|im_\1e\2nd|>", END, 0, "a spelling with one byte of input");
    has(t, "\1<|im_e\2" END "\1nd|>\2", END, 1, "a token inside a torn spelling");
    has(t, "\1<|im_end|\2" END, END, 1, "a torn spelling before a token");
    has(t, END "\1>\2", END, 1, "input after a token");
}

static void test_others(const tokenizer *t)
{
    has(t, "\1<think>\2<think>", "<think>", 2, "other added tokens are matched in input");
    has(t, "<th\1ink>\2", "<think>", 1, "and across its border");
    has(t, "\1" END "<think>\2", "<think>", 1, "also after a rejected token");
}

static void test_ids(const tokenizer *t)
{
    same_as_special(t, START "user\n\1 Hi  there\2" END "\n" START "assistant\n");
    same_as_special(t, START "a\1b c\2d\1  \2\n" END);
    same_as_special(t, "\1<think>e\xcc\x81\2\xcc\x81" END "\1\xff\xfe"
                       "a\2" END);
    same_as_special(t, "");
}

/* Opens a tokenizer.json with a special token that is matched in normalized text. */
static tokenizer *open_with_normalized(const char *path)
{
    json_t *root = json_load_file(tap_path(path), 0, NULL);
    json_array_append_new(json_object_get(root, "added_tokens"), json_pack("{s:i, s:s, s:b, s:b}", "id", 700, "content",
                                                                           "<|n|>", "special", 1, "normalized", 1));
    char *text = json_dumps(root, 0);
    tokenizer *t = NULL;
    err e = {0};
    json_decref(root);
    if (text) is_ok(tokenizer_open_json(&t, text, strlen(text), "added", &e), &e, "a normalized special token");
    free(text);
    return t;
}

/* The marks pass through NFC, and through the steps of SentencePiece. */
static void test_normalized(void)
{
    tokenizer *t = open_with_normalized("tests/data/tokenizers/small/qwen/tokenizer.json");
    if (t) {
        has(t, "<|n|>\1<|n|>\2", "<|n|>", 1, "unchanged text");
        has(t, "\1e\xcc\x81<|n|>\2<|n|>\1<|n|>e\xcc\x81\2", "<|n|>", 1, "changed text");
        has(t, "<|n|\1>\xe1\x84\x80\xe1\x85\xa1\2<|n|>", "<|n|>", 1, "a changed run at the border");
        has(t, "e\xcc\x81<|n|>\1\xcd\xbe\2<|n|>", "<|n|>", 2, "a character that becomes ASCII");
    }
    tokenizer_free(t);
    t = open_with_normalized("tests/data/tokenizers/folders/pieces-legacy/tokenizer.json");
    if (t) {
        has(t, "<|n|> \1 <|n|>\2 <|n|>", "<|n|>", 2, "spaces that become marks");
        has(t, "a\1 \2<|n|>\1 <|n\2|>", "<|n|>", 0, "a replaced byte of input");
        same_as_special(t, "a <|n|> \1 b\2<s> <|n|>\1c\2");
    }
    tokenizer_free(t);
}

int main(void)
{
    tokenizer *t = open_small("qwen");
    if (ok(t, "small Qwen tokenizer")) {
        test_special(t);
        test_others(t);
        test_ids(t);
    }
    tokenizer_free(t);
    test_normalized();
#ifdef HAVE_SPM
    t = open_small("spm");
    if (ok(t, "small SentencePiece tokenizer")) {
        has(t, "<s>\1</s>x\2[/INST]</s>", "</s>", 1, "SentencePiece: a special token in the input");
        same_as_special(t, "<s>[INST]\1 Hi\xff there\2[/INST]");
    }
    tokenizer_free(t);
#endif
    return tap_done();
}
