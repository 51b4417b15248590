/* SPDX-License-Identifier: MIT */
/* Statements of a template. */
#include "config.h"

#include <string.h>

#include "tokenizer/jinja/parser.h"

static status parse_body(jparser *p, const char *const *ends, jnode **out);

static const char *const end_if[] = {"elif", "else", "endif", NULL}, *const end_else[] = {"endif", NULL};
static const char *const end_for[] = {"else", "endfor", NULL}, *const end_for_else[] = {"endfor", NULL};
static const char *const end_set[] = {"endset", NULL}, *const end_macro[] = {"endmacro", NULL};
static const char *const end_call[] = {"endcall", NULL}, *const end_filter[] = {"endfilter", NULL};
static const char *const end_with[] = {"endwith", NULL}, *const end_generation[] = {"endgeneration", NULL};

static status expect_block_end(jparser *p)
{
    if (p->t.type != T_BLOCK_END) return jp_unexpected(p, "'%}'");
    return jp_next(p);
}

/* Parses a body up to one of the names in ends, which becomes the current token. */
static status body_until(jparser *p, const char *const *ends, jnode **out)
{
    TRY(expect_block_end(p));
    return parse_body(p, ends, out);
}

static status parse_if(jparser *p, jnode *n)
{
    bool was;
    TRY(jp_tuple(p, JP_CONDITION, &n->a));
    TRY(body_until(p, end_if, &n->b));
    TRY(jp_skip_name(p, "elif", &was));
    if (was) {
        TRY(jp_node(p, N_IF, &n->c));
        if (++p->depth > JINJA_MAX_NESTING) return jlexer_fail(&p->lexer, p->t.line, "too many elif");
        TRY(parse_if(p, n->c));
        p->depth--;
        return ST_OK;
    }
    TRY(jp_skip_name(p, "else", &was));
    if (was) TRY(body_until(p, end_else, &n->c));
    return jp_next(p);
}

/* Fails unless the target is a name or a tuple of names. */
static status check_target(jparser *p, const jnode *target)
{
    if (target->type == N_NAME) return ST_OK;
    if (target->type != N_TUPLE) return jlexer_fail(&p->lexer, target->line, "cannot assign to this expression");
    for (size_t i = 0; i < target->n; i++) TRY(check_target(p, target->list[i]));
    return ST_OK;
}

static status parse_for(jparser *p, jnode *n)
{
    jnode *body;
    bool was;
    TRY(jp_intern(p, "loop", 4, &n->name));
    TRY(jp_tuple(p, JP_TARGET, &n->a));
    TRY(check_target(p, n->a));
    TRY(jp_skip_name(p, "in", &was));
    if (!was) return jp_unexpected(p, "in");
    TRY(jp_tuple(p, JP_CONDITION, &n->b));
    TRY(jp_skip_name(p, "if", &was));
    if (was) TRY(jp_expression(p, &n->c));
    if (jp_is_name(p, "recursive")) return jlexer_fail(&p->lexer, p->t.line, "recursive loops are not supported");
    p->n_loops++;
    TRY(body_until(p, end_for, &body));
    p->n_loops--;
    TRY(jp_push(p, n, body));
    TRY(jp_skip_name(p, "else", &was));
    if (was) {
        TRY(body_until(p, end_for_else, &body));
        TRY(jp_push(p, n, body));
    }
    return jp_next(p);
}

static status parse_set(jparser *p, jnode *n)
{
    bool was;
    TRY(jp_tuple(p, JP_TARGET, &n->a));
    if (jp_is_op(p, ".") && n->a->type == N_NAME) {
        jnode *attribute;
        TRY(jp_node(p, N_ATTRIBUTE, &attribute));
        TRY(jp_next(p));
        if (p->t.type != T_NAME) return jp_unexpected(p, "a name");
        TRY(jp_string(p, p->t.s, p->t.n, &attribute->v));
        attribute->a = n->a;
        n->a = attribute;
        TRY(jp_next(p));
    } else {
        TRY(check_target(p, n->a));
    }
    TRY(jp_skip_op(p, "=", &was));
    if (was) return jp_tuple(p, 0, &n->b);
    n->type = N_SET_BODY;
    for (;;) {
        TRY(jp_skip_op(p, "|", &was));
        if (!was) break;
        TRY(jp_filter(p, &n->c));
    }
    TRY(body_until(p, end_set, &n->b));
    return jp_next(p);
}

/* Parses the parameters of a macro in parentheses. */
static status parse_parameters(jparser *p, jnode *macro)
{
    TRY(jp_expect_op(p, "("));
    for (bool was; !jp_is_op(p, ")");) {
        jnode *param;
        if (macro->n) TRY(jp_expect_op(p, ","));
        TRY(jp_node(p, N_KEYWORD, &param));
        if (p->t.type == T_NAME) TRY(jp_string(p, p->t.s, p->t.n, &param->v));
        TRY(jp_expect_name(p, &param->name));
        TRY(jp_skip_op(p, "=", &was));
        if (was) TRY(jp_expression(p, &param->a));
        else if (macro->n && macro->list[macro->n - 1]->a) return jp_unexpected(p, "a default value");
        TRY(jp_push(p, macro, param));
    }
    return jp_next(p);
}

