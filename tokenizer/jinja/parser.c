/* SPDX-License-Identifier: MIT */
/* Syntax tree of a template, by recursive descent. Source: the grammar of jinja2's parser. */
#include "config.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "tokenizer/jinja/parser.h"

static status check_nesting(jparser *p)
{
    if (p->depth > JINJA_MAX_NESTING)
        return jlexer_fail(&p->lexer, p->t.line, "nested more than %d deep", JINJA_MAX_NESTING);
    return ST_OK;
}

status jp_unexpected(jparser *p, const char *wanted)
{
    const jtoken *t = &p->t;
    if (t->type == T_NAME || t->type == T_OP)
        return jlexer_fail(&p->lexer, t->line, "unexpected '%.*s', expected %s", (int)(t->n < 40 ? t->n : 40), t->s,
                           wanted);
    static const char *const names[] = {[T_END] = "end of the template", [T_TEXT] = "text",   [T_OUTPUT] = "'{{'",
                                        [T_OUTPUT_END] = "'}}'",         [T_BLOCK] = "'{%'",  [T_BLOCK_END] = "'%}'",
                                        [T_STRING] = "string",           [T_INT] = "integer", [T_FLOAT] = "float"};
    return jlexer_fail(&p->lexer, t->line, "unexpected %s, expected %s", names[t->type], wanted);
}

status jp_next(jparser *p)
{
    p->t = p->ahead;
    if (p->t.type == T_END) return ST_OK;
    return jlexer_next(&p->lexer, &p->ahead);
}

static bool text_is(const jtoken *t, const char *s)
{
    return t->n == strlen(s) && memcmp(t->s, s, t->n) == 0;
}

bool jp_is_op(const jparser *p, const char *op)
{
    return p->t.type == T_OP && text_is(&p->t, op);
}

bool jp_is_name(const jparser *p, const char *name)
{
    return p->t.type == T_NAME && text_is(&p->t, name);
}

status jp_skip_op(jparser *p, const char *op, bool *was)
{
    *was = jp_is_op(p, op);
    return *was ? jp_next(p) : ST_OK;
}

status jp_skip_name(jparser *p, const char *name, bool *was)
{
    *was = jp_is_name(p, name);
    return *was ? jp_next(p) : ST_OK;
}

status jp_expect_op(jparser *p, const char *op)
{
    if (jp_is_op(p, op)) return jp_next(p);
    char wanted[8] = {'\''};
    memcpy(wanted + 1, op, strlen(op));
    wanted[1 + strlen(op)] = '\'';
    return jp_unexpected(p, wanted);
}

status jp_node(jparser *p, jnode_type type, jnode **out)
{
    TRY(JARENA_NEW(&p->j->arena, out, 1, p->lexer.e));
    (*out)->type = type;
    (*out)->line = p->t.line;
    return ST_OK;
}

status jp_push(jparser *p, jnode *list, jnode *item)
{
    if ((list->n & (list->n - 1)) == 0) { /* full at each power of two */
        jnode **wider;
        TRY(JARENA_NEW(&p->j->arena, &wider, list->n ? 2 * list->n : 1, p->lexer.e));
        if (list->n) memcpy(wider, list->list, list->n * sizeof *wider);
        list->list = wider;
    }
    list->list[list->n++] = item;
    return ST_OK;
}

status jp_string(jparser *p, const char *s, size_t n, jvalue *out)
{
    jstr *str;
    char *copy;
    TRY(JARENA_NEW(&p->j->arena, &str, 1, p->lexer.e));
    TRY(JARENA_NEW(&p->j->arena, &copy, n + 1, p->lexer.e));
    if (n) memcpy(copy, s, n);
    *str = (jstr){.s = copy, .n = n};
    *out = (jvalue){.kind = J_STRING, .as.s = str};
    return ST_OK;
}

status jp_intern(jparser *p, const char *s, size_t n, int *id)
{
    jinja *j = p->j;
    jvalue v;
    for (size_t i = 0; i < j->n_names; i++)
        if (j->names[i]->n == n && memcmp(j->names[i]->s, s, n) == 0) {
            *id = (int)i;
            return ST_OK;
        }
    if (j->n_names == JINJA_MAX_NAMES) return jlexer_fail(&p->lexer, p->t.line, "more than %d names", JINJA_MAX_NAMES);
    TRY(jp_string(p, s, n, &v));
    TRY(MEM_ROOM(&j->names, &j->cap_names, j->n_names + 1, p->lexer.e));
    *id = (int)j->n_names;
    j->names[j->n_names++] = v.as.s;
    return ST_OK;
}

