/* SPDX-License-Identifier: MIT */
/* Methods of strings. */
#include "config.h"

#include <string.h>
#include <utf8proc.h>

#include "tokenizer/chars.h"
#include "tokenizer/jinja/builtins.h"

static status push(jctx *c, jargs *list, size_t *cap, jvalue v)
{
    if (list->n == *cap) {
        jvalue *wider;
        *cap = *cap ? 2 * *cap : 8;
        TRY(JNEW(c, &wider, *cap));
        if (list->n) memcpy(wider, list->v, list->n * sizeof *wider);
        list->v = wider;
    }
    list->v[list->n++] = v;
    return ST_OK;
}

static status push_part(jctx *c, jargs *list, size_t *cap, jvalue s, size_t from, size_t to)
{
    jvalue part;
    TRY(j_substring(c, s, from, to, &part));
    return push(c, list, cap, part);
}

/* Moves *at past white space (space true) or past other characters, forwards to the end of s. */
static void skip(const jstr *s, size_t *at, bool space)
{
    int32_t ch;
    int k;
    while ((k = char_at(s->s + *at, s->n - *at, &ch)) && is_python_space(ch) == space) *at += (size_t)k;
}

static void skip_back(const jstr *s, size_t *at, bool space)
{
    int32_t ch;
    int k;
    while ((k = char_before(s->s, *at, &ch)) && is_python_space(ch) == space) *at -= (size_t)k;
}

static status split_space(jctx *c, jvalue s, int64_t most, jargs *list)
{
    const jstr *t = s.as.s;
    size_t at = 0, cap = 0;
    for (skip(t, &at, true); at < t->n; skip(t, &at, true)) {
        const size_t from = at;
        if (most-- == 0) return push_part(c, list, &cap, s, from, t->n);
        skip(t, &at, false);
        TRY(push_part(c, list, &cap, s, from, at));
    }
    return ST_OK;
}

static status split_space_back(jctx *c, jvalue s, int64_t most, jargs *list)
{
    const jstr *t = s.as.s;
    size_t at = t->n, cap = 0;
    for (skip_back(t, &at, true); at > 0; skip_back(t, &at, true)) {
        const size_t end = at;
        if (most-- == 0) return push_part(c, list, &cap, s, 0, end);
        skip_back(t, &at, false);
        TRY(push_part(c, list, &cap, s, at, end));
    }
    return ST_OK;
}

static status split_at(jctx *c, jvalue s, jvalue by, int64_t most, jargs *list)
{
    size_t from = 0, cap = 0, at;
    while (most-- != 0 && (at = j_find(s, by, from)) != SIZE_MAX) {
        TRY(push_part(c, list, &cap, s, from, at));
        from = at + by.as.s->n;
    }
    return push_part(c, list, &cap, s, from, s.as.s->n);
}

static status split_at_back(jctx *c, jvalue s, jvalue by, int64_t most, jargs *list)
{
    size_t end = s.as.s->n, cap = 0, at;
    while (most-- != 0 && (at = j_find_last(s, by, end)) != SIZE_MAX) {
        TRY(push_part(c, list, &cap, s, at + by.as.s->n, end));
        end = at;
    }
    return push_part(c, list, &cap, s, 0, end);
}

static void reverse(jargs *list)
{
    for (size_t i = 0, j = list->n; i + 1 < j; i++) {
        const jvalue v = list->v[i];
        list->v[i] = list->v[--j];
        list->v[j] = v;
    }
}

/* split and rsplit */
static status method_split(jctx *c, const jcall *call, jvalue *out)
{
    const bool back = call->name[0] == 'r', space = call->a[0].kind == J_MISSING || call->a[0].kind == J_NONE;
    jargs list = {0};
    jvalue by;
    int64_t most;
    TRY(j_want_int(c, call, call->a[1], -1, &most));
    TRY(jspend(c, call->self.as.s->n / 16));
    if (space) {
        TRY((back ? split_space_back : split_space)(c, call->self, most, &list));
    } else {
        TRY(j_want_string(c, call, call->a[0], &by));
        if (by.as.s->n == 0) return jfail(c, "%s: empty separator", call->name);
        TRY((back ? split_at_back : split_at)(c, call->self, by, most, &list));
    }
    if (back) reverse(&list);
    return j_list(c, J_LIST, list.v, list.n, out);
}

