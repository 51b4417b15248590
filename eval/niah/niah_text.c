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

/* True if a sentence ends right before s[at]: a mark, optional closing quotes or brackets, and white space at `at`. */
static bool ends_sentence(const char *s, size_t n, size_t at)
{
    if (at == 0 || at >= n || !is_space(s[at])) return false;
    size_t mark = at - 1;
    while (mark > 0 && (s[mark] == '"' || s[mark] == '\'' || s[mark] == ')')) mark--;
    return s[mark] == '.' || s[mark] == '!' || s[mark] == '?';
}

/* Returns the start of the first sentence after byte `from`, or 0 if there is none. */
static size_t next_sentence(utf8_text s, size_t from)
{
    for (size_t at = from; at < s.n; at++)
        if (ends_sentence(s.s, s.n, at)) {
            while (at < s.n && is_space(s.s[at])) at++;
            return at < s.n ? at : 0;
        }
    return 0;
}

/* Writes n bytes of the repeated haystack from `from` on. Cuts at the end of a word if that removes at most a tenth. */
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

/* Returns the end of the last sentence that ends at or before `at`, or 0. */
static size_t end_before(const char *s, size_t n, size_t at)
{
    if (at >= n) return n;
    while (at > 0 && !ends_sentence(s, n, at)) at--;
    return at;
}

/* Writes the haystack with the needle at byte `at`, then the question. */
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
        st = join(out, question, t, &hay, end_before(hay.s, hay.n, (size_t)((double)hay.n * depth / 100)), e);
    mem_free(hay.s);
    return st;
}

/* ---- scores ---- */

/* Splits a text into lower-cased words without punctuation, which `low` stores. */
static status words_of(text_list *words, str *low, utf8_text t, err *e)
{
    str all = {0};
    str_add_lower(&all, t);
    for (size_t i = 0; i < all.n; i++)
        if (!char_is_punct(all.s[i])) str_add(low, all.s + i, 1);
    status st = str_check(&all, e);
    str_free(&all);
    if (st == ST_OK) st = str_check(low, e);
    return st == ST_OK ? text_split(words, str_text(low), e) : st;
}

status niah_score(double *fraction, bool *found, utf8_text answer, utf8_text key, err *e)
{
    str low[2] = {{0}};
    text_list words[2] = {{0}}, distinct = {0};
    size_t hits = 0;
    status st;
    *fraction = *found = false;
    TRY(text_check(answer, e));
    TRY(text_check(key, e));
    TRY_GOTO(words_of(&words[0], &low[0], answer, e));
    TRY_GOTO(words_of(&words[1], &low[1], key, e));
    for (size_t i = 0; i < words[1].n; i++) {
        if (text_is_listed(&distinct, words[1].s[i])) continue;
        TRY_GOTO(text_push(&distinct, words[1].s[i], e));
        hits += text_is_listed(&words[0], words[1].s[i]);
    }
    st = text_contains_cased(found, answer, key, str_add_lower, e);
    *fraction = distinct.n ? (double)hits / (double)distinct.n : *found;
done:
    for (int i = 0; i < 2; i++) {
        str_free(&low[i]);
        text_list_free(&words[i]);
    }
    text_list_free(&distinct);
    return st;
}
