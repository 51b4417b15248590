/* SPDX-License-Identifier: MIT */
/* Checks of the keywords of a schema. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"
#include "kernels/base/mem.h"

/* ---- keywords ---- */

/* Kinds of values of keywords. */
typedef enum {
    KEY_SCHEMA,  /* a schema */
    KEY_SCHEMAS, /* a list of schemas */
    KEY_ITEMS,   /* a schema or a list of schemas */
    KEY_MAP,     /* an object of schemas */
    KEY_COUNT,   /* an integer of at least 0 */
    KEY_NUMBER,
    KEY_BOOL,
    KEY_TYPE,
    KEY_NAMES, /* a list of strings */
    KEY_VALUES,
    KEY_ANYTHING,
    KEY_REF,
    KEY_LISTED /* not enforced */
} key_kind;

typedef struct {
    const char *name;
    key_kind kind;
} key_row;

static const key_row keys[] = {{"type", KEY_TYPE},
                               {"enum", KEY_VALUES},
                               {"const", KEY_ANYTHING},
                               {"properties", KEY_MAP},
                               {"required", KEY_NAMES},
                               {"additionalProperties", KEY_SCHEMA},
                               {"minProperties", KEY_COUNT},
                               {"maxProperties", KEY_COUNT},
                               {"items", KEY_ITEMS},
                               {"prefixItems", KEY_SCHEMAS},
                               {"additionalItems", KEY_SCHEMA},
                               {"minItems", KEY_COUNT},
                               {"maxItems", KEY_COUNT},
                               {"uniqueItems", KEY_BOOL},
                               {"minLength", KEY_COUNT},
                               {"maxLength", KEY_COUNT},
                               {"minimum", KEY_NUMBER},
                               {"maximum", KEY_NUMBER},
                               {"exclusiveMinimum", KEY_NUMBER},
                               {"exclusiveMaximum", KEY_NUMBER},
                               {"multipleOf", KEY_NUMBER},
                               {"anyOf", KEY_SCHEMAS},
                               {"oneOf", KEY_SCHEMAS},
                               {"allOf", KEY_SCHEMAS},
                               {"$ref", KEY_REF},
                               {"$defs", KEY_ANYTHING},
                               {"definitions", KEY_ANYTHING},
                               {"title", KEY_ANYTHING},
                               {"description", KEY_ANYTHING},
                               {"default", KEY_ANYTHING},
                               {"examples", KEY_ANYTHING},
                               {"example", KEY_ANYTHING},
                               {"deprecated", KEY_ANYTHING},
                               {"readOnly", KEY_ANYTHING},
                               {"writeOnly", KEY_ANYTHING},
                               {"$schema", KEY_ANYTHING},
                               {"$id", KEY_ANYTHING},
                               {"$comment", KEY_ANYTHING},
                               {"format", KEY_LISTED},
                               {"contentEncoding", KEY_LISTED},
                               {"contentMediaType", KEY_LISTED}};

static const key_row *key_of(const char *name)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i].name, name) == 0) return &keys[i];
    return NULL;
}

static const struct {
    const char *name;
    unsigned types;
} type_names[] = {{"null", TYPE_NULL},
                  {"boolean", TYPE_BOOLEAN},
                  {"integer", TYPE_INTEGER},
                  {"string", TYPE_STRING},
                  {"array", TYPE_ARRAY},
                  {"object", TYPE_OBJECT},
                  {"number", TYPE_INTEGER | TYPE_FRACTION}};

/* Returns the types of a name, 0 if it is unknown. */
static unsigned types_of_name(const json_t *name)
{
    const char *text = json_string_value(name);
    for (size_t i = 0; text && i < sizeof type_names / sizeof *type_names; i++)
        if (strcmp(type_names[i].name, text) == 0) return type_names[i].types;
    return 0;
}

unsigned schema_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    unsigned types = 0;
    if (!type) return TYPE_ANY;
    if (!json_is_array(type)) return types_of_name(type);
    for (size_t i = 0; i < json_array_size(type); i++) types |= types_of_name(json_array_get(type, i));
    return types;
}

unsigned schema_type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return TYPE_OBJECT;
    case JSON_ARRAY: return TYPE_ARRAY;
    case JSON_STRING: return TYPE_STRING;
    case JSON_INTEGER: return TYPE_INTEGER;
    case JSON_REAL: return json_real_value(v) == floor(json_real_value(v)) ? TYPE_INTEGER : TYPE_FRACTION;
    case JSON_NULL: return TYPE_NULL;
    default: return TYPE_BOOLEAN;
    }
}

