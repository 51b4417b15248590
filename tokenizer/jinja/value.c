/* SPDX-License-Identifier: MIT */
/* Values: construction, equality, order, containers. They follow Python's rules. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "tokenizer/jinja/impl.h"

const jvalue j_none = {.kind = J_NONE};

jvalue j_bool(bool b)
{
    return (jvalue){.kind = J_BOOL, .as.b = b};
}

jvalue j_int(int64_t i)
{
    return (jvalue){.kind = J_INT, .as.i = i};
}

jvalue j_float(double f)
{
    return (jvalue){.kind = J_FLOAT, .as.f = f};
}

jvalue j_undefined(jwhy why, jkind of, const jstr *name)
{
    return (jvalue){.kind = J_UNDEFINED, .why = (unsigned char)why, .of = (unsigned char)of, .as.name = name};
}

status j_list(jctx *c, jkind kind, jvalue *v, size_t n, jvalue *out)
{
    static jvalue none; /* an empty list has an address, too */
    jlist *l;
    bool input = false;
    TRY(JNEW(c, &l, 1));
    *l = (jlist){.v = v ? v : &none, .n = n};
    for (size_t i = 0; i < n; i++) input |= v[i].input;
    *out = (jvalue){.kind = kind, .input = input, .as.l = l};
    return ST_OK;
}

static status object_from_json(jctx *c, const json_t *j, jvalue *out)
{
    json_t *object = (json_t *)(uintptr_t)j; /* iteration changes nothing */
    jdict *d;
    TRY(JNEW(c, &d, 1));
    d->cap = json_object_size(j);
    TRY(JNEW(c, &d->v, d->cap));
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        jpair *p = &d->v[d->n++];
        TRY(j_string(c, json_object_iter_key(it), strlen(json_object_iter_key(it)), true, &p->key));
        TRY(j_from_json(c, json_object_iter_value(it), &p->value));
    }
    *out = (jvalue){.kind = J_DICT, .as.d = d};
    return ST_OK;
}

static status array_from_json(jctx *c, const json_t *j, jvalue *out)
{
    const size_t n = json_array_size(j);
    jvalue *v;
    TRY(JNEW(c, &v, n));
    for (size_t i = 0; i < n; i++) TRY(j_from_json(c, json_array_get(j, i), &v[i]));
    return j_list(c, J_LIST, v, n, out);
}

status j_from_json(jctx *c, const json_t *j, jvalue *out)
{
    TRY(jenter(c));
    switch (json_typeof(j)) {
    case JSON_OBJECT: TRY(object_from_json(c, j, out)); break;
    case JSON_ARRAY: TRY(array_from_json(c, j, out)); break;
    case JSON_STRING: TRY(j_string(c, json_string_value(j), json_string_length(j), true, out)); break;
    case JSON_INTEGER: *out = j_int(json_integer_value(j)); break;
    case JSON_REAL: *out = j_float(json_real_value(j)); break;
    case JSON_TRUE:
    case JSON_FALSE: *out = j_bool(json_is_true(j)); break;
    case JSON_NULL: *out = j_none; break;
    }
    out->input = true;
    c->depth--;
    return ST_OK;
}

bool j_is_sequence(jvalue v)
{
    return v.kind >= J_LIST && v.kind <= J_VALUES;
}

bool j_is_number(jvalue v)
{
    return v.kind == J_BOOL || v.kind == J_INT || v.kind == J_FLOAT;
}

int64_t j_as_int(jvalue v)
{
    return v.kind == J_BOOL ? v.as.b : v.as.i;
}

double j_as_float(jvalue v)
{
    return v.kind == J_FLOAT ? v.as.f : (double)j_as_int(v);
}

bool j_truth(jvalue v)
{
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE: return false;
    case J_BOOL: return v.as.b;
    case J_INT: return v.as.i != 0;
    case J_FLOAT: return v.as.f != 0;
    case J_STRING: return v.as.s->n > 0;
    case J_DICT: return v.as.d->n > 0;
    default: return v.kind == J_GENERATOR || !j_is_sequence(v) || v.as.l->n > 0;
    }
}

static status equal_lists(jctx *c, const jlist *a, const jlist *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) TRY(j_equal(c, a->v[i], b->v[i], out));
    return ST_OK;
}

static status equal_dicts(jctx *c, const jdict *a, const jdict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        const jvalue *other = jdict_find(c, b, a->v[i].key);
        *out = other;
        if (other) TRY(j_equal(c, a->v[i].value, *other, out));
    }
    return ST_OK;
}

static bool equal_strings(const jstr *a, const jstr *b)
{
    return a->n == b->n && memcmp(a->s, b->s, a->n) == 0;
}

