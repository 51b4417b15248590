/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/niah/niah.h"

#include <string.h>

#include "eval/metrics/text.h"
#include "kernels/base/mem.h"
#include "kernels/base/utf8.h"

/* ---- prompts ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Whether a sentence ends right before s[at]: a mark there, maybe with a closing quote, and white space behind it. */
static bool ends_sentence(const char *s, size_t n, size_t at)
{
    if (at == 0 || at >= n || !is_space(s[at])) return false;
    size_t mark = at - 1;
    while (mark > 0 && (s[mark] == '"' || s[mark] == '\'' || s[mark] == ')')) mark--;
    return s[mark] == '.' || s[mark] == '!' || s[mark] == '?';
}

/* Where the sentence at or behind `from` begins; 0 where none does. */
static size_t next_sentence(utf8_text s, size_t from)
{
    for (size_t at = from; at < s.n; at++)
        if (ends_sentence(s.s, s.n, at)) {
            while (at < s.n && is_space(s.s[at])) at++;
            return at < s.n ? at : 0;
        }
    return 0;
}

/* Writes n bytes of the endless haystack from `from` on, cut behind a word where that takes not more than a tenth. */
static status take_haystack(prompt_text *out, utf8_text h, size_t from, size_t n, err *e)
{
    while (out->n < n) {
        TRY(prompt_add(out, h.s + from, n - out->n < h.n - from ? n - out->n : h.n - from, e));
        from = 0;
    }
    const char *s = out->s;
    size_t end = n;
    while (end > n - n / 10 && !is_space(s[end - 1])) end--;
    if (end == n - n / 10) end = n - utf8_partial_tail((const unsigned char *)s, n);
    while (end > 0 && is_space(s[end - 1])) end--;
    out->n = end;
    return ST_OK;
}

/* The place behind the last sentence that ends at or before `at`, if only the first one begins there. */
static size_t place_of(const char *s, size_t n, size_t at)
{
    if (at >= n) return n;
    while (at > 0 && !ends_sentence(s, n, at)) at--;
    return at;
}

/* Writes the haystack with the needle behind byte `at`, and the question. */
static status join(prompt_text *out, size_t *question, const niah_texts *t, const prompt_text *hay, size_t at, err *e)
{
    TRY(prompt_add(out, hay->s, at, e));
    if (at > 0) TRY(prompt_puts(out, " ", e));
    TRY(prompt_add(out, t->needle.s, t->needle.n, e));
    if (at == 0) TRY(prompt_puts(out, " ", e));
    TRY(prompt_add(out, hay->s + at, hay->n - at, e));
    TRY(prompt_puts(out, "\n\n", e));
    *question = out->n;
    return prompt_add(out, t->question.s, t->question.n, e);
}

status niah_text(prompt_text *out, size_t *question, const niah_texts *t, size_t from, size_t n, double depth, err *e)
{
    prompt_text hay = {0};
    *out = (prompt_text){0};
    status st = take_haystack(&hay, t->haystack, next_sentence(t->haystack, from), n, e);
    if (st == ST_OK)
        st = join(out, question, t, &hay, place_of(hay.s, hay.n, (size_t)((double)hay.n * depth / 100)), e);
    mem_free(hay.s);
    return st;
}

/* ---- scores ---- */

/* Lower-cased words without punctuation; store holds them. */
static status words_of(span_list *words, text *low, const text *t, err *e)
{
    size_t kept = 0;
    TRY(text_lower(low, text_span(t), e));
    for (size_t i = 0; i < low->n; i++)
        if (!char_is_punct(low->c[i])) low->c[kept++] = low->c[i];
    low->n = kept;
    return span_split(words, text_span(low), e);
}

static bool is_listed(const span_list *l, size_t n, span s)
{
    for (size_t i = 0; i < n; i++)
        if (span_equal(l->s[i], s)) return true;
    return false;
}

static status holds(bool *out, const text *answer, const text *key, err *e)
{
    text a = {0}, k = {0};
    status st = text_lower(&a, text_span(answer), e);
    if (st == ST_OK) st = text_lower(&k, text_span(key), e);
    if (st == ST_OK) *out = span_find(text_span(&a), 0, text_span(&k)) <= a.n;
    text_free(&a);
    text_free(&k);
    return st;
}

status niah_score(double *share, bool *found, utf8_text answer, utf8_text key, err *e)
{
    text t[2] = {{0}}, low[2] = {{0}};
    span_list words[2] = {{0}};
    size_t n = 0, hits = 0;
    status st = text_decode(&t[0], answer.s, answer.n, e);
    *found = false;
    if (st == ST_OK) st = text_decode(&t[1], key.s, key.n, e);
    for (int i = 0; i < 2 && st == ST_OK; i++) st = words_of(&words[i], &low[i], &t[i], e);
    for (size_t i = 0; i < words[1].n && st == ST_OK; i++) {
        if (is_listed(&words[1], i, words[1].s[i])) continue;
        n++;
        hits += is_listed(&words[0], words[0].n, words[1].s[i]);
    }
    if (st == ST_OK) st = holds(found, &t[0], &t[1], e);
    *share = n ? (double)hits / (double)n : *found;
    for (int i = 0; i < 2; i++) {
        text_free(&t[i]);
        text_free(&low[i]);
        span_list_free(&words[i]);
    }
    return st;
}
