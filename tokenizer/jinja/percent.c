/* SPDX-License-Identifier: MIT */
/* Values formatted by a specification, and Python's "%s" % x. */
#include "config.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/jinja/impl.h"

typedef struct {
    char fill[4]; /* one character */
    size_t n_fill;
    char align; /* < > ^ =, 0: by type */
    char sign;  /* + or space, 0: only minus */
    bool alternate, comma;
    int64_t width, precision; /* precision -1: none */
    char type;                /* 0: none */
} style;

enum { MAX_WIDTH = 10000, MAX_PRECISION = 100 };

static status bad_format(jctx *c)
{
    return jfail(c, "invalid format specification");
}

/* Appends text[sign, n) with padding to the width. sign: length of the sign and prefix, before which '=' does not pad.
 */
static status put_padded(jctx *c, jbuf *b, jvalue text, size_t sign, const style *f, char align)
{
    const int64_t n = (int64_t)j_n_chars(text), pad = f->width > n ? f->width - n : 0;
    const int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    const size_t before = align == '=' ? sign : 0;
    TRY(jbuf_put_part(c, b, text, 0, before));
    for (int64_t i = 0; i < left; i++) TRY(jbuf_put(c, b, f->fill, f->n_fill, NULL, false));
    TRY(jbuf_put_part(c, b, text, before, text.as.s->n));
    for (int64_t i = left; i < pad; i++) TRY(jbuf_put(c, b, f->fill, f->n_fill, NULL, false));
    return ST_OK;
}

/* Copies digits with a comma between groups of three; a fraction or exponent stays the same. */
static void group_digits(char *out, const char *digits)
{
    const size_t whole = strspn(digits, "0123456789");
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % 3 == 0) *out++ = ',';
        *out++ = digits[i];
    }
    strcpy(out, digits + whole);
}

static void binary_digits(char *out, uint64_t u)
{
    int n = 1;
    while (n < 64 && u >> n) n++;
    for (int i = 0; i < n; i++) out[i] = (char)('0' + (u >> (n - 1 - i) & 1));
    out[n] = 0;
}

/* Writes the digits of |v| without sign. */
static status number_digits(jctx *c, jvalue v, const style *f, char out[600], const char **prefix)
{
    const char type = f->type;
    *prefix = "";
    if (f->precision > MAX_PRECISION) return jfail(c, "format: precision of more than %d", MAX_PRECISION);
    if (type && strchr("fFeEgG%", type)) {
        const double x = fabs(j_as_float(v)) * (type == '%' ? 100 : 1);
        const int precision = (int)(f->precision < 0 ? 6 : f->precision);
        switch (type) {
        case 'e': snprintf(out, 600, "%.*e", precision, x); break;
        case 'E': snprintf(out, 600, "%.*E", precision, x); break;
        case 'g': snprintf(out, 600, "%.*g", precision, x); break;
        case 'G': snprintf(out, 600, "%.*G", precision, x); break;
        case '%': snprintf(out, 600, "%.*f%%", precision, x); break;
        default: snprintf(out, 600, "%.*f", precision, x); break;
        }
        return ST_OK;
    }
    if (v.kind == J_FLOAT) {
        if (type) return bad_format(c);
        j_float_text(out, fabs(v.as.f));
        return ST_OK;
    }
    const int64_t i = j_as_int(v);
    const uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    if (f->alternate) *prefix = type == 'x' ? "0x" : type == 'X' ? "0X" : type == 'o' ? "0o" : type == 'b' ? "0b" : "";
    if (type == 'b') binary_digits(out, u);
    else if (type == 'x' || type == 'X' || type == 'o')
        snprintf(out, 600, type == 'x' ? "%" PRIx64 : type == 'X' ? "%" PRIX64 : "%" PRIo64, u);
    else if (!type || type == 'd' || type == 'n') snprintf(out, 600, "%" PRIu64, u);
    else return bad_format(c);
    return ST_OK;
}

