/* SPDX-License-Identifier: MIT */
/* Validation of values, for the members of enum and const. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "grammar/schema.h"

bool schema_equal(const json_t *a, const json_t *b)
{
    const char *name;
    json_t *v;
    if (json_is_number(a) && json_is_number(b)) {
        if (json_is_integer(a) && json_is_integer(b)) return json_integer_value(a) == json_integer_value(b);
        return json_number_value(a) == json_number_value(b);
    }
    if (json_is_array(a) && json_is_array(b)) {
        bool same = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; same && i < json_array_size(a); i++)
            same = schema_equal(json_array_get(a, i), json_array_get(b, i));
        return same;
    }
    if (!json_is_object(a) || !json_is_object(b)) return json_equal(a, b);
    if (json_object_size(a) != json_object_size(b)) return false;
    json_object_foreach((json_t *)(uintptr_t)a, name, v)
    {
        const json_t *other = json_object_get(b, name);
        if (!other || !schema_equal(v, other)) return false;
    }
    return true;
}

static bool is_in(const json_t *list, const json_t *v)
{
    bool is = false;
    for (size_t i = 0; i < json_array_size(list) && !is; i++) is = schema_equal(json_array_get(list, i), v);
    return is;
}

/* True if a number is at least, or at most, the bounds of a schema. */
static bool in_bounds(const json_t *s, double x)
{
    const json_t *low = json_object_get(s, "minimum"), *above = json_object_get(s, "exclusiveMinimum");
    const json_t *high = json_object_get(s, "maximum"), *below = json_object_get(s, "exclusiveMaximum");
    const json_t *step = json_object_get(s, "multipleOf");
    return !(low && x < json_number_value(low)) && !(above && x <= json_number_value(above)) &&
           !(high && x > json_number_value(high)) && !(below && x >= json_number_value(below)) &&
           !(step && json_number_value(step) == 1 && x != floor(x));
}

/* True if a number of members, items or characters is within the bounds `least` and `most`. */
static bool count_fits(const json_t *s, const char *least, const char *most, size_t n)
{
    const json_t *low = json_object_get(s, least), *high = json_object_get(s, most);
    return !(low && (double)n < json_number_value(low)) && !(high && (double)n > json_number_value(high));
}

static size_t characters(const json_t *v)
{
    size_t n = 0;
    for (size_t i = 0; i < json_string_length(v); i++) n += ((unsigned char)json_string_value(v)[i] & 0xc0) != 0x80;
    return n;
}

static bool valid_array(const document *d, const json_t *s, const json_t *v)
{
    const json_t *items = json_object_get(s, "items"), *prefix = json_object_get(s, "prefixItems");
    if (json_is_array(items)) {
        prefix = items;
        items = json_object_get(s, "additionalItems");
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *of = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (of && !schema_valid(d, of, json_array_get(v, i))) return false;
    }
    return count_fits(s, "minItems", "maxItems", json_array_size(v));
}

static bool valid_object(const document *d, const json_t *s, const json_t *v)
{
    const json_t *properties = json_object_get(s, "properties"), *other = json_object_get(s, "additionalProperties");
    const json_t *required = json_object_get(s, "required");
    const char *name;
    json_t *member;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(v, json_string_value(json_array_get(required, i)))) return false;
    json_object_foreach((json_t *)(uintptr_t)v, name, member)
    {
        const json_t *own = json_object_get(properties, name), *of = own ? own : other;
        if (of && !schema_valid(d, of, member)) return false;
    }
    return count_fits(s, "minProperties", "maxProperties", json_object_size(v));
}

/* Returns the number of schemas of a list under which a value is valid. */
static size_t matches(const document *d, const json_t *list, const json_t *v)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) n += schema_valid(d, json_array_get(list, i), v);
    return n;
}

static bool valid_combination(const document *d, const json_t *s, const json_t *v)
{
    const json_t *all = json_object_get(s, "allOf"), *any = json_object_get(s, "anyOf");
    const json_t *one = json_object_get(s, "oneOf"), *to = document_target(d, s);
    const size_t n = matches(d, one, v);
    return (!to || schema_valid(d, to, v)) && matches(d, all, v) == json_array_size(all) &&
           (!any || matches(d, any, v) > 0) && (!one || n == 1 || (n > 1 && d->o->lenient));
}

bool schema_valid(const document *d, const json_t *s, const json_t *v)
{
    const json_t *values = json_object_get(s, "enum"), *value = json_object_get(s, "const");
    if (json_is_boolean(s)) return json_is_true(s);
    if (!(schema_types(s) & schema_type_of(v))) return false;
    if (values && !is_in(values, v)) return false;
    if (value && !schema_equal(value, v)) return false;
    if (json_is_number(v) && !in_bounds(s, json_number_value(v))) return false;
    if (json_is_string(v) && !count_fits(s, "minLength", "maxLength", characters(v))) return false;
    if (json_is_array(v) && !valid_array(d, s, v)) return false;
    if (json_is_object(v) && !valid_object(d, s, v)) return false;
    return valid_combination(d, s, v);
}
