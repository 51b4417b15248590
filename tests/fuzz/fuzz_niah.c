/* SPDX-License-Identifier: MIT */
/* Any bytes as texts of eval niah, with a byte 0xff between haystack and needle, which is question and key too. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/niah/niah.h"
#include "kernels/base/mem.h"
#include "tests/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *split = n ? memchr(data, 0xff, n) : NULL;
    const char *s = (const char *)data;
    size_t at = split ? (size_t)(split - data) : 0;
    utf8_text needle = {s + at + 1, n - at - 1};
    const niah_texts t = {{s, at}, needle, needle, needle};
    if (at == 0 || n > 4096) return 0;
    for (size_t length = 1; length <= 2 * at; length += 1 + at / 3) {
        for (double depth = 0; depth <= 100; depth += 50) {
            prompt_text text;
            size_t question;
            if (niah_text(&text, &question, &t, at / 2, length, depth, NULL) != ST_OK) abort();
            if (question + needle.n != text.n || text.s[text.n] || text.n > length + 2 * needle.n + 3) abort();
            mem_free(text.s);
        }
    }
    double share = -1;
    bool found;
    err e = {0};
    status st = niah_score(&share, &found, t.haystack, needle, &e);
    if (st == ST_OK ? !(share >= 0 && share <= 1) : !e.msg[0]) abort();
    return 0;
}
