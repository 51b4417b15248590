/* SPDX-License-Identifier: MIT */
/* The scores of InfiniteBench's tasks: what counts as an answer in a text that a model wrote. evals.md 6.2 and 6.3;
 * OpenBMB/InfiniteBench compute_scores.py (88b3daa) and thunlp/InfLLM infinitebench_eval.py. Its summary's score is in
 * rouge.c. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/metrics/impl.h"
#include "kernels/base/mem.h"

/* ---- text ---- */

/* A copy with a space for each of the characters. */
static status blank(text *out, span in, const char *chars, err *e)
{
    *out = (text){0};
    TRY(MEM_NEW(&out->c, in.n, e));
    for (size_t i = 0; i < in.n; i++) {
        int32_t c = in.c[i];
        out->c[out->n++] = c > 0 && c < 0x80 && strchr(chars, (int)c) ? ' ' : c;
    }
    return ST_OK;
}

static bool begins_with_word(span s, const char *word)
{
    size_t i = 0;
    while (word[i] && i < s.n && s.c[i] == (unsigned char)word[i]) i++;
    return word[i] == 0;
}

/* One space for each "Option" and "option". */
static void blank_options(text *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++) {
        span rest = span_from(text_span(t), i, t->n);
        if (begins_with_word(rest, "Option") || begins_with_word(rest, "option")) {
            t->c[kept++] = ' ';
            i += strlen("option") - 1;
        } else {
            t->c[kept++] = t->c[i];
        }
    }
    t->n = kept;
}

/* One space for each run of them. */
static void collapse_spaces(text *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->c[i] != ' ' || kept == 0 || t->c[kept - 1] != ' ') t->c[kept++] = t->c[i];
    t->n = kept;
}

typedef enum { PREFIX_NONE, PREFIX_AT_END, PREFIX_SKIPPED } prefix_found;

/* Takes everything up to the first occurrence of a prefix and one character more off *s: of the first prefix in the
 * list that occurs at all. At the very end of the text there is no such character, and *s stays. */
static prefix_found skip_prefix(span *s, const char *const *prefixes)
{
    for (; *prefixes; prefixes++) {
        size_t n = strlen(*prefixes);
        for (size_t i = 0; i + n <= s->n; i++) {
            if (!begins_with_word(span_from(*s, i, s->n), *prefixes)) continue;
            if (s->n < i + n + 1) return PREFIX_AT_END;
            *s = span_from(*s, i + n + 1, s->n);
            return PREFIX_SKIPPED;
        }
    }
    return PREFIX_NONE;
}

/* word in "ABCD", as a substring. */
static bool is_in_abcd(span word)
{
    for (size_t i = 0; i < word.n; i++)
        if (word.c[i] < 'A' || word.c[i] > 'D' || word.c[i] != word.c[0] + (int32_t)i) return false;
    return word.n > 0;
}

/* ---- retrieval, dialogue ---- */

static const char RETRIEVAL_MARKS[] = "\n:\"'.,?!{}";

status score_first_number(const metric_pair *p, double *score, err *e)
{
    span s = p->prediction;
    size_t begin = 0, end;
    (void)e;
    while (begin < s.n && !(s.c[begin] >= '0' && s.c[begin] <= '9')) begin++;
    for (end = begin; end < s.n && s.c[end] >= '0' && s.c[end] <= '9';) end++;
    *score = span_equal(span_from(s, begin, end), p->answer);
    return ST_OK;
}

static status score_words(span words_of, span label, double *score, err *e)
{
    span_list words = {0};
    status st = span_split(&words, words_of, e);
    *score = 0;
    for (size_t i = 0; i < words.n; i++)
        if (span_equal(words.s[i], label)) *score = 1;
    span_list_free(&words);
    return st;
}

status score_kv_retrieval(const metric_pair *p, double *score, err *e)
{
    text t;
    TRY(blank(&t, p->prediction, RETRIEVAL_MARKS, e));
    status st = score_words(text_span(&t), p->answer, score, e);
    text_free(&t);
    return st;
}

