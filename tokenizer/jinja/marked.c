/* SPDX-License-Identifier: MIT */
/* Text whose bytes carry their origin, and operations on its characters. */
#include "config.h"

#include <string.h>
#include <utf8proc.h>

#include "tokenizer/chars.h"
#include "tokenizer/jinja/impl.h"

status jbuf_reserve(jctx *c, jbuf *b, size_t n)
{
    if (n <= b->cap - b->n) return ST_OK;
    if (n > JINJA_MAX_OUTPUT || b->n + n > JINJA_MAX_OUTPUT)
        return jfail(c, "text of more than %d MiB", JINJA_MAX_OUTPUT >> 20);
    size_t cap = 2 * b->cap;
    if (cap < b->n + n) cap = b->n + n;
    if (cap < 64) cap = 64;
    char *s;
    unsigned char *marks;
    TRY(JNEW(c, &s, cap));
    if (b->n) memcpy(s, b->s, b->n);
    b->s = s;
    b->cap = cap;
    if (!b->marks) return ST_OK;
    TRY(JNEW(c, &marks, cap));
    memcpy(marks, b->marks, b->n);
    b->marks = marks;
    return ST_OK;
}

status jbuf_put(jctx *c, jbuf *b, const char *s, size_t n, const unsigned char *marks, bool input)
{
    if (n == 0) return ST_OK;
    TRY(jbuf_reserve(c, b, n));
    if (!b->marks && (marks || (b->n && input != b->input))) { /* the origins differ from here on */
        TRY(JNEW(c, &b->marks, b->cap));
        memset(b->marks, b->input, b->n);
    }
    memcpy(b->s + b->n, s, n);
    if (marks) memcpy(b->marks + b->n, marks, n);
    else if (b->marks) memset(b->marks + b->n, input, n);
    b->input |= marks || input;
    b->n += n;
    return ST_OK;
}

status jbuf_puts(jctx *c, jbuf *b, const char *s, bool input)
{
    return jbuf_put(c, b, s, strlen(s), NULL, input);
}

status jbuf_put_part(jctx *c, jbuf *b, jvalue v, size_t from, size_t to)
{
    const jstr *s = v.as.s;
    return jbuf_put(c, b, s->s + from, to - from, s->marks ? s->marks + from : NULL, v.input);
}

status jbuf_put_str(jctx *c, jbuf *b, jvalue string)
{
    return jbuf_put_part(c, b, string, 0, string.as.s->n);
}

static status put_char(jctx *c, jbuf *b, int32_t ch, bool input)
{
    char s[4];
    return jbuf_put(c, b, s, (size_t)char_put(s, ch), NULL, input);
}

status jbuf_string(jctx *c, const jbuf *b, jvalue *out)
{
    jstr *s;
    TRY(JNEW(c, &s, 1));
    *s = (jstr){.s = b->n ? b->s : "", .n = b->n, .marks = b->marks};
    *out = (jvalue){.kind = J_STRING, .input = b->input, .as.s = s};
    return ST_OK;
}

status j_string(jctx *c, const char *s, size_t n, bool input, jvalue *out)
{
    jstr *str;
    TRY(JNEW(c, &str, 1));
    *str = (jstr){.s = s, .n = n};
    *out = (jvalue){.kind = J_STRING, .input = input, .as.s = str};
    return ST_OK;
}

status j_substring(jctx *c, jvalue v, size_t from, size_t to, jvalue *out)
{
    const jstr *s = v.as.s;
    if (from == 0 && to == s->n) {
        *out = v;
        return ST_OK;
    }
    jstr *part;
    TRY(jspend(c, 1));
    TRY(JNEW(c, &part, 1));
    *part = (jstr){.s = s->s + from, .n = to - from, .marks = s->marks ? s->marks + from : NULL, .safe = s->safe};
    *out = (jvalue){.kind = J_STRING, .input = v.input, .as.s = part};
    if (part->marks && !memchr(part->marks, 1, part->n)) {
        part->marks = NULL;
        out->input = false;
    }
    return ST_OK;
}

status j_mark_safe(jctx *c, jvalue string, jvalue *out)
{
    jstr *s;
    TRY(JNEW(c, &s, 1));
    *s = *string.as.s;
    s->safe = true;
    *out = string;
    out->as.s = s;
    return ST_OK;
}

status j_concat(jctx *c, const jvalue *v, size_t n, jvalue *out)
{
    jbuf *b = v[0].as.s->buf;
    jstr *s;
    size_t total = 0, done = 1;
    if (!b || b->n != v[0].as.s->n) {
        TRY(JNEW(c, &b, 1));
        done = 0;
    }
    for (size_t i = done; i < n; i++) total += v[i].as.s->n;
    TRY(jbuf_reserve(c, b, total));
    for (size_t i = done; i < n; i++) TRY(jbuf_put_str(c, b, v[i]));
    TRY(jbuf_string(c, b, out));
    TRY(JNEW(c, &s, 1));
    *s = *out->as.s;
    s->buf = b;
    out->as.s = s;
    return ST_OK;
}

bool j_mark(jvalue string, size_t i)
{
    return string.as.s->marks ? string.as.s->marks[i] : string.input;
}

