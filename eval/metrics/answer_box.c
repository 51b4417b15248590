/* SPDX-License-Identifier: MIT */
/* Answers of MATH and AIME: the last box of an output, compared as normalized text, then as a rational number.
 * Source: evals.md 17.3. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/metrics/answer.h"
#include "tokenizer/chars.h"

/* Bytes of an answer without a box. */
enum { MOST_BARE = 256 };

/* ---- extraction ---- */

/* Returns the offset after the last `word`; 0: none. */
static size_t after_last(utf8_text s, const char *word)
{
    size_t n = strlen(word);
    for (size_t end = s.n; end >= n; end--)
        if (memcmp(s.s + end - n, word, n) == 0) return end;
    return 0;
}

bool answer_box(utf8_text *out, utf8_text s)
{
    size_t open = after_last(s, "\\boxed");
    if (open == 0) open = after_last(s, "\\fbox");
    if (open == 0) return false;
    while (open < s.n && (s.s[open] == ' ' || (s.s[open] >= '\t' && s.s[open] <= '\r'))) open++;
    size_t end = open < s.n && s.s[open] == '{' ? answer_brace(s, open) : s.n;
    if (end < s.n) *out = (utf8_text){s.s + open + 1, end - open - 1};
    return end < s.n;
}

/* Extracts the last box; a short text without any is an answer itself. */
static status extract_box(str *out, bool *found, utf8_text s, err *e)
{
    utf8_text a = s;
    *found = answer_box(&a, s);
    if (!*found && after_last(s, "\\boxed") == 0 && after_last(s, "\\fbox") == 0) {
        trim_python(&a.s, &a.n);
        *found = a.n > 0 && a.n <= MOST_BARE && !memmem(a.s, a.n, "\n\n", 2);
    }
    if (*found) str_set(out, a.s, a.n);
    return str_check(out, e);
}

/* ---- comparison ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Cleans the answer and drops braces around single characters, case, and spaces except between digits. */
static void normalize(str *t)
{
    size_t n = 0;
    answer_clean(t);
    for (size_t i = 0; i < t->n; i++) {
        char c = t->s[i];
        bool group = c == '{' && i + 2 < t->n && t->s[i + 2] == '}' && !strchr("{}\\", t->s[i + 1]);
        if (c == ' ' && !(n && is_digit(t->s[n - 1]) && i + 1 < t->n && is_digit(t->s[i + 1]))) continue;
        if (group) c = t->s[i + 1], i += 2;
        t->s[n++] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    str_cut(t, n, t->n);
}

enum { MOST_DIGITS = 18 };

/* Reads digits with an optional point as v[0] / v[1]; advances *s. */
static bool read_decimal(long long v[2], const char **s)
{
    size_t n = 0;
    bool point = false;
    v[0] = 0;
    v[1] = 1;
    for (; n <= MOST_DIGITS && (is_digit(**s) || (**s == '.' && !point)); ++*s) {
        if (**s == '.') {
            point = true;
            continue;
        }
        if (n++ == MOST_DIGITS) return false;
        v[0] = 10 * v[0] + (**s - '0');
        if (point) v[1] *= 10;
    }
    return n > 0;
}

/* Reads an argument of \frac: a digit or a number in braces, which may have a sign. */
static bool read_argument(long long v[2], const char **s)
{
    v[0] = **s - '0';
    v[1] = 1;
    if (is_digit(**s)) return ++*s;
    if (**s != '{') return false;
    bool negative = *++*s == '-';
    *s += negative;
    if (!read_decimal(v, s) || **s != '}') return false;
    if (negative) v[0] = -v[0];
    return ++*s;
}

/* Reads a decimal, a/b or \frac{a}{b}, in lowest terms; false: anything else. */
static bool read_rational(long long v[2], const char *s)
{
    long long b[2] = {1, 1};
    bool negative = *s == '-', fraction = false;
    s += negative || *s == '+';
    if (strncmp(s, "\\frac", 5) == 0) {
        s += 5;
        if (!read_argument(v, &s) || !read_argument(b, &s)) return false;
        fraction = true;
    } else {
        if (!read_decimal(v, &s)) return false;
        fraction = *s == '/';
        if (fraction && (s++, !read_decimal(b, &s))) return false;
    }
    if (*s || (fraction && (v[1] != 1 || b[1] != 1 || b[0] == 0))) return false;
    if (fraction) v[1] = b[0];
    if (negative != (v[1] < 0)) v[0] = -v[0];
    v[1] = llabs(v[1]);
    long long g = v[1], rest = llabs(v[0]);
    while (rest) {
        long long next = g % rest;
        g = rest;
        rest = next;
    }
    v[0] /= g;
    v[1] /= g;
    return true;
}

static status same_boxed(bool *same, const str *answer, utf8_text label, err *e)
{
    str a = {0}, b = {0};
    long long x[2], y[2];
    str_set(&a, answer->s, answer->n);
    str_set(&b, label.s, label.n);
    normalize(&a);
    normalize(&b);
    status st = str_check(&a, e);
    if (st == ST_OK) st = str_check(&b, e);
    *same = st == ST_OK && a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
    if (st == ST_OK && !*same && strlen(a.s) == a.n && strlen(b.s) == b.n)
        *same = read_rational(x, a.s) && read_rational(y, b.s) && x[0] == y[0] && x[1] == y[1];
    str_free(&a);
    str_free(&b);
    return st;
}

const answer_rule answer_boxed = {extract_box, same_boxed};
