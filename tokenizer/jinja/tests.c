/* SPDX-License-Identifier: MIT */
/* Tests, such as `x is defined`. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "tokenizer/jinja/impl.h"

/* Tests named after the kind of a value. */
static status test_kind(jctx *c, const jcall *call, jvalue *out)
{
    static const struct {
        const char *name;
        jkind kind;
    } kinds[] = {{"boolean", J_BOOL}, {"float", J_FLOAT},   {"integer", J_INT},        {"mapping", J_DICT},
                 {"none", J_NONE},    {"string", J_STRING}, {"undefined", J_UNDEFINED}};
    size_t i = 0;
    (void)c;
    while (strcmp(kinds[i].name, call->name) != 0) i++;
    *out = j_bool(call->self.kind == kinds[i].kind);
    return ST_OK;
}

static status test_defined(jctx *c, const jcall *call, jvalue *out)
{
    (void)c;
    *out = j_bool(call->self.kind != J_UNDEFINED);
    return ST_OK;
}

static status test_number(jctx *c, const jcall *call, jvalue *out)
{
    (void)c;
    *out = j_bool(j_is_number(call->self));
    return ST_OK;
}

static status test_true(jctx *c, const jcall *call, jvalue *out)
{
    (void)c;
    *out = j_bool(call->self.kind == J_BOOL && call->self.as.b);
    return ST_OK;
}

static status test_false(jctx *c, const jcall *call, jvalue *out)
{
    (void)c;
    *out = j_bool(call->self.kind == J_BOOL && !call->self.as.b);
    return ST_OK;
}

static status test_callable(jctx *c, const jcall *call, jvalue *out)
{
    const jkind k = call->self.kind;
    (void)c;
    *out = j_bool(k == J_MACRO || k == J_BUILTIN || k == J_UNDEFINED);
    return ST_OK;
}

static status test_iterable(jctx *c, const jcall *call, jvalue *out)
{
    const jkind k = call->self.kind;
    (void)c;
    *out = j_bool(j_is_sequence(call->self) || k == J_STRING || k == J_DICT || k == J_UNDEFINED || k == J_LOOP);
    return ST_OK;
}

static status test_sequence(jctx *c, const jcall *call, jvalue *out)
{
    const jkind k = call->self.kind;
    (void)c;
    *out = j_bool(k == J_LIST || k == J_TUPLE || k == J_RANGE || k == J_STRING || k == J_DICT || k == J_UNDEFINED);
    return ST_OK;
}

static status divides(jctx *c, jvalue v, jvalue by, int64_t rest, jvalue *out)
{
    bool same;
    TRY(j_binary(c, OP_MOD, v, by, &v));
    TRY(j_equal(c, v, j_int(rest), &same));
    *out = j_bool(same);
    return ST_OK;
}

static status test_divisibleby(jctx *c, const jcall *call, jvalue *out)
{
    return divides(c, call->self, call->a[0], 0, out);
}

static status test_even(jctx *c, const jcall *call, jvalue *out)
{
    return divides(c, call->self, j_int(2), 0, out);
}

static status test_odd(jctx *c, const jcall *call, jvalue *out)
{
    return divides(c, call->self, j_int(2), 1, out);
}

static status test_eq(jctx *c, const jcall *call, jvalue *out)
{
    bool same;
    TRY(j_equal(c, call->self, call->a[0], &same));
    *out = j_bool(same);
    return ST_OK;
}

static status test_ne(jctx *c, const jcall *call, jvalue *out)
{
    TRY(test_eq(c, call, out));
    out->as.b = !out->as.b;
    return ST_OK;
}

/* Tests of order; the name says which. */
static status test_order(jctx *c, const jcall *call, jvalue *out)
{
    int sign;
    const char *name = call->name;
    TRY(j_compare(c, call->self, call->a[0], &sign));
    const bool greater = strchr(">g", name[0]) != NULL,
               equal = strcmp(name, "ge") == 0 || strcmp(name, "le") == 0 || name[1] == '=';
    *out = j_bool(sign == (greater ? 1 : -1) || (equal && sign == 0));
    return ST_OK;
}

static status test_in(jctx *c, const jcall *call, jvalue *out)
{
    bool found;
    TRY(j_contains(c, call->a[0], call->self, &found));
    *out = j_bool(found);
    return ST_OK;
}

/* Identity, for which equal numbers and strings of the same type are one. */
static status test_sameas(jctx *c, const jcall *call, jvalue *out)
{
    bool same = call->self.kind == call->a[0].kind;
    if (same && (j_is_sequence(call->self) || call->self.kind == J_DICT)) same = call->self.as.l == call->a[0].as.l;
    else if (same) TRY(j_equal(c, call->self, call->a[0], &same));
    *out = j_bool(same);
    return ST_OK;
}

/* True for text with letters that are all of one case. */
static status test_case(jctx *c, const jcall *call, jvalue *out)
{
    jvalue text;
    TRY(j_to_string(c, call->self, &text));
    return j_call_string_method(c, call->name[0] == 'u' ? "isupper" : "islower", text, out);
}

const jbuiltin j_tests[] = {
    {"boolean", "", test_kind},
    {"callable", "", test_callable},
    {"defined", "", test_defined},
    {"divisibleby", "num", test_divisibleby},
    {"eq", "b", test_eq},
    {"==", "b", test_eq},
    {"equalto", "b", test_eq},
    {"even", "", test_even},
    {"false", "", test_false},
    {"float", "", test_kind},
    {"ge", "b", test_order},
    {">=", "b", test_order},
    {"gt", "b", test_order},
    {">", "b", test_order},
    {"greaterthan", "b", test_order},
    {"in", "seq", test_in},
    {"integer", "", test_kind},
    {"iterable", "", test_iterable},
    {"le", "b", test_order},
    {"<=", "b", test_order},
    {"lower", "", test_case},
    {"lt", "b", test_order},
    {"<", "b", test_order},
    {"lessthan", "b", test_order},
    {"mapping", "", test_kind},
    {"ne", "b", test_ne},
    {"!=", "b", test_ne},
    {"none", "", test_kind},
    {"number", "", test_number},
    {"odd", "", test_odd},
    {"sameas", "other", test_sameas},
    {"sequence", "", test_sequence},
    {"string", "", test_kind},
    {"true", "", test_true},
    {"undefined", "", test_kind},
    {"upper", "", test_case},
    {0},
};
