/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "eval/metrics/text.h"
#include "eval/prompt.h"

/* Finds the match, which extends as far as possible within its line. Only the first "The " of each line can match.
 * Returns an empty text if there is none. */
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
    str low = {0};
    utf8_text subject = from.n ? find_subject(from, last) : from;
    *out = (prompt_text){0};
    *found = subject.n > 0;
    if (!*found) return ST_OK;
    TRY(text_check(subject, e));
    str_add_lower(&low, subject);
    status st = str_check(&low, e);
    if (st == ST_OK) st = prompt_puts(out, "What is ", e);
    if (st == ST_OK) st = prompt_add(out, low.s, low.n - strlen(last) - 1, e);
    if (st == ST_OK) st = prompt_puts(out, tail, e);
    str_free(&low);
    return st;
}
