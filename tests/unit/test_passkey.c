/* SPDX-License-Identifier: MIT */
/* Passkey: prompts as the papers build them, and the answer rule. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "eval/passkey/passkey_prompt.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

/* ---- text ---- */

static uint64_t fnv1a(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h;
}

/* The four prompts of evals.md 4.1, whose SHA-256 begins with 44e2cfa4524ada69, f42e5951936dd064,
 * 50719d849a93080c and b435c549d94d031e; the FNV-1a values are of the texts that have these. */
static void test_text(void)
{
    static const struct {
        int64_t n, percent, key;
        size_t len;
        uint64_t fnv;
    } cases[] = {
        {0, 50, 7, 239, 0x1418f58664d5986f},
        {100, 50, 12345, 347, 0x749f367a857d4487},
        {1000, 10, 42, 1241, 0x1833cd1db9d6a02f},
        {40000, 100, 50000, 40247, 0xdc6204b66ca1027e},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = {0};
        prompt_text text;
        int64_t n = cases[i].n;
        is_ok(passkey_text(&text, n, passkey_before(n, cases[i].percent - 1, 100), cases[i].key, false, &e), &e,
              "text with %lld characters of garbage", (long long)n);
        is_int((long long)text.n, (long long)cases[i].len, "its length");
        ok(text.s && strlen(text.s) == text.n, "it ends with a NUL");
        ok(text.s && fnv1a(text.s, text.n) == cases[i].fnv, "its content");
        mem_free(text.s);
    }
}

static void test_ask_first(void)
{
    static const char asked[] = "\nWhat is the pass key?\n";
    prompt_text plain, first;
    err e = {0};
    is_ok(passkey_text(&plain, 1000, 300, 42, false, &e), &e, "plain text");
    is_ok(passkey_text(&first, 1000, 300, 42, true, &e), &e, "the question stands before the text too");
    char *at = strchr(first.s, '\n');
    is_int((long long)first.n, (long long)(plain.n + strlen(asked) - 1), "it is longer by it");
    ok(at && strncmp(at, asked, strlen(asked)) == 0, "after the introduction");
    memmove(at, at + strlen(asked) - 1, strlen(at + strlen(asked) - 1) + 1);
    ok(strcmp(first.s, plain.s) == 0, "the rest is the same");
    mem_free(plain.s);
    mem_free(first.s);
}

static void test_schedule(void)
{
    is_int(passkey_before(1000, 0, 20), 50, "20 trials: the first depth is 5 %%");
    is_int(passkey_before(1000, 19, 20), 1000, "the last depth is 100 %%");
    is_int(passkey_before(128, 0, 100), 1, "fractions of a character are dropped");
    is_int(passkey_before(1000, 1, 3), 666, "numbers of trials that do not divide 100");
    is_int(passkey_before((int64_t)1 << 60, 6, 7), (int64_t)1 << 60, "no overflow");

    /* Known values: SplitMix64 in Python. */
    static const int64_t first[] = {49764, 16317, 15325, 46852, 4622};
    for (int t = 0; t < 5; t++) is_int(passkey_key(0, 4096, t), first[t], "key of trial %d", t);
    is_int(passkey_key(1, 4096, 0), 8600, "the seed changes the key");
    is_int(passkey_key(0, 8192, 0), 10589, "the length changes the key");
    bool inside = true;
    for (int t = 0; t < 2000; t++) inside &= passkey_key(7, 1, t) >= 1 && passkey_key(7, 1, t) <= 50000;
    ok(inside, "keys are within 1..50000");
}

