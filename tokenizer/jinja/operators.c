/* SPDX-License-Identifier: MIT */
/* Operators, subscripts and attributes, by Python's rules. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "tokenizer/jinja/impl.h"

static status overflow(jctx *c)
{
    return jfail(c, "integer overflow");
}

/* Rounds towards minus infinity; the remainder has the sign of b. */
static status floor_divide(jctx *c, jop op, int64_t a, int64_t b, int64_t *out)
{
    if (b == 0) return jfail(c, "division by zero");
    if (b == -1) {
        if (op == OP_MOD) *out = 0;
        else if (__builtin_sub_overflow((int64_t)0, a, out)) return overflow(c);
        return ST_OK;
    }
    const int64_t rest = a % b;
    const bool adjust = rest && (rest < 0) != (b < 0);
    *out = op == OP_MOD ? (adjust ? rest + b : rest) : a / b - adjust;
    return ST_OK;
}

static status int_power(jctx *c, int64_t base, int64_t n, int64_t *out)
{
    *out = 1;
    for (; n > 0; n >>= 1) {
        if (n & 1 && __builtin_mul_overflow(*out, base, out)) return overflow(c);
        if (n > 1 && __builtin_mul_overflow(base, base, &base)) return overflow(c);
    }
    return ST_OK;
}

static status int_operation(jctx *c, jop op, int64_t a, int64_t b, jvalue *out)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &r); break;
    case OP_SUB: over = __builtin_sub_overflow(a, b, &r); break;
    case OP_MUL: over = __builtin_mul_overflow(a, b, &r); break;
    case OP_POW: TRY(int_power(c, a, b, &r)); break;
    default: TRY(floor_divide(c, op, a, b, &r)); break;
    }
    *out = j_int(r);
    return over ? overflow(c) : ST_OK;
}

static status float_operation(jctx *c, jop op, double a, double b, jvalue *out)
{
    double r = 0;
    if (b == 0 && (op == OP_DIV || op == OP_FLOOR || op == OP_MOD)) return jfail(c, "division by zero");
    switch (op) {
    case OP_ADD: r = a + b; break;
    case OP_SUB: r = a - b; break;
    case OP_MUL: r = a * b; break;
    case OP_DIV: r = a / b; break;
    case OP_POW:
        r = pow(a, b);
        if ((a == 0 && b < 0) || (isnan(r) && !isnan(a) && !isnan(b)) || (isinf(r) && isfinite(a) && isfinite(b)))
            return jfail(c, "power out of range");
        break;
    default:
        r = fmod(a, b);
        if (r != 0 && (r < 0) != (b < 0)) r += b;
        else if (r == 0) r = copysign(0.0, b);
        if (op == OP_FLOOR) r = round((a - r) / b);
        break;
    }
    *out = j_float(r);
    return ST_OK;
}

static status number_operation(jctx *c, jop op, jvalue a, jvalue b, jvalue *out)
{
    const bool real = a.kind == J_FLOAT || b.kind == J_FLOAT || op == OP_DIV || (op == OP_POW && j_as_int(b) < 0);
    if (real) TRY(float_operation(c, op, j_as_float(a), j_as_float(b), out));
    else TRY(int_operation(c, op, j_as_int(a), j_as_int(b), out));
    out->input = a.input || b.input;
    return ST_OK;
}

/* Markup escapes the other operand. */
static status add_strings(jctx *c, jvalue a, jvalue b, jvalue *out)
{
    if (!a.as.s->safe && !b.as.s->safe) return j_concat(c, (const jvalue[]){a, b}, 2, out);
    TRY(j_escape(c, a, &a));
    TRY(j_escape(c, b, &b));
    TRY(j_concat(c, (const jvalue[]){a, b}, 2, out));
    return j_mark_safe(c, *out, out);
}

static status add_lists(jctx *c, jvalue a, jvalue b, jvalue *out)
{
    const size_t n = a.as.l->n, m = b.as.l->n;
    jvalue *v;
    TRY(JNEW(c, &v, n + m));
    if (n) memcpy(v, a.as.l->v, n * sizeof *v);
    if (m) memcpy(v + n, b.as.l->v, m * sizeof *v);
    TRY(j_list(c, a.kind, v, n + m, out));
    out->input = a.input || b.input;
    return ST_OK;
}