bool schema_bound(const json_t *v, wide *out, bool *infinite)
{
    char text[512];
    const double x = json_number_value(v);
    wide n = 0, scale = 1;
    for (int i = 0; i < UNIT_SHIFT; i++) scale *= 10;
    *infinite = fabs(x) > 1e18;
    *out = (wide)json_integer_value(v) * scale;
    if (json_is_integer(v) || *infinite) return true;
    snprintf(text, sizeof text, "%.15g", x);
    const int digits = strtod(text, NULL) == x ? 15 : 17;
    snprintf(text, sizeof text, "%.*e", digits - 1, x); /* d.ddde+xx */
    const int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    int shift = UNIT_SHIFT + exponent - (digits - 1); /* of the digits without the point */
    for (const char *p = text; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') n = n * 10 + (*p - '0');
    for (; shift < 0 && n % 10 == 0 && n != 0; shift++) n /= 10;
    if (shift < 0 && n != 0) return false;
    for (; shift > 0 && n != 0; shift--) n *= 10;
    *out = *text == '-' ? -n : n;
    return true;
}

/* ---- errors ---- */

status document_refuse(const document *d, const char *path, const char *keyword, const char *why, err *e)
{
    if (!d->o->lenient) return err_set(e, ST_UNSUPPORTED, "%s.%s: %s", path, keyword, why);
    if (d->o->ignored && json_array_append_new(d->o->ignored, json_sprintf("%s.%s", path, keyword)) != 0)
        return err_set(e, ST_NOMEM, "out of memory for a schema");
    return ST_OK;
}

static status malformed(const char *path, const char *keyword, const char *expected, err *e)
{
    return err_set(e, ST_FORMAT, "%s.%s: expected %s", path, keyword, expected);
}

/* ---- references ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes a step of a JSON pointer in a URI (RFC 6901) in place. */
static void decode_step(char *s)
{
    char *to = s, *from = s;
    for (; *from; from++) {
        if (*from == '%' && hex_digit(from[1]) >= 0 && hex_digit(from[2]) >= 0) {
            *to++ = (char)(hex_digit(from[1]) << 4 | hex_digit(from[2]));
            from += 2;
        } else {
            *to++ = *from;
        }
    }
    *to = 0;
    for (to = from = s; *from; from++) {
        const bool escape = *from == '~' && (from[1] == '0' || from[1] == '1');
        *to++ = escape ? (*++from == '0' ? '~' : '/') : *from;
    }
    *to = 0;
}

/* Follows a JSON pointer from the root. */
static const json_t *follow(const json_t *at, const char *pointer)
{
    while (at && *pointer) {
        char step[256];
        const size_t n = strcspn(pointer + 1, "/");
        if (*pointer != '/' || n >= sizeof step) return NULL;
        memcpy(step, pointer + 1, n);
        step[n] = 0;
        decode_step(step);
        pointer += 1 + n;
        if (json_is_array(at)) at = json_array_get(at, strtoul(step, NULL, 10));
        else at = json_object_get(at, step);
    }
    return at;
}

const json_t *document_target(const document *d, const json_t *schema)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *to = ref && *ref == '#' ? follow(d->root, ref + 1) : NULL;
    return json_is_object(to) || json_is_boolean(to) ? to : NULL;
}

/* ---- subschemas ---- */

static size_t slot_of(const document *d, const json_t *schema)
{
    size_t i = (size_t)((uintptr_t)schema >> 4) * 0x9e3779b97f4a7c15u >> 20 & (d->n_table - 1);
    while (d->table[i] && d->list[d->table[i] - 1].at != schema) i = (i + 1) & (d->n_table - 1);
    return i;
}

static subschema *find(const document *d, const json_t *schema)
{
    const uint32_t i = d->table[slot_of(d, schema)];
    return i ? &d->list[i - 1] : NULL;
}

const char *document_path(const document *d, const json_t *schema)
{
    const subschema *s = find(d, schema);
    return s ? s->path : d->o->root;
}

static status check(document *d, const json_t *schema, const char *path, int depth, err *e);

