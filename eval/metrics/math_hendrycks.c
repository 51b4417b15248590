/* SPDX-License-Identifier: MIT */
/* Equality of answers of MATH after normalization, without algebra. Source: evals.md 17.3; hendrycks/math
 * math_equivalence.py and lm-eval's copy of it in tasks/hendrycks_math. */
#include "config.h"

#include <string.h>

#include "eval/metrics/answer.h"
#include "tokenizer/chars.h"

static size_t count(const str *t, const char *word)
{
    size_t n = 0;
    for (size_t at = str_find(t, 0, word); at <= t->n; at = str_find(t, at + strlen(word), word)) n++;
    return n;
}

/* Bytes of the character at `at`; 0 at the end. */
static size_t character(const str *t, size_t at)
{
    int32_t c;
    int n = at < t->n ? char_at(t->s + at, t->n - at, &c) : 0;
    return n ? (size_t)n : at < t->n;
}

/* One "\text{ " begins a unit; two are an error. */
static bool drop_unit(str *t)
{
    size_t n = count(t, "\\text{ ");
    if (n == 1) str_cut(t, str_find(t, 0, "\\text{ "), t->n);
    return n < 2;
}

/* "k = 5" without what stands before, if that is short. */
static void drop_name(str *t)
{
    size_t at = str_find(t, 0, "="), characters = 0;
    if (count(t, "=") != 1) return;
    for (size_t i = 0; i < at; i += character(t, i)) characters++;
    if (characters <= 2) str_cut(t, 0, at + 1);
}

static void add_braced(str *out, const str *t, size_t at, size_t n)
{
    str_add(out, "{", 1);
    str_add(out, t->s + at, n);
    str_add(out, "}", 1);
}

/* \sqrt3 to \sqrt{3}; false: nothing follows. */
static bool fix_roots(str *t)
{
    static const char root[] = "\\sqrt";
    str out = {0};
    size_t at = 0, hit = str_find(t, 0, root);
    bool good = true;
    for (; hit <= t->n && good; hit = str_find(t, at, root)) {
        size_t end = hit + strlen(root), n = character(t, end);
        good = n > 0 && !str_at(t, end, root);
        str_add(&out, t->s + at, end - at);
        if (good && t->s[end] != '{') {
            add_braced(&out, t, end, n);
            end += n;
        }
        at = end;
    }
    if (at == 0) return good;
    str_add(&out, t->s + at, t->n - at);
    str_free(t);
    *t = out;
    return good;
}

/* Up to where the part behind a \frac at `at` goes: the next one, or the end. */
static size_t part_end(const str *t, size_t at)
{
    size_t next = str_find(t, at, "\\frac");
    return next <= t->n ? next : t->n;
}

/* \frac12 to \frac{1}{2}; *given_up: a part has one character only. false: one has none. */
static bool rewrite_fractions(str *out, const str *t, bool *given_up)
{
    static const char frac[] = "\\frac";
    size_t at = part_end(t, 0);
    str_add(out, t->s, at);
    while (at < t->n) {
        size_t from = at + strlen(frac), end = part_end(t, from), a = character(t, from), b;
        if (from == end) return false;
        str_add(out, frac, strlen(frac));
        at = end;
        if (t->s[from] != '{') {
            if (from + a >= end) return *given_up = true;
            b = character(t, from + a);
            add_braced(out, t, from, a);
            from += a;
            if (t->s[from] != '{') {
                add_braced(out, t, from, b);
                from += b;
            }
        }
        str_add(out, t->s + from, end - from);
    }
    return true;
}

static bool fix_fractions(str *t)
{
    str out = {0};
    bool given_up = false, good;
    if (str_find(t, 0, "\\frac") > t->n) return true;
    good = rewrite_fractions(&out, t, &given_up);
    if (!good || given_up) {
        str_free(&out);
        return good;
    }
    str_free(t);
    *t = out;
    return true;
}

/* A whole number as Python prints it. */
static bool is_canonical(const char *s, size_t n)
{
    bool negative = n && *s == '-';
    s += negative;
    n -= negative;
    if (n == 0 || (*s == '0' && (n > 1 || negative))) return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9') return false;
    return true;
}

/* 1/2 to \frac{1}{2}; false: lm-eval's copy fails. */
static bool fix_slash(str *t, bool like_lmeval)
{
    size_t at = str_find(t, 0, "/");
    if (count(t, "/") != 1) return true;
    if (!is_canonical(t->s, at) || !is_canonical(t->s + at + 1, t->n - at - 1)) return !like_lmeval;
    str out = {0};
    str_add(&out, "\\frac", 5);
    add_braced(&out, t, 0, at);
    add_braced(&out, t, at + 1, t->n - at - 1);
    str_free(t);
    *t = out;
    return true;
}

/* false: the original fails. */
static bool normalize(str *t, bool like_lmeval)
{
    static const char *const first[][2] = {{"\n", ""},        {"\\!", ""},    {"\\\\", "\\"},  {"tfrac", "frac"},
                                           {"dfrac", "frac"}, {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""},
                                           {"^\\circ", ""},   {"\\$", ""}},
                             *const then[][2] = {{"\\%", ""}, {" .", " 0."}, {"{.", "{0."}};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) str_replace(t, first[i][0], first[i][1]);
    if (!drop_unit(t)) return false;
    for (size_t i = 0; i < sizeof then / sizeof *then; i++) str_replace(t, then[i][0], then[i][1]);
    if (t->n == 0) return true;
    if (t->s[0] == '.') {
        str zero = {0};
        str_add(&zero, "0", 1);
        str_add(&zero, t->s, t->n);
        str_free(t);
        *t = zero;
    }
    drop_name(t);
    if (!fix_roots(t)) return false;
    str_replace(t, " ", "");
    if (!fix_fractions(t)) return false;
    if (t->n == 3 && str_at(t, 0, "0.5")) str_set(t, "\\frac{1}{2}", strlen("\\frac{1}{2}"));
    return fix_slash(t, like_lmeval);
}

status math_same_hendrycks(bool *same, utf8_text a, utf8_text b, bool like_lmeval, err *e)
{
    str x = {0}, y = {0};
    str_set(&x, a.s, a.n);
    str_set(&y, b.s, b.n);
    bool good = normalize(&x, like_lmeval) && normalize(&y, like_lmeval);
    status st = str_check(&x, e);
    if (st == ST_OK) st = str_check(&y, e);
    if (good) *same = st == ST_OK && x.n == y.n && (x.n == 0 || memcmp(x.s, y.s, x.n) == 0);
    else *same = a.n == b.n && (a.n == 0 || memcmp(a.s, b.s, a.n) == 0);
    str_free(&x);
    str_free(&y);
    return st;
}
