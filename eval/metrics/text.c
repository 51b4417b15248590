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

bool char_is_no_space(int32_t c)
{
    return !is_python_space(c);
}

bool char_is_punct(int32_t c)
{
    return c > 0x20 && c < 0x7f && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z');
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
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT || c == 0xaa ||
           c == 0xba || (c >= 0x2160 && c <= 0x217f) || (c >= 0x24b6 && c <= 0x24e9) ||
           (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

static bool is_case_ignorable(int32_t c)
{
    /* Word_Break MidLetter, MidNumLet and Single_Quote. */
    static const int32_t inside_words[] = {0x27,   0x2e,   0x3a,   0xb7,   0x387,  0x55f,  0x5f4,  0x2018, 0x2019,
                                           0x2024, 0x2027, 0xfe13, 0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a};
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

enum { CAPITAL_SIGMA = 0x3a3, SIGMA = 0x3c3, FINAL_SIGMA = 0x3c2, CAPITAL_I_DOT = 0x130, DOT_ABOVE = 0x307 };

status text_lower(text *out, span in, err *e)
{
    *out = (text){0};
    size_t room;
    TRY(size_mul(&room, in.n, 2, "lower case", e));
    TRY(MEM_NEW(&out->c, room, e));
    for (size_t i = 0; i < in.n; i++) {
        int32_t c = in.c[i], low = c < 0x80 ? (c >= 'A' && c <= 'Z' ? c + 32 : c) : utf8proc_tolower(c);
        if (c == CAPITAL_SIGMA) low = sigma_is_final(in, i) ? FINAL_SIGMA : SIGMA;
        if (c == CAPITAL_I_DOT) low = 'i';
        out->c[out->n++] = low;
        if (c == CAPITAL_I_DOT) out->c[out->n++] = DOT_ABOVE;
    }
    return ST_OK;
}

/* ---- upper case ---- */

/* Groups of four: a character with an upper case of several, and these, ended by 0 if they are two (SpecialCasing.txt,
 * what holds without conditions), but for U+1F80 to U+1FAF. */
static const int32_t long_upper[] = {
    0xdf,   0x53,   0x53,   0,     0x149,  0x2bc,  0x4e,   0,     0x1f0,  0x4a,  0x30c,  0,     0x390,  0x399,
    0x308,  0x301,  0x3b0,  0x3a5, 0x308,  0x301,  0x587,  0x535, 0x552,  0,     0x1e96, 0x48,  0x331,  0,
    0x1e97, 0x54,   0x308,  0,     0x1e98, 0x57,   0x30a,  0,     0x1e99, 0x59,  0x30a,  0,     0x1e9a, 0x41,
    0x2be,  0,      0x1f50, 0x3a5, 0x313,  0,      0x1f52, 0x3a5, 0x313,  0x300, 0x1f54, 0x3a5, 0x313,  0x301,
    0x1f56, 0x3a5,  0x313,  0x342, 0x1fb2, 0x1fba, 0x399,  0,     0x1fb3, 0x391, 0x399,  0,     0x1fb4, 0x386,
    0x399,  0,      0x1fb6, 0x391, 0x342,  0,      0x1fb7, 0x391, 0x342,  0x399, 0x1fbc, 0x391, 0x399,  0,
    0x1fc2, 0x1fca, 0x399,  0,     0x1fc3, 0x397,  0x399,  0,     0x1fc4, 0x389, 0x399,  0,     0x1fc6, 0x397,
    0x342,  0,      0x1fc7, 0x397, 0x342,  0x399,  0x1fcc, 0x397, 0x399,  0,     0x1fd2, 0x399, 0x308,  0x300,
    0x1fd3, 0x399,  0x308,  0x301, 0x1fd6, 0x399,  0x342,  0,     0x1fd7, 0x399, 0x308,  0x342, 0x1fe2, 0x3a5,
    0x308,  0x300,  0x1fe3, 0x3a5, 0x308,  0x301,  0x1fe4, 0x3a1, 0x313,  0,     0x1fe6, 0x3a5, 0x342,  0,
    0x1fe7, 0x3a5,  0x308,  0x342, 0x1ff2, 0x1ffa, 0x399,  0,     0x1ff3, 0x3a9, 0x399,  0,     0x1ff4, 0x38f,
    0x399,  0,      0x1ff6, 0x3a9, 0x342,  0,      0x1ff7, 0x3a9, 0x342,  0x399, 0x1ffc, 0x3a9, 0x399,  0,
    0xfb00, 0x46,   0x46,   0,     0xfb01, 0x46,   0x49,   0,     0xfb02, 0x46,  0x4c,   0,     0xfb03, 0x46,
    0x46,   0x49,   0xfb04, 0x46,  0x46,   0x4c,   0xfb05, 0x53,  0x54,   0,     0xfb06, 0x53,  0x54,   0,
    0xfb13, 0x544,  0x546,  0,     0xfb14, 0x544,  0x535,  0,     0xfb15, 0x544, 0x53b,  0,     0xfb16, 0x54e,
    0x546,  0,      0xfb17, 0x544, 0x53d,  0};

/* Writes the upper case of c to out, returns its length. */
static size_t upper_of(int32_t c, int32_t out[3])
{
    static const int32_t greek[] = {0x1f08, 0x1f28, 0x1f68}; /* with iota subscript */
    if (c < 0x80) return out[0] = c >= 'a' && c <= 'z' ? c - 32 : c, 1;
    if (c >= 0x1f80 && c < 0x1fb0) {
        out[0] = greek[(c - 0x1f80) >> 4] + (c & 7);
        out[1] = 0x399;
        return 2;
    }
    for (size_t i = 0; i < sizeof long_upper / sizeof *long_upper; i += 4) {
        if (long_upper[i] != c) continue;
        memcpy(out, long_upper + i + 1, 3 * sizeof *out);
        return out[2] ? 3 : 2;
    }
    return out[0] = utf8proc_toupper(c), 1;
}

status text_upper(text *out, span in, err *e)
{
    *out = (text){0};
    size_t room;
    TRY(size_mul(&room, in.n, 3, "upper case", e));
    TRY(MEM_NEW(&out->c, room, e));
    for (size_t i = 0; i < in.n; i++) {
        int32_t up[3];
        size_t n = upper_of(in.c[i], up);
        for (size_t k = 0; k < n; k++) out->c[out->n++] = up[k];
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

span span_strip(span s)
{
    while (s.n && is_python_space(s.c[s.n - 1])) s.n--;
    while (s.n && is_python_space(s.c[0])) s = span_from(s, 1, s.n);
    return s;
}

size_t span_find(span s, size_t from, span part)
{
    for (size_t i = from; i + part.n <= s.n; i++)
        if (span_equal(span_from(s, i, i + part.n), part)) return i;
    return s.n + 1;
}

bool span_contains(span s, span part)
{
    return span_find(s, 0, part) <= s.n;
}

bool span_starts(span s, span part)
{
    return part.n <= s.n && span_equal(span_from(s, 0, part.n), part);
}

status span_push(span_list *l, span s, err *e)
{
    TRY(MEM_ROOM(&l->s, &l->cap, l->n + 1, e));
    l->s[l->n++] = s;
    return ST_OK;
}

void span_list_free(span_list *l)
{
    mem_free(l->s);
    *l = (span_list){0};
}

status span_runs(span_list *l, span s, bool (*in_run)(int32_t), err *e)
{
    for (size_t i = 0, end; i < s.n; i = end) {
        end = i + 1;
        if (!in_run(s.c[i])) continue;
        while (end < s.n && in_run(s.c[end])) end++;
        TRY(span_push(l, span_from(s, i, end), e));
    }
    return ST_OK;
}

status span_split(span_list *l, span s, err *e)
{
    return span_runs(l, s, char_is_no_space, e);
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
