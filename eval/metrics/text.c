/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/text.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "kernels/base/mem.h"
#include "tokenizer/chars.h"

/* ---- code points ---- */

status text_decode(text *out, const char *s, size_t n, err *e)
{
    *out = (text){0};
    TRY(MEM_NEW(&out->c, n, e));
    for (size_t i = 0; i < n;) {
        int k = char_at(s + i, n - i, &out->c[out->n]);
        if (k == 0) {
            text_free(out);
            return err_set(e, ST_FORMAT, "text is not UTF-8: byte %zu", i);
        }
        out->n++;
        i += (size_t)k;
    }
    return ST_OK;
}

void text_free(text *t)
{
    mem_free(t->c);
    *t = (text){0};
}

/* ---- classes ---- */

bool char_is_digit(int32_t c)
{
    return c < 0x80 ? c >= '0' && c <= '9' : utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}

bool char_is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return true;
    default: return c == '_';
    }
}

bool char_is_punct(int32_t c)
{
    return c > 0x20 && c < 0x7f && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') &&
           !(c >= 'a' && c <= 'z');
}

bool char_is_punct_zh(int32_t c)
{
    /* Not in the list, though one would expect them: U+300A, U+FF0E, U+00B7. */
    static const int32_t range[][2] = {
        {0x2013, 0x2014}, {0x2018, 0x2019}, {0x201b, 0x201f}, {0x2026, 0x2027}, {0x3001, 0x3003},
        {0x300b, 0x3011}, {0x3014, 0x301f}, {0x3030, 0x3030}, {0x303e, 0x303f}, {0xfe4f, 0xfe4f},
        {0xff01, 0xff0d}, {0xff0f, 0xff0f}, {0xff1a, 0xff20}, {0xff3b, 0xff40}, {0xff5b, 0xff64},
    };
    if (char_is_punct(c)) return true;
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (c >= range[i][0] && c <= range[i][1]) return true;
    return false;
}

/* ---- lower case ---- */

/* Unicode's Cased, without those characters that are Case_Ignorable too. */
static bool is_cased(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT ||
           c == 0xaa || c == 0xba || (c >= 0x2160 && c <= 0x217f) || (c >= 0x24b6 && c <= 0x24e9) ||
           (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
           (c >= 0x1f170 && c <= 0x1f189);
}

static bool is_case_ignorable(int32_t c)
{
    /* Word_Break MidLetter, MidNumLet and Single_Quote. */
    static const int32_t inside_words[] = {0x27,   0x2e,   0x3a,   0xb7,   0x387,  0x55f,
                                           0x5f4,  0x2018, 0x2019, 0x2024, 0x2027, 0xfe13,
                                           0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a};
    for (size_t i = 0; i < sizeof inside_words / sizeof *inside_words; i++)
        if (c == inside_words[i]) return true;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: return false;
    }
}

/* Unicode's Final_Sigma: a cased letter before, none after, whatever is ignorable between. */
static bool sigma_is_final(span s, size_t at)
{
    size_t i = at, j = at + 1;
    while (i > 0 && is_case_ignorable(s.c[i - 1])) i--;
    while (j < s.n && is_case_ignorable(s.c[j])) j++;
    return i > 0 && is_cased(s.c[i - 1]) && !(j < s.n && is_cased(s.c[j]));
}

enum {
    CAPITAL_SIGMA = 0x3a3,
    SIGMA = 0x3c3,
    FINAL_SIGMA = 0x3c2,
    CAPITAL_I_DOT = 0x130,
    DOT_ABOVE = 0x307
};

status text_lower(text *out, span in, err *e)
{
    *out = (text){0};
    size_t room;
    TRY(size_mul(&room, in.n, 2, "lower case", e));
    TRY(MEM_NEW(&out->c, room, e));
    for (size_t i = 0; i < in.n; i++) {
        int32_t c = in.c[i],
                low = c < 0x80 ? (c >= 'A' && c <= 'Z' ? c + 32 : c) : utf8proc_tolower(c);
        if (c == CAPITAL_SIGMA) low = sigma_is_final(in, i) ? FINAL_SIGMA : SIGMA;
        if (c == CAPITAL_I_DOT) low = 'i';
        out->c[out->n++] = low;
        if (c == CAPITAL_I_DOT) out->c[out->n++] = DOT_ABOVE;
    }
    return ST_OK;
}

/* ---- spans ---- */

bool span_equal(span a, span b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.c, b.c, a.n * sizeof *a.c) == 0);
}

span span_from(span s, size_t begin, size_t end)
{
    return (span){s.c + begin, end - begin};
}

status span_push(span_list *l, span s, err *e)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        TRY(MEM_GROW(&l->s, cap, e));
        l->cap = cap;
    }
    l->s[l->n++] = s;
    return ST_OK;
}

void span_list_free(span_list *l)
{
    mem_free(l->s);
    *l = (span_list){0};
}

/* Appends the maximal runs of characters for which in_run holds. */
static status push_runs(span_list *l, span s, bool (*in_run)(int32_t), err *e)
{
    for (size_t i = 0, end; i < s.n; i = end) {
        end = i + 1;
        if (!in_run(s.c[i])) continue;
        while (end < s.n && in_run(s.c[end])) end++;
        TRY(span_push(l, span_from(s, i, end), e));
    }
    return ST_OK;
}

static bool is_not_space(int32_t c)
{
    return !is_python_space(c);
}

status span_split(span_list *l, span s, err *e)
{
    return push_runs(l, s, is_not_space, e);
}

status span_digits(span_list *l, span s, err *e)
{
    return push_runs(l, s, char_is_digit, e);
}

typedef struct {
    span s;
    size_t at;
} placed_span;

static int by_content(const void *a, const void *b)
{
    const span *x = &((const placed_span *)a)->s, *y = &((const placed_span *)b)->s;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->n ? memcmp(x->c, y->c, x->n * sizeof *x->c) : 0;
}

status span_number(uint32_t *id, size_t *n_distinct, const span_list *l, err *e)
{
    placed_span *order;
    *n_distinct = 0;
    if (l->n >= UINT32_MAX) return err_set(e, ST_UNSUPPORTED, "text of %zu words", l->n);
    TRY(MEM_NEW(&order, l->n, e));
    for (size_t i = 0; i < l->n; i++) order[i] = (placed_span){l->s[i], i};
    qsort(order, l->n, sizeof *order, by_content);
    for (size_t i = 0; i < l->n; i++) {
        *n_distinct += i == 0 || !span_equal(order[i].s, order[i - 1].s);
        id[order[i].at] = (uint32_t)(*n_distinct - 1);
    }
    mem_free(order);
    return ST_OK;
}
