/* SPDX-License-Identifier: MIT */
/* Evaluation of expressions. */
#include "config.h"

#include <string.h>

#include "tokenizer/jinja/impl.h"

status j_call(jctx *c, jvalue f, const jargs *args, jvalue *out)
{
    if (f.kind == J_UNDEFINED) return jfail_undefined(c, f);
    if (f.kind == J_MACRO) return f.as.macro->call(c, f.as.macro, args, out);
    if (f.kind == J_BUILTIN) return j_call_builtin(c, f.as.method->builtin, f.as.method->self, args, out);
    return jfail(c, "'%s' object is not callable", j_type_name(f));
}

static status spread_list(jctx *c, jvalue list, jargs *args)
{
    jvalue *items, *wider;
    size_t n;
    TRY(j_items(c, list, &items, &n));
    TRY(JNEW(c, &wider, args->n + n));
    if (args->n) memcpy(wider, args->v, args->n * sizeof *wider);
    if (n) memcpy(wider + args->n, items, n * sizeof *wider);
    args->v = wider;
    args->n += n;
    return ST_OK;
}

status j_add_named(jctx *c, jargs *args, const jstr *name, jvalue v)
{
    for (size_t i = 0; i < args->n_named; i++)
        if (args->names[i]->n == name->n && memcmp(args->names[i]->s, name->s, name->n) == 0)
            return jfail(c, "argument '%.40s' is given twice", name->s);
    TRY(jspend(c, 1 + args->n_named / 8));
    if ((args->n_named & (args->n_named - 1)) == 0) { /* full at each power of two */
        const size_t cap = args->n_named ? 2 * args->n_named : 1;
        const jstr **names;
        jvalue *named;
        TRY(JNEW(c, &names, cap));
        TRY(JNEW(c, &named, cap));
        for (size_t i = 0; i < args->n_named; i++) {
            names[i] = args->names[i];
            named[i] = args->named[i];
        }
        args->names = names;
        args->named = named;
    }
    args->names[args->n_named] = name;
    args->named[args->n_named++] = v;
    return ST_OK;
}

/* Appends an argument after a spread list. */
static status append(jctx *c, jargs *args, jvalue v)
{
    jvalue list;
    TRY(j_list(c, J_LIST, &v, 1, &list));
    return spread_list(c, list, args);
}

static status spread_dict(jctx *c, jvalue dict, jargs *args)
{
    if (dict.kind != J_DICT) return jfail(c, "argument after ** must be a dict, not %s", j_type_name(dict));
    for (size_t i = 0; i < dict.as.d->n; i++) {
        if (dict.as.d->v[i].key.kind != J_STRING) return jfail(c, "keywords must be strings");
        TRY(j_add_named(c, args, dict.as.d->v[i].key.as.s, dict.as.d->v[i].value));
    }
    return ST_OK;
}

status j_eval_arguments(jctx *c, const jnode *call, jargs *args)
{
    *args = (jargs){0};
    if (call->n) TRY(JNEW(c, &args->v, call->n));
    for (size_t i = 0; i < call->n; i++) {
        const jnode *arg = call->list[i];
        const bool plain = arg->type != N_KEYWORD && arg->type != N_STAR && arg->type != N_DOUBLE_STAR;
        jvalue v;
        TRY(j_eval(c, plain ? arg : arg->a, &v));
        if (arg->type == N_KEYWORD) TRY(j_add_named(c, args, arg->v.as.s, v));
        else if (arg->type == N_DOUBLE_STAR) TRY(spread_dict(c, v, args));
        else if (arg->type == N_STAR) TRY(spread_list(c, v, args));
        else if (args->n == i) args->v[args->n++] = v;
        else TRY(append(c, args, v));
    }
    return ST_OK;
}

static status eval_call(jctx *c, const jnode *n, jvalue *out)
{
    jvalue f;
    jargs args;
    TRY(j_eval(c, n->a, &f));
    TRY(j_eval_arguments(c, n, &args));
    c->line = n->line;
    return j_call(c, f, &args, out);
}

/* Evaluates a filter or test. */
static status eval_named(jctx *c, const jnode *n, jvalue *out)
{
    jvalue self = c->filtered;
    jargs args;
    if (n->a) TRY(j_eval(c, n->a, &self));
    TRY(j_eval_arguments(c, n, &args));
    c->line = n->line;
    return n->builtin ? j_call_builtin(c, n->builtin, self, &args, out)
                      : j_call_named(c, n->type == N_TEST, n->v, self, &args, out);
}

static status eval_list(jctx *c, const jnode *n, jvalue *out)
{
    jvalue *v;
    TRY(JNEW(c, &v, n->n));
    for (size_t i = 0; i < n->n; i++) TRY(j_eval(c, n->list[i], &v[i]));
    return j_list(c, n->type == N_LIST ? J_LIST : J_TUPLE, v, n->n, out);
}

static status eval_dict(jctx *c, const jnode *n, jvalue *out)
{
    jdict *d;
    bool input = false;
    TRY(JNEW(c, &d, 1));
    for (size_t i = 0; i + 1 < n->n; i += 2) {
        jvalue key, value;
        TRY(j_eval(c, n->list[i], &key));
        TRY(j_eval(c, n->list[i + 1], &value));
        TRY(jdict_put(c, d, key, value));
        input |= key.input || value.input;
    }
    *out = (jvalue){.kind = J_DICT, .input = input, .as.d = d};
    return ST_OK;
}