static status repeat(jctx *c, jvalue v, int64_t times, jvalue *out)
{
    jbuf text = {0};
    if (times < 0) times = 0;
    if (v.kind == J_STRING) {
        if (v.as.s->n == 0) times = 0;
        else if (times > JINJA_MAX_OUTPUT / (int64_t)v.as.s->n + 1) times = JINJA_MAX_OUTPUT / (int64_t)v.as.s->n + 1;
        TRY(jbuf_reserve(c, &text, v.as.s->n * (size_t)times));
        for (int64_t i = 0; i < times; i++) TRY(jbuf_put_str(c, &text, v));
        return jbuf_string(c, &text, out);
    }
    const size_t n = v.as.l->n;
    jvalue *items;
    if (n && times > JINJA_MAX_MEMORY / (int64_t)(n * sizeof *items)) return jfail(c, "list too long");
    TRY(JNEW(c, &items, n * (size_t)times));
    for (size_t i = 0; n && i < (size_t)times; i++) memcpy(items + i * n, v.as.l->v, n * sizeof *items);
    TRY(j_list(c, v.kind, items, n * (size_t)times, out));
    out->input = v.input;
    return ST_OK;
}

static bool is_int(jvalue v)
{
    return v.kind == J_INT || v.kind == J_BOOL;
}

static bool can_repeat(jvalue v)
{
    return v.kind == J_STRING || v.kind == J_LIST || v.kind == J_TUPLE;
}

status j_binary(jctx *c, jop op, jvalue a, jvalue b, jvalue *out)
{
    static const char *const signs[] = {[OP_ADD] = "+",    [OP_SUB] = "-", [OP_MUL] = "*", [OP_DIV] = "/",
                                        [OP_FLOOR] = "//", [OP_MOD] = "%", [OP_POW] = "**"};
    if (op == OP_MOD && a.kind == J_STRING) return j_percent(c, a, b, out);
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED) return jfail_undefined(c, a.kind == J_UNDEFINED ? a : b);
    if (j_is_number(a) && j_is_number(b)) return number_operation(c, op, a, b, out);
    if (op == OP_ADD && a.kind == b.kind) {
        if (a.kind == J_STRING) return add_strings(c, a, b, out);
        if (a.kind == J_LIST || a.kind == J_TUPLE) return add_lists(c, a, b, out);
    }
    if (op == OP_MUL && can_repeat(a) && is_int(b)) return repeat(c, a, j_as_int(b), out);
    if (op == OP_MUL && can_repeat(b) && is_int(a)) return repeat(c, b, j_as_int(a), out);
    return jfail(c, "unsupported operands of %s: '%s' and '%s'", signs[op], j_type_name(a), j_type_name(b));
}

/* Stores the value of a part of a slice. *valid: it is an integer or none. */
static int64_t slice_part(jvalue v, int64_t preset, bool *valid)
{
    if (v.kind == J_NONE || v.kind == J_MISSING) return preset;
    if (is_int(v)) return j_as_int(v);
    *valid = false;
    return 0;
}

/* Moves an end of a slice into [low, high]; a negative one counts from the end. */
static int64_t slice_end(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0) i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

static status slice_items(jctx *c, jvalue v, const int64_t r[3], jvalue *out)
{
    jvalue *items, *picked;
    size_t n, k = 0;
    jbuf text = {0};
    TRY(j_items(c, v, &items, &n));
    TRY(JNEW(c, &picked, n));
    for (int64_t i = r[0]; r[2] > 0 ? i < r[1] : i > r[1]; i += r[2]) {
        picked[k++] = items[i];
        if (r[2] > (int64_t)n || r[2] < -(int64_t)n) break;
    }
    if (v.kind != J_STRING) {
        TRY(j_list(c, v.kind == J_RANGE ? J_LIST : v.kind, picked, k, out));
        out->input = v.input;
        return ST_OK;
    }
    for (size_t i = 0; i < k; i++) TRY(jbuf_put_str(c, &text, picked[i]));
    return jbuf_string(c, &text, out);
}

