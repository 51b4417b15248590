/* SPDX-License-Identifier: MIT */
/* Tests whether branches of oneOf exclude each other. */
#include "config.h"

#include <string.h>

#include "grammar/schema.h"

enum {
    PARTS = 32 /* schemas of a branch, by $ref and allOf; further ones are left out, which only weakens the test */
};

/* The schemas that a branch consists of. */
typedef struct {
    const json_t *list[PARTS];
    size_t n;
    bool never;
} branch;

static void add(branch *b, const json_t *s)
{
    b->never |= json_is_false(s);
    if (!json_is_object(s) || b->n == PARTS) return;
    for (size_t i = 0; i < b->n; i++)
        if (b->list[i] == s) return;
    b->list[b->n++] = s;
}

static branch gather(const document *d, const json_t *s)
{
    branch b = {.n = 0};
    add(&b, s);
    for (size_t i = 0; i < b.n; i++) {
        const json_t *all = json_object_get(b.list[i], "allOf"), *to = document_target(d, b.list[i]);
        if (to) add(&b, to);
        for (size_t k = 0; k < json_array_size(all); k++) add(&b, json_array_get(all, k));
    }
    return b;
}

/* ---- values ---- */

/* The values that a const or an enum allows. */
typedef struct {
    const json_t *list, *one; /* list NULL: `one`; both NULL: any value */
} values;

static values values_of(const branch *b)
{
    values v = {0};
    for (size_t i = 0; i < b->n && !v.list && !v.one; i++)
        v = (values){json_object_get(b->list[i], "enum"), json_object_get(b->list[i], "const")};
    if (v.one) v.list = NULL;
    return v;
}

static bool is_known(const values *v)
{
    return v->list || v->one;
}

static size_t count(const values *v)
{
    return v->one ? 1 : json_array_size(v->list);
}

static const json_t *value_at(const values *v, size_t i)
{
    return v->one ? v->one : json_array_get(v->list, i);
}

static bool are_disjoint(const values *a, const values *b)
{
    if (!is_known(a) || !is_known(b)) return false;
    for (size_t i = 0; i < count(a); i++)
        for (size_t k = 0; k < count(b); k++)
            if (schema_equal(value_at(a, i), value_at(b, k))) return false;
    return true;
}

static unsigned types_of(const branch *b)
{
    const values v = values_of(b);
    unsigned types = b->never ? 0 : TYPE_ANY, of_values = 0;
    for (size_t i = 0; i < b->n; i++) types &= schema_types(b->list[i]);
    for (size_t i = 0; i < count(&v); i++) of_values |= schema_type_of(value_at(&v, i));
    return is_known(&v) ? types & of_values : types;
}

/* ---- properties ---- */

static bool requires(const branch *b, const char *name)
{
    for (size_t i = 0; i < b->n; i++) {
        const json_t *list = json_object_get(b->list[i], "required");
        for (size_t k = 0; k < json_array_size(list); k++)
            if (strcmp(json_string_value(json_array_get(list, k)), name) == 0) return true;
    }
    return false;
}

static bool lists(const branch *b, const char *name)
{
    bool is = false;
    for (size_t i = 0; i < b->n; i++) is |= json_object_get(json_object_get(b->list[i], "properties"), name) != NULL;
    return is;
}

/* True if an object of this branch never has a property that neither is listed nor required. generated: of the objects
 * that are generated, which have none if any property is listed and additional ones are not declared. */
static bool is_closed(const branch *b, bool generated)
{
    bool closed = false, open = false, any = false;
    for (size_t i = 0; i < b->n; i++) {
        const json_t *other = json_object_get(b->list[i], "additionalProperties");
        closed |= json_is_false(other);
        open |= other && !json_is_false(other);
        any |= json_object_size(json_object_get(b->list[i], "properties")) > 0;
    }
    return closed || (generated && any && !open);
}

/* True if b requires a property that the objects of a do not have. */
static bool lacks(const branch *a, const branch *b, bool generated)
{
    if (!is_closed(a, generated)) return false;
    for (size_t i = 0; i < b->n; i++) {
        const json_t *list = json_object_get(b->list[i], "required");
        for (size_t k = 0; k < json_array_size(list); k++) {
            const char *name = json_string_value(json_array_get(list, k));
            if (!lists(a, name) && !requires(a, name)) return true;
        }
    }
    return false;
}

static values property_values(const document *d, const branch *b, const char *name)
{
    values v = {0};
    for (size_t i = 0; i < b->n && !is_known(&v); i++) {
        const json_t *s = json_object_get(json_object_get(b->list[i], "properties"), name);
        const branch of = gather(d, s);
        v = values_of(&of);
    }
    return v;
}

/* True if both require a property whose values differ. */
static bool differ_by_value(const document *d, const branch *a, const branch *b)
{
    const char *name;
    json_t *unused;
    for (size_t i = 0; i < a->n; i++) json_object_foreach(json_object_get(a->list[i], "properties"), name, unused)
        {
            if (!requires(a, name) || !requires(b, name)) continue;
            const values x = property_values(d, a, name), y = property_values(d, b, name);
            if (are_disjoint(&x, &y)) return true;
        }
    return false;
}

static bool exclude(const document *d, const branch *a, const branch *b)
{
    const values x = values_of(a), y = values_of(b);
    const unsigned both = types_of(a) & types_of(b);
    if (both == 0 || are_disjoint(&x, &y)) return true;
    if (both != TYPE_OBJECT) return false;
    if (differ_by_value(d, a, b)) return true;
    /* Objects generated for each branch lack a property that the other requires, or one branch forbids it. */
    const bool a_of_b = lacks(a, b, true), b_of_a = lacks(b, a, true);
    return (a_of_b && b_of_a) || lacks(a, b, false) || lacks(b, a, false);
}

bool schema_exclusive(const document *d, const json_t *branches)
{
    for (size_t i = 0; i < json_array_size(branches); i++) {
        const branch a = gather(d, json_array_get(branches, i));
        for (size_t k = i + 1; k < json_array_size(branches); k++) {
            const branch b = gather(d, json_array_get(branches, k));
            if (!exclude(d, &a, &b)) return false;
        }
    }
    return true;
}