status jp_expect_name(jparser *p, int *id)
{
    if (p->t.type != T_NAME) return jp_unexpected(p, "a name");
    TRY(jp_intern(p, p->t.s, p->t.n, id));
    return jp_next(p);
}

static status binary(jparser *p, jop op, jnode *a, jnode *b, jnode **out)
{
    TRY(jp_node(p, N_BINARY, out));
    (*out)->op = op;
    (*out)->a = a;
    (*out)->b = b;
    (*out)->line = a ? a->line : b->line;
    return ST_OK;
}

/* Parses a list of expressions up to a closing bracket, which is consumed. dict: items are pairs key: value. */
static status parse_items(jparser *p, const char *end, bool dict, jnode *list)
{
    TRY(jp_next(p));
    while (!jp_is_op(p, end)) {
        jnode *item;
        if (list->n) TRY(jp_expect_op(p, ","));
        if (jp_is_op(p, end)) break;
        TRY(jp_expression(p, &item));
        TRY(jp_push(p, list, item));
        if (!dict) continue;
        TRY(jp_expect_op(p, ":"));
        TRY(jp_expression(p, &item));
        TRY(jp_push(p, list, item));
    }
    return jp_next(p);
}

static status parse_name(jparser *p, jnode **out)
{
    static const struct {
        const char *name;
        jvalue v;
    } constants[] = {{"true", {.kind = J_BOOL, .as.b = true}},
                     {"True", {.kind = J_BOOL, .as.b = true}},
                     {"false", {.kind = J_BOOL}},
                     {"False", {.kind = J_BOOL}},
                     {"none", {.kind = J_NONE}},
                     {"None", {.kind = J_NONE}}};
    TRY(jp_node(p, N_NAME, out));
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (!jp_is_name(p, constants[i].name)) continue;
        (*out)->type = N_CONST;
        (*out)->v = constants[i].v;
        return jp_next(p);
    }
    if (jp_is_name(p, "caller")) p->uses |= USES_CALLER;
    if (jp_is_name(p, "varargs")) p->uses |= USES_VARARGS;
    if (jp_is_name(p, "kwargs")) p->uses |= USES_KWARGS;
    return jp_expect_name(p, &(*out)->name);
}

/* Parses adjacent strings, which are one. */
static status parse_strings(jparser *p, jnode **out)
{
    TRY(jp_node(p, N_CONST, out));
    TRY(jp_string(p, p->t.s, p->t.n, &(*out)->v));
    TRY(jp_next(p));
    while (p->t.type == T_STRING) {
        const jstr *s = (*out)->v.as.s;
        char *both;
        TRY(JARENA_NEW(&p->j->arena, &both, s->n + p->t.n + 1, p->lexer.e));
        memcpy(both, s->s, s->n);
        memcpy(both + s->n, p->t.s, p->t.n);
        TRY(jp_string(p, both, s->n + p->t.n, &(*out)->v));
        TRY(jp_next(p));
    }
    return ST_OK;
}

static status parse_primary(jparser *p, jnode **out)
{
    const jtoken t = p->t;
    if (t.type == T_NAME) return parse_name(p, out);
    if (t.type == T_STRING) return parse_strings(p, out);
    if (t.type == T_INT || t.type == T_FLOAT) {
        TRY(jp_node(p, N_CONST, out));
        (*out)->v = t.type == T_INT ? j_int(t.i) : j_float(t.f);
        return jp_next(p);
    }
    if (jp_is_op(p, "(")) {
        TRY(jp_next(p));
        TRY(jp_tuple(p, JP_PARENTHESES, out));
        return jp_expect_op(p, ")");
    }
    if (!jp_is_op(p, "[") && !jp_is_op(p, "{")) return jp_unexpected(p, "an expression");
    const bool dict = t.s[0] == '{';
    TRY(jp_node(p, dict ? N_DICT : N_LIST, out));
    return parse_items(p, dict ? "}" : "]", dict, *out);
}

