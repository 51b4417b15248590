/* SPDX-License-Identifier: MIT */
/* Tokens of a template. The rules for white space around tags are jinja2's with trim_blocks and lstrip_blocks: a
 * newline after a block or comment is dropped, and so is white space between the start of a line and such a tag. `-`
 * strips all white space on its side of a tag, `+` keeps it. */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/utf8.h"
#include "tokenizer/chars.h"
#include "tokenizer/jinja/impl.h"

status jlexer_fail(const jlexer *l, int line, const char *fmt, ...)
{
    char what[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(l->e, ST_FORMAT, "%.100s:%d: %s", l->name, line, what);
}

/* Copies text with \r\n and \r as \n, without the last newline. */
status jlexer_open(jlexer *l, jarena *arena, const char *text, size_t n, const char *name, err *e)
{
    char *s;
    size_t k = 0;
    *l = (jlexer){.arena = arena, .name = name, .line = 1, .line_start = true, .e = e};
    if (n > JINJA_MAX_TEXT) return jlexer_fail(l, 1, "template of %zu bytes, at most %d supported", n, JINJA_MAX_TEXT);
    TRY(JARENA_NEW(arena, &s, n + 1, e));
    for (size_t i = 0; i < n;) {
        const size_t len = (size_t)utf8_valid_len((const unsigned char *)text + i, n - i);
        if (len == 0) return jlexer_fail(l, l->line, "invalid UTF-8 in the template");
        if (text[i] == '\r') {
            s[k++] = '\n';
            i += i + 1 < n && text[i + 1] == '\n' ? 2 : 1;
        } else {
            memcpy(s + k, text + i, len);
            k += len;
            i += len;
        }
        l->line += s[k - 1] == '\n';
    }
    l->line = 1;
    l->s = s;
    l->n = k && s[k - 1] == '\n' ? k - 1 : k;
    s[l->n] = 0;
    return ST_OK;
}

static bool looking_at(const jlexer *l, size_t at, const char *what)
{
    const size_t n = strlen(what);
    return l->n - at >= n && memcmp(l->s + at, what, n) == 0;
}

static size_t skip_space(const jlexer *l, size_t at)
{
    int32_t c;
    int k;
    while ((k = char_at(l->s + at, l->n - at, &c)) && is_python_space(c)) at += (size_t)k;
    return at;
}

static void advance(jlexer *l, size_t to)
{
    for (size_t i = l->at; i < to; i++) l->line += l->s[i] == '\n';
    l->line_start = to > l->at ? l->s[to - 1] == '\n' : l->line_start;
    l->at = to;
}

/* Returns the position after a tag's end at `at`, such as "%}" with its sign, or 0. trims: a newline is dropped. */
static size_t after_end(const jlexer *l, size_t at, const char *end, bool plus, bool trims)
{
    if (l->s[at] == '-' && looking_at(l, at + 1, end)) return skip_space(l, at + 3);
    if (plus && l->s[at] == '+' && looking_at(l, at + 1, end)) return at + 3;
    if (!looking_at(l, at, end)) return 0;
    return at + 2 + (trims && l->s[at + 2] == '\n');
}

/* Returns the length of the sign at `at`, 0 or 1. */
static size_t sign_len(const jlexer *l, size_t at)
{
    return l->s[at] == '-' || l->s[at] == '+';
}

/* Returns the position after `word` inside the block tag at `at`, or 0 if the tag has another word. */
static size_t after_word(const jlexer *l, size_t at, const char *word)
{
    if (!looking_at(l, at, "{%")) return 0;
    at = skip_space(l, at + 2 + sign_len(l, at + 2));
    return looking_at(l, at, word) ? skip_space(l, at + strlen(word)) : 0;
}

/* Shortens the text [from, to) before a tag whose sign is at to + 2. */
static size_t strip_before(const jlexer *l, size_t from, size_t to, bool output)
{
    int32_t c;
    int k;
    const char sign = l->s[to + 2];
    size_t end = to;
    if (sign != '-' && (sign == '+' || output)) return to;
    while (end > from && (k = char_before(l->s + from, end - from, &c)) && is_python_space(c)) {
        if (sign != '-' && c == '\n') return end;
        end -= (size_t)k;
    }
    return sign == '-' || (end == from && l->line_start) ? end : to;
}

static bool emit_text(const jlexer *l, size_t from, size_t to, jtoken *t)
{
    *t = (jtoken){.type = T_TEXT, .line = l->line, .s = l->s + from, .n = to - from};
    return to > from;
}

/* Reads a raw block whose content starts at `from`. */
static status read_raw(jlexer *l, size_t from, jtoken *t, bool *some)
{
    const int line = l->line;
    advance(l, from);
    for (size_t at = from; at < l->n; at++) {
        size_t end = after_word(l, at, "endraw");
        if (!end || !(end = after_end(l, end, "%}", true, true))) continue;
        *some = emit_text(l, from, strip_before(l, from, at, false), t);
        advance(l, end);
        return ST_OK;
    }
    return jlexer_fail(l, line, "raw block without endraw");
}

static status skip_comment(jlexer *l, size_t from)
{
    for (size_t at = from; at < l->n; at++) {
        const size_t end = after_end(l, at, "#}", true, true);
        if (!end) continue;
        advance(l, end);
        return ST_OK;
    }
    return jlexer_fail(l, l->line, "comment without end");
}

/* Reads the text up to the next tag and the start of that tag. *some: t is a token; otherwise there was no text. */
static status next_text(jlexer *l, jtoken *t, bool *some)
{
    const size_t from = l->at;
    size_t to = from;
    while (to < l->n && !(l->s[to] == '{' && l->s[to + 1] && strchr("{%#", l->s[to + 1]))) to++;
    if (to == l->n) {
        *some = emit_text(l, from, to, t);
        advance(l, to);
        if (!*some) *t = (jtoken){.type = T_END, .line = l->line};
        *some = true;
        return ST_OK;
    }
    const char kind = l->s[to + 1];
    *some = emit_text(l, from, strip_before(l, from, to, kind == '{'), t);
    if (*some) { /* the next call reads the tag */
        const bool line_start = l->line_start;
        advance(l, to);
        l->line_start = line_start;
        l->tag = true;
        return ST_OK;
    }
    advance(l, to);
    l->tag = true;
    return ST_OK;
}

/* Reads the start of the tag at l->at. */
static status next_tag(jlexer *l, jtoken *t, bool *some)
{
    const size_t at = l->at, inside = at + 2 + sign_len(l, at + 2);
    size_t raw = after_word(l, at, "raw");
    l->tag = false;
    *some = false;
    if (raw && (l->s[raw] == '-' || l->s[raw] == '%')) {
        raw = after_end(l, raw, "%}", false, false);
        if (raw) return read_raw(l, raw, t, some);
    }
    if (l->s[at + 1] == '#') return skip_comment(l, inside);
    l->in = l->s[at + 1] == '{' ? LEX_OUTPUT : LEX_BLOCK;
    advance(l, inside);
    *t = (jtoken){.type = l->in == LEX_OUTPUT ? T_OUTPUT : T_BLOCK, .line = l->line};
    *some = true;
    return ST_OK;
}

static int hex_digits(const char *s, int n, int32_t *c)
{
    *c = 0;
    for (int i = 0; i < n; i++) {
        if (!isxdigit((unsigned char)s[i])) return 0;
        *c = *c * 16 + (s[i] <= '9' ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    return n;
}

/* Decodes the escape after a backslash at s, as Python does. Returns its length, 0 if it is invalid. */
static size_t decode_escape(const char *s, char *out, size_t *n)
{
    static const char names[] = "nrtabfv\\'\"", codes[] = "\n\r\t\a\b\f\v\\'\"";
    const char *p = *s ? strchr(names, *s) : NULL;
    int32_t c = 0;
    int k = 0;
    if (p) {
        out[(*n)++] = codes[p - names];
        return 1;
    }
    if (*s == '\n') return 1;
    if (*s >= '0' && *s <= '7') {
        for (; k < 3 && s[k] >= '0' && s[k] <= '7'; k++) c = c * 8 + s[k] - '0';
    } else if (*s == 'x' || *s == 'u' || *s == 'U') {
        const int digits = *s == 'x' ? 2 : *s == 'u' ? 4 : 8;
        if (!hex_digits(s + 1, digits, &c) || c < 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
        k = 1 + digits;
    } else if (*s == 'N') {
        return 0;
    } else {
        out[(*n)++] = '\\';
        return SIZE_MAX; /* an unknown escape stays as it is */
    }
    *n += (size_t)char_put(out + *n, c);
    return (size_t)k;
}

static status read_string(jlexer *l, jtoken *t)
{
    const char quote = l->s[l->at];
    size_t end = l->at + 1, n = 0;
    while (end < l->n && l->s[end] != quote) end += l->s[end] == '\\' ? 2 : 1;
    if (end >= l->n) return jlexer_fail(l, l->line, "string without end");
    char *s;
    TRY(JARENA_NEW(l->arena, &s, end - l->at + 4, l->e));
    for (size_t i = l->at + 1; i < end;) {
        if (l->s[i] != '\\') {
            s[n++] = l->s[i++];
            continue;
        }
        const size_t k = decode_escape(l->s + i + 1, s, &n);
        if (k == 0) return jlexer_fail(l, l->line, "invalid escape \\%c in a string", l->s[i + 1]);
        i += k == SIZE_MAX ? 1 : 1 + k;
    }
    *t = (jtoken){.type = T_STRING, .line = l->line, .s = s, .n = n};
    advance(l, end + 1);
    return ST_OK;
}

/* Copies digits of a number without underscores. Returns the position after them. */
static size_t digits(const jlexer *l, size_t at, char *out, size_t *n)
{
    for (; isdigit((unsigned char)l->s[at]) || (l->s[at] == '_' && isdigit((unsigned char)l->s[at + 1])); at++)
        if (l->s[at] != '_' && *n < 60) out[(*n)++] = l->s[at];
    return at;
}

static status read_number(jlexer *l, jtoken *t, bool may_be_float)
{
    char text[80];
    size_t n = 0, at = l->at;
    bool real = false;
    const char *s = l->s;
    *t = (jtoken){.line = l->line};
    if (s[at] == '0' && s[at + 1] && strchr("xXoObB", s[at + 1])) {
        char *end;
        const int base = (s[at + 1] | 32) == 'x' ? 16 : (s[at + 1] | 32) == 'o' ? 8 : 2;
        errno = 0;
        t->i = isalnum((unsigned char)s[at + 2]) ? strtoll(s + at + 2, &end, base) : (end = (char *)(uintptr_t)s, 0);
        if (end <= s + at + 2 || errno) return jlexer_fail(l, l->line, "invalid number");
        at = (size_t)(end - s);
    } else {
        at = digits(l, at, text, &n);
        if (may_be_float && s[at] == '.' && isdigit((unsigned char)s[at + 1])) {
            text[n++] = '.';
            at = digits(l, at + 1, text, &n);
            real = true;
        }
        const size_t sign = (s[at] | 32) == 'e' && (s[at + 1] == '-' || s[at + 1] == '+');
        if (may_be_float && (s[at] | 32) == 'e' && isdigit((unsigned char)s[at + 1 + sign])) {
            text[n++] = 'e';
            if (sign) text[n++] = s[at + 1];
            at = digits(l, at + 1 + sign, text, &n);
            real = true;
        }
        text[n] = 0;
        errno = 0;
        if (real) t->f = strtod(text, NULL);
        else t->i = strtoll(text, NULL, 10);
        if (n >= 60 || (!real && errno)) return jlexer_fail(l, l->line, "number out of range");
    }
    t->type = real ? T_FLOAT : T_INT;
    advance(l, at);
    return ST_OK;
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

static status read_operator(jlexer *l, jtoken *t)
{
    static const char *const two[] = {"==", "!=", ">=", "<=", "//", "**"};
    const char c = l->s[l->at];
    size_t n = 1;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (looking_at(l, l->at, two[i])) n = 2;
    if (n == 1 && (!c || !strchr("+-/*%~[](){}<>=.:|,;", c)))
        return jlexer_fail(l, l->line, "unexpected character '%c'", c);
    if (strchr("([{", c)) {
        if (l->n_open == JINJA_MAX_NESTING) return jlexer_fail(l, l->line, "brackets nested too deep");
        l->open[l->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c) && (l->n_open == 0 || l->open[--l->n_open] != c)) {
        return jlexer_fail(l, l->line, "unexpected '%c'", c);
    }
    *t = (jtoken){.type = T_OP, .line = l->line, .s = l->s + l->at, .n = n};
    advance(l, l->at + n);
    return ST_OK;
}

/* Reads a token inside of a tag. */
static status next_inside(jlexer *l, jtoken *t)
{
    advance(l, skip_space(l, l->at));
    const bool output = l->in == LEX_OUTPUT;
    const char c = l->s[l->at];
    const size_t end = l->n_open ? 0 : after_end(l, l->at, output ? "}}" : "%}", !output, !output);
    if (end) {
        *t = (jtoken){.type = output ? T_OUTPUT_END : T_BLOCK_END, .line = l->line};
        l->in = LEX_TEXT;
        advance(l, end);
        return ST_OK;
    }
    if (l->at >= l->n) return jlexer_fail(l, l->line, "tag without end");
    if (isdigit((unsigned char)c)) return read_number(l, t, l->at == 0 || l->s[l->at - 1] != '.');
    if (c == '\'' || c == '"') return read_string(l, t);
    if (!is_name(c)) return read_operator(l, t);
    size_t at = l->at;
    while (is_name(l->s[at])) at++;
    *t = (jtoken){.type = T_NAME, .line = l->line, .s = l->s + l->at, .n = at - l->at};
    advance(l, at);
    return ST_OK;
}

status jlexer_next(jlexer *l, jtoken *t)
{
    bool some = false;
    if (l->in != LEX_TEXT) return next_inside(l, t);
    while (!some) TRY(l->tag ? next_tag(l, t, &some) : next_text(l, t, &some));
    return ST_OK;
}
