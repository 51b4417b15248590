/* SPDX-License-Identifier: MIT */
/* Any bytes as a tokenizer.json; if they are one, it encodes and decodes. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Encoding may drop bytes without a token, but never gives an id out of range, and decoding in
 * pieces gives what decoding at once gives. */
static void use(const tokenizer *t, const char *text, size_t n, unsigned flags)
{
    token_list l = {0};
    err e = {0};
    char *whole = NULL;
    const char *part;
    size_t len = 0, done = 0, k;
    token_stream *s = NULL;
    if (tokenizer_encode(t, text, n, flags, &l, &e) == ST_OK) {
        for (size_t i = 0; i < l.n; i++)
            if (l.ids[i] < 0 || l.ids[i] >= tokenizer_n_ids(t)) abort();
        if (tokenizer_decode(t, l.ids, l.n, true, &whole, &len, NULL) == ST_OK) mem_free(whole);
        whole = NULL;
        if (tokenizer_decode(t, l.ids, l.n, false, &whole, &len, NULL) != ST_OK ||
            token_stream_create(&s, t, NULL) != ST_OK)
            abort();
        for (size_t i = 0; i <= l.n; i++) {
            status st =
                i < l.n ? token_stream_push(s, l.ids[i], &part, &k, NULL) : token_stream_end(s, &part, &k, NULL);
            if (st != ST_OK || k > len - done || memcmp(whole + done, part, k) != 0) abort();
            done += k;
        }
        if (done != len) abort();
    } else if (e.code == ST_OK || !e.msg[0]) {
        abort();
    }
    token_stream_free(s);
    mem_free(whole);
    token_list_free(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const texts[] = {"Hello world, it's 1234!\n\n  x", "a<s>b</s> <|im_end|><think>",
                                        "na\xc3\xafve e\xcc\x81 \xf0\x9f\x98\x80\xe1\xa0\x8e", "\xff\xe2\x82",
                                        "   \t\r\n aaaaaaaaaaaaaaaa"};
    tokenizer *t;
    err e = {0};
    status st = tokenizer_open_json(&t, (const char *)data, n, "fuzz", &e);
    if ((st == ST_OK) != (t != NULL) || (st != ST_OK && (e.code != st || !e.msg[0]))) abort();
    if (!t) return 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        use(t, texts[i], strlen(texts[i]), 0);
        use(t, texts[i], strlen(texts[i]), TOKENIZE_BOS | TOKENIZE_SPECIAL);
    }
    use(t, (const char *)data, n < 300 ? n : 300, TOKENIZE_SPECIAL);
    tokenizer_free(t);
    return 0;
}
