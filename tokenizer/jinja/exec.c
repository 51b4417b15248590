/* SPDX-License-Identifier: MIT */
/* Execution of statements: output, loops, assignments, macros. */
#include "config.h"

#include <string.h>

#include "tokenizer/jinja/impl.h"

static status assign(jctx *c, const jnode *target, jvalue v)
{
    jvalue *items, object;
    size_t n;
    if (target->type == N_NAME) return jscope_put(c, target->name, v);
    if (target->type == N_ATTRIBUTE) {
        TRY(j_eval(c, target->a, &object));
        if (object.kind != J_NAMESPACE) return jfail(c, "cannot assign attribute on non-namespace object");
        if (target->v.as.s->s[0] == '_')
            return jfail(c, "a namespace cannot have the attribute '%s'", target->v.as.s->s);
        return jdict_put(c, object.as.d, target->v, v);
    }
    if (v.kind == J_UNDEFINED) return jfail_undefined(c, v);
    TRY(j_items(c, v, &items, &n));
    if (n != target->n) return jfail(c, "expected %zu values to unpack, got %zu", target->n, n);
    for (size_t i = 0; i < n; i++) TRY(assign(c, target->list[i], items[i]));
    return ST_OK;
}

/* Reads the next item that passes the loop's filter into *v, or makes it missing. */
static status read_item(jctx *c, jloop *l, jvalue *v)
{
    while (l->at < l->n) {
        jscope *outer = c->scope;
        jvalue passes = j_bool(true);
        *v = l->items[l->at++];
        if (l->filter) {
            c->scope = l->scope;
            TRY(jscope_push(c));
            TRY(assign(c, l->target, *v));
            TRY(j_eval(c, l->filter, &passes));
            c->scope = outer;
        }
        if (j_truth(passes)) return ST_OK;
    }
    *v = (jvalue){0};
    return ST_OK;
}

static status look_ahead(jctx *c, jloop *l)
{
    return l->after.kind == J_MISSING ? read_item(c, l, &l->after) : ST_OK;
}

/* Stores the number of items; filters the rest now. */
static status loop_length(jctx *c, jloop *l, int64_t *length)
{
    size_t n = 0;
    jvalue v, *rest;
    if (l->filter) {
        TRY(look_ahead(c, l));
        TRY(JNEW(c, &rest, l->n - l->at + 1));
        for (;;) {
            TRY(read_item(c, l, &v));
            if (v.kind == J_MISSING) break;
            rest[n++] = v;
        }
        l->items = rest;
        l->n = n;
        l->at = 0;
        l->filter = NULL;
    }
    *length = l->index + 1 + (l->after.kind != J_MISSING) + (int64_t)(l->n - l->at);
    return ST_OK;
}

static status loop_cycle(jctx *c, const jcall *call, jvalue *out)
{
    const jargs *args = call->args;
    if (args->n == 0) return jfail(c, "no items for cycling given");
    *out = args->v[call->self.as.loop->index % (int64_t)args->n];
    return ST_OK;
}

static status loop_changed(jctx *c, const jcall *call, jvalue *out)
{
    jloop *l = call->self.as.loop;
    jvalue now;
    bool same;
    TRY(j_list(c, J_TUPLE, call->args->v, call->args->n, &now));
    TRY(j_equal(c, l->seen, now, &same));
    l->seen = now;
    *out = j_bool(!same);
    return ST_OK;
}

const jbuiltin j_loop_methods[] = {{"cycle", "*", loop_cycle}, {"changed", "*", loop_changed}, {0}};

static jvalue item_or_undefined(jvalue v, const jstr *name)
{
    return v.kind == J_MISSING ? j_undefined(WHY_ATTRIBUTE, J_LOOP, name) : v;
}

static status loop_attribute(jctx *c, jvalue v, const jstr *name, jvalue *out)
{
    jloop *l = v.as.loop;
    int64_t n;
    if (j_is(name, "index")) *out = j_int(l->index + 1);
    else if (j_is(name, "index0")) *out = j_int(l->index);
    else if (j_is(name, "first")) *out = j_bool(l->index == 0);
    else if (j_is(name, "depth")) *out = j_int(1);
    else if (j_is(name, "depth0")) *out = j_int(0);
    else if (j_is(name, "previtem")) *out = item_or_undefined(l->before, name);
    else if (j_is(name, "last") || j_is(name, "nextitem")) {
        TRY(look_ahead(c, l));
        *out = j_is(name, "last") ? j_bool(l->after.kind == J_MISSING) : item_or_undefined(l->after, name);
    } else if (j_is(name, "length") || j_is(name, "revindex") || j_is(name, "revindex0")) {
        TRY(loop_length(c, l, &n));
        *out = j_int(j_is(name, "length") ? n : n - l->index - j_is(name, "revindex0"));
    } else {
        return j_bind_method(c, c->j->tables[TABLE_LOOP], v, name, out);
    }
    return ST_OK;
}

