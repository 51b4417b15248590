/* SPDX-License-Identifier: MIT */
/* Memory, limits, errors and variables of a template and its rendering. */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/jinja/impl.h"

struct jblock {
    jblock *next;
    char *at;
};

enum { ALIGN = 16, FIRST_BLOCK = 1 << 14, LARGEST_BLOCK = 1 << 20 };

static status over_limit(const jarena *a, err *e)
{
    return err_set(e, ST_FORMAT, "more than %zu MiB of memory", a->limit >> 20);
}

/* Adds a block with room for n bytes; blocks grow with the arena. */
static status add_block(jarena *a, size_t n, err *e)
{
    size_t size = a->total < FIRST_BLOCK ? FIRST_BLOCK : a->total < LARGEST_BLOCK ? a->total : LARGEST_BLOCK;
    char *p = NULL;
    if (size < n) size = n;
    if (size > a->limit - a->total) return over_limit(a, e);
    TRY(MEM_GROW(&p, size + ALIGN, e));
    jblock *b = (jblock *)(void *)p;
    *b = (jblock){.next = a->head, .at = p + ALIGN};
    a->head = b;
    a->left = size;
    a->total += size;
    return ST_OK;
}

status jarena_alloc(jarena *a, void **out, size_t n, size_t size, err *e)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > a->limit) return over_limit(a, e);
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (bytes > a->left || !a->head) TRY(add_block(a, bytes, e));
    *out = memset(a->head->at, 0, bytes);
    a->head->at += bytes;
    a->left -= bytes;
    return ST_OK;
}

void jarena_free(jarena *a)
{
    for (jblock *b = a->head, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    *a = (jarena){0};
}

status jfail(jctx *c, const char *fmt, ...)
{
    char what[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(c->e, ST_FORMAT, "%.100s:%d: %s", c->j->name, c->line, what);
}

status jalloc(jctx *c, void **out, size_t n, size_t size)
{
    err e;
    e.code = ST_OK;
    const status st = jarena_alloc(&c->arena, out, n, size, &e);
    return st == ST_OK ? st : st == ST_FORMAT ? jfail(c, "%s", e.msg) : err_set(c->e, st, "%s", e.msg);
}

const char *j_type_name(jvalue v)
{
    static const char *const names[] = {[J_MISSING] = "missing",
                                        [J_UNDEFINED] = "Undefined",
                                        [J_NONE] = "NoneType",
                                        [J_BOOL] = "bool",
                                        [J_INT] = "int",
                                        [J_FLOAT] = "float",
                                        [J_STRING] = "str",
                                        [J_LIST] = "list",
                                        [J_TUPLE] = "tuple",
                                        [J_RANGE] = "range",
                                        [J_GENERATOR] = "generator",
                                        [J_KEYS] = "dict_keys",
                                        [J_ITEMS] = "dict_items",
                                        [J_VALUES] = "dict_values",
                                        [J_DICT] = "dict",
                                        [J_NAMESPACE] = "Namespace",
                                        [J_MACRO] = "Macro",
                                        [J_BUILTIN] = "builtin_function_or_method",
                                        [J_LOOP] = "LoopContext"};
    return names[v.kind];
}

status jfail_undefined(jctx *c, jvalue v)
{
    const char *of = j_type_name((jvalue){.kind = v.of}), *name = v.why != WHY_ELEMENT && v.as.name ? v.as.name->s : "";
    switch ((jwhy)v.why) {
    case WHY_NAME: return jfail(c, "'%.60s' is undefined", name);
    case WHY_ATTRIBUTE: return jfail(c, "%s object has no attribute '%.60s'", of, name);
    case WHY_ELEMENT: return jfail(c, "%s object has no element %lld", of, (long long)v.as.i);
    case WHY_UNSAFE: return jfail(c, "access to attribute '%.60s' of %s object is unsafe", name, of);
    case WHY_ARGUMENT: return jfail(c, "parameter '%.60s' was not provided", name);
    case WHY_EMPTY: break;
    }
    return jfail(c, "the value is undefined");
}

status jfail_limit(jctx *c)
{
    if (c->depth > JINJA_MAX_DEPTH) return jfail(c, "evaluation is nested more than %d deep", JINJA_MAX_DEPTH);
    return jfail(c, "more than %d steps", JINJA_MAX_STEPS);
}

status jscope_push(jctx *c)
{
    jscope *s;
    TRY(JNEW(c, &s, 1));
    s->parent = c->scope;
    c->scope = s;
    return ST_OK;
}

status jscope_put(jctx *c, int name, jvalue v)
{
    jscope *s = c->scope;
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i].name == name) {
            s->v[i].v = v;
            return ST_OK;
        }
    if (s->n == s->cap) {
        struct jslot *wider;
        const size_t cap = s->cap ? 2 * s->cap : 4;
        TRY(JNEW(c, &wider, cap));
        if (s->n) memcpy(wider, s->v, s->n * sizeof *wider);
        s->v = wider;
        s->cap = cap;
    }
    s->v[s->n++] = (struct jslot){name, v};
    return ST_OK;
}

jvalue jscope_get(const jctx *c, int name)
{
    for (const jscope *s = c->scope; s; s = s->parent)
        for (size_t i = 0; i < s->n; i++)
            if (s->v[i].name == name) return s->v[i].v;
    return c->globals[name];
}