static bool starts_char(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

size_t j_n_chars(jvalue string)
{
    size_t n = 0;
    for (size_t i = 0; i < string.as.s->n; i++) n += starts_char(string.as.s->s[i]);
    return n;
}

size_t j_char_offset(jvalue string, size_t index)
{
    const jstr *s = string.as.s;
    size_t at = 0;
    for (; at < s->n; at++)
        if (starts_char(s->s[at]) && index-- == 0) return at;
    return at;
}

size_t j_find(jvalue s, jvalue needle, size_t from)
{
    const jstr *a = s.as.s, *b = needle.as.s;
    if (from > a->n) return SIZE_MAX;
    if (b->n == 0) return from;
    const char *p = memmem(a->s + from, a->n - from, b->s, b->n);
    return p ? (size_t)(p - a->s) : SIZE_MAX;
}

size_t j_find_last(jvalue s, jvalue needle, size_t end)
{
    const jstr *a = s.as.s, *b = needle.as.s;
    if (b->n > end) return SIZE_MAX;
    for (size_t at = end - b->n + 1; at-- > 0;)
        if (memcmp(a->s + at, b->s, b->n) == 0) return at;
    return SIZE_MAX;
}

static bool breaks_line(int32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool j_line(const jstr *s, size_t from, size_t *end, size_t *next)
{
    int32_t c;
    int k;
    for (*end = from; (k = char_at(s->s + *end, s->n - *end, &c)); *end += (size_t)k) {
        if (!breaks_line(c)) continue;
        *next = *end + (size_t)k;
        if (c == '\r' && *next < s->n && s->s[*next] == '\n') ++*next;
        return true;
    }
    *next = *end;
    return false;
}

/* Inserts `to` before each character and at the end, at most `most` times. */
static status insert_between(jctx *c, jvalue s, jvalue to, int64_t most, jbuf *b)
{
    size_t from = 0;
    for (; most > 0; most--) {
        TRY(jbuf_put_str(c, b, to));
        if (from == s.as.s->n) return ST_OK;
        size_t end = from + 1;
        while (end < s.as.s->n && !starts_char(s.as.s->s[end])) end++;
        TRY(jbuf_put_part(c, b, s, from, end));
        from = end;
    }
    return jbuf_put_part(c, b, s, from, s.as.s->n);
}

status j_replace(jctx *c, jvalue s, jvalue from, jvalue to, int64_t most, jvalue *out)
{
    jbuf b = {0};
    size_t at = 0, found;
    TRY(jspend(c, s.as.s->n / 64));
    if (most < 0) most = INT64_MAX;
    *out = s;
    if (from.as.s->n == 0) {
        TRY(insert_between(c, s, to, most, &b));
        return jbuf_string(c, &b, out);
    }
    for (; most > 0 && (found = j_find(s, from, at)) != SIZE_MAX; most--) {
        TRY(jbuf_put_part(c, &b, s, at, found));
        TRY(jbuf_put_str(c, &b, to));
        at = found + from.as.s->n;
    }
    if (at == 0) return ST_OK;
    TRY(jbuf_put_part(c, &b, s, at, s.as.s->n));
    return jbuf_string(c, &b, out);
}

static bool is_cased(int32_t c)
{
    const utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* Appends ch in the given case. The uppercase of U+00DF is two characters; other such characters are not changed. */
static status put_case(jctx *c, jbuf *b, int32_t ch, jcase how, bool input)
{
    if (how == CASE_SWAP) how = utf8proc_category(ch) == UTF8PROC_CATEGORY_LU ? CASE_LOWER : CASE_UPPER;
    if (how == CASE_LOWER) return put_char(c, b, utf8proc_tolower(ch), input);
    if (ch == 0xdf) return jbuf_puts(c, b, how == CASE_UPPER ? "SS" : "Ss", input);
    return put_char(c, b, how == CASE_UPPER ? utf8proc_toupper(ch) : utf8proc_totitle(ch), input);
}

status j_change_case(jctx *c, jvalue s, jcase how, jvalue *out)
{
    jbuf b = {0};
    bool after_cased = false;
    int32_t ch;
    for (size_t i = 0, k; i < s.as.s->n; i += k) {
        k = (size_t)char_at(s.as.s->s + i, s.as.s->n - i, &ch);
        if (k == 0) break;
        jcase now = how;
        if (how == CASE_TITLE) now = after_cased ? CASE_LOWER : CASE_TITLE;
        else if (how == CASE_CAPITAL) now = i ? CASE_LOWER : CASE_TITLE;
        TRY(put_case(c, &b, ch, now, j_mark(s, i)));
        after_cased = is_cased(ch);
    }
    return jbuf_string(c, &b, out);
}

/* True if ch is one of chars, or white space if there are none. */
static bool is_stripped(jvalue chars, const char *s, size_t k, int32_t ch)
{
    if (chars.kind != J_STRING) return is_python_space(ch);
    return memmem(chars.as.s->s, chars.as.s->n, s, k) != NULL;
}

status j_strip(jctx *c, jvalue s, jvalue chars, bool left, bool right, jvalue *out)
{
    const char *text = s.as.s->s;
    size_t from = 0, to = s.as.s->n;
    int32_t ch;
    int k;
    while (left && from < to && (k = char_at(text + from, to - from, &ch)) &&
           is_stripped(chars, text + from, (size_t)k, ch))
        from += (size_t)k;
    while (right && to > from && (k = char_before(text + from, to - from, &ch)) &&
           is_stripped(chars, text + to - k, (size_t)k, ch))
        to -= (size_t)k;
    return j_substring(c, s, from, to, out);
}