/* The first of the names alone counts. */
status score_longdialogue(const metric_pair *p, double *score, err *e)
{
    text t, up = {0};
    TRY(blank(&t, p->prediction, RETRIEVAL_MARKS, e));
    status st = text_upper(&up, text_span(&t), e);
    if (st == ST_OK) st = score_words(text_span(&up), p->answers[0], score, e);
    text_free(&t);
    text_free(&up);
    return st;
}

/* ---- choices ---- */

/* Labels are the text of the right option and its letter. */
static status check_choice(const metric_pair *p, const char *task, err *e)
{
    if (p->n_answers == 2 && p->answers[1].n == 1 && is_in_abcd(p->answers[1])) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: expected two answers, an option and its letter (A to D)", task);
}

/* True if s is one of n labels. */
static bool is_label(span s, const span *label, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++) any |= span_equal(s, label[i]);
    return any;
}

static bool begins_with_label(const metric_pair *p, span s)
{
    return span_starts(s, p->answers[0]) || span_starts(s, p->answers[1]);
}

/* The first word that is a part of "ABCD"; empty: there is none. */
static status find_letter(span *out, span s, err *e)
{
    span_list words = {0};
    status st = span_split(&words, s, e);
    *out = (span){0};
    for (size_t i = 0; i < words.n && out->n == 0; i++)
        if (is_in_abcd(words.s[i])) *out = words.s[i];
    span_list_free(&words);
    return st;
}

/* True if any character of the label is c: InfLLM takes "Tango" for the label "Tom". */
static bool has_character(span label, int32_t c)
{
    return span_contains(label, (span){&c, 1});
}