/* Checks a subschema at path.key, path.key.name or path.key[at]. */
static status check_child(document *d, const json_t *child, const char *path, const char *key, const char *name,
                          size_t at, int depth, err *e)
{
    char text[512];
    if (name) snprintf(text, sizeof text, "%s.%s.%s", path, key, name);
    else if (at != SIZE_MAX) snprintf(text, sizeof text, "%s.%s[%zu]", path, key, at);
    else snprintf(text, sizeof text, "%s.%s", path, key);
    return check(d, child, text, depth + 1, e);
}

static status check_list(document *d, const json_t *list, const char *path, const char *key, int depth, err *e)
{
    if (!json_is_array(list)) return malformed(path, key, "an array of schemas", e);
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(check_child(d, json_array_get(list, i), path, key, NULL, i, depth, e));
    return ST_OK;
}

static status check_map(document *d, const json_t *map, const char *path, const char *key, int depth, err *e)
{
    const char *name;
    json_t *child;
    if (!json_is_object(map)) return malformed(path, key, "an object of schemas", e);
    d->n_properties += json_object_size(map);
    if (json_object_size(map) > SCHEMA_MEMBERS || d->n_properties > SCHEMA_PROPERTIES)
        return err_set(e, ST_UNSUPPORTED, "%s.%s: more than %d properties, or %d in all", path, key, SCHEMA_MEMBERS,
                       SCHEMA_PROPERTIES);
    json_object_foreach((json_t *)(uintptr_t)map, name, child)
        TRY(check_child(d, child, path, key, name, SIZE_MAX, depth, e));
    return ST_OK;
}

static status check_ref(document *d, const json_t *schema, const char *path, const json_t *ref, int depth, err *e)
{
    const char *text = json_string_value(ref);
    const json_t *to = document_target(d, schema);
    char name[256];
    if (!text) return malformed(path, "$ref", "a string", e);
    if (*text != '#' || (text[1] && text[1] != '/'))
        return err_set(e, ST_UNSUPPORTED, "%s.$ref: only references into this document (#/...) are supported", path);
    if (!to) return err_set(e, ST_FORMAT, "%s.$ref: '%.80s' is not a schema of this document", path, text);
    snprintf(name, sizeof name, "%s", d->o->root);
    for (const char *p = text + 1; *p && strlen(name) + 1 < sizeof name; p++) {
        const size_t n = strlen(name);
        name[n] = *p == '/' ? '.' : *p;
        name[n + 1] = 0;
    }
    return check(d, to, name, depth + 1, e);
}

/* ---- values of keywords ---- */

static status check_type(const json_t *v, const char *path, err *e)
{
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++)
        if (!types_of_name(json_is_array(v) ? json_array_get(v, i) : v))
            return malformed(path, "type", "type names", e);
    return n ? ST_OK : malformed(path, "type", "type names", e);
}

static status check_names(const json_t *v, const char *path, err *e)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i))) v = NULL;
    return json_is_array(v) ? ST_OK : malformed(path, "required", "an array of names", e);
}

static status check_count(const json_t *v, const char *path, const char *key, err *e)
{
    const double x = json_number_value(v);
    if (!json_is_number(v) || x < 0 || x != floor(x)) return malformed(path, key, "an integer of at least 0", e);
    return ST_OK;
}

static status check_number(const document *d, const json_t *v, const char *path, const char *key, err *e)
{
    wide unused;
    bool infinite;
    if (!json_is_number(v)) return malformed(path, key, "a number", e);
    if (strcmp(key, "multipleOf") == 0)
        return json_number_value(v) == 1 ? ST_OK : document_refuse(d, path, key, "only 1 is supported", e);
    if (schema_bound(v, &unused, &infinite)) return ST_OK;
    return err_set(e, ST_UNSUPPORTED, "%s.%s: more than 15 digits after the point", path, key);
}

/* Checks the keywords that depend on each other. */
static status check_together(const document *d, const json_t *schema, const char *path, err *e)
{
    const json_t *most = json_object_get(schema, "maxItems");
    const bool few = most && json_number_value(most) <= 1;
    if (json_is_true(json_object_get(schema, "uniqueItems")) && !few)
        return document_refuse(d, path, "uniqueItems", "true requires maxItems of at most 1", e);
    return ST_OK;
}

