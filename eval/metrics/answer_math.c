/* SPDX-License-Identifier: MIT */
/* Answers of MATH and AIME: the last box of an output, compared as LaTeX without units, dollars and decoration, then as
 * a rational number. Source: evals.md 17.3. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/metrics/answer.h"

/* Maximum number of bytes of an answer without a box. */
enum { MOST_BARE = 256 };

/* ---- extraction ---- */

/* Returns the offset of the brace that closes the one at `open`; s.n: unbalanced. */
static size_t closing_brace(utf8_text s, size_t open)
{
    size_t depth = 0, i = open;
    for (; i < s.n; i++) {
        depth += s.s[i] == '{';
        if (s.s[i] == '}' && --depth == 0) break;
    }
    return i;
}

/* Finds what follows the last \boxed, else the last \fbox. */
static bool find_macro(utf8_text *out, utf8_text s)
{
    size_t at = text_find_last(s, utf8_of("\\boxed")), n = strlen("\\boxed");
    if (at > s.n) at = text_find_last(s, utf8_of("\\fbox")), n = strlen("\\fbox");
    if (at <= s.n) *out = text_from(s, at + n, s.n);
    return at <= s.n;
}

bool answer_box(utf8_text *out, utf8_text s)
{
    if (!find_macro(&s, s)) return false;
    size_t open = 0;
    while (open < s.n && (s.s[open] == ' ' || (s.s[open] >= '\t' && s.s[open] <= '\r'))) open++;
    size_t end = open < s.n && s.s[open] == '{' ? closing_brace(s, open) : s.n;
    if (end < s.n) *out = text_from(s, open + 1, end);
    return end < s.n;
}

/* Finds the last box. A short text without a box is itself the answer. */
static bool find_box(utf8_text *out, utf8_text s)
{
    if (find_macro(out, s)) return answer_box(out, s);
    *out = text_strip(s);
    return out->n > 0 && out->n <= MOST_BARE && !text_contains(*out, utf8_of("\n\n"));
}

/* ---- normalization ---- */

/* Returns the byte at i; 0 after the end. */
static char at(const str *t, size_t i)
{
    return i < t->n ? t->s[i] : 0;
}

static size_t skip_spaces(const str *t, size_t i)
{
    while (at(t, i) == ' ') i++;
    return i;
}

static const char *const macros[] = {"\\text{", "\\mbox{", "\\mathrm{", "\\textbf{", "\\mathbf{", "\\boxed{"};
enum { N_MACROS = sizeof macros / sizeof *macros, N_UNIT_MACROS = 2, N_TEXT_MACROS = N_MACROS - 1 };

static bool peel(str *t, size_t first, size_t last)
{
    str_cut(t, t->n - last, t->n);
    str_cut(t, 0, first);
    str_strip(t);
    return true;
}

