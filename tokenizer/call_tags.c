/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/call_tags.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"

enum { SCHEMA_DEPTH = 16, SCHEMA_STEPS = 1000 };

const json_t *call_function(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function");
        const char *own = json_string_value(json_object_get(f, "name"));
        if (own && strcmp(own, name) == 0) return f;
    }
    return NULL;
}

/* ---- types of a schema ---- */

typedef struct {
    const json_t *root;
    call_type out;
    int steps;
} type_walk;

static unsigned type_bit(const char *name)
{
    static const char *const names[] = {"null", "string", "boolean", "integer", "number", "object", "array"};
    for (unsigned i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return 1u << i;
    return 0;
}

/* Copies a part of a JSON pointer up to the next slash; decodes ~0 and ~1. */
static const char *pointer_part(char *out, size_t size, const char *at)
{
    size_t n = 0;
    while (*at && *at != '/') {
        char c = *at++;
        if (c == '~' && (*at == '0' || *at == '1')) c = *at++ == '0' ? '~' : '/';
        if (n + 1 < size) out[n++] = c;
    }
    out[n] = 0;
    return at;
}

/* Returns the schema that `#/a/b` refers to, or NULL. */
static const json_t *refer(const json_t *root, const char *ref)
{
    char part[128];
    if (!ref || *ref != '#') return NULL;
    for (ref++; root && *ref == '/';) {
        ref = pointer_part(part, sizeof part, ref + 1);
        root = json_is_array(root) ? json_array_get(root, strtoul(part, NULL, 10)) : json_object_get(root, part);
    }
    return root;
}

static void collect(type_walk *w, const json_t *schema, int depth)
{
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    if (depth == SCHEMA_DEPTH || ++w->steps > SCHEMA_STEPS || !json_is_object(schema)) return;
    w->out.types |= type_bit(json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        w->out.types |= type_bit(json_string_value(json_array_get(type, i)));
    if (!w->out.values && json_is_array(values)) w->out.values = values;
    collect(w, refer(w->root, json_string_value(json_object_get(schema, "$ref"))), depth + 1);
    for (int k = 0; k < 3; k++) {
        const json_t *list = json_object_get(schema, lists[k]);
        for (size_t i = 0; i < json_array_size(list); i++) collect(w, json_array_get(list, i), depth + 1);
    }
}

call_type call_type_of(const json_t *function, const char *parameter)
{
    const json_t *root = json_object_get(function, "parameters");
    type_walk w = {.root = root};
    collect(&w, json_object_get(json_object_get(root, "properties"), parameter), 0);
    return w.out;
}

bool call_type_is_text(call_type t)
{
    return t.types == TYPE_STRING || (!t.types && !t.values);
}

/* ---- values ---- */

static bool is_one_of(const char *text, const char *a, const char *b)
{
    return strcmp(text, a) == 0 || (b && strcmp(text, b) == 0);
}

/* Returns the value of a text as JSON of one of the types, or NULL. */
static json_t *parse_as(const char *text, size_t n, unsigned types)
{
    json_t *j = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    const unsigned own = json_is_object(j)    ? TYPE_OBJECT
                         : json_is_array(j)   ? TYPE_ARRAY
                         : json_is_integer(j) ? TYPE_INTEGER | TYPE_NUMBER
                         : json_is_real(j)    ? TYPE_NUMBER
                         : json_is_string(j)  ? TYPE_QUOTED
                                              : 0;
    if (j && (own & types)) return j;
    json_decref(j);
    return NULL;
}

/* Returns the length of an integer with an optional fraction of zeros, without this fraction; 0 for another text. */
static size_t integer_length(const char *s)
{
    const size_t sign = *s == '-', digits = strspn(s + sign, "0123456789"), n = sign + digits;
    if (!digits || (digits > 1 && s[sign] == '0')) return 0;
    if (s[n] == '.' && s[n + 1]) return s[n + 1 + strspn(s + n + 1, "0")] ? 0 : n;
    return s[n] ? 0 : n;
}

/* Returns the member of an enum whose text is this one, as JSON freed with free(), or NULL. */
static char *member_text(const json_t *values, const char *text)
{
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *v = json_array_get(values, i);
        char *coded = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        const char *plain = json_is_string(v) ? json_string_value(v) : coded;
        if (plain && strcmp(plain, text) == 0) return coded;
        free(coded);
    }
    return NULL;
}

static status put_string(call_text *out, const char *text, size_t n, err *e)
{
    TRY(call_text_add(out, "\"", 1, e));
    TRY(call_text_escape(out, text, n, e));
    return call_text_add(out, "\"", 1, e);
}

/* Appends the JSON of a text that no string may be. *done: one of the types fits. */
static status put_typed(call_text *out, unsigned types, const char *text, size_t n, bool *done, err *e)
{
    const char *word = (types & TYPE_NULL) && is_one_of(text, "null", "None")        ? "null"
                       : (types & TYPE_BOOLEAN) && is_one_of(text, "true", "True")   ? "true"
                       : (types & TYPE_BOOLEAN) && is_one_of(text, "false", "False") ? "false"
                                                                                     : NULL;
    *done = true;
    if (word) return call_text_add(out, word, strlen(word), e);
    const size_t whole = types & TYPE_INTEGER ? integer_length(text) : 0;
    if (whole) return call_text_add(out, text, whole, e);
    json_t *j = parse_as(text, n, types & ~(unsigned)TYPE_INTEGER);
    *done = j != NULL;
    json_decref(j);
    return *done ? call_text_add(out, text, n, e) : ST_OK;
}

status call_value(call_text *out, call_type t, const char *text, size_t n, err *e)
{
    const unsigned nested = TYPE_OBJECT | TYPE_ARRAY;
    /* beside strings, only null and nested values are recognized */
    const unsigned types = t.types & TYPE_STRING ? t.types & (TYPE_NULL | nested) : t.types;
    bool done = false;
    size_t from = 0, to = n;
    char *copy;
    TRY(MEM_NEW(&copy, n + 1, e));
    memcpy(copy, text, n);
    while (from < to && strchr(" \t\r\n", copy[from])) from++;
    while (to > from && strchr(" \t\r\n", copy[to - 1])) to--;
    copy[to] = 0;
    status st = put_typed(out, types, copy + from, to - from, &done, e);
    char *member = !done && !t.types && st == ST_OK ? member_text(t.values, copy + from) : NULL;
    if (member) st = call_text_add(out, member, strlen(member), e);
    else if (!done && st == ST_OK) st = put_string(out, text, n, e);
    free(member);
    mem_free(copy);
    return st;
}
