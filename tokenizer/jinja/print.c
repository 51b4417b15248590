/* SPDX-License-Identifier: MIT */
/* Values as text: Python's str() and repr(), and json.dumps(). */
#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "tokenizer/chars.h"
#include "tokenizer/jinja/impl.h"

/* Writes the shortest digits that read back as f, as float.__repr__ does. */
void j_float_text(char out[40], double f)
{
    char digits[40];
    int precision = 1;
    if (isnan(f) || isinf(f)) {
        strcpy(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    do snprintf(digits, sizeof digits, "%.*e", precision - 1, f);
    while (strtod(digits, NULL) != f && ++precision < 18);
    const int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        strcpy(out, digits);
        return;
    }
    const int after_point = precision - 1 - exponent;
    snprintf(out, 40, "%.*f", after_point > 1 ? after_point : 1, f);
}

static bool is_printable(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
    }
}

/* Writes the escape of ch inside of a repr'd string, or an empty one for a character that stands for itself. */
static void repr_escape(char out[12], int32_t ch, char quote)
{
    const char *p = ch && ch < 128 ? strchr("\\\\\nn\rr\tt", ch) : NULL;
    out[0] = 0;
    if (ch == '\\' || ch == quote) snprintf(out, 12, "\\%c", (char)ch);
    else if (p && ch < 32) snprintf(out, 12, "\\%c", p[1]);
    else if (!is_printable(ch)) snprintf(out, 12, ch < 0x100 ? "\\x%02x" : ch < 0x10000 ? "\\u%04x" : "\\U%08x", ch);
}

static status repr_string(jctx *c, jbuf *b, jvalue v)
{
    const jstr *s = v.as.s;
    const char quote = memchr(s->s, '\'', s->n) && !memchr(s->s, '"', s->n) ? '"' : '\'';
    char escape[12];
    int32_t ch;
    TRY(jbuf_put(c, b, &quote, 1, NULL, v.input));
    for (size_t i = 0, k; i < s->n; i += k) {
        k = (size_t)char_at(s->s + i, s->n - i, &ch);
        if (k == 0) break;
        repr_escape(escape, ch, quote);
        if (*escape) TRY(jbuf_puts(c, b, escape, j_mark(v, i)));
        else TRY(jbuf_put_part(c, b, v, i, i + k));
    }
    return jbuf_put(c, b, &quote, 1, NULL, v.input);
}

static status repr_list(jctx *c, jbuf *b, jvalue v)
{
    static const char *const opens[] = {[J_LIST] = "[",
                                        [J_TUPLE] = "(",
                                        [J_KEYS] = "dict_keys([",
                                        [J_ITEMS] = "dict_items([",
                                        [J_VALUES] = "dict_values(["};
    const jlist *l = v.as.l;
    TRY(jbuf_puts(c, b, opens[v.kind], v.input));
    for (size_t i = 0; i < l->n; i++) {
        if (i) TRY(jbuf_puts(c, b, ", ", v.input));
        TRY(j_repr(c, b, l->v[i]));
    }
    if (v.kind == J_TUPLE) return jbuf_puts(c, b, l->n == 1 ? ",)" : ")", v.input);
    return jbuf_puts(c, b, v.kind == J_LIST ? "]" : "])", v.input);
}

static status repr_dict(jctx *c, jbuf *b, jvalue v)
{
    const jdict *d = v.as.d;
    TRY(jbuf_puts(c, b, v.kind == J_NAMESPACE ? "<Namespace {" : "{", v.input));
    for (size_t i = 0; i < d->n; i++) {
        if (i) TRY(jbuf_puts(c, b, ", ", v.input));
        TRY(j_repr(c, b, d->v[i].key));
        TRY(jbuf_puts(c, b, ": ", v.input));
        TRY(j_repr(c, b, d->v[i].value));
    }
    return jbuf_puts(c, b, v.kind == J_NAMESPACE ? "}>" : "}", v.input);
}

static status repr_range(jctx *c, jbuf *b, const jlist *l)
{
    char text[90];
    snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64, l->from, l->to);
    TRY(jbuf_puts(c, b, text, false));
    snprintf(text, sizeof text, ", %" PRId64, l->stride);
    if (l->stride != 1) TRY(jbuf_puts(c, b, text, false));
    return jbuf_puts(c, b, ")", false);
}

