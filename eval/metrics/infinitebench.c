/* SPDX-License-Identifier: MIT */
/* Scores of InfiniteBench's tasks: rules that find the answer in a model's output. Source: evals.md 6.2 and 6.3;
 * OpenBMB/InfiniteBench compute_scores.py (88b3daa) and thunlp/InfLLM infinitebench_eval.py. The summary score is in
 * rouge.c. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/metrics/impl.h"
#include "eval/metrics/regex.h"
#include "kernels/base/mem.h"

/* ---- text ---- */

/* Appends the text with each of the characters replaced by a space. */
static void add_blanked(str *out, utf8_text s, const char *chars)
{
    str_add(out, s.s, s.n);
    for (size_t i = 0; i < out->n; i++)
        if (out->s[i] && strchr(chars, out->s[i])) out->s[i] = ' ';
}

/* Collapses runs of spaces to one space. */
static void collapse_spaces(str *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->s[i] != ' ' || kept == 0 || t->s[kept - 1] != ' ') t->s[kept++] = t->s[i];
    str_cut(t, kept, t->n);
}

typedef enum { PREFIX_NONE, PREFIX_AT_END, PREFIX_SKIPPED } prefix_found;

/* Removes everything up to the first prefix in the list that occurs, and one more character, from *s. If the prefix is
 * at the very end, *s is unchanged. */
static prefix_found skip_prefix(utf8_text *s, const char *const *prefixes)
{
    for (; *prefixes; prefixes++) {
        size_t end = text_find(*s, 0, utf8_of(*prefixes)) + strlen(*prefixes);
        if (end > s->n) continue;
        utf8_text rest = text_from(*s, end, s->n);
        if (!text_next(&rest, &(int32_t){0})) return PREFIX_AT_END;
        *s = rest;
        return PREFIX_SKIPPED;
    }
    return PREFIX_NONE;
}

/* Python's `word in "ABCD"`: a substring test. */
static bool is_in_abcd(utf8_text word)
{
    return word.n > 0 && text_contains(utf8_of("ABCD"), word);
}

/* ---- retrieval, dialogue ---- */

static const char RETRIEVAL_MARKS[] = "\n:\"'.,?!{}";

status score_first_number(const metric_pair *p, double *score, err *e)
{
    utf8_text number = {0};
    bool found;
    TRY(regex_find(&number, &found, "[0-9]+", false, p->prediction, e));
    *score = text_equal(number, p->answer);
    return ST_OK;
}

/* Scores 1 if the label is a word of the text. Frees the text. */
static status score_words(str *t, utf8_text label, double *score, err *e)
{
    text_list words = {0};
    status st = str_check(t, e);
    if (st == ST_OK) st = text_split(&words, str_text(t), e);
    *score = text_is_listed(&words, label);
    text_list_free(&words);
    str_free(t);
    return st;
}

status score_kv_retrieval(const metric_pair *p, double *score, err *e)
{
    str t = {0};
    add_blanked(&t, p->prediction, RETRIEVAL_MARKS);
    return score_words(&t, p->answer, score, e);
}

/* Uses only the first name. */
status score_longdialogue(const metric_pair *p, double *score, err *e)
{
    str t = {0}, up = {0};
    add_blanked(&t, p->prediction, RETRIEVAL_MARKS);
    str_add_upper(&up, str_text(&t));
    up.failed |= t.failed;
    str_free(&t);
    return score_words(&up, p->answers[0], score, e);
}

/* ---- choices ---- */

/* Checks that the labels are the right option's text and its letter. */
static status check_choice(const metric_pair *p, const char *task, err *e)
{
    if (p->n_answers == 2 && p->answers[1].n == 1 && is_in_abcd(p->answers[1])) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: expected two answers, an option and its letter (A to D)", task);
}

static bool begins_with_label(const metric_pair *p, utf8_text s)
{
    return text_starts(s, p->answers[0]) || text_starts(s, p->answers[1]);
}