static status parse_macro_body(jparser *p, const char *const *ends, jnode *macro)
{
    const int n_loops = p->n_loops;
    const unsigned uses = p->uses;
    TRY(jp_intern(p, "caller", 6, &macro->special[0]));
    TRY(jp_intern(p, "varargs", 7, &macro->special[1]));
    TRY(jp_intern(p, "kwargs", 6, &macro->special[2]));
    p->n_loops = 0;
    p->uses = 0;
    TRY(body_until(p, ends, &macro->a));
    macro->uses = p->uses;
    p->n_loops = n_loops;
    p->uses |= uses;
    return jp_next(p);
}

static status parse_macro(jparser *p, jnode *n)
{
    TRY(jp_expect_name(p, &n->name));
    TRY(parse_parameters(p, n));
    return parse_macro_body(p, end_macro, n);
}

static status parse_call_block(jparser *p, jnode *n)
{
    TRY(jp_node(p, N_MACRO, &n->b));
    n->b->name = NO_NAME;
    if (jp_is_op(p, "(")) TRY(parse_parameters(p, n->b));
    TRY(jp_expression(p, &n->a));
    if (n->a->type != N_CALL) return jlexer_fail(&p->lexer, n->line, "call block without a call");
    return parse_macro_body(p, end_call, n->b);
}

static status parse_filter_block(jparser *p, jnode *n)
{
    bool was = true;
    while (was) {
        TRY(jp_filter(p, &n->a));
        TRY(jp_skip_op(p, "|", &was));
    }
    TRY(body_until(p, end_filter, &n->b));
    return jp_next(p);
}

static status parse_with(jparser *p, jnode *n)
{
    while (p->t.type != T_BLOCK_END) {
        jnode *set;
        if (n->n) TRY(jp_expect_op(p, ","));
        TRY(jp_node(p, N_SET, &set));
        TRY(jp_node(p, N_NAME, &set->a));
        TRY(jp_expect_name(p, &set->a->name));
        TRY(jp_expect_op(p, "="));
        TRY(jp_expression(p, &set->b));
        TRY(jp_push(p, n, set));
    }
    TRY(body_until(p, end_with, &n->a));
    return jp_next(p);
}

static status parse_generation(jparser *p, jnode *n)
{
    TRY(body_until(p, end_generation, &n->a));
    return jp_next(p);
}

static status parse_break(jparser *p, jnode *n)
{
    if (p->n_loops) return ST_OK;
    return jlexer_fail(&p->lexer, n->line, "%s outside of a loop", n->type == N_BREAK ? "break" : "continue");
}

static const struct {
    const char *name;
    jnode_type type;
    status (*parse)(jparser *p, jnode *n);
} statements[] = {
    {"if", N_IF, parse_if},
    {"for", N_FOR, parse_for},
    {"set", N_SET, parse_set},
    {"macro", N_MACRO, parse_macro},
    {"call", N_CALL_BODY, parse_call_block},
    {"filter", N_FILTER_BODY, parse_filter_block},
    {"with", N_SCOPE, parse_with},
    {"generation", N_SCOPE, parse_generation},
    {"break", N_BREAK, parse_break},
    {"continue", N_CONTINUE, parse_break},
};

/* Parses the statement after "{%". */
static status parse_statement(jparser *p, jnode **out)
{
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!jp_is_name(p, statements[i].name)) continue;
        if (++p->depth > JINJA_MAX_NESTING)
            return jlexer_fail(&p->lexer, p->t.line, "nested more than %d deep", JINJA_MAX_NESTING);
        TRY(jp_node(p, statements[i].type, out));
        TRY(jp_next(p));
        TRY(statements[i].parse(p, *out));
        p->depth--;
        return expect_block_end(p);
    }
    return jp_unexpected(p, "a statement");
}

static bool ends_here(const jparser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (jp_is_name(p, *ends)) return true;
    return false;
}

/* ends NULL: the whole template. Otherwise the current token is the ending name after the call. */
static status parse_body(jparser *p, const char *const *ends, jnode **out)
{
    jnode *n;
    TRY(jp_node(p, N_BLOCK, out));
    while (p->t.type != T_END) {
        const jtoken_type type = p->t.type;
        if (type == T_TEXT) {
            TRY(jp_node(p, N_TEXT, &n));
            TRY(jp_string(p, p->t.s, p->t.n, &n->v));
            TRY(jp_next(p));
        } else if (type == T_OUTPUT) {
            TRY(jp_node(p, N_OUTPUT, &n));
            TRY(jp_next(p));
            TRY(jp_tuple(p, 0, &n->a));
            if (p->t.type != T_OUTPUT_END) return jp_unexpected(p, "'}}'");
            TRY(jp_next(p));
        } else {
            TRY(jp_next(p));
            if (ends_here(p, ends)) return ST_OK;
            TRY(parse_statement(p, &n));
        }
        TRY(jp_push(p, *out, n));
    }
    return ends ? jp_unexpected(p, *ends) : ST_OK;
}

status jparse(jinja *j, const char *text, size_t n, err *e)
{
    jparser p = {.j = j};
    TRY(jlexer_open(&p.lexer, &j->arena, text, n, j->name, e));
    TRY(jlexer_next(&p.lexer, &p.ahead));
    TRY(jp_next(&p));
    return parse_body(&p, NULL, &j->root);
}