static status eval_item(jctx *c, const jnode *n, jvalue *out)
{
    jvalue object, key, part[3] = {0};
    TRY(j_eval(c, n->a, &object));
    if (n->b->type != N_SLICE) {
        TRY(j_eval(c, n->b, &key));
        c->line = n->line;
        return j_item(c, object, key, out);
    }
    for (int i = 0; i < 3; i++)
        if (n->b->list[i]) TRY(j_eval(c, n->b->list[i], &part[i]));
    return j_slice(c, object, part, out);
}

static status eval_logical(jctx *c, const jnode *n, jvalue *out)
{
    TRY(j_eval(c, n->a, out));
    return j_truth(*out) == (n->type == N_AND) ? j_eval(c, n->b, out) : ST_OK;
}

static status eval_choice(jctx *c, const jnode *n, jvalue *out)
{
    jvalue condition;
    TRY(j_eval(c, n->b, &condition));
    if (j_truth(condition)) return j_eval(c, n->a, out);
    *out = j_undefined(WHY_EMPTY, J_NONE, NULL);
    return n->c ? j_eval(c, n->c, out) : ST_OK;
}

static status eval_sign(jctx *c, const jnode *n, jvalue *out)
{
    jvalue v;
    TRY(j_eval(c, n->a, &v));
    if (v.kind == J_UNDEFINED) return jfail_undefined(c, v);
    if (!j_is_number(v)) return jfail(c, "a %s has no sign", j_type_name(v));
    if (n->type == N_PLUS && v.kind != J_BOOL) {
        *out = v;
        return ST_OK;
    }
    if (v.kind != J_FLOAT) return j_binary(c, n->type == N_PLUS ? OP_ADD : OP_SUB, j_int(0), v, out);
    *out = v;
    out->as.f = -v.as.f;
    return ST_OK;
}

static status eval_concat(jctx *c, const jnode *n, jvalue *out)
{
    jvalue *v;
    TRY(JNEW(c, &v, n->n));
    for (size_t i = 0; i < n->n; i++) {
        TRY(j_eval(c, n->list[i], &v[i]));
        TRY(j_to_string(c, v[i], &v[i]));
    }
    return j_concat(c, v, n->n, out);
}

static status compare_pair(jctx *c, jop op, jvalue a, jvalue b, bool *out)
{
    int sign;
    if (op == OP_IN || op == OP_NOT_IN) {
        TRY(j_contains(c, b, a, out));
        *out ^= op == OP_NOT_IN;
        return ST_OK;
    }
    if (op == OP_EQ || op == OP_NE) {
        TRY(j_equal(c, a, b, out));
        *out ^= op == OP_NE;
        return ST_OK;
    }
    TRY(j_compare(c, a, b, &sign));
    *out = op == OP_LT ? sign == -1 : op == OP_LE ? sign <= 0 : op == OP_GT ? sign == 1 : sign == 0 || sign == 1;
    return ST_OK;
}

/* Evaluates a chain of comparisons, which ends at the first false one. */
static status eval_compare(jctx *c, const jnode *n, jvalue *out)
{
    jvalue left, right;
    bool holds = true;
    TRY(j_eval(c, n->a, &left));
    for (size_t i = 0; holds && i < n->n; i++) {
        TRY(j_eval(c, n->list[i]->b, &right));
        c->line = n->line;
        TRY(compare_pair(c, n->list[i]->op, left, right, &holds));
        left = right;
    }
    *out = j_bool(holds);
    return ST_OK;
}

static status eval_node(jctx *c, const jnode *n, jvalue *out)
{
    jvalue a, b;
    switch (n->type) {
    case N_CONST: *out = n->v; return ST_OK;
    case N_NAME: *out = jscope_get(c, n->name); return ST_OK;
    case N_LIST:
    case N_TUPLE: return eval_list(c, n, out);
    case N_DICT: return eval_dict(c, n, out);
    case N_ATTRIBUTE:
        TRY(j_eval(c, n->a, &a));
        c->line = n->line;
        return j_attribute(c, a, n->v.as.s, out);
    case N_ITEM: return eval_item(c, n, out);
    case N_CALL: return eval_call(c, n, out);
    case N_FILTER:
    case N_TEST: return eval_named(c, n, out);
    case N_NOT:
        TRY(j_eval(c, n->a, &a));
        *out = j_bool(!j_truth(a));
        return ST_OK;
    case N_NEGATE:
    case N_PLUS: return eval_sign(c, n, out);
    case N_AND:
    case N_OR: return eval_logical(c, n, out);
    case N_CHOICE: return eval_choice(c, n, out);
    case N_BINARY:
        TRY(j_eval(c, n->a, &a));
        TRY(j_eval(c, n->b, &b));
        c->line = n->line;
        return j_binary(c, n->op, a, b, out);
    case N_CONCAT: return eval_concat(c, n, out);
    case N_COMPARE: return eval_compare(c, n, out);
    default: return jfail(c, "not an expression");
    }
}

status j_eval(jctx *c, const jnode *n, jvalue *out)
{
    TRY(jenter(c));
    c->line = n->line;
    TRY(eval_node(c, n, out));
    c->depth--;
    return ST_OK;
}