static status method_splitlines(jctx *c, const jcall *call, jvalue *out)
{
    const bool keep = j_flag(call->a[0], false);
    const size_t n = call->self.as.s->n;
    jargs list = {0};
    size_t cap = 0;
    TRY(jspend(c, n / 16));
    for (size_t from = 0, end, next; from < n; from = next) {
        j_line(call->self.as.s, from, &end, &next);
        TRY(push_part(c, &list, &cap, call->self, from, keep ? next : end));
    }
    return j_list(c, J_LIST, list.v, list.n, out);
}

/* partition and rpartition */
static status method_partition(jctx *c, const jcall *call, jvalue *out)
{
    const bool back = call->name[0] == 'r';
    const size_t n = call->self.as.s->n;
    jargs list = {0};
    size_t cap = 0;
    jvalue by;
    TRY(j_want_string(c, call, call->a[0], &by));
    if (by.as.s->n == 0) return jfail(c, "%s: empty separator", call->name);
    size_t at = back ? j_find_last(call->self, by, n) : j_find(call->self, by, 0), after = at + by.as.s->n;
    if (at == SIZE_MAX) at = after = back ? 0 : n;
    TRY(push_part(c, &list, &cap, call->self, 0, at));
    TRY(push_part(c, &list, &cap, call->self, at, after));
    TRY(push_part(c, &list, &cap, call->self, after, n));
    return j_list(c, J_TUPLE, list.v, list.n, out);
}

/* strip, lstrip and rstrip */
static status method_strip(jctx *c, const jcall *call, jvalue *out)
{
    jvalue chars = call->a[0];
    if (chars.kind != J_MISSING && chars.kind != J_NONE) TRY(j_want_string(c, call, chars, &chars));
    return j_strip(c, call->self, chars, call->name[0] != 'r', call->name[0] != 'l', out);
}

static bool has_affix(jvalue s, jvalue affix, bool end)
{
    const jstr *a = s.as.s, *b = affix.as.s;
    return b->n <= a->n && memcmp(end ? a->s + a->n - b->n : a->s, b->s, b->n) == 0;
}

/* Stores s[start:end] of the call's second and third argument, and the byte offset of its start. */
static status window(jctx *c, const jcall *call, jvalue *out, size_t *start)
{
    const jvalue part[3] = {call->a[1], call->a[2], {0}};
    *start = 0;
    *out = call->self;
    if (part[0].kind == J_MISSING && part[1].kind == J_MISSING) return ST_OK;
    TRY(j_slice(c, call->self, part, out));
    if (out->kind != J_STRING) return jfail(c, "%s: start and end must be integers", call->name);
    *start = (size_t)(out->as.s->s - call->self.as.s->s);
    return ST_OK;
}

/* startswith and endswith */
static status method_affix(jctx *c, const jcall *call, jvalue *out)
{
    const bool tuple = call->a[0].kind == J_TUPLE;
    const size_t n = tuple ? call->a[0].as.l->n : 1;
    jvalue text, affix;
    size_t start;
    bool has = false;
    TRY(window(c, call, &text, &start));
    for (size_t i = 0; i < n; i++) {
        TRY(j_want_string(c, call, tuple ? call->a[0].as.l->v[i] : call->a[0], &affix));
        has |= has_affix(text, affix, call->name[0] == 'e');
    }
    *out = j_bool(has);
    return ST_OK;
}

/* removeprefix and removesuffix */
static status method_remove(jctx *c, const jcall *call, jvalue *out)
{
    const bool end = call->name[6] == 's';
    const size_t n = call->self.as.s->n;
    jvalue affix;
    TRY(j_want_string(c, call, call->a[0], &affix));
    const size_t cut = has_affix(call->self, affix, end) ? affix.as.s->n : 0;
    return j_substring(c, call->self, end ? 0 : cut, end ? n - cut : n, out);
}

/* find, rfind, index and rindex */
static status method_find(jctx *c, const jcall *call, jvalue *out)
{
    jvalue text, needle, before;
    size_t start;
    TRY(window(c, call, &text, &start));
    TRY(j_want_string(c, call, call->a[0], &needle));
    TRY(jspend(c, text.as.s->n / 16));
    const size_t at = call->name[0] == 'r' ? j_find_last(text, needle, text.as.s->n) : j_find(text, needle, 0);
    *out = j_int(-1);
    if (at == SIZE_MAX) return strstr(call->name, "index") ? jfail(c, "%s: substring not found", call->name) : ST_OK;
    TRY(j_substring(c, call->self, 0, start + at, &before));
    *out = j_int((int64_t)j_n_chars(before));
    return ST_OK;
}

