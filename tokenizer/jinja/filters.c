/* SPDX-License-Identifier: MIT */
/* Filters on text, numbers and single values. Those on sequences are in sequences.c. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/chars.h"
#include "tokenizer/jinja/builtins.h"

static status filter_default(jctx *c, const jcall *call, jvalue *out)
{
    static const jstr empty = {.s = ""};
    const bool use = call->self.kind == J_UNDEFINED || (j_flag(call->a[1], false) && !j_truth(call->self));
    (void)c;
    *out = call->self;
    if (use) *out = call->a[0].kind == J_MISSING ? (jvalue){.kind = J_STRING, .as.s = &empty} : call->a[0];
    return ST_OK;
}

static status filter_string(jctx *c, const jcall *call, jvalue *out)
{
    return j_to_string(c, call->self, out);
}

static status filter_safe(jctx *c, const jcall *call, jvalue *out)
{
    TRY(j_to_string(c, call->self, out));
    return j_mark_safe(c, *out, out);
}

static status filter_escape(jctx *c, const jcall *call, jvalue *out)
{
    TRY(j_escape(c, call->self, out));
    return j_mark_safe(c, *out, out);
}

static status filter_trim(jctx *c, const jcall *call, jvalue *out)
{
    jvalue text;
    TRY(j_to_string(c, call->self, &text));
    return j_strip(c, text, call->a[0], true, true, out);
}

static status filter_case(jctx *c, const jcall *call, jvalue *out)
{
    jvalue text;
    TRY(j_to_string(c, call->self, &text));
    return j_change_case(c, text,
                         call->name[0] == 'l'   ? CASE_LOWER
                         : call->name[0] == 'u' ? CASE_UPPER
                                                : CASE_CAPITAL,
                         out);
}

/* Capitalizes the words after white space, a hyphen or an opening bracket. */
static status filter_title(jctx *c, const jcall *call, jvalue *out)
{
    jvalue text, word;
    jbuf b = {0};
    int32_t ch;
    TRY(j_to_string(c, call->self, &text));
    const jstr *s = text.as.s;
    for (size_t from = 0, at = 0, k; at < s->n; from = at) {
        bool breaks = false;
        for (; at < s->n && !breaks && (k = (size_t)char_at(s->s + at, s->n - at, &ch)); at += k)
            breaks = is_python_space(ch) || (ch < 128 && ch && strchr("-({[<", ch));
        TRY(j_substring(c, text, from, at, &word));
        TRY(j_change_case(c, word, CASE_CAPITAL, &word));
        TRY(jbuf_put_str(c, &b, word));
    }
    return jbuf_string(c, &b, out);
}

static status filter_replace(jctx *c, const jcall *call, jvalue *out)
{
    jvalue text, from, to;
    int64_t most;
    TRY(j_to_string(c, call->self, &text));
    TRY(j_to_string(c, call->a[0], &from));
    TRY(j_to_string(c, call->a[1], &to));
    TRY(j_want_int(c, call, call->a[2].kind == J_NONE ? (jvalue){0} : call->a[2], -1, &most));
    return j_replace(c, text, from, to, most, out);
}

/* Stores a level of indentation: a string, or a number of spaces. */
static status indent_text(jctx *c, const jcall *call, jvalue v, int64_t preset, jvalue *out)
{
    int64_t width;
    *out = v;
    if (v.kind == J_STRING) return ST_OK;
    TRY(j_want_int(c, call, v, preset, &width));
    if (width > 1000) return jfail(c, "%s: indentation of more than 1000", call->name);
    char *spaces;
    const size_t n = width > 0 ? (size_t)width : 0;
    TRY(JNEW(c, &spaces, n));
    memset(spaces, ' ', n);
    return j_string(c, spaces, n, false, out);
}

/* Indents all lines but the first and empty ones. Every line break becomes a newline. */
static status filter_indent(jctx *c, const jcall *call, jvalue *out)
{
    const bool first = j_flag(call->a[1], false), blank = j_flag(call->a[2], false);
    jvalue text, indent;
    jbuf b = {0};
    TRY(j_want_string(c, call, call->self, &text));
    TRY(indent_text(c, call, call->a[0], 4, &indent));
    for (size_t from = 0, end, next;; from = next) {
        const bool last = !j_line(text.as.s, from, &end, &next);
        if (from == 0 ? first : blank || end > from) TRY(jbuf_put_str(c, &b, indent));
        TRY(jbuf_put_part(c, &b, text, from, end));
        if (last) return jbuf_string(c, &b, out);
        TRY(jbuf_puts(c, &b, "\n", j_mark(text, end)));
    }
}

