/* SPDX-License-Identifier: MIT */
/* Filters on sequences. */
#include "config.h"

#include <string.h>

#include "tokenizer/jinja/builtins.h"

static status generator(jctx *c, jvalue *v, size_t n, jvalue *out)
{
    return j_list(c, J_GENERATOR, v, n, out);
}

/* Stores v's attribute of a path such as "a.b.0"; a missing or none path gives v itself. */
static status follow_path(jctx *c, jvalue v, jvalue path, jvalue *out)
{
    *out = v;
    if (path.kind == J_INT) return j_item(c, v, path, out);
    if (path.kind != J_STRING) return ST_OK;
    const jstr *s = path.as.s;
    for (size_t from = 0, end; from <= s->n; from = end + 1) {
        const char *dot = from < s->n ? memchr(s->s + from, '.', s->n - from) : NULL;
        jvalue part;
        bool number = true;
        int64_t i = 0;
        end = dot ? (size_t)(dot - s->s) : s->n;
        TRY(j_substring(c, path, from, end, &part));
        number = end > from && end - from < 10;
        for (size_t k = from; k < end && number; k++) {
            number = s->s[k] >= '0' && s->s[k] <= '9';
            i = i * 10 + s->s[k] - '0';
        }
        TRY(j_item(c, *out, number ? j_int(i) : part, out));
    }
    return ST_OK;
}

/* Stores what values are compared by: the attribute, with strings in lower case unless case counts. */
static status sort_key(jctx *c, jvalue v, jvalue path, bool case_sensitive, jvalue *out)
{
    TRY(follow_path(c, v, path, out));
    return out->kind == J_STRING && !case_sensitive ? j_change_case(c, *out, CASE_LOWER, out) : ST_OK;
}

static status sort_keys(jctx *c, const jvalue *items, size_t n, jvalue path, bool case_sensitive, jvalue **keys)
{
    TRY(JNEW(c, keys, n));
    for (size_t i = 0; i < n; i++) TRY(sort_key(c, items[i], path, case_sensitive, &(*keys)[i]));
    return ST_OK;
}

status filter_length(jctx *c, const jcall *call, jvalue *out)
{
    int64_t n;
    TRY(j_length(c, call->self, &n));
    *out = j_int(n);
    return ST_OK;
}

status filter_first(jctx *c, const jcall *call, jvalue *out)
{
    jvalue *items, v = call->self;
    size_t n;
    TRY(j_items(c, v, &items, &n));
    if (v.kind == J_GENERATOR && n) v.as.l->used -= n - 1;
    *out = n ? items[0] : j_undefined(WHY_EMPTY, J_NONE, NULL);
    return ST_OK;
}

status filter_last(jctx *c, const jcall *call, jvalue *out)
{
    jvalue *items;
    size_t n;
    if (call->self.kind == J_GENERATOR) return jfail(c, "'generator' object is not reversible");
    TRY(j_items(c, call->self, &items, &n));
    *out = n ? items[n - 1] : j_undefined(WHY_EMPTY, J_NONE, NULL);
    return ST_OK;
}

status filter_list(jctx *c, const jcall *call, jvalue *out)
{
    jvalue *items;
    size_t n;
    TRY(j_items(c, call->self, &items, &n));
    TRY(j_list(c, J_LIST, items, n, out));
    out->input |= call->self.input;
    return ST_OK;
}

status filter_items(jctx *c, const jcall *call, jvalue *out)
{
    if (call->self.kind == J_UNDEFINED) return generator(c, NULL, 0, out);
    if (call->self.kind != J_DICT) return jfail(c, "items: expected a dict, got %s", j_type_name(call->self));
    TRY(j_dict_items(c, call->self, out));
    out->kind = J_GENERATOR;
    return ST_OK;
}