/* Removes delimiters or a macro around the whole answer, or a final dot; false: none found. */
static bool peel_once(str *t)
{
    static const char *const pairs[][2] = {{"$", "$"}, {"\\(", "\\)"}, {"\\[", "\\]"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        size_t n = strlen(pairs[i][0]);
        if (t->n >= 2 * n && str_at(t, 0, pairs[i][0]) && str_at(t, t->n - n, pairs[i][1])) return peel(t, n, n);
    }
    for (size_t i = 0; i < N_MACROS; i++) {
        size_t n = strlen(macros[i]);
        if (str_at(t, 0, macros[i]) && closing_brace(str_text(t), n - 1) + 1 == t->n) return peel(t, n, 1);
    }
    return t->n >= 2 && t->s[t->n - 1] == '.' && peel(t, 0, 1);
}

/* Replaces all occurrences of `from`. A command is replaced only if its name ends there. */
static void rewrite(str *t, const char *from, const char *to)
{
    size_t n = strlen(from), done = 0;
    str out = {0};
    for (size_t hit; (hit = str_find(t, done, from)) <= t->n; done = hit + n) {
        bool longer = from[0] == '\\' && char_is_ascii_letter(from[n - 1]) && char_is_ascii_letter(at(t, hit + n));
        str_add(&out, t->s + done, hit - done);
        str_add(&out, longer ? from : to, longer ? n : strlen(to));
    }
    if (done == 0) return;
    str_add(&out, t->s + done, t->n - done);
    str_free(t);
    *t = out;
}

static void rewrite_all(str *t)
{
    static const char *const table[][2] = {{"\\\\", "\x01"},
                                           {"\xe2\x88\x92", "-"},
                                           {"\xcf\x80", "\\pi "},
                                           {"\xc2\xb2", "^2"},
                                           {"\xc2\xb3", "^3"},
                                           {",\\!", ""},
                                           {"\\!", ""},
                                           {"\\,", " "},
                                           {"\\;", " "},
                                           {"\\:", " "},
                                           {"\\ ", " "},
                                           {"~", " "},
                                           {"{,}", ","},
                                           {"^{\\circ}", ""},
                                           {"^\\circ", ""},
                                           {"\\circ", ""},
                                           {"\xc2\xb0", ""},
                                           {"\\%", ""},
                                           {"%", ""},
                                           {"\\$", ""},
                                           {"$", ""},
                                           {" or ", ","},
                                           {" and ", ","},
                                           {"\\text{or}", ","},
                                           {"\\text{ or }", ","},
                                           {"\\left", ""},
                                           {"\\text{and}", ","},
                                           {"\\right", ""},
                                           {"\\quad", " "},
                                           {"\\qquad", " "},
                                           {"\\degree", ""},
                                           {"\\text{ and }", ","},
                                           {"\\dfrac", "\\frac"},
                                           {"\\tfrac", "\\frac"},
                                           {"\\cfrac", "\\frac"},
                                           {"\\leq", "\\le"},
                                           {"\\displaystyle", ""},
                                           {"\\geq", "\\ge"},
                                           {"\\neq", "\\ne"},
                                           {"\\cdot", "\\times"},
                                           {"\n", " "},
                                           {"\t", " "},
                                           {"\r", " "}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) rewrite(t, table[i][0], table[i][1]);
}

/* Returns the end of a power such as "^2" or "^{2}" after i; i: none. */
static size_t power_end(const str *t, size_t i)
{
    size_t from = skip_spaces(t, i), end;
    if (at(t, from) != '^') return i;
    end = from = skip_spaces(t, from + 1);
    if (at(t, from) == '{') return (end = closing_brace(str_text(t), from)) < t->n ? end + 1 : i;
    while (char_is_ascii_digit(at(t, end))) end++;
    return end > from ? end : i;
}

/* Drops the unit in "10 \text{ cm}^2": a text macro at the end, after a digit or a brace. */
static void drop_trailing_text(str *t)
{
    for (size_t k = 0; k < N_UNIT_MACROS; k++) {
        size_t hit = text_find_last(str_text(t), utf8_of(macros[k])), before = hit;
        if (hit > t->n) continue;
        size_t end = closing_brace(str_text(t), hit + strlen(macros[k]) - 1);
        if (end == t->n || skip_spaces(t, power_end(t, end + 1)) != t->n) continue;
        while (before > 0 && t->s[before - 1] == ' ') before--;
        if (before > 0 && (char_is_ascii_digit(t->s[before - 1]) || t->s[before - 1] == '}')) str_cut(t, before, t->n);
    }
}

static void unwrap_texts(str *t)
{
    for (size_t k = 0; k < N_TEXT_MACROS; k++)
        for (size_t hit = 0; (hit = str_find(t, hit, macros[k])) <= t->n && !t->failed; hit++) {
            size_t open = hit + strlen(macros[k]) - 1, end = closing_brace(str_text(t), open);
            if (end == t->n) break;
            str_cut(t, end, end + 1);
            str_cut(t, hit, open + 1);
        }
}

/* Drops names of units with their plural and power. */
static void drop_units(str *t)
{
    static const char *const units[] = {"degree", "cm",   "centimeter", "meter", "mile", "second", "minute", "hour",
                                        "day",    "week", "month",      "year",  "foot", "feet",   "inch",   "yard"};
    for (size_t i = 0; i < t->n; i++)
        for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
            if (!str_at(t, i, units[k]) || (i > 0 && (char_is_ascii_letter(t->s[i - 1]) || t->s[i - 1] == '\\')))
                continue;
            size_t end = i + strlen(units[k]);
            end += str_at(t, end, "es") ? 2 : at(t, end) == 's';
            if (char_is_ascii_letter(at(t, end))) continue;
            end = power_end(t, end);
            if (i > 0 || end < t->n) str_cut(t, i, end);
            break;
        }
}

