/* SPDX-License-Identifier: MIT */
/* From an answer as it was written to plain LaTeX. Source: evals.md 17.3; openai/prm800k grader.py, whose rules these
 * are made to agree with. */
#include "config.h"

#include <string.h>

#include "eval/metrics/answer.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The byte at `at`; 0 beyond the end. */
static char at(const str *t, size_t i)
{
    return i < t->n ? t->s[i] : 0;
}

static size_t skip_spaces(const str *t, size_t i)
{
    while (at(t, i) == ' ') i++;
    return i;
}

/* Where the brace that opens at `open` closes; t->n: nowhere. */
static size_t closing(const str *t, size_t open)
{
    size_t depth = 0, i = open;
    for (; i < t->n; i++) {
        depth += t->s[i] == '{';
        if (t->s[i] == '}' && --depth == 0) break;
    }
    return i;
}

/* ---- what stands around the whole ---- */

static const char *const macros[] = {"\\text{", "\\mathrm{", "\\textbf{", "\\mathbf{", "\\mbox{", "\\boxed{"};
enum { N_MACROS = sizeof macros / sizeof *macros, N_TEXT_MACROS = N_MACROS - 1 };

static void peel_ends(str *t, size_t first, size_t last)
{
    str_cut(t, t->n - last, t->n);
    str_cut(t, 0, first);
    str_strip(t);
}

static bool ends_with(const str *t, const char *word)
{
    size_t n = strlen(word);
    return t->n >= n && str_at(t, t->n - n, word);
}

static bool peel_once(str *t)
{
    static const char *const pairs[][2] = {{"$", "$"}, {"\\(", "\\)"}, {"\\[", "\\]"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        size_t first = strlen(pairs[i][0]), last = strlen(pairs[i][1]);
        if (t->n < first + last || !str_at(t, 0, pairs[i][0]) || !ends_with(t, pairs[i][1])) continue;
        peel_ends(t, first, last);
        return true;
    }
    for (size_t i = 0; i < N_MACROS; i++) {
        size_t n = strlen(macros[i]);
        if (!str_at(t, 0, macros[i]) || closing(t, n - 1) + 1 != t->n) continue;
        peel_ends(t, n, 1);
        return true;
    }
    if (t->n < 2 || !ends_with(t, ".")) return false;
    peel_ends(t, 0, 1);
    return true;
}

/* ---- words within ---- */

/* Replaces a command, not one whose name goes on. */
static void replace_command(str *t, const char *name, const char *to)
{
    size_t n = strlen(name), from = 0;
    str out = {0};
    for (size_t hit; (hit = str_find(t, from, name)) <= t->n; from = hit + n) {
        str_add(&out, t->s + from, hit - from);
        if (is_letter(name[n - 1]) && is_letter(at(t, hit + n))) str_add(&out, name, n);
        else str_add(&out, to, strlen(to));
    }
    if (from > 0) {
        str_add(&out, t->s + from, t->n - from);
        str_free(t);
        *t = out;
    }
}

static void rewrite_commands(str *t)
{
    static const char *const plain[][2] = {{"\xe2\x88\x92", "-"},
                                           {"\xcf\x80", "\\pi "},
                                           {"\xe2\x88\x9e", "\\infty "},
                                           {"\xe2\x88\xaa", "\\cup "},
                                           {"\xc3\x97", "\\times "},
                                           {"\xc2\xb7", "\\cdot "},
                                           {"\xe2\x89\xa4", "\\le "},
                                           {"\xe2\x89\xa5", "\\ge "},
                                           {"<=", "\\le "},
                                           {">=", "\\ge "},
                                           {"\xc2\xb2", "^2"},
                                           {"\xc2\xb3", "^3"},
                                           {"**", "^"},
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
                                           {"\\text{and}", ","},
                                           {"\\text{ and }", ","}};
    static const char *const commands[][2] = {
        {"\\left", ""},        {"\\right", ""},       {"\\displaystyle", ""},
        {"\\quad", " "},       {"\\qquad", " "},      {"\\dfrac", "\\frac"},
        {"\\tfrac", "\\frac"}, {"\\cfrac", "\\frac"}, {"\\lvert", "|"},
        {"\\rvert", "|"},      {"\\degree", ""},      {"\\leq", "\\le"},
        {"\\geq", "\\ge"},     {"\\neq", "\\ne"},     {"\\varnothing", "\\emptyset"},
        {"\\lbrace", "\\{"},   {"\\rbrace", "\\}"}};
    str_replace(t, "\\\\", "\x01"); /* the end of a matrix's row begins no other command */
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) str_replace(t, plain[i][0], plain[i][1]);
    str_replace(t, "\x01", "\\\\");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) replace_command(t, commands[i][0], commands[i][1]);
    for (size_t i = 0; i < t->n; i++)
        if (t->s[i] == '\n' || t->s[i] == '\t' || t->s[i] == '\r') t->s[i] = ' ';
}