/* Advances to the next item. *some: there is one. */
static status loop_next(jctx *c, jloop *l, bool *some)
{
    TRY(look_ahead(c, l));
    l->before = l->now;
    l->now = l->after;
    l->after = (jvalue){0};
    l->index++;
    *some = l->now.kind != J_MISSING;
    return ST_OK;
}

static status exec_scoped(jctx *c, const jnode *body)
{
    jscope *outer = c->scope;
    TRY(jscope_push(c));
    TRY(j_exec(c, body));
    c->scope = outer;
    return ST_OK;
}

/* Starts an iteration in an empty scope: that of the iteration before, unless a macro keeps it. */
static status enter_body(jctx *c, jscope **body)
{
    if (!*body || (*body)->kept) {
        TRY(jscope_push(c));
        *body = c->scope;
    }
    c->scope = *body;
    c->scope->n = 0;
    return ST_OK;
}

static status exec_for(jctx *c, const jnode *n)
{
    jscope *body = NULL;
    jvalue iterable, loop = {.kind = J_LOOP};
    bool some, completed = false; /* completed: a body ran to its end, without which else follows as in jinja2 */
    TRY(j_eval(c, n->b, &iterable));
    TRY(JNEW(c, &loop.as.loop, 1));
    jloop *l = loop.as.loop;
    *l = (jloop){.attribute = loop_attribute, .target = n->a, .filter = n->c, .scope = c->scope, .index = -1};
    TRY(j_items(c, iterable, &l->items, &l->n));
    for (;;) {
        TRY(loop_next(c, l, &some));
        if (!some) break;
        TRY(enter_body(c, &body));
        TRY(jscope_put(c, n->name, loop));
        TRY(assign(c, n->a, l->now));
        TRY(j_exec(c, n->list[0]));
        c->scope = l->scope;
        const bool leave = c->flow == FLOW_BREAK;
        completed |= c->flow == FLOW_ON;
        c->flow = FLOW_ON;
        if (leave) break;
    }
    return !completed && n->n > 1 ? exec_scoped(c, n->list[1]) : ST_OK;
}

/* Executes a body in its own scope and stores its output. */
static status capture(jctx *c, const jnode *body, jvalue *out)
{
    jbuf b = {0}, *outer = c->out;
    c->out = &b;
    TRY(exec_scoped(c, body));
    c->out = outer;
    return jbuf_string(c, &b, out);
}

static status apply_filter(jctx *c, const jnode *filter, jvalue body, jvalue *out)
{
    const jvalue outer = c->filtered;
    c->filtered = body;
    TRY(j_eval(c, filter, out));
    c->filtered = outer;
    return ST_OK;
}

static status exec_set(jctx *c, const jnode *n)
{
    jvalue v;
    if (n->type == N_SET) {
        TRY(j_eval(c, n->b, &v));
    } else {
        TRY(capture(c, n->b, &v));
        if (n->c) TRY(apply_filter(c, n->c, v, &v));
    }
    return assign(c, n->a, v);
}

static status exec_filter(jctx *c, const jnode *n)
{
    jvalue v;
    TRY(capture(c, n->b, &v));
    TRY(apply_filter(c, n->a, v, &v));
    return j_print(c, c->out, v);
}

/* Executes a body in a new scope with assignments whose values are from the outer scope. */
static status exec_with(jctx *c, const jnode *n)
{
    jscope *outer = c->scope;
    jvalue *v;
    TRY(JNEW(c, &v, n->n));
    for (size_t i = 0; i < n->n; i++) TRY(j_eval(c, n->list[i]->b, &v[i]));
    TRY(jscope_push(c));
    for (size_t i = 0; i < n->n; i++) TRY(assign(c, n->list[i]->a, v[i]));
    TRY(j_exec(c, n->a));
    c->scope = outer;
    return ST_OK;
}

/* Stores the arguments that no parameter takes as the variables varargs, kwargs and caller. */
static status put_extra(jctx *c, const jnode *n, const jargs *args, const bool *taken)
{
    jvalue v = {.kind = J_DICT};
    const size_t extra = args->n > n->n ? args->n - n->n : 0;
    if (extra && !(n->uses & USES_VARARGS))
        return jfail(c, "macro takes at most %zu arguments, got %zu", n->n, args->n);
    TRY(JNEW(c, &v.as.d, 1));
    for (size_t i = 0; i < args->n_named; i++) {
        if (taken[i]) continue;
        if (j_is(args->names[i], "caller") && n->uses & USES_CALLER) {
            TRY(jscope_put(c, n->special[0], args->named[i]));
            continue;
        }
        if (!(n->uses & USES_KWARGS)) return jfail(c, "macro has no parameter '%.40s'", args->names[i]->s);
        TRY(jdict_put(c, v.as.d, (jvalue){.kind = J_STRING, .as.s = args->names[i]}, args->named[i]));
        v.input |= args->named[i].input;
    }
    if (n->uses & USES_KWARGS) TRY(jscope_put(c, n->special[2], v));
    if (!(n->uses & USES_VARARGS)) return ST_OK;
    TRY(j_list(c, J_TUPLE, extra ? args->v + n->n : NULL, extra, &v));
    return jscope_put(c, n->special[1], v);
}