/* Joins 10,000 to 10000. */
static void join_digits(str *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++) {
        bool group = t->s[i] == ',' && i > 0 && char_is_ascii_digit(t->s[i - 1]) && char_is_ascii_digit(at(t, i + 1)) &&
                     char_is_ascii_digit(at(t, i + 2)) && char_is_ascii_digit(at(t, i + 3)) &&
                     !char_is_ascii_digit(at(t, i + 4));
        if (!group) t->s[kept++] = t->s[i];
    }
    str_cut(t, kept, t->n);
}

/* Drops "x =" or "x \in" at the beginning. */
static void drop_name(str *t)
{
    size_t i = skip_spaces(t, 1);
    if (!char_is_ascii_letter(at(t, 0))) return;
    if (str_at(t, i, "=")) i++;
    else if (str_at(t, i, "\\in") && !char_is_ascii_letter(at(t, i + 3))) i += 3;
    else return;
    if (skip_spaces(t, i) < t->n) str_cut(t, 0, i);
}

void answer_clean(str *t)
{
    str_strip(t);
    while (!t->failed && peel_once(t)) continue;
    rewrite_all(t);
    drop_trailing_text(t);
    unwrap_texts(t);
    drop_units(t);
    join_digits(t);
    str_strip(t);
    drop_name(t);
    str_strip(t);
}

/* ---- comparison ---- */

/* Cleans the answer. Drops braces around single characters, case, and spaces except between digits. */
static void clean_boxed(str *t)
{
    size_t n = 0;
    answer_clean(t);
    for (size_t i = 0; i < t->n; i++) {
        char c = t->s[i];
        bool group = c == '{' && i + 2 < t->n && t->s[i + 2] == '}' && !strchr("{}\\", t->s[i + 1]);
        if (c == ' ' && !(n && char_is_ascii_digit(t->s[n - 1]) && i + 1 < t->n && char_is_ascii_digit(t->s[i + 1])))
            continue;
        if (group) c = t->s[i + 1], i += 2;
        t->s[n++] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    str_cut(t, n, t->n);
}

enum { MOST_DIGITS = 18 };

/* Reads digits with an optional decimal point as v[0] / v[1]; advances *s. */
static bool read_decimal(long long v[2], const char **s)
{
    size_t n = 0;
    bool point = false;
    v[0] = 0;
    v[1] = 1;
    for (; n <= MOST_DIGITS && (char_is_ascii_digit(**s) || (**s == '.' && !point)); ++*s) {
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

/* Reads an argument of \frac: a digit, or a number in braces with an optional sign. */
static bool read_argument(long long v[2], const char **s)
{
    v[0] = **s - '0';
    v[1] = 1;
    if (char_is_ascii_digit(**s)) return ++*s;
    if (**s != '{') return false;
    bool negative = *++*s == '-';
    *s += negative;
    if (!read_decimal(v, s) || **s != '}') return false;
    if (negative) v[0] = -v[0];
    return ++*s;
}

/* Reads a decimal, a/b or \frac{a}{b} in lowest terms; false: anything else. */
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

static bool equal_boxed(str *a, str *b)
{
    long long x[2], y[2];
    if (text_equal(str_text(a), str_text(b))) return true;
    if (strlen(a->s) != a->n || strlen(b->s) != b->n) return false;
    return read_rational(x, a->s) && read_rational(y, b->s) && x[0] == y[0] && x[1] == y[1];
}

const answer_rule answer_boxed = {.find = find_box, .clean = clean_boxed, .equal = equal_boxed};