/* Where the root's argument ends that begins at i: "(...)" or digits; i: neither. */
static size_t root_end(const str *t, size_t i)
{
    size_t depth = 0, end = i;
    if (at(t, i) != '(') {
        while (is_digit(at(t, end))) end++;
        return end;
    }
    for (; end < t->n; end++) {
        depth += t->s[end] == '(';
        if (t->s[end] == ')' && --depth == 0) return end + 1;
    }
    return i;
}

/* "sqrt(13)" and the sign before "13" or "(13)" to \sqrt{13}. */
static void write_roots(str *t)
{
    str out = {0};
    size_t from = 0;
    str_replace(t, "\xe2\x88\x9a", "\x01");
    str_replace(t, "\\sqrt(", "\x01(");
    str_replace(t, "sqrt(", "\x01(");
    for (size_t hit; (hit = str_find(t, from, "\x01")) <= t->n;) {
        size_t end = root_end(t, hit + 1);
        bool group = at(t, hit + 1) == '(' && end > hit + 1;
        str_add(&out, t->s + from, hit - from);
        str_add(&out, "\\sqrt ", end > hit + 1 ? 5 : 6);
        if (end > hit + 1) {
            str_add(&out, "{", 1);
            str_add(&out, t->s + hit + 1 + group, end - hit - 1 - 2 * group);
            str_add(&out, "}", 1);
        }
        from = end > hit + 1 ? end : hit + 1;
    }
    if (from == 0) return;
    str_add(&out, t->s + from, t->n - from);
    str_free(t);
    *t = out;
}

/* "(0,1) U (2,3)": the letter between brackets of intervals. */
static void write_unions(str *t)
{
    str out = {0};
    size_t from = 0;
    for (size_t i = 1; i < t->n; i++) {
        size_t before = i, next = skip_spaces(t, i + 1);
        while (before > 0 && t->s[before - 1] == ' ') before--;
        if (t->s[i] != 'U' || before == 0 || !strchr(")]", t->s[before - 1]) || next == t->n ||
            !strchr("([", t->s[next]))
            continue;
        str_add(&out, t->s + from, i - from);
        str_add(&out, "\\cup ", 5);
        from = i + 1;
    }
    if (from == 0) return;
    str_add(&out, t->s + from, t->n - from);
    str_free(t);
    *t = out;
}

/* Behind "^2" or "^{2}" at i, spaces in front; i: there is none. */
static size_t power_end(const str *t, size_t i)
{
    size_t from = skip_spaces(t, i);
    if (at(t, from) != '^') return i;
    from = skip_spaces(t, from + 1);
    if (at(t, from) == '{') return closing(t, from) < t->n ? closing(t, from) + 1 : i;
    size_t end = from;
    while (is_digit(at(t, end))) end++;
    return end > from ? end : i;
}

/* "10 \text{ cm}^2": a text at the end, behind a digit or a brace. */
static void drop_trailing_text(str *t)
{
    static const char *const texts[] = {"\\text{", "\\mbox{"};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        size_t hit = str_find_last(t, texts[k]), before = hit;
        if (hit > t->n) continue;
        size_t end = closing(t, hit + strlen(texts[k]) - 1);
        if (end == t->n || skip_spaces(t, power_end(t, end + 1)) != t->n) continue;
        while (before > 0 && t->s[before - 1] == ' ') before--;
        if (before > 0 && (is_digit(t->s[before - 1]) || t->s[before - 1] == '}')) str_cut(t, before, t->n);
    }
}