status filter_reverse(jctx *c, const jcall *call, jvalue *out)
{
    jvalue *items, *turned;
    size_t n;
    if (call->self.kind == J_STRING) {
        const jvalue part[3] = {{0}, {0}, j_int(-1)};
        return j_slice(c, call->self, part, out);
    }
    TRY(j_items(c, call->self, &items, &n));
    TRY(JNEW(c, &turned, n));
    for (size_t i = 0; i < n; i++) turned[i] = items[n - 1 - i];
    return j_list(c, call->self.kind == J_GENERATOR ? J_LIST : J_GENERATOR, turned, n, out);
}

status filter_join(jctx *c, const jcall *call, jvalue *out)
{
    jvalue *items, between, v;
    size_t n;
    jbuf b = {0};
    if (call->a[0].kind != J_MISSING) TRY(j_to_string(c, call->a[0], &between));
    TRY(j_items(c, call->self, &items, &n));
    for (size_t i = 0; i < n; i++) {
        if (i && call->a[0].kind != J_MISSING) TRY(jbuf_put_str(c, &b, between));
        TRY(follow_path(c, items[i], call->a[1], &v));
        TRY(j_print(c, &b, v));
    }
    return jbuf_string(c, &b, out);
}

status filter_dictsort(jctx *c, const jcall *call, jvalue *out)
{
    const jvalue by = call->a[1];
    const bool by_value = by.kind == J_STRING && j_is(by.as.s, "value");
    jvalue pairs, *keys, *sorted;
    size_t *order;
    if (call->self.kind == J_UNDEFINED) return jfail_undefined(c, call->self);
    if (call->self.kind != J_DICT) return jfail(c, "dictsort: expected a dict, got %s", j_type_name(call->self));
    if (by.kind != J_MISSING && !by_value && !(by.kind == J_STRING && j_is(by.as.s, "key")))
        return jfail(c, "dictsort: by must be 'key' or 'value'");
    TRY(j_dict_items(c, call->self, &pairs));
    const size_t n = pairs.as.l->n;
    TRY(sort_keys(c, pairs.as.l->v, n, j_int(by_value), j_flag(call->a[0], false), &keys));
    TRY(j_sort(c, keys, n, j_flag(call->a[2], false), &order));
    TRY(JNEW(c, &sorted, n));
    for (size_t i = 0; i < n; i++) sorted[i] = pairs.as.l->v[order[i]];
    return j_list(c, J_LIST, sorted, n, out);
}

status filter_sort(jctx *c, const jcall *call, jvalue *out)
{
    jvalue *items, *keys, *sorted;
    size_t n, *order;
    TRY(j_items(c, call->self, &items, &n));
    if (call->a[2].kind == J_STRING && memchr(call->a[2].as.s->s, ',', call->a[2].as.s->n))
        return jfail(c, "sort: several attributes are not supported");
    TRY(sort_keys(c, items, n, call->a[2], j_flag(call->a[1], false), &keys));
    TRY(j_sort(c, keys, n, j_flag(call->a[0], false), &order));
    TRY(JNEW(c, &sorted, n));
    for (size_t i = 0; i < n; i++) sorted[i] = items[order[i]];
    return j_list(c, J_LIST, sorted, n, out);
}

status filter_unique(jctx *c, const jcall *call, jvalue *out)
{
    jvalue *items, *keys, *kept;
    size_t n, k = 0;
    TRY(j_items(c, call->self, &items, &n));
    TRY(sort_keys(c, items, n, call->a[1], j_flag(call->a[0], false), &keys));
    TRY(JNEW(c, &kept, n));
    for (size_t i = 0; i < n; i++) {
        bool same = false;
        TRY(j_want_hashable(c, keys[i]));
        for (size_t j = 0; j < k && !same; j++) TRY(j_equal(c, keys[i], keys[j], &same));
        if (same) continue;
        keys[k] = keys[i];
        kept[k++] = items[i];
    }
    return generator(c, kept, k, out);
}