static status repr_macro(jctx *c, jbuf *b, const jmacro *m)
{
    if (m->node->name == NO_NAME) return jbuf_puts(c, b, "<Macro anonymous>", false);
    const jstr *name = c->j->names[m->node->name];
    TRY(jbuf_puts(c, b, "<Macro '", false));
    TRY(jbuf_put(c, b, name->s, name->n, NULL, false));
    return jbuf_puts(c, b, "'>", false);
}

static status print_number(jctx *c, jbuf *b, jvalue v)
{
    char text[40];
    if (v.kind == J_FLOAT) j_float_text(text, v.as.f);
    else snprintf(text, sizeof text, "%" PRId64, v.as.i);
    return jbuf_puts(c, b, text, v.input);
}

status j_repr(jctx *c, jbuf *b, jvalue v)
{
    TRY(jenter(c));
    switch (v.kind) {
    case J_NONE: TRY(jbuf_puts(c, b, "None", v.input)); break;
    case J_BOOL: TRY(jbuf_puts(c, b, v.as.b ? "True" : "False", v.input)); break;
    case J_INT:
    case J_FLOAT: TRY(print_number(c, b, v)); break;
    case J_STRING: TRY(repr_string(c, b, v)); break;
    case J_LIST:
    case J_TUPLE:
    case J_KEYS:
    case J_ITEMS:
    case J_VALUES: TRY(repr_list(c, b, v)); break;
    case J_RANGE: TRY(repr_range(c, b, v.as.l)); break;
    case J_DICT:
    case J_NAMESPACE: TRY(repr_dict(c, b, v)); break;
    case J_MACRO: TRY(repr_macro(c, b, v.as.macro)); break;
    case J_MISSING:
    case J_UNDEFINED: TRY(jbuf_puts(c, b, "Undefined", false)); break;
    default: return jfail(c, "a %s cannot be printed", j_type_name(v));
    }
    c->depth--;
    return ST_OK;
}

status j_print(jctx *c, jbuf *b, jvalue v)
{
    if (v.kind == J_STRING) return jbuf_put_str(c, b, v);
    if (v.kind == J_UNDEFINED) return ST_OK;
    return j_repr(c, b, v);
}

status j_to_string(jctx *c, jvalue v, jvalue *out)
{
    jbuf b = {0};
    *out = v;
    if (v.kind == J_STRING) return ST_OK;
    TRY(j_print(c, &b, v));
    return jbuf_string(c, &b, out);
}