/* "7 3/4" to 7\frac{3}{4}. */
static void write_mixed(str *t)
{
    str out = {0};
    size_t from = 0;
    for (size_t i = 1; i < t->n; i++) {
        size_t a = skip_spaces(t, i), slash = a, end;
        if (t->s[i] != ' ' || !is_digit(t->s[i - 1]) || !is_digit(at(t, a))) continue;
        while (is_digit(at(t, slash))) slash++;
        for (end = slash + 1; is_digit(at(t, end));) end++;
        if (at(t, slash) != '/' || end == slash + 1) continue;
        str_add(&out, t->s + from, i - from);
        str_add(&out, "\\frac{", 6);
        str_add(&out, t->s + a, slash - a);
        str_add(&out, "}{", 2);
        str_add(&out, t->s + slash + 1, end - slash - 1);
        str_add(&out, "}", 1);
        from = end;
        i = end;
    }
    if (from == 0) return;
    str_add(&out, t->s + from, t->n - from);
    str_free(t);
    *t = out;
}

static void unwrap_texts(str *t)
{
    for (size_t k = 0; k < N_TEXT_MACROS; k++)
        for (size_t hit = 0; (hit = str_find(t, hit, macros[k])) <= t->n && !t->failed; hit++) {
            size_t open = hit + strlen(macros[k]) - 1, end = closing(t, open);
            if (end == t->n) break;
            str_cut(t, end, end + 1);
            str_cut(t, hit, open + 1);
        }
}

/* Behind a unit that stands at i, with its plural and power; i: there is none. */
static size_t unit_end(const str *t, size_t i)
{
    static const char *const units[] = {"degree", "cm",   "centimeter", "meter", "mile", "second", "minute", "hour",
                                        "day",    "week", "month",      "year",  "foot", "feet",   "inch",   "yard"};
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        if (!str_at(t, i, units[k])) continue;
        size_t end = i + strlen(units[k]);
        if (str_at(t, end, "es")) end += 2;
        else if (at(t, end) == 's') end++;
        if (!is_letter(at(t, end))) return power_end(t, end);
    }
    return i;
}

static void drop_units(str *t)
{
    for (size_t i = 0; i < t->n; i++) {
        size_t end = i > 0 && (is_letter(t->s[i - 1]) || t->s[i - 1] == '\\') ? i : unit_end(t, i);
        if (end > i && (i > 0 || end < t->n)) str_cut(t, i, end);
    }
}

/* 10,000 to 10000. */
static void join_digits(str *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++) {
        bool group = t->s[i] == ',' && i > 0 && is_digit(t->s[i - 1]) && is_digit(at(t, i + 1)) &&
                     is_digit(at(t, i + 2)) && is_digit(at(t, i + 3)) && !is_digit(at(t, i + 4));
        if (!group) t->s[kept++] = t->s[i];
    }
    if (t->s) t->s[kept] = 0;
    t->n = kept;
}

/* "x = 5" and "x \in [0, 1]" without their beginning. */
static void drop_name(str *t)
{
    size_t i = skip_spaces(t, 1);
    if (!is_letter(at(t, 0))) return;
    if (str_at(t, i, "=")) i++;
    else if (str_at(t, i, "\\in") && !is_letter(at(t, i + 3))) i += 3;
    else return;
    if (skip_spaces(t, i) < t->n) str_cut(t, 0, i);
}

void math_clean(str *t, bool keep)
{
    str_strip(t);
    while (!t->failed && peel_once(t)) continue;
    rewrite_commands(t);
    if (!keep) drop_trailing_text(t);
    unwrap_texts(t);
    write_roots(t);
    write_unions(t);
    write_mixed(t);
    drop_units(t);
    join_digits(t);
    str_strip(t);
    if (!keep) drop_name(t);
    str_strip(t);
}
