/* SPDX-License-Identifier: MIT */
/* Global functions, and methods of dicts and lists. */
#include "config.h"

#include <string.h>

#include "tokenizer/jinja/builtins.h"

static status function_range(jctx *c, const jcall *call, jvalue *out)
{
    int64_t from = 0, to, step, span, n = 0;
    const bool one = call->a[1].kind == J_MISSING;
    TRY(j_want_int(c, call, call->a[one ? 0 : 1], 0, &to));
    if (!one) TRY(j_want_int(c, call, call->a[0], 0, &from));
    TRY(j_want_int(c, call, call->a[2], 1, &step));
    if (step == 0) return jfail(c, "range: step must not be zero");
    if (step > 0 ? to > from : to < from) {
        if (step == INT64_MIN || __builtin_sub_overflow(step > 0 ? to : from, step > 0 ? from : to, &span))
            return jfail(c, "range: integer overflow");
        n = (span - 1) / (step > 0 ? step : -step) + 1;
    }
    if (n > JINJA_MAX_RANGE) return jfail(c, "range: more than %d items", JINJA_MAX_RANGE);
    jvalue *v;
    TRY(JNEW(c, &v, n));
    for (int64_t i = 0; i < n; i++) v[i] = j_int(from + i * step);
    TRY(j_list(c, J_RANGE, v, (size_t)n, out));
    out->as.l->from = from;
    out->as.l->to = to;
    out->as.l->stride = step;
    return ST_OK;
}

/* Adds the pairs of a dict, or of a sequence of pairs. */
static status add_pairs(jctx *c, jdict *d, jvalue v)
{
    jvalue *items, *pair;
    size_t n, two;
    if (v.kind == J_DICT || v.kind == J_NAMESPACE) {
        for (size_t i = 0; i < v.as.d->n; i++) TRY(jdict_put(c, d, v.as.d->v[i].key, v.as.d->v[i].value));
        return ST_OK;
    }
    TRY(j_items(c, v, &items, &n));
    for (size_t i = 0; i < n; i++) {
        TRY(j_items(c, items[i], &pair, &two));
        if (two != 2) return jfail(c, "element %zu of a dict's pairs has %zu items, expected 2", i, two);
        TRY(jdict_put(c, d, pair[0], pair[1]));
    }
    return ST_OK;
}

static status function_dict(jctx *c, const jcall *call, jvalue *out)
{
    const jargs *args = call->args;
    if (args->n > 1) return jfail(c, "%s takes at most 1 positional argument, got %zu", call->name, args->n);
    *out = (jvalue){.kind = J_DICT};
    TRY(JNEW(c, &out->as.d, 1));
    if (args->n) TRY(add_pairs(c, out->as.d, args->v[0]));
    for (size_t i = 0; i < args->n_named; i++)
        TRY(jdict_put(c, out->as.d, (jvalue){.kind = J_STRING, .as.s = args->names[i]}, args->named[i]));
    for (size_t i = 0; i < out->as.d->n; i++) out->input |= out->as.d->v[i].key.input || out->as.d->v[i].value.input;
    return ST_OK;
}

static status function_namespace(jctx *c, const jcall *call, jvalue *out)
{
    TRY(function_dict(c, call, out));
    out->kind = J_NAMESPACE;
    for (size_t i = 0; i < out->as.d->n; i++) {
        const jvalue key = out->as.d->v[i].key;
        if (key.kind == J_STRING && key.as.s->s[0] == '_')
            return jfail(c, "a namespace cannot have the attribute '%.40s'", key.as.s->s);
    }
    return ST_OK;
}

static status function_raise(jctx *c, const jcall *call, jvalue *out)
{
    (void)out;
    TRY(j_to_string(c, call->a[0], &c->raised));
    const jstr *s = c->raised.as.s;
    return err_set(c->e, ST_USAGE, "%.*s", (int)(s->n < 255 ? s->n : 255), s->s);
}

static status function_strftime(jctx *c, const jcall *call, jvalue *out)
{
    jvalue format;
    TRY(j_want_string(c, call, call->a[0], &format));
    return j_strftime(c, format, out);
}

const jbuiltin j_functions[] = {
    {"range", "start ?stop step", function_range}, {"dict", "*", function_dict},
    {"namespace", "*", function_namespace},        {"raise_exception", "message", function_raise},
    {"strftime_now", "format", function_strftime}, {0},
};

static status dict_get(jctx *c, const jcall *call, jvalue *out)
{
    TRY(j_want_hashable(c, call->a[0]));
    const jvalue *v = jdict_find(c, call->self.as.d, call->a[0]);
    *out = v ? *v : call->a[1].kind == J_MISSING ? j_none : call->a[1];
    return ST_OK;
}

static status dict_parts(jctx *c, jvalue dict, jkind kind, jvalue *out)
{
    const jdict *d = dict.as.d;
    jvalue *v, *pair;
    TRY(jspend(c, d->n));
    TRY(JNEW(c, &v, d->n));
    for (size_t i = 0; i < d->n; i++) {
        v[i] = kind == J_KEYS ? d->v[i].key : d->v[i].value;
        if (kind != J_ITEMS) continue;
        TRY(JNEW(c, &pair, 2));
        pair[0] = d->v[i].key;
        pair[1] = d->v[i].value;
        TRY(j_list(c, J_TUPLE, pair, 2, &v[i]));
    }
    TRY(j_list(c, kind, v, d->n, out));
    out->input |= dict.input;
    return ST_OK;
}

status j_dict_items(jctx *c, jvalue dict, jvalue *out)
{
    return dict_parts(c, dict, J_ITEMS, out);
}

static status dict_view(jctx *c, const jcall *call, jvalue *out)
{
    return dict_parts(c, call->self, call->name[0] == 'k' ? J_KEYS : call->name[0] == 'v' ? J_VALUES : J_ITEMS, out);
}

static status copy(jctx *c, const jcall *call, jvalue *out)
{
    (void)c;
    *out = call->self; /* values do not change */
    return ST_OK;
}

const jbuiltin j_dict_methods[] = {
    {"get", "key ?default", dict_get},
    {"items", "", dict_view},
    {"keys", "", dict_view},
    {"values", "", dict_view},
    {"copy", "", copy},
    {"clear", "", NULL},
    {"pop", "*", NULL},
    {"popitem", "", NULL},
    {"setdefault", "*", NULL},
    {"update", "*", NULL},
    {0},
};

static status list_count(jctx *c, const jcall *call, jvalue *out)
{
    const jlist *l = call->self.as.l;
    int64_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        bool same;
        TRY(j_equal(c, l->v[i], call->a[0], &same));
        n += same;
    }
    *out = j_int(n);
    return ST_OK;
}

static status list_index(jctx *c, const jcall *call, jvalue *out)
{
    const jlist *l = call->self.as.l;
    for (size_t i = 0; i < l->n; i++) {
        bool same;
        TRY(j_equal(c, l->v[i], call->a[0], &same));
        if (!same) continue;
        *out = j_int((int64_t)i);
        return ST_OK;
    }
    return jfail(c, "index: the item is not in the list");
}

const jbuiltin j_tuple_methods[] = {{"count", "x", list_count}, {"index", "x", list_index}, {0}};

const jbuiltin j_list_methods[] = {
    {"count", "x", list_count}, {"index", "x", list_index}, {"copy", "", copy},    {"append", "*", NULL},
    {"clear", "*", NULL},       {"extend", "*", NULL},      {"insert", "*", NULL}, {"pop", "*", NULL},
    {"remove", "*", NULL},      {"reverse", "*", NULL},     {"sort", "*", NULL},   {0},
};
