/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/metrics/text.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "kernels/base/mem.h"

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

bool char_is_ascii_digit(int32_t c)
{
    return c >= '0' && c <= '9';
}

bool char_is_ascii_letter(int32_t c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool char_is_punct(int32_t c)
{
    return c > 0x20 && c < 0x7f && !char_is_ascii_digit(c) && !char_is_ascii_letter(c);
}

bool char_is_punct_zh(int32_t c)
{
    /* Contrary to expectation, the list lacks U+300A, U+FF0E and U+00B7. */
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

/* Unicode's Cased, except characters that are also Case_Ignorable. */
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

/* Unicode's Final_Sigma: a cased letter before s[at] and none after s[end], skipping case-ignorable characters. */
static bool sigma_is_final(utf8_text s, size_t at, size_t end)
{
    int32_t c = 0;
    utf8_text rest = text_from(s, end, s.n);
    for (int k; (k = char_before(s.s, at, &c)) && is_case_ignorable(c); c = 0) at -= (size_t)k;
    if (!is_cased(c)) return false;
    while (text_next(&rest, &c))
        if (!is_case_ignorable(c)) return !is_cased(c);
    return true;
}

enum { CAPITAL_SIGMA = 0x3a3, SIGMA = 0x3c3, FINAL_SIGMA = 0x3c2, CAPITAL_I_DOT = 0x130, DOT_ABOVE = 0x307 };

void str_add_lower(str *t, utf8_text s)
{
    utf8_text rest = s;
    for (int32_t c; text_next(&rest, &c);) {
        size_t end = s.n - rest.n;
        if (c < 0x80) str_add(t, &(char){(char)(c >= 'A' && c <= 'Z' ? c + 32 : c)}, 1);
        else if (c == CAPITAL_SIGMA) str_add_char(t, sigma_is_final(s, end - 2, end) ? FINAL_SIGMA : SIGMA);
        else str_add_char(t, c == CAPITAL_I_DOT ? 'i' : utf8proc_tolower(c));
        if (c == CAPITAL_I_DOT) str_add_char(t, DOT_ABOVE);
    }
}

/* ---- upper case ---- */

void str_add_upper(str *t, utf8_text s)
{
    enum { MOST = 4 };
    for (int32_t c, folded[MOST]; text_next(&s, &c);) {
        /* If the upper case has several characters, they are those of the case folding in upper case; capitals have
         * none. */
        bool capital = utf8proc_category(c) == UTF8PROC_CATEGORY_LU;
        utf8proc_ssize_t n = capital ? 0 : utf8proc_decompose_char(c, folded, MOST, UTF8PROC_CASEFOLD, &(int){0});
        if (n < 2) str_add_char(t, utf8proc_toupper(c));
        for (utf8proc_ssize_t i = 0; n > 1 && i < n; i++) str_add_char(t, utf8proc_toupper(folded[i]));
    }
}

/* ---- borrowed texts ---- */

status text_check(utf8_text s, err *e)
{
    utf8_text rest = s;
    for (int32_t c; text_next(&rest, &c);) continue;
    return rest.n ? err_set(e, ST_FORMAT, "text is not UTF-8: byte %zu", s.n - rest.n) : ST_OK;
}

bool text_next(utf8_text *s, int32_t *c)
{
    int n = char_at(s->s, s->n, c);
    if (n == 0) return false;
    *s = (utf8_text){s->s + n, s->n - (size_t)n};
    return true;
}

utf8_text text_first(utf8_text s, size_t n)
{
    utf8_text rest = s;
    for (int32_t c; n > 0 && text_next(&rest, &c); n--) continue;
    return (utf8_text){s.s, s.n - rest.n};
}

utf8_text text_from(utf8_text s, size_t begin, size_t end)
{
    return (utf8_text){begin ? s.s + begin : s.s, end - begin}; /* s may be NULL */
}

utf8_text text_strip(utf8_text s)
{
    trim_python(&s.s, &s.n);
    return s;
}

bool text_equal(utf8_text a, utf8_text b)
{
    return a.n == b.n && text_starts(a, b);
}

bool text_starts(utf8_text s, utf8_text part)
{
    return part.n <= s.n && (part.n == 0 || memcmp(s.s, part.s, part.n) == 0);
}

bool text_contains(utf8_text s, utf8_text part)
{
    return text_find(s, 0, part) <= s.n;
}

size_t text_find(utf8_text s, size_t from, utf8_text part)
{
    if (from > s.n || part.n > s.n - from) return s.n + 1;
    if (part.n == 0) return from;
    const char *hit = memmem(s.s + from, s.n - from, part.s, part.n);
    return hit ? (size_t)(hit - s.s) : s.n + 1;
}

size_t text_find_last(utf8_text s, utf8_text part)
{
    for (size_t at = s.n + 1; at-- > 0;)
        if (text_starts(text_from(s, at, s.n), part)) return at;
    return s.n + 1;
}

status text_push(text_list *l, utf8_text s, err *e)
{
    TRY(MEM_ROOM(&l->s, &l->cap, l->n + 1, e));
    l->s[l->n++] = s;
    return ST_OK;
}

void text_list_free(text_list *l)
{
    mem_free(l->s);
    *l = (text_list){0};
}

bool text_is_listed(const text_list *l, utf8_text s)
{
    for (size_t i = 0; i < l->n; i++)
        if (text_equal(l->s[i], s)) return true;
    return false;
}

status text_runs(text_list *l, utf8_text s, bool (*in_run)(int32_t), err *e)
{
    utf8_text run = {s.s, 0};
    for (int32_t c; text_next(&s, &c);) {
        bool in = in_run(c);
        if (in) run.n = (size_t)(s.s - run.s);
        if (run.n && (!in || s.n == 0)) TRY(text_push(l, run, e));
        if (!in) run = (utf8_text){s.s, 0};
    }
    return ST_OK;
}

status text_split(text_list *l, utf8_text s, err *e)
{
    return text_runs(l, s, char_is_no_space, e);
}

typedef struct {
    utf8_text s;
    size_t at;
} placed_text;

static int by_content(const void *a, const void *b)
{
    const utf8_text *x = &((const placed_text *)a)->s, *y = &((const placed_text *)b)->s;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->n ? memcmp(x->s, y->s, x->n) : 0;
}

status text_number(uint32_t *id, size_t *n_distinct, const text_list *l, err *e)
{
    placed_text *order;
    *n_distinct = 0;
    if (l->n >= UINT32_MAX) return err_set(e, ST_UNSUPPORTED, "text of %zu words", l->n);
    TRY(MEM_NEW(&order, l->n, e));
    for (size_t i = 0; i < l->n; i++) order[i] = (placed_text){l->s[i], i};
    qsort(order, l->n, sizeof *order, by_content);
    for (size_t i = 0; i < l->n; i++) {
        *n_distinct += i == 0 || !text_equal(order[i].s, order[i - 1].s);
        id[order[i].at] = (uint32_t)(*n_distinct - 1);
    }
    mem_free(order);
    return ST_OK;
}

/* ---- growing texts ---- */

void str_free(str *t)
{
    mem_free(t->s);
    *t = (str){0};
}

status str_check(const str *t, err *e)
{
    return t->failed ? err_set(e, ST_NOMEM, "out of memory for a text") : ST_OK;
}

void str_add(str *t, const char *s, size_t n)
{
    t->failed |= MEM_ROOM(&t->s, &t->cap, t->n + n + 1, NULL) != ST_OK;
    if (t->failed) return;
    if (n) memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
}

void str_set(str *t, const char *s, size_t n)
{
    t->n = 0;
    str_add(t, s, n);
}

void str_cut(str *t, size_t from, size_t to)
{
    if (from >= to || to > t->n) return;
    memmove(t->s + from, t->s + to, t->n - to);
    t->n -= to - from;
    t->s[t->n] = 0;
}

void str_add_char(str *t, int32_t c)
{
    char utf8[4];
    str_add(t, utf8, (size_t)char_put(utf8, c));
}

bool str_at(const str *t, size_t at, const char *word)
{
    return at <= t->n && text_starts(text_from(str_text(t), at, t->n), utf8_of(word));
}

size_t str_find(const str *t, size_t from, const char *word)
{
    return text_find(str_text(t), from, utf8_of(word));
}

void str_replace(str *t, utf8_text from, utf8_text to)
{
    const utf8_text s = str_text(t);
    size_t at = 0, hit = text_find(s, 0, from);
    str out = {.failed = t->failed};
    if (hit > s.n) return;
    for (; hit <= s.n; hit = text_find(s, at, from)) {
        str_add(&out, s.s + at, hit - at);
        str_add(&out, to.s, to.n);
        at = hit + from.n;
    }
    str_add(&out, s.s + at, s.n - at);
    str_free(t);
    *t = out;
}

void str_strip(str *t)
{
    utf8_text s = text_strip(str_text(t));
    if (s.n < t->n) {
        memmove(t->s, s.s, s.n);
        t->n = s.n;
        t->s[s.n] = 0;
    }
}

status text_contains_cased(bool *out, utf8_text s, utf8_text part, void (*add)(str *, utf8_text), err *e)
{
    str a = {0}, b = {0};
    add(&a, s);
    add(&b, part);
    status st = str_check(&a, e);
    if (st == ST_OK) st = str_check(&b, e);
    *out = text_contains(str_text(&a), str_text(&b));
    str_free(&a);
    str_free(&b);
    return st;
}