static status check_keyword(document *d, const json_t *schema, const char *path, const char *key, const json_t *v,
                            int depth, err *e)
{
    const key_row *k = key_of(key);
    if (!k) return strncmp(key, "x-", 2) == 0 ? ST_OK : document_refuse(d, path, key, "not supported", e);
    switch (k->kind) {
    case KEY_SCHEMA: return check_child(d, v, path, key, NULL, SIZE_MAX, depth, e);
    case KEY_ITEMS:
        if (!json_is_array(v)) return check_child(d, v, path, key, NULL, SIZE_MAX, depth, e);
        return check_list(d, v, path, key, depth, e);
    case KEY_SCHEMAS: return check_list(d, v, path, key, depth, e);
    case KEY_MAP: return check_map(d, v, path, key, depth, e);
    case KEY_COUNT: return check_count(v, path, key, e);
    case KEY_NUMBER: return check_number(d, v, path, key, e);
    case KEY_BOOL: return json_is_boolean(v) ? ST_OK : malformed(path, key, "true or false", e);
    case KEY_TYPE: return check_type(v, path, e);
    case KEY_NAMES: return check_names(v, path, e);
    case KEY_VALUES:
        if (json_array_size(v) > SCHEMA_VALUES)
            return err_set(e, ST_UNSUPPORTED, "%s.enum: more than %d values", path, SCHEMA_VALUES);
        return json_is_array(v) ? ST_OK : malformed(path, key, "an array", e);
    case KEY_REF: return check_ref(d, schema, path, v, depth, e);
    case KEY_LISTED:
        if (d->o->ignored && json_array_append_new(d->o->ignored, json_sprintf("%s.%s", path, key)) != 0)
            return err_set(e, ST_NOMEM, "out of memory for a schema");
        return ST_OK;
    default: return ST_OK;
    }
}

static status add(document *d, const json_t *schema, const char *path, err *e)
{
    if (d->n == SCHEMA_NODES)
        return err_set(e, ST_UNSUPPORTED, "%s: more than %d subschemas", d->o->root, SCHEMA_NODES);
    TRY(MEM_ROOM(&d->list, &d->cap, d->n + 1, e));
    char *copy = mem_strdup(path);
    if (!copy) return err_set(e, ST_NOMEM, "out of memory for a schema");
    d->list[d->n] = (subschema){.at = schema, .path = copy};
    d->table[slot_of(d, schema)] = (uint32_t)++d->n;
    return ST_OK;
}

static status check(document *d, const json_t *schema, const char *path, int depth, err *e)
{
    const char *key;
    json_t *v;
    if (json_is_boolean(schema)) return ST_OK;
    if (!json_is_object(schema)) return err_set(e, ST_FORMAT, "%s: expected a schema", path);
    if (find(d, schema)) return ST_OK;
    if (depth > SCHEMA_NESTING) return err_set(e, ST_UNSUPPORTED, "%s: nested too deeply", path);
    TRY(add(d, schema, path, e));
    json_object_foreach((json_t *)(uintptr_t)schema, key, v) TRY(check_keyword(d, schema, path, key, v, depth, e));
    return check_together(d, schema, path, e);
}

/* ---- circles ---- */

/* Refuses schemas of one value that refer to each other in a circle, which no array or object interrupts. */
static status visit(const document *d, const json_t *schema, int depth, err *e)
{
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    subschema *s = json_is_object(schema) ? find(d, schema) : NULL;
    if (!s || s->color == 2) return ST_OK;
    if (s->color == 1 || depth > SCHEMA_CHAIN)
        return err_set(e, ST_USAGE, "%s: recursion that passes no array or object", s->path);
    s->color = 1;
    TRY(visit(d, document_target(d, schema), depth + 1, e));
    for (size_t i = 0; i < 3; i++) {
        const json_t *list = json_object_get(schema, lists[i]);
        for (size_t k = 0; k < json_array_size(list); k++) TRY(visit(d, json_array_get(list, k), depth + 1, e));
    }
    s->color = 2;
    return ST_OK;
}

status document_check(document *d, const json_t *root, const schema_options *o, err *e)
{
    *d = (document){.root = root, .o = o, .n_table = 4 * 8192};
    TRY(MEM_NEW(&d->table, d->n_table, e));
    TRY(check(d, root, o->root, 0, e));
    for (size_t i = 0; i < d->n; i++) TRY(visit(d, d->list[i].at, 0, e));
    return ST_OK;
}

void document_close(document *d)
{
    for (size_t i = 0; i < d->n; i++) mem_free(d->list[i].path);
    mem_free(d->list);
    mem_free(d->table);
}
