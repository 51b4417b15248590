/* SPDX-License-Identifier: MIT */
/* The scores of InfiniteBench's tasks whose answers are numbers. Whole numbers are compared digit by digit, of any
 * length; a label with a decimal point or an exponent is a double, as Python's json reads it. evals.md 6.2. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/metrics/impl.h"
#include "kernels/base/mem.h"

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

/* The last word where . ` ' " : are spaces too. */
static status last_word(text *store, span *out, span s, err *e)
{
    span_list words = {0};
    *out = (span){0};
    TRY(MEM_NEW(&store->c, s.n, e));
    for (size_t i = 0; i < s.n; i++) {
        int32_t c = s.c[i];
        store->c[store->n++] = c > 0 && c < 0x80 && strchr(".`'\":", (int)c) ? ' ' : c;
    }
    status st = span_split(&words, text_span(store), e);
    if (words.n) *out = words.s[words.n - 1];
    span_list_free(&words);
    return st;
}

status score_code_run(const metric_pair *p, double *score, err *e)
{
    label_number l;
    text store = {0};
    span word, digits;
    bool negative;
    TRY(read_label(&l, p->answer, e));
    status st = last_word(&store, &word, p->prediction, e);
    *score = st == ST_OK && is_python_int(word, &negative, &digits) && equals_label(&l, negative, digits);
    text_free(&store);
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