static status filter_abs(jctx *c, const jcall *call, jvalue *out)
{
    if (call->self.kind == J_UNDEFINED) return jfail_undefined(c, call->self);
    if (!j_is_number(call->self)) return jfail(c, "abs: expected a number, got %s", j_type_name(call->self));
    *out = call->self;
    if (out->kind == J_FLOAT) out->as.f = fabs(out->as.f);
    else if (j_as_int(*out) < 0) return j_binary(c, OP_SUB, j_int(0), call->self, out);
    else *out = j_int(j_as_int(*out));
    out->input = call->self.input;
    return ST_OK;
}

/* Reads text as a number, as int() or float() does with surrounding spaces and underscores. */
static bool read_number(jvalue v, int base, bool real, jvalue *out)
{
    char text[128], *end;
    const char *s = v.as.s->s;
    size_t n = v.as.s->n, k = 0;
    trim_python(&s, &n);
    if (n == 0 || n >= sizeof text) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '_' && i && i + 1 < n && s[i - 1] != '_') continue;
        if (real && (s[i] == 'x' || s[i] == 'X' || s[i] == '(')) return false;
        text[k++] = s[i];
    }
    text[k] = 0;
    errno = 0;
    if (k == 0 || is_python_space((unsigned char)text[0])) return false;
    jvalue read = real ? j_float(strtod(text, &end)) : j_int(strtoll(text, &end, base));
    if (end != text + k || (!real && errno)) return false;
    read.input = v.input;
    *out = read;
    return true;
}

static status filter_int(jctx *c, const jcall *call, jvalue *out)
{
    const jvalue v = call->self;
    int64_t base;
    jvalue real;
    TRY(j_want_int(c, call, call->a[1], 10, &base));
    *out = call->a[0].kind == J_MISSING ? j_int(0) : call->a[0];
    if (v.kind == J_UNDEFINED) return jfail_undefined(c, v);
    if (base != 10 && (base < 2 || base > 36)) return jfail(c, "int: base %lld", (long long)base);
    if (v.kind == J_STRING && read_number(v, (int)base, false, out)) return ST_OK;
    if (v.kind == J_STRING && !read_number(v, 10, true, &real)) return ST_OK;
    if (v.kind != J_STRING) real = v;
    if (!j_is_number(real)) return ST_OK;
    if (real.kind != J_FLOAT) *out = j_int(j_as_int(real));
    else if (fabs(real.as.f) < 9.2e18) *out = j_int((int64_t)real.as.f);
    else if (isfinite(real.as.f)) return jfail(c, "int: number out of range");
    out->input = v.input;
    return ST_OK;
}

static status filter_float(jctx *c, const jcall *call, jvalue *out)
{
    const jvalue v = call->self;
    if (v.kind == J_UNDEFINED) return jfail_undefined(c, v);
    *out = call->a[0].kind == J_MISSING ? j_float(0) : call->a[0];
    if (v.kind == J_STRING) {
        jvalue real;
        if (read_number(v, 10, true, &real)) *out = real;
    } else if (j_is_number(v)) {
        *out = j_float(j_as_float(v));
        out->input = v.input;
    }
    return ST_OK;
}

static status filter_round(jctx *c, const jcall *call, jvalue *out)
{
    const jvalue v = call->self;
    int64_t digits;
    TRY(j_want_int(c, call, call->a[0], 0, &digits));
    if (v.kind == J_UNDEFINED) return jfail_undefined(c, v);
    if (!j_is_number(v)) return jfail(c, "round: expected a number, got %s", j_type_name(v));
    const double x = j_as_float(v), scale = pow(10, (double)digits);
    const bool common = call->a[1].kind != J_STRING || j_is(call->a[1].as.s, "common");
    if (!common && !j_is(call->a[1].as.s, "ceil") && !j_is(call->a[1].as.s, "floor"))
        return jfail(c, "round: method must be common, ceil or floor");
    if (digits < -20 || digits > 20) return jfail(c, "round: precision out of range");
    *out = v.kind == J_FLOAT ? v : j_int(j_as_int(v));
    out->input = v.input;
    if (v.kind != J_FLOAT && common) return ST_OK;
    char text[400];
    snprintf(text, sizeof text, "%.*f", digits > 0 ? (int)digits : 0, digits < 0 ? x * scale : x);
    *out = j_float(!common      ? (j_is(call->a[1].as.s, "ceil") ? ceil(x * scale) : floor(x * scale)) / scale
                   : digits < 0 ? strtod(text, NULL) / scale
                                : strtod(text, NULL));
    out->input = v.input;
    return ST_OK;
}