status j_slice(jctx *c, jvalue v, const jvalue part[3], jvalue *out)
{
    bool valid = v.kind == J_STRING || v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_RANGE;
    if (v.kind == J_UNDEFINED) return jfail_undefined(c, v);
    const int64_t step = slice_part(part[2], 1, &valid);
    const int64_t from = slice_part(part[0], step > 0 ? 0 : INT64_MAX, &valid);
    int64_t n = 0, r[3];
    if (!valid) return jfail(c, "'%s' object cannot be sliced, or by such indices", j_type_name(v));
    if (step == 0) return jfail(c, "slice step cannot be zero");
    TRY(j_length(c, v, &n));
    const bool up = step > 0, open = part[1].kind == J_NONE || part[1].kind == J_MISSING;
    r[0] = slice_end(from, n, up ? 0 : -1, up ? n : n - 1);
    r[1] = open ? (up ? n : -1) : slice_end(slice_part(part[1], 0, &valid), n, up ? 0 : -1, up ? n : n - 1);
    r[2] = step;
    if (!valid) return jfail(c, "slice indices must be integers or none");
    if (v.kind == J_STRING && step == 1) {
        const size_t start = j_char_offset(v, (size_t)r[0]), end = r[1] > r[0] ? j_char_offset(v, (size_t)r[1]) : start;
        return j_substring(c, v, start, end, out);
    }
    return slice_items(c, v, r, out);
}

status j_bind_method(jctx *c, const jbuiltin *table, jvalue v, const jstr *name, jvalue *out)
{
    const jbuiltin *b = j_find_builtin(table, name->s, name->n);
    jmethod *m;
    *out = j_undefined(b ? WHY_UNSAFE : WHY_ATTRIBUTE, v.kind, name);
    if (!b || !b->fn) return ST_OK;
    TRY(JNEW(c, &m, 1));
    *m = (jmethod){b, v};
    *out = (jvalue){.kind = J_BUILTIN, .as.method = m};
    return ST_OK;
}

status j_attribute(jctx *c, jvalue v, const jstr *name, jvalue *out)
{
    const jvalue *item;
    switch (v.kind) {
    case J_UNDEFINED: return jfail_undefined(c, v);
    case J_LOOP: return v.as.loop->attribute(c, v, name, out);
    case J_STRING: return j_bind_method(c, c->j->tables[TABLE_STRING], v, name, out);
    case J_LIST: return j_bind_method(c, c->j->tables[TABLE_LIST], v, name, out);
    case J_TUPLE: return j_bind_method(c, c->j->tables[TABLE_TUPLE], v, name, out);
    case J_DICT: TRY(j_bind_method(c, c->j->tables[TABLE_DICT], v, name, out)); break;
    default: *out = j_undefined(WHY_ATTRIBUTE, v.kind, name); break;
    }
    if ((v.kind != J_DICT || out->kind != J_UNDEFINED || out->why == WHY_UNSAFE) && v.kind != J_NAMESPACE) return ST_OK;
    TRY(jspend(c, v.as.d->n / 8));
    item = jdict_find_name(v.as.d, name->s, name->n);
    if (item) *out = *item;
    return ST_OK;
}

status j_item(jctx *c, jvalue v, jvalue key, jvalue *out)
{
    if (v.kind == J_UNDEFINED) return jfail_undefined(c, v);
    if (v.kind == J_DICT) {
        const jvalue *item = jdict_find(c, v.as.d, key);
        if (item) {
            *out = *item;
            return ST_OK;
        }
    }
    if (key.kind == J_STRING) return j_attribute(c, v, key.as.s, out);
    *out = j_undefined(WHY_ELEMENT, v.kind, NULL);
    if (!is_int(key)) return ST_OK;
    int64_t n, i = j_as_int(key);
    out->as.i = i;
    if (v.kind != J_STRING && v.kind != J_LIST && v.kind != J_TUPLE && v.kind != J_RANGE) return ST_OK;
    TRY(j_length(c, v, &n));
    if (i < 0) i += n;
    if (i < 0 || i >= n) return ST_OK;
    if (v.kind != J_STRING) {
        *out = v.as.l->v[i];
        return ST_OK;
    }
    const size_t at = j_char_offset(v, (size_t)i);
    jvalue rest;
    TRY(j_substring(c, v, at, v.as.s->n, &rest));
    return j_substring(c, rest, 0, j_char_offset(rest, 1), out);
}