/* max and min: the first of equal ones. */
status filter_extreme(jctx *c, const jcall *call, jvalue *out)
{
    jvalue *items, *keys;
    size_t n, best = 0;
    int sign;
    const int wanted = strcmp(call->name, "max") == 0 ? 1 : -1;
    TRY(j_items(c, call->self, &items, &n));
    TRY(sort_keys(c, items, n, call->a[1], j_flag(call->a[0], false), &keys));
    for (size_t i = 1; i < n; i++) {
        TRY(j_compare(c, keys[i], keys[best], &sign));
        if (sign == wanted) best = i;
    }
    *out = n ? items[best] : j_undefined(WHY_EMPTY, J_NONE, NULL);
    return ST_OK;
}

status filter_sum(jctx *c, const jcall *call, jvalue *out)
{
    jvalue *items, v;
    size_t n;
    TRY(j_items(c, call->self, &items, &n));
    *out = call->a[1].kind == J_MISSING ? j_int(0) : call->a[1];
    if (out->kind == J_STRING) return jfail(c, "sum: strings cannot be summed");
    for (size_t i = 0; i < n; i++) {
        TRY(follow_path(c, items[i], call->a[0], &v));
        TRY(j_binary(c, OP_ADD, *out, v, out));
    }
    return ST_OK;
}

/* Splits the arguments of map and select: the first `skip` are read by the caller. */
static jargs rest_of(const jargs *args, size_t skip)
{
    jargs rest = *args;
    rest.v += skip;
    rest.n -= skip;
    return rest;
}

/* Reads map's arguments `attribute` and `default`. */
static status map_attribute(jctx *c, const jargs *args, jvalue *path, jvalue *preset)
{
    *path = *preset = (jvalue){0};
    for (size_t i = 0; i < args->n_named; i++) {
        if (j_is(args->names[i], "attribute")) *path = args->named[i];
        else if (j_is(args->names[i], "default")) *preset = args->named[i];
        else return jfail(c, "map: unexpected argument '%.40s'", args->names[i]->s);
    }
    return path->kind == J_MISSING ? jfail(c, "map requires a filter argument") : ST_OK;
}

status filter_map(jctx *c, const jcall *call, jvalue *out)
{
    const jargs *args = call->args, rest = args->n ? rest_of(args, 1) : *args;
    jvalue *items, *mapped, path, preset;
    size_t n;
    if (!j_truth(call->self)) return generator(c, NULL, 0, out);
    if (!args->n) TRY(map_attribute(c, args, &path, &preset));
    TRY(j_items(c, call->self, &items, &n));
    TRY(JNEW(c, &mapped, n));
    for (size_t i = 0; i < n; i++) {
        if (args->n) {
            TRY(j_call_named(c, false, args->v[0], items[i], &rest, &mapped[i]));
            continue;
        }
        TRY(follow_path(c, items[i], path, &mapped[i]));
        if (mapped[i].kind == J_UNDEFINED && preset.kind != J_MISSING && preset.kind != J_NONE) mapped[i] = preset;
    }
    return generator(c, mapped, n, out);
}

status filter_select(jctx *c, const jcall *call, jvalue *out)
{
    const bool reject = call->name[0] == 'r', by_attribute = strstr(call->name, "attr") != NULL;
    const jargs *args = call->args;
    jvalue *items, *kept, path = {0}, v;
    size_t n, k = 0;
    if (!j_truth(call->self)) return generator(c, NULL, 0, out);
    if (by_attribute && !args->n) return jfail(c, "%s: missing attribute", call->name);
    if (by_attribute) path = args->v[0];
    const bool test = args->n > by_attribute;
    const jargs rest = test ? rest_of(args, 1 + by_attribute) : *args;
    TRY(j_items(c, call->self, &items, &n));
    TRY(JNEW(c, &kept, n));
    for (size_t i = 0; i < n; i++) {
        TRY(follow_path(c, items[i], path, &v));
        if (test) TRY(j_call_named(c, true, args->v[by_attribute], v, &rest, &v));
        if (j_truth(v) != reject) kept[k++] = items[i];
    }
    return generator(c, kept, k, out);
}
