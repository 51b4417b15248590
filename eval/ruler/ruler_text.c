/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/ruler/ruler_text.h"

#include <stdint.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

void grown_free(grown_text *t)
{
    mem_free(t->s);
    *t = (grown_text){0};
}

status grown_put(grown_text *t, const char *s, size_t n, err *e)
{
    size_t need;
    TRY(size_add(&need, t->n, n, "text", e));
    if (need >= t->cap) {
        size_t cap = t->cap ? t->cap : 256;
        while (cap <= need) cap *= 2;
        TRY(mem_resize((void **)&t->s, cap, 1, "text", e));
        t->cap = cap;
    }
    memcpy(t->s + t->n, s, n);
    t->n = need;
    t->s[need] = 0;
    return ST_OK;
}

status grown_puts(grown_text *t, const char *s, err *e)
{
    return grown_put(t, s, strlen(s), e);
}

status grown_squeeze(grown_text *t, const char *s, size_t n, bool strip, err *e)
{
    size_t word = 0, i = 0; /* word: where the run begins that is not in t yet */
    if (strip) trim_python(&s, &n);
    TRY(grown_put(t, s, 0, e));
    while (i < n) {
        int32_t c;
        int k = char_at(s + i, n - i, &c);
        if (k == 0) return err_set(e, ST_FORMAT, "not UTF-8: byte %zu", i);
        if (!is_python_space(c)) {
            i += (size_t)k;
            continue;
        }
        TRY(grown_put(t, s + word, i - word, e));
        TRY(grown_put(t, " ", 1, e));
        while (i < n && (k = char_at(s + i, n - i, &c)) && is_python_space(c)) i += (size_t)k;
        word = i;
    }
    return grown_put(t, s + word, n - word, e);
}