/* InfLLM's rule accepts any character of the label: "Tango" for the label "Tom". */
static status choice(const metric_pair *p, bool infllm, double *score, err *e)
{
    static const char *const prefixes[] = {"answer is:", "answer:", "answer is", "option is", NULL};
    static const char letter[] = "(?<![^" PYTHON_SPACE "])(ABCD|ABC|BCD|AB|BC|CD|[A-D])(?![^" PYTHON_SPACE "])";
    utf8_text label[] = {infllm ? p->answer : p->answers[0], p->answers[p->n_answers - 1]};
    const text_list labels = {.s = label, .n = infllm ? 1 : 2};
    utf8_text s = infllm ? p->prediction : text_strip(p->prediction), first = text_first(s, 1);
    str t = {0};
    if (!infllm) TRY(check_choice(p, "longbook_choice_eng", e));
    if (s.n == 0) return ST_OK;
    bool is_letter = is_in_abcd(first), found;
    if (is_letter || !infllm) *score = text_is_listed(&labels, is_letter ? first : s);
    if (is_letter || *score != 0) return ST_OK;
    add_blanked(&t, s, "\n\"'.,?!{}");
    collapse_spaces(&t);
    status st = str_check(&t, e);
    s = str_text(&t);
    prefix_found prefix = skip_prefix(&s, prefixes);
    if (prefix == PREFIX_SKIPPED) {
        *score = infllm ? s.n && text_contains(p->answer, text_first(s, 1)) : begins_with_label(p, s);
    } else if (prefix == PREFIX_NONE && st == ST_OK) {
        st = regex_find(&s, &found, letter, false, s, e);
        *score = found && text_is_listed(&labels, s);
    }
    str_free(&t);
    return st;
}

status score_choice(const metric_pair *p, double *score, err *e)
{
    return choice(p, false, score, e);
}

status score_choice_infllm(const metric_pair *p, double *score, err *e)
{
    return choice(p, true, score, e);
}

static bool begins_with_letter(const metric_pair *p, utf8_text s)
{
    return s.n >= 2 && s.s[0] == p->answers[1].s[0] && (s.s[1] == '.' || s.s[1] == ':');
}

static status add_debug_text(str *out, utf8_text s, err *e)
{
    add_blanked(out, text_strip(s), "\n`'\"-*");
    str_replace(out, utf8_of("Option"), utf8_of(" "));
    str_replace(out, utf8_of("option"), utf8_of(" "));
    collapse_spaces(out);
    return str_check(out, e);
}

status score_code_debug(const metric_pair *p, double *score, err *e)
{
    static const char *const prefixes[] = {"answer is:", "is:", "answer:", "correct option is:", NULL};
    utf8_text s = text_strip(p->prediction);
    str t = {0};
    TRY(check_choice(p, "code_debug", e));
    *score = begins_with_letter(p, s);
    if (*score != 0) return ST_OK;
    status st = add_debug_text(&t, s, e);
    s = str_text(&t);
    *score = skip_prefix(&s, prefixes) == PREFIX_SKIPPED && begins_with_label(p, s);
    str_free(&t);
    return st;
}

/* Runs two stages, the second on the rest of the first. If neither finds a prefix, the original draws a letter with a
 * generator seeded by the function's name; here the score is 0, and `undecided` is set. */
status score_code_debug_infllm(const metric_pair *p, double *score, err *e)
{
    static const char *const stage[2][4] = {{"answer is:", "is:", "answer:", NULL},
                                            {"answer is", "error is", NULL, NULL}};
    str t = {0};
    TRY(check_choice(p, "code_debug", e));
    *score = begins_with_letter(p, p->prediction);
    if (*score != 0) return ST_OK;
    status st = add_debug_text(&t, p->prediction, e);
    utf8_text s = str_text(&t);
    p->m->undecided = true;
    for (int i = 0; i < 2; i++) {
        prefix_found found = skip_prefix(&s, stage[i]);
        if (found != PREFIX_NONE) p->m->undecided = false;
        if (found == PREFIX_SKIPPED && begins_with_label(p, s)) *score = 1;
    }
    str_free(&t);
    return st;
}

/* ---- numbers ----
 *  Whole numbers of any length are compared digit by digit. A label with a decimal point or an exponent is a double, as
 * Python's json reads it. */

enum { MAX_LABEL = 320 }; /* the largest double has 309 digits */

typedef struct {
    bool is_float, is_whole, negative;
    double value;               /* value of a float */
    char digits[MAX_LABEL + 1]; /* digits of a whole number, without leading zeros; "" is 0 */
} label_number;

static status read_label(label_number *l, utf8_text s, err *e)
{
    char ascii[MAX_LABEL + 1];
    utf8_text number;
    bool found;
    *l = (label_number){0};
    TRY(regex_find(&number, &found, "\\A-?[0-9][0-9.eE+-]*\\z", false, s, e));
    snprintf(ascii, sizeof ascii, "%.*s", found && s.n < sizeof ascii ? (int)s.n : 0, s.s);
    const char *digits = ascii + (ascii[0] == '-');
    char *end;
    l->is_float = digits[strspn(digits, "0123456789")] != 0;
    l->value = strtod(ascii, &end);
    if (end == ascii || *end || (l->is_float && !isfinite(l->value)))
        return err_set(e, ST_FORMAT, "the answer '%.*s' is not a number", s.n < 40 ? (int)s.n : 40, s.s);
    l->is_whole = !l->is_float || rint(l->value) == l->value;
    l->negative = ascii[0] == '-';
    if (!l->is_whole) return ST_OK;
    if (l->is_float) snprintf(ascii, sizeof ascii, "%.0f", fabs(l->value));
    if (l->is_float) digits = ascii;
    snprintf(l->digits, sizeof l->digits, "%s", digits + strspn(digits, "0"));
    l->negative = l->negative && l->digits[0];
    return ST_OK;
}

