/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/jinja/jinja.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/jinja/impl.h"

static const jbuiltin *const tables[] = {
    [TABLE_FILTERS] = j_filters,       [TABLE_TESTS] = j_tests,       [TABLE_FUNCTIONS] = j_functions,
    [TABLE_STRING] = j_string_methods, [TABLE_DICT] = j_dict_methods, [TABLE_LIST] = j_list_methods,
    [TABLE_TUPLE] = j_tuple_methods,   [TABLE_LOOP] = j_loop_methods,
};

status jinja_parse(jinja **out, const char *text, size_t n, const char *name, err *e)
{
    jinja *j;
    char *copy;
    status st;
    *out = NULL;
    TRY(MEM_NEW(&j, 1, e));
    j->arena.limit = JINJA_MAX_MEMORY;
    TRY_GOTO(JARENA_NEW(&j->arena, &copy, strlen(name) + 1, e));
    memcpy(copy, name, strlen(name));
    j->name = copy;
    j->tables = tables;
    TRY_GOTO(jparse(j, text, n, e));
    *out = j;
done:
    if (st != ST_OK) jinja_free(j);
    return st;
}

status jinja_set_constants(jinja *j, const json_t *strings, err *e)
{
    TRY(JARENA_NEW(&j->arena, &j->constants, j->n_names, e));
    for (size_t i = 0; i < j->n_names; i++) {
        const json_t *v = json_object_get(strings, j->names[i]->s);
        const size_t n = json_string_length(v);
        jstr *text;
        char *copy;
        if (!json_is_string(v)) continue;
        TRY(JARENA_NEW(&j->arena, &text, 1, e));
        TRY(JARENA_NEW(&j->arena, &copy, n + 1, e));
        memcpy(copy, json_string_value(v), n);
        *text = (jstr){.s = copy, .n = n};
        j->constants[i] = text;
    }
    return ST_OK;
}

void jinja_free(jinja *j)
{
    if (!j) return;
    jarena_free(&j->arena);
    mem_free(j->names);
    mem_free(j);
}

void jinja_text_free(jinja_text *t)
{
    mem_free(t->text);
    mem_free(t->input);
    *t = (jinja_text){0};
}

/* Sets the variables and functions that the template names. */
static status set_globals(jctx *c, const json_t *variables)
{
    TRY(JNEW(c, &c->globals, c->j->n_names));
    for (size_t i = 0; i < c->j->n_names; i++) {
        const jstr *name = c->j->names[i];
        const json_t *v = json_object_get(variables, name->s);
        const jbuiltin *f = j_find_builtin(j_functions, name->s, name->n);
        jmethod *m;
        c->globals[i] = j_undefined(WHY_NAME, J_NONE, name);
        if (v) {
            TRY(j_from_json(c, v, &c->globals[i]));
        } else if (c->j->constants && c->j->constants[i]) {
            c->globals[i] = (jvalue){.kind = J_STRING, .as.s = c->j->constants[i]};
        } else if (f) {
            TRY(JNEW(c, &m, 1));
            m->builtin = f;
            c->globals[i] = (jvalue){.kind = J_BUILTIN, .as.method = m};
        }
    }
    return jscope_push(c);
}

static status copy_out(const jbuf *b, jinja_text *out, err *e)
{
    TRY(MEM_NEW(&out->text, b->n + 1, e));
    TRY(MEM_NEW(&out->input, b->n, e));
    if (b->n) {
        memcpy(out->text, b->s, b->n);
        if (b->marks) memcpy(out->input, b->marks, b->n);
        else memset(out->input, b->input, b->n);
    }
    out->n = b->n;
    return ST_OK;
}

status jinja_render(const jinja *j, const json_t *variables, int64_t now, jinja_text *out, err *e)
{
    jbuf text = {0}, message = {0};
    err own = {0};
    jctx c = {.arena.limit = JINJA_MAX_MEMORY, .j = j, .e = e ? e : &own, .now = now, .out = &text};
    status st;
    *out = (jinja_text){0};
    TRY_GOTO(set_globals(&c, variables));
    TRY_GOTO(j_exec(&c, j->root));
    TRY_GOTO(copy_out(&text, out, c.e));
done:
    if (st == ST_USAGE && (jbuf_put_str(&c, &message, c.raised) != ST_OK || copy_out(&message, out, NULL) != ST_OK))
        st = ST_NOMEM;
    if (st != ST_OK && st != ST_USAGE) jinja_text_free(out);
    jarena_free(&c.arena);
    return st;
}
