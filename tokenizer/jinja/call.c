/* SPDX-License-Identifier: MIT */
/* Calls of built-in filters, tests, functions and methods. */
#include "config.h"

#include <string.h>

#include "tokenizer/jinja/impl.h"

const jbuiltin *j_find_builtin(const jbuiltin *table, const char *name, size_t n)
{
    for (; n > 0 && table->name; table++)
        if (table->name[0] == name[0] && strncmp(table->name, name, n) == 0 && table->name[n] == 0) return table;
    return NULL;
}

bool j_is(const jstr *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->s, text, s->n) == 0;
}

/* Stores the index of a parameter in *i. False if the specification has no such name. */
static bool find_parameter(const char *spec, const jstr *name, size_t *i)
{
    *i = 0;
    for (const char *p = spec; *p; ++*i) {
        p += *p == '?';
        const size_t n = strcspn(p, " ");
        if (n == name->n && memcmp(p, name->s, n) == 0) return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

/* Stores the numbers of parameters and of required ones. */
static void count_parameters(const char *spec, size_t *n, size_t *required)
{
    bool optional = false;
    *n = *required = 0;
    for (const char *p = spec; *p; ++*n) {
        optional |= *p == '?';
        *required += !optional;
        p += strcspn(p, " ");
        p += *p == ' ';
    }
}

static status bind_arguments(jctx *c, const jbuiltin *f, const jargs *args, jcall *call)
{
    size_t n, required, at;
    count_parameters(f->spec, &n, &required);
    if (args->n > n) return jfail(c, "%s takes at most %zu arguments, got %zu", f->name, n, args->n);
    for (size_t i = 0; i < args->n; i++) call->a[i] = args->v[i];
    for (size_t i = 0; i < args->n_named; i++) {
        const jstr *name = args->names[i];
        if (!find_parameter(f->spec, name, &at) || call->a[at].kind != J_MISSING)
            return jfail(c, "%s got an unexpected argument '%.40s'", f->name, name->s);
        call->a[at] = args->named[i];
    }
    for (size_t i = 0; i < required; i++)
        if (call->a[i].kind == J_MISSING) return jfail(c, "%s needs %zu arguments", f->name, required);
    return ST_OK;
}

status j_call_builtin(jctx *c, const jbuiltin *f, jvalue self, const jargs *args, jvalue *out)
{
    jcall call = {.name = f->name, .self = self, .args = args};
    TRY(jenter(c));
    if (*f->spec != '*') TRY(bind_arguments(c, f, args, &call));
    TRY(f->fn(c, &call, out));
    c->depth--;
    return ST_OK;
}

status j_call_named(jctx *c, bool test, jvalue name, jvalue self, const jargs *args, jvalue *out)
{
    if (name.kind != J_STRING) return jfail(c, "the name of a filter or test must be a string");
    const jbuiltin *b = j_find_builtin(c->j->tables[test ? TABLE_TESTS : TABLE_FILTERS], name.as.s->s, name.as.s->n);
    if (!b) return jfail(c, "no %s named '%.*s'", test ? "test" : "filter", (int)name.as.s->n, name.as.s->s);
    return j_call_builtin(c, b, self, args, out);
}

status j_want_string(jctx *c, const jcall *call, jvalue v, jvalue *out)
{
    if (v.kind != J_STRING) return jfail(c, "%s: expected a string, got %s", call->name, j_type_name(v));
    *out = v;
    return ST_OK;
}

status j_want_int(jctx *c, const jcall *call, jvalue v, int64_t preset, int64_t *out)
{
    *out = preset;
    if (v.kind == J_MISSING) return ST_OK;
    if (v.kind != J_INT && v.kind != J_BOOL)
        return jfail(c, "%s: expected an integer, got %s", call->name, j_type_name(v));
    *out = j_as_int(v);
    return ST_OK;
}

bool j_flag(jvalue v, bool preset)
{
    return v.kind == J_MISSING ? preset : j_truth(v);
}