/* Parses "[index]" or "[start:stop:step]" at the bracket. */
static status parse_subscript(jparser *p, jnode *object, jnode **out)
{
    jnode *part[3] = {0}, *slice;
    int n = 0;
    bool colon = false, was;
    TRY(jp_node(p, N_ITEM, out));
    (*out)->a = object;
    TRY(jp_next(p));
    for (; n < 3; n++) {
        if (!jp_is_op(p, ":") && !jp_is_op(p, "]")) TRY(jp_expression(p, &part[n]));
        if (n == 2) break;
        TRY(jp_skip_op(p, ":", &was));
        if (!was) break;
        colon = true;
    }
    if (!colon && !part[0]) return jp_unexpected(p, "an index");
    TRY(jp_expect_op(p, "]"));
    (*out)->b = part[0];
    if (!colon) return ST_OK;
    TRY(jp_node(p, N_SLICE, &slice));
    for (int i = 0; i < 3; i++) TRY(jp_push(p, slice, part[i]));
    (*out)->b = slice;
    return ST_OK;
}

static status parse_attribute(jparser *p, jnode *object, jnode **out)
{
    TRY(jp_node(p, N_ATTRIBUTE, out));
    (*out)->a = object;
    TRY(jp_next(p));
    if (p->t.type == T_INT) {
        (*out)->type = N_ITEM;
        TRY(jp_node(p, N_CONST, &(*out)->b));
        (*out)->b->v = j_int(p->t.i);
        return jp_next(p);
    }
    if (p->t.type != T_NAME) return jp_unexpected(p, "a name or an integer");
    TRY(jp_string(p, p->t.s, p->t.n, &(*out)->v));
    return jp_next(p);
}

/* Parses one argument of a call. *named: it is a keyword or a double star, after which no plain one may follow. */
static status parse_argument(jparser *p, bool *named, jnode **out)
{
    bool star, double_star;
    TRY(jp_skip_op(p, "*", &star));
    TRY(jp_skip_op(p, "**", &double_star));
    if (star || double_star) {
        TRY(jp_node(p, star ? N_STAR : N_DOUBLE_STAR, out));
        *named |= double_star;
        return jp_expression(p, &(*out)->a);
    }
    if (p->t.type == T_NAME && p->ahead.type == T_OP && text_is(&p->ahead, "=")) {
        TRY(jp_node(p, N_KEYWORD, out));
        TRY(jp_string(p, p->t.s, p->t.n, &(*out)->v));
        *named = true;
        TRY(jp_next(p));
        TRY(jp_next(p));
        return jp_expression(p, &(*out)->a);
    }
    if (*named) return jp_unexpected(p, "a keyword argument");
    return jp_expression(p, out);
}

static status parse_arguments(jparser *p, jnode *call)
{
    bool named = false;
    TRY(jp_expect_op(p, "("));
    while (!jp_is_op(p, ")")) {
        jnode *arg;
        if (call->n) TRY(jp_expect_op(p, ","));
        if (jp_is_op(p, ")")) break;
        TRY(parse_argument(p, &named, &arg));
        TRY(jp_push(p, call, arg));
    }
    return jp_next(p);
}

static status parse_call(jparser *p, jnode *function, jnode **out)
{
    TRY(jp_node(p, N_CALL, out));
    (*out)->a = function;
    return parse_arguments(p, *out);
}

static status parse_postfix(jparser *p, jnode **node)
{
    for (;;) {
        if (jp_is_op(p, ".")) TRY(parse_attribute(p, *node, node));
        else if (jp_is_op(p, "[")) TRY(parse_subscript(p, *node, node));
        else if (jp_is_op(p, "(")) TRY(parse_call(p, *node, node));
        else return ST_OK;
    }
}

/* Parses the name of a filter or test. */
static status named(jparser *p, jnode_type type, jnode *operand, jnode **out)
{
    TRY(jp_node(p, type, out));
    (*out)->a = operand;
    if (p->t.type != T_NAME) return jp_unexpected(p, type == N_FILTER ? "a filter" : "a test");
    TRY(jp_string(p, p->t.s, p->t.n, &(*out)->v));
    (*out)->builtin = j_find_builtin(p->j->tables[type == N_FILTER ? TABLE_FILTERS : TABLE_TESTS], p->t.s, p->t.n);
    return jp_next(p);
}