static status put_number(jctx *c, jbuf *b, jvalue v, const style *f)
{
    char digits[600], grouped[800], *text;
    const char *prefix;
    jvalue s;
    TRY(number_digits(c, v, f, digits, &prefix));
    if (f->comma) group_digits(grouped, digits);
    const bool negative = v.kind == J_FLOAT ? signbit(v.as.f) : j_as_int(v) < 0;
    const char sign[2] = {negative ? '-' : f->sign, 0};
    TRY(JNEW(c, &text, 820));
    snprintf(text, 820, "%s%s%s", sign, prefix, f->comma ? grouped : digits);
    TRY(j_string(c, text, strlen(text), v.input, &s));
    return put_padded(c, b, s, strlen(sign) + strlen(prefix), f, f->align ? f->align : '>');
}

static status put_text(jctx *c, jbuf *b, jvalue v, const style *f)
{
    TRY(j_to_string(c, v, &v));
    if (f->precision >= 0) TRY(j_substring(c, v, 0, j_char_offset(v, (size_t)f->precision), &v));
    return put_padded(c, b, v, 0, f, f->align ? f->align : '<');
}

/* Reads a number of digits; fails for one above MAX_WIDTH. */
status j_read_digits(jctx *c, const char **p, int64_t *n)
{
    *n = 0;
    for (; isdigit((unsigned char)**p); ++*p)
        if ((*n = *n * 10 + **p - '0') > MAX_WIDTH) return jfail(c, "format: width of more than %d", MAX_WIDTH);
    return ST_OK;
}

/* Reads "[[fill]align][sign][#][0][width][,][.precision][type]". */
static status read_style(jctx *c, const char *p, const char *end, style *f)
{
    *f = (style){.fill = " ", .n_fill = 1, .precision = -1};
    size_t k = 1;
    while (p + k < end && ((unsigned char)p[k] & 0xc0) == 0x80) k++;
    if (p + k < end && strchr("<>^=", p[k]) && k <= sizeof f->fill) {
        memcpy(f->fill, p, k);
        f->n_fill = k;
        p += k;
    }
    if (p < end && strchr("<>^=", *p)) f->align = *p++;
    if (p < end && strchr("+- ", *p)) f->sign = *p++;
    if (f->sign == '-') f->sign = 0;
    if (p < end && *p == '#') f->alternate = *p++;
    if (p < end && *p == '0' && !f->align) {
        f->align = '=';
        f->fill[0] = *p++;
    }
    TRY(j_read_digits(c, &p, &f->width));
    if (p < end && *p == ',') f->comma = *p++;
    if (p < end && *p == '.') {
        p++;
        TRY(j_read_digits(c, &p, &f->precision));
    }
    if (p < end) f->type = *p++;
    return p == end ? ST_OK : bad_format(c);
}

status j_put_formatted(jctx *c, jbuf *b, jvalue v, const char *spec, const char *end)
{
    style f;
    if (spec == end) return j_print(c, b, v);
    TRY(read_style(c, spec, end, &f));
    if (v.kind == J_STRING && (!f.type || f.type == 's') && f.align != '=') return put_text(c, b, v, &f);
    if (j_is_number(v) && f.type != 's') return put_number(c, b, v, &f);
    return jfail(c, "format: unsupported specification for %s", j_type_name(v));
}

/* Arguments of `%`. */
typedef struct {
    jvalue all;
    size_t next;
} percent_args;

static status next_argument(jctx *c, percent_args *a, jvalue *out)
{
    const size_t n = a->all.kind == J_TUPLE ? a->all.as.l->n : 1;
    if (a->next >= n) return jfail(c, "not enough arguments for format string");
    *out = a->all.kind == J_TUPLE ? a->all.as.l->v[a->next] : a->all;
    a->next++;
    return ST_OK;
}