status j_equal(jctx *c, jvalue a, jvalue b, bool *out)
{
    TRY(jenter(c));
    *out = false;
    if (j_is_number(a) && j_is_number(b)) {
        if (a.kind == J_FLOAT || b.kind == J_FLOAT) *out = j_as_float(a) == j_as_float(b);
        else *out = j_as_int(a) == j_as_int(b);
    } else if (a.kind == b.kind) {
        switch (a.kind) {
        case J_MISSING:
        case J_UNDEFINED:
        case J_NONE: *out = true; break;
        case J_STRING: *out = equal_strings(a.as.s, b.as.s); break;
        case J_LIST:
        case J_TUPLE:
        case J_RANGE: TRY(equal_lists(c, a.as.l, b.as.l, out)); break;
        case J_DICT: TRY(equal_dicts(c, a.as.d, b.as.d, out)); break;
        case J_BUILTIN: *out = a.as.method == b.as.method; break;
        default: *out = a.as.l == b.as.l; break; /* identity */
        }
    }
    c->depth--;
    return ST_OK;
}

static status compare_lists(jctx *c, const jlist *a, const jlist *b, int *out)
{
    TRY(jenter(c));
    *out = 0;
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        TRY(j_equal(c, a->v[i], b->v[i], &same));
        if (same) continue;
        TRY(j_compare(c, a->v[i], b->v[i], out));
        c->depth--;
        return ST_OK;
    }
    *out = (a->n > b->n) - (a->n < b->n);
    c->depth--;
    return ST_OK;
}

status j_compare(jctx *c, jvalue a, jvalue b, int *out)
{
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED) return jfail_undefined(c, a.kind == J_UNDEFINED ? a : b);
    if (j_is_number(a) && j_is_number(b)) {
        const double x = j_as_float(a), y = j_as_float(b);
        *out = (x > y) - (x < y);
        if (isnan(x) || isnan(y)) *out = J_UNORDERED;
        else if (a.kind != J_FLOAT && b.kind != J_FLOAT)
            *out = (j_as_int(a) > j_as_int(b)) - (j_as_int(a) < j_as_int(b));
        return ST_OK;
    }
    if (a.kind == b.kind && (a.kind == J_LIST || a.kind == J_TUPLE)) return compare_lists(c, a.as.l, b.as.l, out);
    if (a.kind != J_STRING || b.kind != J_STRING)
        return jfail(c, "cannot order %s and %s", j_type_name(a), j_type_name(b));
    const jstr *s = a.as.s, *t = b.as.s;
    const int order = memcmp(s->s, t->s, s->n < t->n ? s->n : t->n);
    *out = order ? (order > 0) - (order < 0) : (s->n > t->n) - (s->n < t->n);
    return ST_OK;
}

jvalue *jdict_find_name(const jdict *d, const char *name, size_t n)
{
    for (size_t i = 0; i < d->n; i++) {
        const jvalue *key = &d->v[i].key;
        if (key->kind == J_STRING && key->as.s->n == n && memcmp(key->as.s->s, name, n) == 0) return &d->v[i].value;
    }
    return NULL;
}

jvalue *jdict_find(jctx *c, const jdict *d, jvalue key)
{
    bool same;
    c->steps += d->n / 8;
    if (key.kind == J_STRING) return jdict_find_name(d, key.as.s->s, key.as.s->n);
    for (size_t i = 0; i < d->n; i++)
        if (j_equal(c, d->v[i].key, key, &same) == ST_OK && same) return &d->v[i].value;
    return NULL;
}

status j_want_hashable(jctx *c, jvalue v)
{
    TRY(jenter(c));
    if (v.kind == J_LIST || v.kind == J_DICT || v.kind == J_KEYS || v.kind == J_ITEMS)
        return jfail(c, "unhashable type: '%s'", j_type_name(v));
    for (size_t i = 0; v.kind == J_TUPLE && i < v.as.l->n; i++) TRY(j_want_hashable(c, v.as.l->v[i]));
    c->depth--;
    return ST_OK;
}

status jdict_put(jctx *c, jdict *d, jvalue key, jvalue value)
{
    TRY(j_want_hashable(c, key));
    TRY(jspend(c, 1));
    jvalue *old = jdict_find(c, d, key);
    if (old) {
        *old = value;
        return ST_OK;
    }
    if (d->n == d->cap) {
        jpair *wider;
        const size_t cap = d->cap ? 2 * d->cap : 4;
        TRY(JNEW(c, &wider, cap));
        if (d->n) memcpy(wider, d->v, d->n * sizeof *wider);
        d->v = wider;
        d->cap = cap;
    }
    d->v[d->n++] = (jpair){key, value};
    return ST_OK;
}