static status method_count(jctx *c, const jcall *call, jvalue *out)
{
    jvalue text, needle;
    size_t start, at = 0;
    int64_t n = 0;
    TRY(window(c, call, &text, &start));
    TRY(j_want_string(c, call, call->a[0], &needle));
    TRY(jspend(c, text.as.s->n / 16));
    if (needle.as.s->n == 0) n = (int64_t)j_n_chars(text) + 1;
    else
        for (; (at = j_find(text, needle, at)) != SIZE_MAX; at += needle.as.s->n) n++;
    *out = j_int(n);
    return ST_OK;
}

static status method_replace(jctx *c, const jcall *call, jvalue *out)
{
    jvalue from, to;
    int64_t most;
    TRY(j_want_string(c, call, call->a[0], &from));
    TRY(j_want_string(c, call, call->a[1], &to));
    TRY(j_want_int(c, call, call->a[2], -1, &most));
    return j_replace(c, call->self, from, to, most, out);
}

static status method_join(jctx *c, const jcall *call, jvalue *out)
{
    jvalue *items;
    size_t n;
    jbuf b = {0};
    TRY(j_items(c, call->a[0], &items, &n));
    for (size_t i = 0; i < n; i++) {
        if (i) TRY(jbuf_put_str(c, &b, call->self));
        TRY(j_want_string(c, call, items[i], &items[i]));
        TRY(jbuf_put_str(c, &b, items[i]));
    }
    return jbuf_string(c, &b, out);
}

static status method_format(jctx *c, const jcall *call, jvalue *out)
{
    return j_format(c, call->self, call->args, out);
}

/* upper, lower, title, capitalize and swapcase */
static status method_case(jctx *c, const jcall *call, jvalue *out)
{
    static const char letters[] = {
        [CASE_LOWER] = 'l', [CASE_UPPER] = 'u', [CASE_TITLE] = 't', [CASE_CAPITAL] = 'c', [CASE_SWAP] = 's'};
    const char *p = memchr(letters, call->name[0], sizeof letters);
    return j_change_case(c, call->self, (jcase)(p - letters), out);
}

typedef enum {
    IS_UPPER = 1,
    IS_LOWER = 2,
    IS_ALPHA = 4,
    IS_DIGIT = 8,
    IS_NUMERIC = 16,
    IS_SPACE = 32,
    IS_TITLE = 64
} class;

static unsigned classes_of(int32_t ch)
{
    const unsigned space = is_python_space(ch) ? IS_SPACE : 0;
    switch (utf8proc_category(ch)) {
    case UTF8PROC_CATEGORY_LU: return IS_ALPHA | IS_UPPER;
    case UTF8PROC_CATEGORY_LL: return IS_ALPHA | IS_LOWER;
    case UTF8PROC_CATEGORY_LT: return IS_ALPHA | IS_TITLE;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return IS_ALPHA;
    case UTF8PROC_CATEGORY_ND: return IS_DIGIT | IS_NUMERIC;
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return IS_NUMERIC;
    default: return space;
    }
}

/* isalpha, isdigit and others: every character is of the class, and there is one. */
static status method_class(jctx *c, const jcall *call, jvalue *out)
{
    static const struct {
        const char *name;
        unsigned classes;
    } table[] = {{"isalnum", IS_ALPHA | IS_DIGIT | IS_NUMERIC},
                 {"isalpha", IS_ALPHA},
                 {"isdecimal", IS_DIGIT},
                 {"isdigit", IS_DIGIT},
                 {"isnumeric", IS_NUMERIC},
                 {"isspace", IS_SPACE}};
    const jstr *s = call->self.as.s;
    unsigned wanted = 0;
    bool all = s->n > 0;
    int32_t ch;
    (void)c;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(call->name, table[i].name) == 0) wanted = table[i].classes;
    for (size_t i = 0, k; i < s->n && (k = (size_t)char_at(s->s + i, s->n - i, &ch)); i += k)
        all &= (classes_of(ch) & wanted) != 0;
    *out = j_bool(all);
    return ST_OK;
}