/* Returns the value of a decimal digit of any script; scripts have runs of ten. */
static int digit_value(int32_t c)
{
    int32_t first = c;
    while (char_is_digit(first - 1)) first--;
    return (int)((c - first) % 10);
}

/* True if the label is the whole number with these digits, in which '_' is ignored. */
static bool equals_label(const label_number *l, bool negative, utf8_text digits)
{
    size_t n = 0;
    if (!l->is_whole) return false;
    for (int32_t c; text_next(&digits, &c);) {
        if (c == '_') continue;
        int v = digit_value(c);
        if (n == 0 && v == 0) continue;
        if (l->digits[n] != '0' + v) return false; /* the terminating NUL is not a digit */
        n++;
    }
    return l->digits[n] == 0 && l->negative == (negative && n > 0);
}

/* ---- code_run ---- */

#define DIGITS "\\p{Nd}+"

/* Scores the last word, if int() accepts it: a sign, digits, single underscores between them. */
status score_code_run(const metric_pair *p, double *score, err *e)
{
    label_number l;
    str t = {0};
    text_list words = {0};
    utf8_text digits;
    bool found = false;
    status st;
    TRY(read_label(&l, p->answer, e));
    add_blanked(&t, p->prediction, ".`'\":");
    TRY_GOTO(str_check(&t, e));
    TRY_GOTO(text_split(&words, str_text(&t), e));
    utf8_text last = words.n ? words.s[words.n - 1] : (utf8_text){"", 0};
    st = regex_find(&digits, &found, "\\A[+-]?(" DIGITS "(?:_" DIGITS ")*)\\z", false, last, e);
    *score = found && equals_label(&l, last.s[0] == '-', digits);
done:
    text_list_free(&words);
    str_free(&t);
    return st;
}

/* ---- math_find ---- */

/* Finds the first number; whole: its digits before the point. */
static status first_number(utf8_text *number, utf8_text *whole, utf8_text s, err *e)
{
    bool found;
    *number = (utf8_text){"", 0};
    TRY(regex_find(number, &found, DIGITS "(?:\\." DIGITS ")?", false, s, e));
    const char *dot = memchr(number->s, '.', number->n);
    *whole = (utf8_text){number->s, dot ? (size_t)(dot - number->s) : number->n};
    return ST_OK;
}

static status to_double(double *out, utf8_text s, err *e)
{
    str ascii = {0};
    for (int32_t c; text_next(&s, &c);) str_add_char(&ascii, c == '.' ? '.' : '0' + digit_value(c));
    *out = ascii.s ? strtod(ascii.s, NULL) : 0;
    status st = str_check(&ascii, e);
    str_free(&ascii);
    return st;
}

/* cuts: SCBench's int(float(x)) for an int label truncates decimals. Otherwise int("3.5") raises in the original, which
 * counts as no answer here. */
static status math_find(const metric_pair *p, bool cuts, double *score, err *e)
{
    label_number l;
    utf8_text number, whole;
    double x;
    TRY(read_label(&l, p->answer, e));
    TRY(first_number(&number, &whole, p->prediction, e));
    if (number.n == 0) return ST_OK;
    if (!l.is_float) {
        *score = (cuts || whole.n == number.n) && equals_label(&l, false, whole);
        return ST_OK;
    }
    TRY(to_double(&x, number, e));
    *score = x == l.value;
    return ST_OK;
}

status score_math_find(const metric_pair *p, double *score, err *e)
{
    return math_find(p, false, score, e);
}

status score_math_find_whole(const metric_pair *p, double *score, err *e)
{
    return math_find(p, true, score, e);
}

/* ---- math_calc ---- */

/* Compares the runs of ASCII digits with the labels, up to the first difference. */
status score_math_calc(const metric_pair *p, double *score, err *e)
{
    text_list runs = {0};
    label_number l;
    size_t right = 0;
    status st = text_runs(&runs, p->prediction, char_is_ascii_digit, e);
    for (size_t k = 0; k < p->n_answers && st == ST_OK; k++) {
        st = read_label(&l, p->answers[k], e);
        right += st == ST_OK && right == k && k < runs.n && equals_label(&l, false, runs.s[k]);
    }
    *score = (double)right / (double)p->n_answers;
    text_list_free(&runs);
    return st;
}