/* Stores the values of a macro's parameters in the current scope. */
static status bind_parameters(jctx *c, const jnode *n, const jargs *args)
{
    bool *taken;
    TRY(JNEW(c, &taken, args->n_named));
    for (size_t i = 0; i < n->n; i++) {
        const jnode *param = n->list[i];
        jvalue v = i < args->n ? args->v[i] : (jvalue){0};
        for (size_t k = 0; k < args->n_named; k++) {
            const jstr *name = args->names[k];
            if (name->n != param->v.as.s->n || memcmp(name->s, param->v.as.s->s, name->n) != 0) continue;
            if (v.kind != J_MISSING) return jfail(c, "parameter '%.40s' is given twice", name->s);
            v = args->named[k];
            taken[k] = true;
        }
        if (v.kind == J_MISSING && param->a) TRY(j_eval(c, param->a, &v));
        if (v.kind == J_MISSING) v = j_undefined(WHY_ARGUMENT, J_MACRO, param->v.as.s);
        TRY(jscope_put(c, param->name, v));
    }
    return put_extra(c, n, args, taken);
}

static status call_macro(jctx *c, const jmacro *m, const jargs *args, jvalue *out)
{
    jscope *outer = c->scope;
    const int line = c->line;
    TRY(jenter(c));
    c->scope = m->scope;
    TRY(jscope_push(c));
    TRY(bind_parameters(c, m->node, args));
    TRY(capture(c, m->node->a, out));
    c->scope = outer;
    c->line = line;
    c->depth--;
    return ST_OK;
}

static status make_macro(jctx *c, const jnode *n, jvalue *out)
{
    jmacro *m;
    for (jscope *s = c->scope; s; s = s->parent) s->kept = true;
    TRY(JNEW(c, &m, 1));
    *m = (jmacro){call_macro, n, c->scope};
    *out = (jvalue){.kind = J_MACRO, .as.macro = m};
    return ST_OK;
}

static status exec_call_block(jctx *c, const jnode *n)
{
    static const jstr caller = {.s = "caller", .n = 6};
    jvalue f, macro, result;
    jargs args;
    TRY(j_eval(c, n->a->a, &f));
    TRY(j_eval_arguments(c, n->a, &args));
    TRY(make_macro(c, n->b, &macro));
    TRY(j_add_named(c, &args, &caller, macro));
    TRY(j_call(c, f, &args, &result));
    return j_print(c, c->out, result);
}

static status exec_if(jctx *c, const jnode *n)
{
    jvalue condition;
    for (;; n = n->c) {
        TRY(j_eval(c, n->a, &condition));
        if (j_truth(condition)) return j_exec(c, n->b);
        if (!n->c) return ST_OK;
        if (n->c->type != N_IF) return j_exec(c, n->c);
    }
}

static status exec_block(jctx *c, const jnode *n)
{
    for (size_t i = 0; i < n->n && c->flow == FLOW_ON; i++) TRY(j_exec(c, n->list[i]));
    return ST_OK;
}

static status exec_node(jctx *c, const jnode *n)
{
    jvalue v;
    switch (n->type) {
    case N_TEXT: return jbuf_put_str(c, c->out, n->v);
    case N_OUTPUT: TRY(j_eval(c, n->a, &v)); return j_print(c, c->out, v);
    case N_BLOCK: return exec_block(c, n);
    case N_IF: return exec_if(c, n);
    case N_FOR: return exec_for(c, n);
    case N_SET:
    case N_SET_BODY: return exec_set(c, n);
    case N_MACRO: TRY(make_macro(c, n, &v)); return jscope_put(c, n->name, v);
    case N_CALL_BODY: return exec_call_block(c, n);
    case N_FILTER_BODY: return exec_filter(c, n);
    case N_SCOPE: return exec_with(c, n);
    case N_BREAK: c->flow = FLOW_BREAK; return ST_OK;
    case N_CONTINUE: c->flow = FLOW_CONTINUE; return ST_OK;
    default: return jfail(c, "not a statement");
    }
}

status j_exec(jctx *c, const jnode *n)
{
    TRY(jenter(c));
    c->line = n->line;
    TRY(exec_node(c, n));
    c->depth--;
    return ST_OK;
}