/* isupper and islower: there are letters of this case and none of another. */
static status method_is_case(jctx *c, const jcall *call, jvalue *out)
{
    const jstr *s = call->self.as.s;
    const unsigned wanted = call->name[2] == 'u' ? IS_UPPER : IS_LOWER;
    bool some = false, other = false;
    int32_t ch;
    (void)c;
    for (size_t i = 0, k; i < s->n && (k = (size_t)char_at(s->s + i, s->n - i, &ch)); i += k) {
        const unsigned is = classes_of(ch) & (IS_UPPER | IS_LOWER | IS_TITLE);
        some |= is == wanted;
        other |= is && is != wanted;
    }
    *out = j_bool(some && !other);
    return ST_OK;
}

/* ljust, rjust, center and zfill */
static status method_pad(jctx *c, const jcall *call, jvalue *out)
{
    const bool zeros = call->name[0] == 'z';
    const int64_t n = (int64_t)j_n_chars(call->self);
    jvalue fill = call->a[1];
    int64_t width, left = 0;
    size_t sign = 0;
    jbuf b = {0};
    TRY(j_want_int(c, call, call->a[0], 0, &width));
    if (fill.kind == J_MISSING) TRY(j_string(c, zeros ? "0" : " ", 1, false, &fill));
    TRY(j_want_string(c, call, fill, &fill));
    if (j_n_chars(fill) != 1) return jfail(c, "%s: the fill must be one character", call->name);
    const int64_t pad = width > n ? width - n : 0;
    if (pad > JINJA_MAX_OUTPUT) return jfail(c, "%s: width too large", call->name);
    if (call->name[0] == 'r' || zeros) left = pad;
    else if (call->name[0] == 'c') left = pad / 2 + (pad & width & 1);
    if (zeros && call->self.as.s->n && strchr("+-", call->self.as.s->s[0])) sign = 1;
    TRY(jbuf_put_part(c, &b, call->self, 0, sign));
    for (int64_t i = 0; i < left; i++) TRY(jbuf_put_str(c, &b, fill));
    TRY(jbuf_put_part(c, &b, call->self, sign, call->self.as.s->n));
    for (int64_t i = left; i < pad; i++) TRY(jbuf_put_str(c, &b, fill));
    return jbuf_string(c, &b, out);
}

status j_call_string_method(jctx *c, const char *name, jvalue s, jvalue *out)
{
    return j_call_builtin(c, j_find_builtin(j_string_methods, name, strlen(name)), s, &(jargs){0}, out);
}

const jbuiltin j_string_methods[] = {
    {"capitalize", "", method_case},
    {"center", "width ?fill", method_pad},
    {"count", "sub ?start end", method_count},
    {"endswith", "suffix ?start end", method_affix},
    {"find", "sub ?start end", method_find},
    {"format", "*", method_format},
    {"index", "sub ?start end", method_find},
    {"isalnum", "", method_class},
    {"isalpha", "", method_class},
    {"isdecimal", "", method_class},
    {"isdigit", "", method_class},
    {"islower", "", method_is_case},
    {"isnumeric", "", method_class},
    {"isspace", "", method_class},
    {"isupper", "", method_is_case},
    {"join", "iterable", method_join},
    {"ljust", "width ?fill", method_pad},
    {"lower", "", method_case},
    {"lstrip", "?chars", method_strip},
    {"partition", "sep", method_partition},
    {"removeprefix", "prefix", method_remove},
    {"removesuffix", "suffix", method_remove},
    {"replace", "old new ?count", method_replace},
    {"rfind", "sub ?start end", method_find},
    {"rindex", "sub ?start end", method_find},
    {"rjust", "width ?fill", method_pad},
    {"rpartition", "sep", method_partition},
    {"rsplit", "?sep maxsplit", method_split},
    {"rstrip", "?chars", method_strip},
    {"split", "?sep maxsplit", method_split},
    {"splitlines", "?keepends", method_splitlines},
    {"startswith", "prefix ?start end", method_affix},
    {"strip", "?chars", method_strip},
    {"swapcase", "", method_case},
    {"title", "", method_case},
    {"upper", "", method_case},
    {"zfill", "width", method_pad},
    {0},
};
