/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "eval/metrics/text.h"
#include "eval/prompt.h"
#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

/* Finds the match, which takes as much of its line as it can: where a line's first "The " has none, no other one of the
 * line has. An empty text: there is none. */
static utf8_text find_subject(utf8_text s, const char *last)
{
    size_t n = strlen(last), line;
    const char *end = s.s + s.n, *newline;
    for (const char *f = s.s; (f = memmem(f, (size_t)(end - f), "The ", 4)); f += line) {
        newline = memchr(f, '\n', (size_t)(end - f));
        line = (size_t)((newline ? newline : end) - f);
        for (size_t k = line; k >= strlen("The x ") + n; k--)
            if (f[k - n - 1] == ' ' && memcmp(f + k - n, last, n) == 0) return (utf8_text){f, k};
    }
    return (utf8_text){"", 0};
}

status prompt_ask(prompt_text *out, utf8_text from, const char *last, const char *tail, bool *found, err *e)
{
    text all = {0}, low = {0};
    char utf8[4];
    utf8_text subject = from.n ? find_subject(from, last) : from;
    *out = (prompt_text){0};
    *found = subject.n > 0;
    if (!*found) return ST_OK;
    status st = text_decode(&all, subject.s, subject.n, e);
    if (st == ST_OK) st = text_lower(&low, text_span(&all), e);
    if (st == ST_OK) st = prompt_add(out, "What is ", strlen("What is "), e);
    for (size_t i = 0; st == ST_OK && i + 1 + strlen(last) < low.n; i++)
        st = prompt_add(out, utf8, (size_t)char_put(utf8, low.c[i]), e);
    if (st == ST_OK) st = prompt_add(out, tail, strlen(tail), e);
    text_free(&all);
    text_free(&low);
    return st;
}
