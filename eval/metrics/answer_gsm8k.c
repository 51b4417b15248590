/* SPDX-License-Identifier: MIT */
/* Answers of GSM8K. Source: evals.md 17.2; openai/grade-school-math dataset.py, EleutherAI/lm-evaluation-harness
 * lm_eval/tasks/gsm8k, Concyclics/LogQuantKV test_acc/GSM8K. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/metrics/answer.h"

/* Bytes of an answer that may be a number. */
enum { MOST_NUMBER = 256 };

/* ---- text ---- */

/* Finds what stands behind the last "####"; false: there is none. */
static bool after_hashes(utf8_text *out, utf8_text s)
{
    size_t at = text_find_last(s, utf8_of("####"));
    if (at <= s.n) *out = text_from(s, at + 4, s.n);
    return at <= s.n;
}

/* The label itself: what stands behind its last "####", if it has one. */
static utf8_text label_of(utf8_text s)
{
    after_hashes(&s, s);
    return text_strip(s);
}

/* ---- what an output answers: patterns of lm-eval and of the dataset's own code ---- */

#define NUMBER   "-?[0-9.,]+"
#define FLEXIBLE "-?[$0-9.,]{2,}|-?[0-9]+"
#define HASH     "#### (" NUMBER ")"

static status extract_box_or_number(str *out, bool *found, utf8_text s, err *e)
{
    utf8_text a = {0};
    *found = answer_box(&a, s);
    if (!*found) TRY(regex_find(&a, found, FLEXIBLE, true, s, e));
    str_set(out, a.s, a.n);
    return str_check(out, e);
}

static status extract_official(str *out, bool *found, utf8_text s, err *e)
{
    utf8_text a = {0};
    TRY(regex_find(&a, found, HASH, false, s, e));
    str_set(out, a.s, a.n);
    str_replace(out, utf8_of(","), utf8_of(""));
    return str_check(out, e);
}

/* str.isdigit() of characters that are no decimal digits. */
static bool is_other_digit(int32_t c)
{
    static const int32_t range[][2] = {
        {0xb2, 0xb3},     {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},   {0x2070, 0x2070},
        {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247c},   {0x2488, 0x2490},
        {0x24ea, 0x24ea}, {0x24f5, 0x24fd},   {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},
        {0x278a, 0x2792}, {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a},
    };
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (c >= range[i][0] && c <= range[i][1]) return true;
    return false;
}

/* All digits after the last "####", as one number; none at all is an empty answer. */
static status extract_logquant(str *out, bool *found, utf8_text s, err *e)
{
    utf8_text a = {0};
    TRY(text_check(s, e));
    *found = after_hashes(&a, s);
    for (int32_t c; text_next(&a, &c);)
        if (char_is_digit(c) || is_other_digit(c)) str_add_char(out, c);
    return str_check(out, e);
}

/* ---- whether it is right ---- */

/* lm-eval's exact_match, with what it ignores. */
static void normalize(str *t, utf8_text s)
{
    str_set(t, s.s, s.n);
    str_replace(t, utf8_of(","), utf8_of(""));
    str_replace(t, utf8_of("$"), utf8_of(""));
    size_t hash = text_find_last(str_text(t), utf8_of("#### "));
    if (hash <= t->n) str_cut(t, 0, hash + 5);
    size_t end = t->n - (t->n && t->s[t->n - 1] == '\n');
    if (end && t->s[end - 1] == '.') str_cut(t, end - 1, end);
    for (size_t i = 0; i < t->n; i++)
        if (t->s[i] >= 'A' && t->s[i] <= 'Z') t->s[i] += 'a' - 'A';
}

static status same_lmeval(bool *same, const str *answer, utf8_text label, err *e)
{
    str a = {0}, b = {0};
    normalize(&a, str_text(answer));
    normalize(&b, label);
    status st = str_check(&a, e);
    if (st == ST_OK) st = str_check(&b, e);
    *same = text_equal(str_text(&a), str_text(&b));
    str_free(&a);
    str_free(&b);
    return st;
}

static status same_text(bool *same, const str *answer, utf8_text label, err *e)
{
    (void)e;
    label = label_of(label);
    *same = text_equal(str_text(answer), label);
    return ST_OK;
}

/* The same, commas of the label left out. */
static status same_without_commas(bool *same, const str *answer, utf8_text label, err *e)
{
    str b = {0};
    label = label_of(label);
    str_set(&b, label.s, label.n);
    str_replace(&b, utf8_of(","), utf8_of(""));
    status st = str_check(&b, e);
    if (st == ST_OK) st = same_text(same, answer, str_text(&b), e);
    str_free(&b);
    return st;
}

/* A decimal number, once it is without units and marks. */
static bool number_of(double *x, str *t)
{
    char *end;
    if (t->n > MOST_NUMBER) return false;
    answer_clean(t);
    if (t->failed || t->n == 0) return false;
    const char *digits = t->s + (t->s[0] == '-' || t->s[0] == '+');
    if (digits[strspn(digits, "0123456789.")] || !strpbrk(digits, "0123456789")) return false;
    *x = strtod(t->s, &end);
    return *end == 0;
}

static status same_number(bool *same, const str *answer, utf8_text label, err *e)
{
    str a = {0}, b = {0};
    double x, y;
    label = label_of(label);
    str_set(&a, answer->s, answer->n);
    str_set(&b, label.s, label.n);
    *same = number_of(&x, &a) && number_of(&y, &b) && x == y;
    status st = str_check(&a, e);
    if (st == ST_OK) st = str_check(&b, e);
    str_free(&a);
    str_free(&b);
    return st;
}

const answer_rule answer_gsm8k = {.extract = extract_box_or_number, .same = same_number},
                  answer_gsm8k_strict = {.pattern = "The answer is (" NUMBER ")[^\\n]", .same = same_lmeval},
                  answer_gsm8k_flexible = {.pattern = FLEXIBLE, .last = true, .same = same_lmeval},
                  answer_gsm8k_hash = {.pattern = HASH, .same = same_lmeval},
                  answer_gsm8k_llama = {.pattern = "The final answer is (" FLEXIBLE ")",
                                        .last = true,
                                        .same = same_lmeval},
                  answer_gsm8k_official = {.extract = extract_official, .same = same_without_commas},
                  answer_gsm8k_logquant = {.extract = extract_logquant, .same = same_text},
                  answer_gsm8k_logquant_commas = {.extract = extract_logquant, .same = same_without_commas};