status jp_filter(jparser *p, jnode **node)
{
    TRY(named(p, N_FILTER, *node, node));
    return jp_is_op(p, "(") ? parse_arguments(p, *node) : ST_OK;
}

/* True if an argument without parentheses follows a test, as in "x is divisibleby 3". */
static bool argument_follows(const jparser *p)
{
    switch (p->t.type) {
    case T_NAME: return !jp_is_name(p, "else") && !jp_is_name(p, "or") && !jp_is_name(p, "and");
    case T_STRING:
    case T_INT:
    case T_FLOAT: return true;
    default: return jp_is_op(p, "[") || jp_is_op(p, "{");
    }
}

static status parse_test(jparser *p, jnode **node)
{
    bool negated;
    TRY(jp_skip_name(p, "not", &negated));
    TRY(named(p, N_TEST, *node, node));
    if (jp_is_op(p, "(")) {
        TRY(parse_arguments(p, *node));
    } else if (argument_follows(p)) {
        jnode *arg;
        if (jp_is_name(p, "is")) return jlexer_fail(&p->lexer, p->t.line, "tests cannot be chained with is");
        TRY(parse_primary(p, &arg));
        TRY(parse_postfix(p, &arg));
        TRY(jp_push(p, *node, arg));
    }
    if (!negated) return ST_OK;
    jnode *test = *node;
    TRY(jp_node(p, N_NOT, node));
    (*node)->a = test;
    return ST_OK;
}

static status parse_filters(jparser *p, jnode **node)
{
    for (bool was;;) {
        if (jp_is_op(p, "|")) {
            TRY(jp_next(p));
            TRY(jp_filter(p, node));
        } else if (jp_is_op(p, "(")) {
            TRY(parse_call(p, *node, node));
        } else {
            TRY(jp_skip_name(p, "is", &was));
            if (!was) return ST_OK;
            TRY(parse_test(p, node));
        }
    }
}

static status parse_unary(jparser *p, bool filters, jnode **out)
{
    p->depth++;
    TRY(check_nesting(p));
    if (jp_is_op(p, "-") || jp_is_op(p, "+")) {
        jnode *sign;
        TRY(jp_node(p, jp_is_op(p, "-") ? N_NEGATE : N_PLUS, &sign));
        TRY(jp_next(p));
        TRY(parse_unary(p, false, &sign->a));
        *out = sign;
    } else {
        TRY(parse_primary(p, out));
    }
    TRY(parse_postfix(p, out));
    if (filters) TRY(parse_filters(p, out));
    p->depth--;
    return ST_OK;
}

/* A level of left-associative operators. */
typedef struct {
    const char *text;
    jop op;
} level_op;