static status filter_format(jctx *c, const jcall *call, jvalue *out)
{
    jvalue text, values;
    const jargs *args = call->args;
    TRY(j_to_string(c, call->self, &text));
    if (args->n && args->n_named) return jfail(c, "format: positional and keyword arguments cannot be mixed");
    if (!args->n_named) {
        TRY(j_list(c, J_TUPLE, args->v, args->n, &values));
    } else {
        values = (jvalue){.kind = J_DICT};
        TRY(JNEW(c, &values.as.d, 1));
        for (size_t i = 0; i < args->n_named; i++)
            TRY(jdict_put(c, values.as.d, (jvalue){.kind = J_STRING, .as.s = args->names[i]}, args->named[i]));
    }
    return j_percent(c, text, values, out);
}

/* Reads tojson's separators, a pair of strings. */
static status read_separators(jctx *c, const jcall *call, jvalue v, jjson_style *style)
{
    if (v.kind == J_MISSING || v.kind == J_NONE) return ST_OK;
    if ((v.kind != J_LIST && v.kind != J_TUPLE) || v.as.l->n != 2)
        return jfail(c, "tojson: separators must be a pair of strings");
    TRY(j_want_string(c, call, v.as.l->v[0], &v.as.l->v[0]));
    TRY(j_want_string(c, call, v.as.l->v[1], &v.as.l->v[1]));
    style->comma = v.as.l->v[0].as.s;
    style->colon = v.as.l->v[1].as.s;
    return ST_OK;
}

static status filter_tojson(jctx *c, const jcall *call, jvalue *out)
{
    static const jstr comma = {.s = ",", .n = 1}, wide_comma = {.s = ", ", .n = 2}, colon = {.s = ": ", .n = 2};
    jjson_style style = {.ascii = j_flag(call->a[0], false),
                         .sort = j_flag(call->a[3], false),
                         .input = call->self.input,
                         .comma = &wide_comma,
                         .colon = &colon};
    jbuf b = {0};
    jvalue indent;
    if (call->a[1].kind != J_MISSING && call->a[1].kind != J_NONE) {
        TRY(indent_text(c, call, call->a[1], 0, &indent));
        style.indent = indent.as.s;
        style.comma = &comma;
    }
    TRY(read_separators(c, call, call->a[2], &style));
    TRY(j_tojson(c, &b, call->self, &style, 0));
    return jbuf_string(c, &b, out);
}

const jbuiltin j_filters[] = {
    {"abs", "", filter_abs},
    {"capitalize", "", filter_case},
    {"count", "", filter_length},
    {"d", "?default_value boolean", filter_default},
    {"default", "?default_value boolean", filter_default},
    {"dictsort", "?case_sensitive by reverse", filter_dictsort},
    {"e", "", filter_escape},
    {"escape", "", filter_escape},
    {"first", "", filter_first},
    {"float", "?default", filter_float},
    {"format", "*", filter_format},
    {"indent", "?width first blank", filter_indent},
    {"int", "?default base", filter_int},
    {"items", "", filter_items},
    {"join", "?d attribute", filter_join},
    {"last", "", filter_last},
    {"length", "", filter_length},
    {"list", "", filter_list},
    {"lower", "", filter_case},
    {"map", "*", filter_map},
    {"max", "?case_sensitive attribute", filter_extreme},
    {"min", "?case_sensitive attribute", filter_extreme},
    {"reject", "*", filter_select},
    {"rejectattr", "*", filter_select},
    {"replace", "old new ?count", filter_replace},
    {"reverse", "", filter_reverse},
    {"round", "?precision method", filter_round},
    {"safe", "", filter_safe},
    {"select", "*", filter_select},
    {"selectattr", "*", filter_select},
    {"sort", "?reverse case_sensitive attribute", filter_sort},
    {"string", "", filter_string},
    {"sum", "?attribute start", filter_sum},
    {"title", "", filter_title},
    {"tojson", "?ensure_ascii indent separators sort_keys", filter_tojson},
    {"trim", "?chars", filter_trim},
    {"unique", "?case_sensitive attribute", filter_unique},
    {"upper", "", filter_case},
    {0},
};