status j_escape(jctx *c, jvalue v, jvalue *out)
{
    static const char *const names[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&#34;", ['\''] = "&#39;"};
    TRY(j_to_string(c, v, &v));
    *out = v;
    if (v.as.s->safe) return ST_OK;
    jbuf b = {0};
    for (size_t i = 0; i < v.as.s->n; i++) {
        const unsigned char ch = (unsigned char)v.as.s->s[i];
        if (ch < sizeof names / sizeof *names && names[ch]) TRY(jbuf_puts(c, &b, names[ch], j_mark(v, i)));
        else TRY(jbuf_put_part(c, &b, v, i, i + 1));
    }
    return jbuf_string(c, &b, out);
}

/* Writes the JSON escape of ch, or an empty one. */
static void json_escape(char out[16], int32_t ch, bool ascii)
{
    static const char named[] = "\"\"\\\\\nn\rr\tt\ff\bb";
    out[0] = 0;
    for (const char *p = named; *p; p += 2)
        if (ch == *p) {
            snprintf(out, 16, "\\%c", p[1]);
            return;
        }
    if (ch < 0x20 || (ascii && ch >= 0x7f && ch < 0x10000)) snprintf(out, 16, "\\u%04x", ch);
    else if (ascii && ch >= 0x10000)
        snprintf(out, 16, "\\u%04x\\u%04x", 0xd800 + ((ch - 0x10000) >> 10), 0xdc00 + ((ch - 0x10000) & 0x3ff));
}

static status json_string_text(jctx *c, jbuf *b, const jstr *s, bool ascii, bool input)
{
    char escape[16];
    size_t done = 0;
    int32_t ch;
    TRY(jbuf_puts(c, b, "\"", input));
    for (size_t i = 0, k = 1; i < s->n; i += k, k = 1) {
        ch = (unsigned char)s->s[i];
        if (ch >= 0x20 && ch != '"' && ch != '\\' && (ch < 0x7f || !ascii)) continue;
        if (ch >= 0x80 && !(k = (size_t)char_at(s->s + i, s->n - i, &ch))) break;
        json_escape(escape, ch, ascii);
        if (!*escape) continue;
        TRY(jbuf_put(c, b, s->s + done, i - done, NULL, input));
        TRY(jbuf_puts(c, b, escape, input));
        done = i + k;
    }
    TRY(jbuf_put(c, b, s->s + done, s->n - done, NULL, input));
    return jbuf_puts(c, b, "\"", input);
}

static status new_line(jctx *c, jbuf *b, const jjson_style *style, int level, bool input)
{
    if (!style->indent) return ST_OK;
    TRY(jbuf_puts(c, b, "\n", input));
    for (int i = 0; i < level; i++) TRY(jbuf_put(c, b, style->indent->s, style->indent->n, NULL, input));
    return ST_OK;
}

static status json_number(jctx *c, jbuf *b, jvalue v, bool input)
{
    char text[40];
    if (v.kind == J_INT) snprintf(text, sizeof text, "%" PRId64, v.as.i);
    else if (v.kind != J_FLOAT) strcpy(text, v.kind == J_NONE ? "null" : v.as.b ? "true" : "false");
    else if (isnan(v.as.f)) strcpy(text, "NaN");
    else if (isinf(v.as.f)) strcpy(text, v.as.f < 0 ? "-Infinity" : "Infinity");
    else j_float_text(text, v.as.f);
    return jbuf_puts(c, b, text, input);
}

static status json_list(jctx *c, jbuf *b, const jlist *l, const jjson_style *style, int level)
{
    const bool input = style->input;
    if (l->n == 0) return jbuf_puts(c, b, "[]", input);
    TRY(jbuf_puts(c, b, "[", input));
    for (size_t i = 0; i < l->n; i++) {
        if (i) TRY(jbuf_put(c, b, style->comma->s, style->comma->n, NULL, input));
        TRY(new_line(c, b, style, level + 1, input));
        TRY(j_tojson(c, b, l->v[i], style, level + 1));
    }
    TRY(new_line(c, b, style, level, input));
    return jbuf_puts(c, b, "]", input);
}

static status json_key(jctx *c, jbuf *b, jvalue key, const jjson_style *style)
{
    if (key.kind == J_STRING) return json_string_text(c, b, key.as.s, style->ascii, style->input);
    if (key.kind != J_NONE && !j_is_number(key)) return jfail(c, "keys of JSON must not be %s", j_type_name(key));
    TRY(jbuf_puts(c, b, "\"", style->input));
    TRY(json_number(c, b, key, style->input));
    return jbuf_puts(c, b, "\"", style->input);
}

static status json_dict(jctx *c, jbuf *b, const jdict *d, const jjson_style *style, int level)
{
    const bool input = style->input;
    jpair *pairs = d->v;
    if (d->n == 0) return jbuf_puts(c, b, "{}", input);
    if (style->sort) TRY(j_sorted_pairs(c, d, &pairs));
    TRY(jbuf_puts(c, b, "{", input));
    for (size_t i = 0; i < d->n; i++) {
        if (i) TRY(jbuf_put(c, b, style->comma->s, style->comma->n, NULL, input));
        TRY(new_line(c, b, style, level + 1, input));
        TRY(json_key(c, b, pairs[i].key, style));
        TRY(jbuf_put(c, b, style->colon->s, style->colon->n, NULL, input));
        TRY(j_tojson(c, b, pairs[i].value, style, level + 1));
    }
    TRY(new_line(c, b, style, level, input));
    return jbuf_puts(c, b, "}", input);
}

status j_tojson(jctx *c, jbuf *b, jvalue v, const jjson_style *style, int level)
{
    TRY(jenter(c));
    switch (v.kind) {
    case J_NONE:
    case J_BOOL:
    case J_INT:
    case J_FLOAT: TRY(json_number(c, b, v, style->input)); break;
    case J_STRING: TRY(json_string_text(c, b, v.as.s, style->ascii, style->input)); break;
    case J_LIST:
    case J_TUPLE: TRY(json_list(c, b, v.as.l, style, level)); break;
    case J_DICT: TRY(json_dict(c, b, v.as.d, style, level)); break;
    default: return jfail(c, "Object of type %s is not JSON serializable", j_type_name(v));
    }
    c->depth--;
    return ST_OK;
}