enum { POWER, PRODUCT, SUM };
static const level_op operators[3][5] = {
    [POWER] = {{"**", OP_POW}},
    [PRODUCT] = {{"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOOR}, {"%", OP_MOD}},
    [SUM] = {{"+", OP_ADD}, {"-", OP_SUB}},
};

static status parse_concat(jparser *p, jnode **out);

static status parse_level(jparser *p, int level, jnode **out)
{
    status (*const operand)(jparser *, jnode **) = level == SUM ? parse_concat : NULL;
    jnode *right;
    TRY(operand ? operand(p, out) : level == POWER ? parse_unary(p, true, out) : parse_level(p, POWER, out));
    for (;;) {
        const level_op *o = operators[level];
        while (o->text && !jp_is_op(p, o->text)) o++;
        if (!o->text) return ST_OK;
        TRY(jp_next(p));
        TRY(operand          ? operand(p, &right)
            : level == POWER ? parse_unary(p, true, &right)
                             : parse_level(p, POWER, &right));
        TRY(binary(p, o->op, *out, right, out));
    }
}

static status parse_concat(jparser *p, jnode **out)
{
    jnode *part;
    TRY(parse_level(p, PRODUCT, &part));
    *out = part;
    if (!jp_is_op(p, "~")) return ST_OK;
    TRY(jp_node(p, N_CONCAT, out));
    TRY(jp_push(p, *out, part));
    for (bool was;;) {
        TRY(jp_skip_op(p, "~", &was));
        if (!was) return ST_OK;
        TRY(parse_level(p, PRODUCT, &part));
        TRY(jp_push(p, *out, part));
    }
}

/* Parses a comparison operator. *was: false if there is none. */
static status comparison(jparser *p, jop *op, bool *was)
{
    static const level_op table[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<", OP_LT},
                                     {"<=", OP_LE}, {">", OP_GT},  {">=", OP_GE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        *op = table[i].op;
        TRY(jp_skip_op(p, table[i].text, was));
        if (*was) return ST_OK;
    }
    *op = OP_IN;
    TRY(jp_skip_name(p, "in", was));
    if (*was || !jp_is_name(p, "not") || p->ahead.type != T_NAME || !text_is(&p->ahead, "in")) return ST_OK;
    *op = OP_NOT_IN;
    *was = true;
    TRY(jp_next(p));
    return jp_next(p);
}

static status parse_compare(jparser *p, jnode **out)
{
    jnode *first, *right;
    jop op;
    bool was;
    TRY(parse_level(p, SUM, &first));
    TRY(comparison(p, &op, &was));
    *out = first;
    if (!was) return ST_OK;
    TRY(jp_node(p, N_COMPARE, out));
    (*out)->a = first;
    while (was) {
        jnode *pair;
        TRY(parse_level(p, SUM, &right));
        TRY(binary(p, op, NULL, right, &pair));
        TRY(jp_push(p, *out, pair));
        TRY(comparison(p, &op, &was));
    }
    return ST_OK;
}

static status parse_not(jparser *p, jnode **out)
{
    jnode *n;
    if (!jp_is_name(p, "not")) return parse_compare(p, out);
    p->depth++;
    TRY(check_nesting(p));
    TRY(jp_node(p, N_NOT, &n));
    TRY(jp_next(p));
    TRY(parse_not(p, &n->a));
    p->depth--;
    *out = n;
    return ST_OK;
}

static status parse_logical(jparser *p, bool is_or, jnode **out)
{
    jnode *left, *right;
    TRY(is_or ? parse_logical(p, false, out) : parse_not(p, out));
    for (bool was;;) {
        TRY(jp_skip_name(p, is_or ? "or" : "and", &was));
        if (!was) return ST_OK;
        left = *out;
        TRY(is_or ? parse_logical(p, false, &right) : parse_not(p, &right));
        TRY(jp_node(p, is_or ? N_OR : N_AND, out));
        (*out)->a = left;
        (*out)->b = right;
    }
}

static status condition(jparser *p, jnode **out)
{
    p->depth++;
    TRY(check_nesting(p));
    TRY(parse_logical(p, true, out));
    p->depth--;
    return ST_OK;
}

status jp_expression(jparser *p, jnode **out)
{
    bool was;
    TRY(condition(p, out));
    for (;;) {
        TRY(jp_skip_name(p, "if", &was));
        if (!was) return ST_OK;
        jnode *choice;
        TRY(jp_node(p, N_CHOICE, &choice));
        choice->a = *out;
        TRY(condition(p, &choice->b));
        TRY(jp_skip_name(p, "else", &was));
        p->depth++;
        TRY(check_nesting(p));
        if (was) TRY(jp_expression(p, &choice->c));
        p->depth--;
        *out = choice;
    }
}

static bool tuple_ends(const jparser *p)
{
    return p->t.type == T_OUTPUT_END || p->t.type == T_BLOCK_END || jp_is_op(p, ")");
}

status jp_tuple(jparser *p, unsigned how, jnode **out)
{
    jnode *tuple, *item;
    bool comma = false;
    TRY(jp_node(p, N_TUPLE, &tuple));
    while (!tuple_ends(p) && !(how & JP_TARGET && jp_is_name(p, "in"))) {
        TRY(how & JP_TARGET      ? parse_primary(p, &item)
            : how & JP_CONDITION ? condition(p, &item)
                                 : jp_expression(p, &item));
        TRY(jp_push(p, tuple, item));
        if (!jp_is_op(p, ",")) break;
        TRY(jp_next(p));
        comma = true;
    }
    *out = comma || !tuple->n ? tuple : tuple->list[0];
    if (!tuple->n && !(how & JP_PARENTHESES)) return jp_unexpected(p, "an expression");
    return ST_OK;
}
