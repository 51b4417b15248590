/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/str.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

void str_free(str *t)
{
    mem_free(t->s);
    *t = (str){0};
}

status str_check(const str *t, err *e)
{
    return t->failed ? err_set(e, ST_NOMEM, "out of memory for a text") : ST_OK;
}

void str_add(str *t, const char *s, size_t n)
{
    t->failed |= MEM_ROOM(&t->s, &t->cap, t->n + n + 1, NULL) != ST_OK;
    if (t->failed) return;
    if (n) memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
}

void str_set(str *t, const char *s, size_t n)
{
    t->n = 0;
    str_add(t, s, n);
}

void str_cut(str *t, size_t from, size_t to)
{
    if (from >= to || to > t->n) return;
    memmove(t->s + from, t->s + to, t->n - to);
    t->n -= to - from;
    t->s[t->n] = 0;
}

bool str_at(const str *t, size_t at, const char *word)
{
    size_t n = strlen(word);
    return at <= t->n && t->n - at >= n && (n == 0 || memcmp(t->s + at, word, n) == 0);
}

size_t str_find(const str *t, size_t from, const char *word)
{
    const char *hit = from < t->n ? memmem(t->s + from, t->n - from, word, strlen(word)) : NULL;
    return hit ? (size_t)(hit - t->s) : t->n + 1;
}

size_t str_find_last(const str *t, const char *word)
{
    for (size_t at = t->n; at-- > 0;)
        if (t->s[at] == word[0] && str_at(t, at, word)) return at;
    return t->n + 1;
}

void str_replace(str *t, const char *from, const char *to)
{
    size_t at = 0, hit = str_find(t, 0, from), length = strlen(from);
    if (hit > t->n || t->failed) return;
    str out = {0};
    for (; hit <= t->n; hit = str_find(t, at, from)) {
        str_add(&out, t->s + at, hit - at);
        str_add(&out, to, strlen(to));
        at = hit + length;
    }
    str_add(&out, t->s + at, t->n - at);
    str_free(t);
    *t = out;
}

void str_strip(str *t)
{
    const char *s = t->s;
    size_t n = t->n;
    if (n == 0) return;
    trim_python(&s, &n);
    memmove(t->s, s, n);
    t->n = n;
    t->s[n] = 0;
}
