/* SPDX-License-Identifier: MIT */
/* Normalization of LaTeX answers: no units, dollars and decoration. Source: evals.md 17.3. */
#include "config.h"

#include <string.h>

#include "eval/metrics/answer.h"

size_t answer_brace(utf8_text s, size_t open)
{
    size_t depth = 0, i = open;
    for (; i < s.n; i++) {
        depth += s.s[i] == '{';
        if (s.s[i] == '}' && --depth == 0) break;
    }
    return i;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Returns the byte at i; 0 beyond the end. */
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

/* Removes delimiters or a macro around the whole, or a final dot; false: there are none. */
static bool peel_once(str *t)
{
    static const char *const pairs[][2] = {{"$", "$"}, {"\\(", "\\)"}, {"\\[", "\\]"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        size_t n = strlen(pairs[i][0]);
        if (t->n >= 2 * n && str_at(t, 0, pairs[i][0]) && str_at(t, t->n - n, pairs[i][1])) return peel(t, n, n);
    }
    for (size_t i = 0; i < N_MACROS; i++) {
        size_t n = strlen(macros[i]);
        if (str_at(t, 0, macros[i]) && answer_brace((utf8_text){t->s, t->n}, n - 1) + 1 == t->n) return peel(t, n, 1);
    }
    return t->n >= 2 && t->s[t->n - 1] == '.' && peel(t, 0, 1);
}

/* Replaces `from`; a command only if its name ends there. */
static void rewrite(str *t, const char *from, const char *to)
{
    size_t n = strlen(from), done = 0;
    str out = {0};
    for (size_t hit; (hit = str_find(t, done, from)) <= t->n; done = hit + n) {
        bool longer = from[0] == '\\' && is_letter(from[n - 1]) && is_letter(at(t, hit + n));
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
    if (at(t, from) == '{') return (end = answer_brace((utf8_text){t->s, t->n}, from)) < t->n ? end + 1 : i;
    while (is_digit(at(t, end))) end++;
    return end > from ? end : i;
}

/* Drops the unit in "10 \text{ cm}^2": a text at the end, after a digit or a brace. */
static void drop_trailing_text(str *t)
{
    for (size_t k = 0; k < N_UNIT_MACROS; k++) {
        size_t hit = str_find_last(t, macros[k]), before = hit;
        if (hit > t->n) continue;
        size_t end = answer_brace((utf8_text){t->s, t->n}, hit + strlen(macros[k]) - 1);
        if (end == t->n || skip_spaces(t, power_end(t, end + 1)) != t->n) continue;
        while (before > 0 && t->s[before - 1] == ' ') before--;
        if (before > 0 && (is_digit(t->s[before - 1]) || t->s[before - 1] == '}')) str_cut(t, before, t->n);
    }
}

static void unwrap_texts(str *t)
{
    for (size_t k = 0; k < N_TEXT_MACROS; k++)
        for (size_t hit = 0; (hit = str_find(t, hit, macros[k])) <= t->n && !t->failed; hit++) {
            size_t open = hit + strlen(macros[k]) - 1, end = answer_brace((utf8_text){t->s, t->n}, open);
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
            if (!str_at(t, i, units[k]) || (i > 0 && (is_letter(t->s[i - 1]) || t->s[i - 1] == '\\'))) continue;
            size_t end = i + strlen(units[k]);
            end += str_at(t, end, "es") ? 2 : at(t, end) == 's';
            if (is_letter(at(t, end))) continue;
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
        bool group = t->s[i] == ',' && i > 0 && is_digit(t->s[i - 1]) && is_digit(at(t, i + 1)) &&
                     is_digit(at(t, i + 2)) && is_digit(at(t, i + 3)) && !is_digit(at(t, i + 4));
        if (!group) t->s[kept++] = t->s[i];
    }
    str_cut(t, kept, t->n);
}

/* Drops "x =" and "x \in" at the beginning. */
static void drop_name(str *t)
{
    size_t i = skip_spaces(t, 1);
    if (!is_letter(at(t, 0))) return;
    if (str_at(t, i, "=")) i++;
    else if (str_at(t, i, "\\in") && !is_letter(at(t, i + 3))) i += 3;
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