static status choice(const metric_pair *p, bool infllm, double *score, err *e)
{
    static const char *const prefixes[] = {"answer is:", "answer:", "answer is", "option is", NULL};
    const span *label = infllm ? &p->answer : p->answers;
    const size_t n = infllm ? 1 : 2;
    span s = infllm ? p->prediction : span_strip(p->prediction), letter;
    text t;
    if (!infllm) TRY(check_choice(p, "longbook_choice_eng", e));
    if (s.n == 0) return ST_OK;
    bool is_letter = is_in_abcd(span_from(s, 0, 1));
    if (is_letter) s.n = 1;
    if (is_letter || !infllm) *score = is_label(s, label, n);
    if (is_letter || *score != 0) return ST_OK;
    TRY(blank(&t, s, "\n\"'.,?!{}", e));
    collapse_spaces(&t);
    status st = ST_OK;
    s = text_span(&t);
    prefix_found found = skip_prefix(&s, prefixes);
    if (found == PREFIX_SKIPPED) {
        *score = infllm ? s.n && has_character(p->answer, s.c[0]) : begins_with_label(p, s);
    } else if (found == PREFIX_NONE) {
        st = find_letter(&letter, s, e);
        *score = letter.n && is_label(letter, label, n);
    }
    text_free(&t);
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

static bool begins_with_letter(const metric_pair *p, span s)
{
    return s.n >= 2 && s.c[0] == p->answers[1].c[0] && (s.c[1] == '.' || s.c[1] == ':');
}

static status debug_text(text *out, span in, err *e)
{
    TRY(blank(out, span_strip(in), "\n`'\"-*", e));
    blank_options(out);
    collapse_spaces(out);
    return ST_OK;
}

status score_code_debug(const metric_pair *p, double *score, err *e)
{
    static const char *const prefixes[] = {"answer is:", "is:", "answer:", "correct option is:", NULL};
    span s = span_strip(p->prediction);
    text t;
    TRY(check_choice(p, "code_debug", e));
    if (begins_with_letter(p, s)) {
        *score = 1;
        return ST_OK;
    }
    TRY(debug_text(&t, s, e));
    s = text_span(&t);
    *score = skip_prefix(&s, prefixes) == PREFIX_SKIPPED && begins_with_label(p, s);
    text_free(&t);
    return ST_OK;
}

/* Two stages, the second on what the first one left. Where neither finds a prefix the original draws a letter by a
 * generator that it seeds with the function's name; here that is a 0 which says so. */
status score_code_debug_infllm(const metric_pair *p, double *score, err *e)
{
    static const char *const stage[2][4] = {{"answer is:", "is:", "answer:", NULL},
                                            {"answer is", "error is", NULL, NULL}};
    bool any = false, right = false;
    text t;
    TRY(check_choice(p, "code_debug", e));
    if (begins_with_letter(p, p->prediction)) {
        *score = 1;
        return ST_OK;
    }
    TRY(debug_text(&t, p->prediction, e));
    span s = text_span(&t);
    for (int i = 0; i < 2; i++) {
        prefix_found found = skip_prefix(&s, stage[i]);
        any |= found != PREFIX_NONE;
        right |= found == PREFIX_SKIPPED && begins_with_label(p, s);
    }
    *score = right;
    p->m->undecided = !any;
    text_free(&t);
    return ST_OK;
}

/* ---- numbers ----
 * Whole numbers are compared digit by digit, of any length; a label with a decimal point or an exponent is a double, as
 * Python's json reads it. */

enum { MAX_LABEL = 320 }; /* the largest double has 309 digits */

typedef struct {
    bool is_float, is_whole, negative;
    double value;               /* of a float */
    char digits[MAX_LABEL + 1]; /* of a whole one, without zeros in front; "" is 0 */
} label_number;

static status read_label(label_number *l, span s, err *e)
{
    char ascii[MAX_LABEL + 1], *end;
    size_t n = 0;
    *l = (label_number){0};
    for (; n < s.n && n < MAX_LABEL && s.c[n] > 0 && s.c[n] < 0x80; n++) ascii[n] = (char)s.c[n];
    ascii[n] = 0;
    const char *digits = ascii + (ascii[0] == '-');
    l->is_float = digits[strspn(digits, "0123456789")] != 0;
    l->value = strtod(ascii, &end);
    if (n < s.n || !(*digits >= '0' && *digits <= '9') || *end || ascii[strcspn(ascii, "xX")] ||
        (l->is_float && !isfinite(l->value)))
        return err_set(e, ST_FORMAT, "the answer '%.40s' is no number", ascii);
    l->is_whole = !l->is_float || rint(l->value) == l->value;
    l->negative = ascii[0] == '-';
    if (!l->is_whole) return ST_OK;
    if (l->is_float) snprintf(ascii, sizeof ascii, "%.0f", fabs(l->value));
    if (l->is_float) digits = ascii;
    snprintf(l->digits, sizeof l->digits, "%s", digits + strspn(digits, "0"));
    l->negative = l->negative && l->digits[0];
    return ST_OK;
}

/* The value of a decimal digit of any script: they come in runs of ten. */
static int digit_value(int32_t c)
{
    int32_t first = c;
    while (char_is_digit(first - 1)) first--;
    return (int)((c - first) % 10);
}

/* The whole number of these digits, among which '_' is nothing. */
static bool equals_label(const label_number *l, bool negative, span digits)
{
    size_t n = 0;
    if (!l->is_whole) return false;
    for (size_t i = 0; i < digits.n; i++) {
        if (digits.c[i] == '_') continue;
        int v = digit_value(digits.c[i]);
        if (n == 0 && v == 0) continue;
        if (l->digits[n] != '0' + v) return false; /* its end is no digit */
        n++;
    }
    return l->digits[n] == 0 && l->negative == (negative && n > 0);
}

/* ---- code_run ---- */

/* What int() reads: a sign, digits, single underscores between them. */
static bool is_python_int(span s, bool *negative, span *digits)
{
    *negative = s.n && s.c[0] == '-';
    if (s.n && (s.c[0] == '-' || s.c[0] == '+')) s = span_from(s, 1, s.n);
    *digits = s;
    for (size_t i = 0; i < s.n; i++) {
        bool between = i > 0 && i + 1 < s.n && s.c[i - 1] != '_';
        if (!char_is_digit(s.c[i]) && !(s.c[i] == '_' && between)) return false;
    }
    return s.n > 0;
}

status score_code_run(const metric_pair *p, double *score, err *e)
{
    label_number l;
    text t;
    span_list words = {0};
    span digits;
    bool negative;
    TRY(read_label(&l, p->answer, e));
    TRY(blank(&t, p->prediction, ".`'\":", e));
    status st = span_split(&words, text_span(&t), e);
    *score = st == ST_OK && words.n && is_python_int(words.s[words.n - 1], &negative, &digits) &&
             equals_label(&l, negative, digits);
    span_list_free(&words);
    text_free(&t);
    return st;
}

/* ---- math_find ---- */

/* The first match of \d+\.\d+|\d+; *dot where it has one. */
static span first_number(span s, bool *dot)
{
    size_t begin = 0, end;
    while (begin < s.n && !char_is_digit(s.c[begin])) begin++;
    for (end = begin; end < s.n && char_is_digit(s.c[end]);) end++;
    *dot = end > begin && end + 1 < s.n && s.c[end] == '.' && char_is_digit(s.c[end + 1]);
    if (*dot)
        for (end++; end < s.n && char_is_digit(s.c[end]);) end++;
    return span_from(s, begin, end);
}

static status to_double(double *out, span s, err *e)
{
    char *ascii;
    TRY(MEM_NEW(&ascii, s.n + 1, e));
    for (size_t i = 0; i < s.n; i++) ascii[i] = s.c[i] == '.' ? '.' : (char)('0' + digit_value(s.c[i]));
    *out = strtod(ascii, NULL);
    mem_free(ascii);
    return ST_OK;
}

/* Where the label is an int, int("3.5") raises in the original; that is no answer here. */
status score_math_find(const metric_pair *p, double *score, err *e)
{
    label_number l;
    bool dot;
    double x;
    TRY(read_label(&l, p->answer, e));
    span s = first_number(p->prediction, &dot);
    if (s.n == 0 || (dot && !l.is_float)) return ST_OK;
    if (!l.is_float) {
        *score = equals_label(&l, false, s);
        return ST_OK;
    }
    TRY(to_double(&x, s, e));
    *score = x == l.value;
    return ST_OK;
}

/* SCBench's: for an int label int(float(x)), so that decimals are cut off. */
status score_math_find_whole(const metric_pair *p, double *score, err *e)
{
    label_number l;
    bool dot;
    TRY(read_label(&l, p->answer, e));
    if (l.is_float) return score_math_find(p, score, e);
    span s = first_number(p->prediction, &dot);
    for (size_t i = 0; dot && i < s.n; i++)
        if (s.c[i] == '.') s.n = i;
    *score = s.n > 0 && equals_label(&l, false, s);
    return ST_OK;
}

/* ---- math_calc ---- */

/* The runs of ASCII digits against the labels, up to the first that differs. */
status score_math_calc(const metric_pair *p, double *score, err *e)
{
    span s = p->prediction;
    size_t right = 0, i = 0, end;
    bool same = true;
    for (size_t k = 0; k < p->n_answers; k++) {
        label_number l;
        TRY(read_label(&l, p->answers[k], e));
        while (i < s.n && !(s.c[i] >= '0' && s.c[i] <= '9')) i++;
        for (end = i; end < s.n && s.c[end] >= '0' && s.c[end] <= '9';) end++;
        same = same && end > i && equals_label(&l, false, span_from(s, i, end));
        right += same;
        i = end;
    }
    *score = (double)right / (double)p->n_answers;
    return ST_OK;
}
