/* SPDX-License-Identifier: MIT */
/* Python's "{}".format(x), and dates. */
#include "config.h"

#include <ctype.h>
#include <string.h>
#include <time.h>

#include "tokenizer/jinja/impl.h"

/* Stores the argument of a replacement field: "", an index or a name. *next: index of the next "{}". */
static status field_root(jctx *c, const jargs *args, const char *name, size_t n, size_t *next, jvalue *out)
{
    size_t i = 0;
    if (n == 0 || isdigit((unsigned char)*name)) {
        for (size_t k = 0; k < n && i < args->n; k++) i = i * 10 + (size_t)(name[k] - '0');
        if (n == 0) i = (*next)++;
        if (i >= args->n) return jfail(c, "format: no argument %zu", i);
        *out = args->v[i];
        return ST_OK;
    }
    for (i = 0; i < args->n_named; i++) {
        if (args->names[i]->n != n || memcmp(args->names[i]->s, name, n) != 0) continue;
        *out = args->named[i];
        return ST_OK;
    }
    return jfail(c, "format: no argument '%.*s'", (int)(n < 40 ? n : 40), name);
}

/* Stores the value of a field such as "0", "name.attribute" or "[key]" in *out. */
static status field_value(jctx *c, const jargs *args, const char *p, const char *end, size_t *next, jvalue *out)
{
    size_t n = 0;
    while (p + n < end && p[n] != '.' && p[n] != '[') n++;
    TRY(field_root(c, args, p, n, next, out));
    for (p += n; p < end; p += n) {
        const bool item = *p++ == '[';
        int64_t i = 0;
        jvalue key;
        for (n = 0; p + n < end && (item ? p[n] != ']' : p[n] != '.' && p[n] != '['); n++) i = 0;
        TRY(j_string(c, p, n, false, &key));
        const char *digits = p;
        if (item && n && n < 10 && strspn(p, "0123456789") >= n) {
            TRY(j_read_digits(c, &digits, &i));
            key = j_int(i);
        }
        TRY(item ? j_item(c, *out, key, out) : j_attribute(c, *out, key.as.s, out));
        if (out->kind == J_UNDEFINED) return jfail_undefined(c, *out);
        n += item;
    }
    return ST_OK;
}

/* Formats the field [p, end) between braces. */
static status put_field(jctx *c, jbuf *b, const jargs *args, const char *p, const char *end, size_t *next)
{
    const char *name_end = p, *spec;
    jvalue v;
    while (name_end < end && *name_end != '!' && *name_end != ':') name_end++;
    TRY(field_value(c, args, p, name_end, next, &v));
    spec = name_end;
    if (spec < end && *spec == '!') {
        if (end - spec < 2 || !strchr("rsa", spec[1])) return jfail(c, "format: invalid conversion");
        if (spec[1] == 's') {
            TRY(j_to_string(c, v, &v));
        } else {
            jbuf repr = {0};
            TRY(j_repr(c, &repr, v));
            TRY(jbuf_string(c, &repr, &v));
        }
        spec += 2;
    }
    if (spec < end && *spec != ':') return jfail(c, "format: invalid replacement field");
    return j_put_formatted(c, b, v, spec < end ? spec + 1 : end, end);
}

status j_format(jctx *c, jvalue format, const jargs *args, jvalue *out)
{
    const jstr *s = format.as.s;
    jbuf b = {0};
    size_t next = 0, i = 0;
    while (i < s->n) {
        const size_t from = i;
        while (i < s->n && s->s[i] != '{' && s->s[i] != '}') i++;
        TRY(jbuf_put_part(c, &b, format, from, i));
        if (i == s->n) break;
        if (i + 1 < s->n && s->s[i + 1] == s->s[i]) {
            TRY(jbuf_put_part(c, &b, format, i, i + 1));
            i += 2;
            continue;
        }
        const char *end = s->s[i] == '{' ? memchr(s->s + i, '}', s->n - i) : NULL;
        if (!end || memchr(s->s + i + 1, '{', (size_t)(end - s->s) - i - 1))
            return jfail(c, "format: single or nested brace");
        TRY(put_field(c, &b, args, s->s + i + 1, end, &next));
        i = (size_t)(end - s->s) + 1;
    }
    return jbuf_string(c, &b, out);
}

status j_strftime(jctx *c, jvalue format, jvalue *out)
{
    enum { MAX = 4096 };
    const time_t now = (time_t)c->now;
    struct tm tm;
    char *with_end, *text;
    const size_t n = format.as.s->n;
    if (n > MAX / 8) return jfail(c, "strftime_now: format too long");
    if (!localtime_r(&now, &tm)) return jfail(c, "strftime_now: time out of range");
    /* A final character tells an empty result from one that is too long. */
    TRY(JNEW(c, &with_end, n + 2));
    memcpy(with_end, format.as.s->s, n);
    with_end[n] = '.';
    TRY(JNEW(c, &text, MAX));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const size_t k = strftime(text, MAX, with_end, &tm);
#pragma GCC diagnostic pop
    if (k == 0) return jfail(c, "strftime_now: text too long");
    return j_string(c, text, k - 1, false, out);
}