/* Merges the sorted halves of the indices order[0..n); ties keep their order. */
static status merge(jctx *c, const jvalue *keys, size_t *order, size_t *space, size_t n, bool reverse)
{
    const size_t half = n / 2;
    size_t i = 0, j = half;
    int sign;
    for (size_t k = 0; k < n; k++) {
        bool left = j == n;
        if (i < half && j < n) {
            TRY(j_compare(c, keys[order[j]], keys[order[i]], &sign));
            left = reverse ? sign != 1 : sign != -1;
        }
        space[k] = left ? order[i++] : order[j++];
    }
    memcpy(order, space, n * sizeof *order);
    return ST_OK;
}

static status sort_order(jctx *c, const jvalue *keys, size_t *order, size_t *space, size_t n, bool reverse)
{
    if (n < 2) return ST_OK;
    TRY(jspend(c, n));
    TRY(sort_order(c, keys, order, space, n / 2, reverse));
    TRY(sort_order(c, keys, order + n / 2, space, n - n / 2, reverse));
    return merge(c, keys, order, space, n, reverse);
}

status j_sort(jctx *c, const jvalue *keys, size_t n, bool reverse, size_t **order)
{
    size_t *space;
    TRY(JNEW(c, order, n));
    TRY(JNEW(c, &space, n));
    for (size_t i = 0; i < n; i++) (*order)[i] = i;
    return sort_order(c, keys, *order, space, n, reverse);
}

status j_sorted_pairs(jctx *c, const jdict *d, jpair **out)
{
    jvalue *keys;
    size_t *order;
    TRY(JNEW(c, &keys, d->n));
    TRY(JNEW(c, out, d->n));
    for (size_t i = 0; i < d->n; i++) keys[i] = d->v[i].key;
    TRY(j_sort(c, keys, d->n, false, &order));
    for (size_t i = 0; i < d->n; i++) (*out)[i] = d->v[order[i]];
    return ST_OK;
}

static status string_items(jctx *c, jvalue v, jvalue **items, size_t *n)
{
    const jstr *s = v.as.s;
    size_t from = 0;
    TRY(JNEW(c, items, s->n));
    *n = 0;
    while (from < s->n) {
        size_t to = from + 1;
        while (to < s->n && ((unsigned char)s->s[to] & 0xc0) == 0x80) to++;
        TRY(j_substring(c, v, from, to, &(*items)[(*n)++]));
        from = to;
    }
    return ST_OK;
}

status j_items(jctx *c, jvalue v, jvalue **items, size_t *n)
{
    *n = 0;
    *items = NULL;
    if (v.kind == J_UNDEFINED) return ST_OK;
    if (v.kind == J_STRING) return string_items(c, v, items, n);
    if (v.kind == J_DICT) {
        TRY(jspend(c, v.as.d->n / 4));
        TRY(JNEW(c, items, v.as.d->n));
        for (; *n < v.as.d->n; ++*n) (*items)[*n] = v.as.d->v[*n].key;
        return ST_OK;
    }
    if (!j_is_sequence(v)) return jfail(c, "'%s' object is not iterable", j_type_name(v));
    *items = v.as.l->v + v.as.l->used;
    *n = v.as.l->n - v.as.l->used;
    if (v.kind == J_GENERATOR) v.as.l->used = v.as.l->n;
    return ST_OK;
}

status j_length(jctx *c, jvalue v, int64_t *n)
{
    *n = 0;
    if (v.kind == J_UNDEFINED) return ST_OK;
    if (v.kind == J_STRING) *n = (int64_t)j_n_chars(v);
    else if (v.kind == J_DICT) *n = (int64_t)v.as.d->n;
    else if (j_is_sequence(v) && v.kind != J_GENERATOR) *n = (int64_t)v.as.l->n;
    else return jfail(c, "object of type '%s' has no len()", j_type_name(v));
    return ST_OK;
}

status j_contains(jctx *c, jvalue container, jvalue needle, bool *out)
{
    jvalue *items;
    size_t n;
    *out = false;
    if (container.kind == J_STRING) {
        if (needle.kind != J_STRING)
            return jfail(c, "'in <string>' requires string as left operand, not %s", j_type_name(needle));
        TRY(jspend(c, container.as.s->n / 64));
        *out = j_find(container, needle, 0) != SIZE_MAX;
        return ST_OK;
    }
    if (container.kind == J_DICT || container.kind == J_KEYS) TRY(j_want_hashable(c, needle));
    if (container.kind == J_DICT) {
        *out = jdict_find(c, container.as.d, needle);
        return ST_OK;
    }
    TRY(j_items(c, container, &items, &n));
    for (size_t i = 0; i < n && !*out; i++) TRY(j_equal(c, items[i], needle, out));
    return ST_OK;
}