static void test_answer(void)
{
    static const struct {
        const char *text;
        int64_t value;
    } cases[] = {
        {" 12345.", 12345},
        {" 012345", 12345},
        {" 12,345", 12},
        {"", -1},
        {" is green.", -1},
        {"the key is 7. Remember 8", 7},
        {"-5", 5},
        {"0", 0},
        {"9223372036854775807", INT64_MAX},
        {"99999999999999999999999", INT64_MAX},
        {"\xc3\xa9 42", 42},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        is_int(passkey_answer(cases[i].text, strlen(cases[i].text)), cases[i].value, "answer in '%s'", cases[i].text);
    is_int(passkey_answer("12345", 2), 12, "nothing past the end is read");
}

/* ---- tokens ---- */

static int64_t tokens_of(const tokenizer *tok, int64_t n)
{
    prompt_text text;
    token_list ids = {0};
    err e = {0};
    if (passkey_text(&text, n, n / 2, 50000, false, &e) == ST_OK)
        tokenizer_encode(tok, text.s, text.n, tokenizer_adds_bos(tok) ? TOKENIZE_BOS : 0, &ids, &e);
    int64_t count = (int64_t)ids.n;
    token_list_free(&ids);
    mem_free(text.s);
    return count;
}

static void test_fit(const tokenizer *tok, const char *name)
{
    static const int64_t ctx[] = {700, 1001, 4096, 20000};
    for (size_t i = 0; i < sizeof ctx / sizeof *ctx; i++) {
        err e = {0};
        int64_t n = -1;
        is_ok(passkey_fit(&n, tok, ctx[i], false, &e), &e, "%s: %lld tokens", name, (long long)ctx[i]);
        is_int(n % 128, 0, "a multiple of 128");
        ok(tokens_of(tok, n) + 18 <= ctx[i], "%lld characters fit", (long long)n);
        ok(tokens_of(tok, n + 128) + 18 > ctx[i], "128 more do not");
    }
    err e = {0};
    int64_t n, least = tokens_of(tok, 0) + 18;
    is_ok(passkey_fit(&n, tok, least, false, &e), &e, "%s: the shortest context", name);
    is_int(n, 0, "it has no garbage");
    is_err(passkey_fit(&n, tok, least - 1, false, &e), &e, ST_USAGE, "too short", "one token less is refused");
}

static void test_encode(const tokenizer *tok, const char *name)
{
    err e = {0};
    prompt_text text, little;
    prompt_tokens t = {0}, whole = {0}, small = {0};
    token_list head = {0}, tail = {0};
    char *got = NULL;
    size_t got_len = 0;
    unsigned bos = tokenizer_adds_bos(tok) ? TOKENIZE_BOS : 0;
    passkey_text(&text, 1024, 768, 42, false, &e);
    is_ok(passkey_encode(&t, tok, &text, 400, &e), &e, "%s: a prompt in two parts", name);
    tokenizer_encode(tok, text.s, text.n - 400, bos, &head, &e);
    tokenizer_encode(tok, text.s + text.n - 400, 400, 0, &tail, &e);
    ok(head.n == t.head.n && memcmp(head.ids, t.head.ids, head.n * sizeof *head.ids) == 0, "head");
    ok(tail.n == t.tail.n && memcmp(tail.ids, t.tail.ids, tail.n * sizeof *tail.ids) == 0,
       "the last 400 characters are tokenized by themselves");
    ok(!bos || (t.head.ids[0] == tokenizer_bos(tok) && t.tail.ids[0] != tokenizer_bos(tok)),
       "BOS in front of the head alone");
    is_ok(tokenizer_decode(tok, t.tail.ids, t.tail.n, false, &got, &got_len, &e), &e, "decode");
    ok(got_len >= 400 && strcmp(got + got_len - 400, text.s + text.n - 400) == 0, "the tail's text");
    is_ok(passkey_encode(&whole, tok, &text, 0, &e), &e, "%s: protocol prefill", name);
    ok(whole.tail.n == 0 && whole.head.n > 0, "has no tail");
    passkey_text(&little, 0, 0, 42, false, &e);
    is_ok(passkey_encode(&small, tok, &little, 400, &e), &e, "%s: a prompt shorter than the tail", name);
    ok(small.head.n == (bos ? 1 : 0) && small.tail.n > 0, "has BOS at most in its head");
    prompt_tokens_free(&t);
    prompt_tokens_free(&whole);
    prompt_tokens_free(&small);
    token_list_free(&head);
    token_list_free(&tail);
    mem_free(got);
    mem_free(text.s);
    mem_free(little.s);
}

int main(void)
{
    static const char *const models[] = {"llama31-f32-tied", "qwen3-bf16", "llama2-linear-f16"};
    test_text();
    test_ask_first();
    test_schedule();
    test_answer();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[64];
        tokenizer *tok = NULL;
        err e = {0};
        snprintf(path, sizeof path, "tests/data/models/%s", models[i]);
        status st = tokenizer_open(&tok, tap_path(path), &e);
        if (st == ST_UNSUPPORTED) {
            tap_skip("%s", e.msg);
            continue;
        }
        if (!is_ok(st, &e, "%s: tokenizer", models[i])) continue;
        test_fit(tok, models[i]);
        test_encode(tok, models[i]);
        tokenizer_free(tok);
    }
    return tap_done();
}
