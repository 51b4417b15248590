/* SPDX-License-Identifier: MIT */
/* Answers of GSM8K. Source: evals.md 17.2; openai/grade-school-math dataset.py, EleutherAI/lm-evaluation-harness
 * lm_eval/tasks/gsm8k, Concyclics/LogQuantKV test_acc/GSM8K. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "eval/metrics/answer.h"

/* Maximum number of bytes of an answer that may be a number. */
enum { MOST_NUMBER = 256 };

/* ---- text ---- */

/* Finds the text after the last "####"; false: none. */
static bool after_hashes(utf8_text *out, utf8_text s)
{
    size_t at = text_find_last(s, utf8_of("####"));
    if (at <= s.n) *out = text_from(s, at + 4, s.n);
    return at <= s.n;
}

/* ---- extraction: patterns of lm-eval and of the dataset's own code ---- */

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

/* True for characters that str.isdigit() accepts but that are not decimal digits. */
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

/* Joins all digits after the last "####" into one number. Without digits the answer is empty. */
static status extract_logquant(str *out, bool *found, utf8_text s, err *e)
{
    utf8_text a = {0};
    TRY(text_check(s, e));
    *found = after_hashes(&a, s);
    for (int32_t c; text_next(&a, &c);)
        if (char_is_digit(c) || is_other_digit(c)) str_add_char(out, c);
    return str_check(out, e);
}

/* ---- comparison ---- */

/* Removes what lm-eval's exact_match ignores. */
static void clean_lmeval(str *t)
{
    str_replace(t, utf8_of(","), utf8_of(""));
    str_replace(t, utf8_of("$"), utf8_of(""));
    size_t hash = text_find_last(str_text(t), utf8_of("#### "));
    if (hash <= t->n) str_cut(t, 0, hash + 5);
    size_t end = t->n - (t->n && t->s[t->n - 1] == '\n');
    if (end && t->s[end - 1] == '.') str_cut(t, end - 1, end);
    for (size_t i = 0; i < t->n; i++)
        if (t->s[i] >= 'A' && t->s[i] <= 'Z') t->s[i] += 'a' - 'A';
}

/* Reduces a label to the text after its last "####", if it has one. */
static status label_after_hashes(str *label, err *e)
{
    utf8_text rest;
    (void)e;
    if (after_hashes(&rest, str_text(label))) str_cut(label, 0, label->n - rest.n);
    str_strip(label);
    return ST_OK;
}

/* Does the same and removes commas. */
static status label_without_commas(str *label, err *e)
{
    TRY(label_after_hashes(label, e));
    str_replace(label, utf8_of(","), utf8_of(""));
    return ST_OK;
}

/* Reads a decimal number, after units and marks are removed. */
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

static bool equal_numbers(str *a, str *b)
{
    double x, y;
    return number_of(&x, a) && number_of(&y, b) && x == y;
}

#define LMEVAL .clean = clean_lmeval
const answer_rule answer_gsm8k = {.extract = extract_box_or_number,
                                  .label = label_after_hashes,
                                  .equal = equal_numbers},
                  answer_gsm8k_strict = {.pattern = "The answer is (" NUMBER ")[^\\n]", LMEVAL},
                  answer_gsm8k_flexible = {.pattern = FLEXIBLE, .last = true, LMEVAL},
                  answer_gsm8k_hash = {.pattern = HASH, LMEVAL},
                  answer_gsm8k_llama = {.pattern = "The final answer is (" FLEXIBLE ")", .last = true, LMEVAL},
                  answer_gsm8k_official = {.extract = extract_official, .label = label_without_commas},
                  answer_gsm8k_logquant = {.extract = extract_logquant, .label = label_after_hashes},
                  answer_gsm8k_logquant_commas = {.extract = extract_logquant, .label = label_without_commas};