/* Reads "(name)" if it is there; otherwise the next argument is used. */
static status percent_value(jctx *c, percent_args *a, jvalue name, jvalue *out)
{
    if (name.kind == J_MISSING) return next_argument(c, a, out);
    if (a->all.kind != J_DICT) return jfail(c, "format requires a mapping");
    const jvalue *v = jdict_find(c, a->all.as.d, name);
    if (!v) return jfail(c, "format: no key '%.*s'", (int)(name.as.s->n < 40 ? name.as.s->n : 40), name.as.s->s);
    *out = *v;
    return ST_OK;
}

static status put_percent(jctx *c, jbuf *b, jvalue v, style *f)
{
    const char type = f->type;
    if (type == 's' || type == 'r' || type == 'a') {
        jbuf text = {0};
        TRY(type == 's' ? j_print(c, &text, v) : j_repr(c, &text, v));
        TRY(jbuf_string(c, &text, &v));
        if (f->align != '<') f->align = '>';
        f->fill[0] = ' ';
        return put_text(c, b, v, f);
    }
    if (!type || !strchr("diuxXofFeEgG", type)) return jfail(c, "unsupported format character");
    if (!j_is_number(v)) return jfail(c, "%%%c format: a number is required, not %s", type, j_type_name(v));
    if (strchr("diu", type)) {
        f->type = 'd';
        if (v.kind == J_FLOAT && !(fabs(v.as.f) < 9.2e18)) return jfail(c, "%%d format: number out of range");
        if (v.kind == J_FLOAT) {
            const bool input = v.input;
            v = j_int((int64_t)v.as.f);
            v.input = input;
        }
    }
    return put_number(c, b, v, f);
}

/* Formats the conversion after '%' at *i and moves *i past it. */
static status percent_field(jctx *c, jbuf *b, const jstr *s, size_t *i, percent_args *a)
{
    style f = {.fill = " ", .n_fill = 1, .precision = -1};
    jvalue name = {0}, v;
    const char *p = s->s + *i, *end = s->s + s->n, *close;
    if (p < end && *p == '(') {
        if (!(close = memchr(p, ')', (size_t)(end - p)))) return jfail(c, "incomplete format key");
        TRY(j_string(c, p + 1, (size_t)(close - p) - 1, false, &name));
        p = close + 1;
    }
    for (; p < end && *p && strchr("-+ 0#", *p); p++) {
        if (*p == '-') f.align = '<';
        else if (*p == '+' || (*p == ' ' && !f.sign)) f.sign = *p;
        else if (*p == '#') f.alternate = true;
        else if (*p == '0' && f.align != '<') f.align = '=';
    }
    if (f.align == '=') f.fill[0] = '0';
    if (p < end) TRY(j_read_digits(c, &p, &f.width));
    if (p < end && *p == '.') {
        p++;
        TRY(j_read_digits(c, &p, &f.precision));
    }
    if (p >= end) return jfail(c, "incomplete format");
    f.type = *p++;
    *i = (size_t)(p - s->s);
    if (f.type == '%') return jbuf_puts(c, b, "%", false);
    TRY(percent_value(c, a, name, &v));
    return put_percent(c, b, v, &f);
}

/* True for values that Python takes for a mapping: they need not be used up by the format. */
static bool has_items(jvalue v)
{
    return v.kind == J_DICT || v.kind == J_LIST || v.kind == J_RANGE || v.kind == J_UNDEFINED;
}

status j_percent(jctx *c, jvalue format, jvalue args, jvalue *out)
{
    const jstr *s = format.as.s;
    percent_args a = {args, 0};
    jbuf b = {0};
    for (size_t i = 0; i < s->n;) {
        const char *p = memchr(s->s + i, '%', s->n - i);
        const size_t end = p ? (size_t)(p - s->s) : s->n;
        TRY(jbuf_put_part(c, &b, format, i, end));
        i = end + 1;
        if (p) TRY(percent_field(c, &b, s, &i, &a));
    }
    const size_t n = args.kind == J_TUPLE ? args.as.l->n : !has_items(args);
    if (a.next < n) return jfail(c, "not all arguments converted during string formatting");
    return jbuf_string(c, &b, out);
}
