/* SPDX-License-Identifier: MIT */
/* Compiles schemas to nodes. The unit is a conjunction: the schemas that one value must satisfy together, by $ref,
 * allOf and the properties that merged objects share. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"
#include "kernels/base/mem.h"

/* Parts of a schema that other members of its conjunction replace: the chosen branch of anyOf or oneOf. */
enum { CHOSEN_ANY = 1, CHOSEN_ONE = 2 };

typedef struct {
    const json_t *s;
    unsigned chosen;
} item;

/* A conjunction in the order of its first mention. never: false is a member. */
typedef struct {
    item *list;
    size_t n, cap;
    bool never;
} conjunction;

/* A compiled conjunction. */
typedef struct {
    conjunction of;
    int32_t node;
} known;

typedef struct {
    grammar_builder *b;
    document d;
    known *known;
    size_t n_known, cap_known;
    uint32_t *table; /* hash table of indexes + 1 of `known` */
    size_t n_table;
    char why[256]; /* first reason why a schema has no value; "": none */
    err *e;
} compiler;

static status compile(compiler *c, const conjunction *of, int depth, int32_t *out);

static status out_of_memory(compiler *c)
{
    status st = build_status(c->b, c->e);
    return st == ST_OK ? err_set(c->e, ST_NOMEM, "out of memory for a schema") : st;
}

/* ---- conjunctions ---- */

static status add_item(compiler *c, conjunction *to, const json_t *s, unsigned chosen)
{
    if (json_is_boolean(s)) {
        to->never |= json_is_false(s);
        return ST_OK;
    }
    for (size_t i = 0; i < to->n; i++)
        if (to->list[i].s == s) return ST_OK;
    if (to->n >= SCHEMA_CHAIN)
        return err_set(c->e, ST_UNSUPPORTED, "%s: more than %d schemas of one value", document_path(&c->d, s),
                       SCHEMA_CHAIN);
    TRY(MEM_ROOM(&to->list, &to->cap, to->n + 1, c->e));
    to->list[to->n++] = (item){s, chosen};
    return ST_OK;
}

/* Adds a schema, then those of its $ref and allOf. */
static status add_schema(compiler *c, conjunction *to, const json_t *s, unsigned chosen)
{
    size_t from = to->n;
    TRY(add_item(c, to, s, chosen));
    for (; from < to->n; from++) {
        const json_t *one = to->list[from].s, *all = json_object_get(one, "allOf"), *ref = document_target(&c->d, one);
        if (ref) TRY(add_item(c, to, ref, 0));
        for (size_t i = 0; i < json_array_size(all); i++) TRY(add_item(c, to, json_array_get(all, i), 0));
    }
    return ST_OK;
}

/* Returns the path of a conjunction's first schema. */
static const char *path_of(const compiler *c, const conjunction *of)
{
    return of->n ? document_path(&c->d, of->list[0].s) : c->d.o->root;
}

/* Notes why a conjunction has no value, or not of a type. */
__attribute__((format(printf, 3, 4))) static void note(compiler *c, const conjunction *of, const char *fmt, ...)
{
    va_list args;
    const int n = *c->why ? -1 : snprintf(c->why, sizeof c->why, "%s: ", path_of(c, of));
    if (n < 0 || (size_t)n >= sizeof c->why) return;
    va_start(args, fmt);
    vsnprintf(c->why + n, sizeof c->why - (size_t)n, fmt, args);
    va_end(args);
}

/* Returns the first value of a keyword, and the next ones by advancing *i. */
static const json_t *next_value(const conjunction *of, const char *key, size_t *i)
{
    const json_t *v = NULL;
    while (*i < of->n && !v) v = json_object_get(of->list[(*i)++].s, key);
    return v;
}

/* Returns the largest (or smallest) count of a keyword, `none` without one. */
static uint32_t bound_count(const conjunction *of, const char *key, bool largest, uint32_t none)
{
    uint32_t x = none;
    size_t i = 0;
    for (const json_t *v; (v = next_value(of, key, &i));) {
        const double d = json_number_value(v);
        const uint32_t n = d > SCHEMA_LENGTH ? SCHEMA_LENGTH + 1 : (uint32_t)d;
        if (x == none || (largest ? n > x : n < x)) x = n;
    }
    return x;
}

/* Reads a pair of counts. A maximum above the limit is no bound for what is generated; a minimum above it is refused.
 */
static status count_range(compiler *c, const conjunction *of, const char *least, const char *most, uint32_t limit,
                          uint32_t *low, uint32_t *high)
{
    *low = bound_count(of, least, true, 0);
    *high = bound_count(of, most, false, UNLIMITED);
    if (*low > limit)
        return err_set(c->e, ST_UNSUPPORTED, "%s.%s: more than %u", path_of(c, of), least, (unsigned)limit);
    if (*high != UNLIMITED && *high > limit) *high = UNLIMITED;
    return ST_OK;
}

/* ---- enum and const ---- */

/* Writes the digits of \u in lower case, as Python's json does. */
static void lower_escapes(char *text)
{
    for (char *p = text; *p; p++) {
        if (*p != '\\') continue;
        if (*++p != 'u') continue;
        for (int i = 0; i < 4; i++, p++) p[1] = (char)(p[1] >= 'A' && p[1] <= 'F' ? p[1] - 'A' + 'a' : p[1]);
    }
}

/* Returns the text of a value with the shortest numbers, freed with free(), or NULL. */
static char *spell(const json_t *v)
{
    for (size_t digits = 15; digits <= 17; digits++) {
        char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
        json_t *back = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        const bool same = !text || digits == 17 || json_equal(v, back);
        json_decref(back);
        if (same && text) lower_escapes(text);
        if (same) return text;
        free(text);
    }
    return NULL;
}

static bool is_valid(compiler *c, const conjunction *of, const json_t *v)
{
    bool valid = !of->never;
    for (size_t i = 0; i < of->n && valid; i++) valid = schema_valid(&c->d, of->list[i].s, v);
    return valid;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const literal *)a)->text, ((const literal *)b)->text);
}

/* Writes the distinct texts of the values of an enum that satisfy the conjunction. */
static status spell_all(compiler *c, const conjunction *of, const json_t *values, literal *list, size_t *n)
{
    size_t bytes = 0, k = 0;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *v = json_array_get(values, i);
        if (!is_valid(c, of, v)) continue;
        char *text = spell(v);
        if (!text) return out_of_memory(c);
        list[(*n)++] = (literal){text, (uint32_t)strlen(text), NO_NODE};
        bytes += list[*n - 1].n;
    }
    if (bytes > SCHEMA_VALUE_BYTES)
        return err_set(c->e, ST_UNSUPPORTED, "%s.enum: more than %d bytes", path_of(c, of), SCHEMA_VALUE_BYTES);
    qsort(list, *n, sizeof *list, by_text);
    for (size_t i = 0; i < *n; i++) {
        if (k && strcmp(list[k - 1].text, list[i].text) == 0) free((char *)(uintptr_t)list[i].text);
        else list[k++] = list[i];
    }
    *n = k;
    return ST_OK;
}

/* Compiles a conjunction with an enum or a const, of which `values` are the candidates. */
static status compile_values(compiler *c, const conjunction *of, const json_t *values, int32_t id)
{
    literal *list;
    size_t n = 0;
    span s;
    TRY(MEM_NEW(&list, json_array_size(values), c->e));
    status st = spell_all(c, of, values, list, &n);
    if (st == ST_OK && n == 0) note(c, of, "no value of enum or const satisfies the other keywords");
    if (st == ST_OK && n > 0) {
        if (build_literals(c->b, list, n, &s)) {
            build_at(c->b, id)->kind = NODE_LITERALS;
            build_at(c->b, id)->list = s;
        } else {
            st = out_of_memory(c);
        }
    }
    for (size_t i = 0; i < n; i++) free((char *)(uintptr_t)list[i].text);
    mem_free(list);
    return st;
}

/* ---- unions ---- */

/* Returns the first list of branches of which none is chosen, and its item. */
static const json_t *find_branches(const conjunction *of, size_t *at, unsigned *which)
{
    for (size_t i = 0; i < of->n; i++)
        for (unsigned k = CHOSEN_ANY; k <= CHOSEN_ONE; k++) {
            const json_t *list = json_object_get(of->list[i].s, k == CHOSEN_ANY ? "anyOf" : "oneOf");
            if (!list || of->list[i].chosen & k) continue;
            *at = i;
            *which = k;
            return list;
        }
    return NULL;
}

static status compile_branch(compiler *c, const conjunction *of, size_t at, unsigned which, const json_t *branch,
                             int depth, int32_t *out)
{
    conjunction all = {.never = of->never};
    status st = ST_OK;
    for (size_t i = 0; i < of->n && st == ST_OK; i++)
        st = add_item(c, &all, of->list[i].s, of->list[i].chosen | (i == at ? which : 0));
    if (st == ST_OK) st = add_schema(c, &all, branch, 0);
    if (st == ST_OK) st = compile(c, &all, depth + 1, out);
    mem_free(all.list);
    return st;
}

static status compile_union(compiler *c, const conjunction *of, const json_t *list, size_t at, unsigned which,
                            int depth, int32_t id)
{
    int32_t branches[SCHEMA_BRANCHES];
    const size_t n = json_array_size(list);
    const char *key = which == CHOSEN_ANY ? "anyOf" : "oneOf";
    span s;
    if (n > SCHEMA_BRANCHES)
        return err_set(c->e, ST_UNSUPPORTED, "%s.%s: more than %d branches", document_path(&c->d, of->list[at].s), key,
                       SCHEMA_BRANCHES);
    if (which == CHOSEN_ONE && !schema_exclusive(&c->d, list))
        TRY(document_refuse(&c->d, document_path(&c->d, of->list[at].s), key, "the branches may overlap; use anyOf",
                            c->e));
    for (size_t i = 0; i < n; i++) TRY(compile_branch(c, of, at, which, json_array_get(list, i), depth, &branches[i]));
    if (n == 0) note(c, of, "%s has no branches", key);
    if (!build_refs(c->b, branches, n, &s)) return out_of_memory(c);
    build_at(c->b, id)->kind = NODE_CHOICE;
    build_at(c->b, id)->list = s;
    return ST_OK;
}

/* ---- scalars ---- */

static status compile_string(compiler *c, const conjunction *of, int32_t id)
{
    uint32_t low, high;
    TRY(count_range(c, of, "minLength", "maxLength", SCHEMA_LENGTH, &low, &high));
    if (low > high) {
        note(c, of, "no value satisfies minLength %u and maxLength %u", (unsigned)low, (unsigned)high);
        return ST_OK;
    }
    node *p = build_at(c->b, id);
    p->kind = NODE_STRING;
    p->string.min = low;
    p->string.max = high;
    return ST_OK;
}

/* Bounds of a number with the keywords from which they are. */
typedef struct {
    wide low, high;
    bool bounded;
    const json_t *low_is, *high_is;
    const char *low_key, *high_key;
} bounds;

static void read_bounds(const conjunction *of, bounds *b)
{
    static const struct {
        const char *key;
        int side, above; /* side: -1 low; above: units beyond the bound */
    } rows[] = {{"minimum", -1, 0}, {"exclusiveMinimum", -1, 1}, {"maximum", 1, 0}, {"exclusiveMaximum", 1, -1}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        size_t i = 0;
        for (const json_t *v; (v = next_value(of, rows[k].key, &i));) {
            wide x;
            bool infinite;
            const bool low = rows[k].side < 0;
            schema_bound(v, &x, &infinite);
            if (infinite && (json_number_value(v) > 0) == !low) continue; /* beyond all generated numbers */
            x += rows[k].above;
            b->bounded = true;
            if (low ? b->low_is && x <= b->low : b->high_is && x >= b->high) continue;
            if (low) b->low = x, b->low_is = v, b->low_key = rows[k].key;
            else b->high = x, b->high_is = v, b->high_key = rows[k].key;
        }
    }
}

static wide power(int n)
{
    wide x = 1;
    while (n-- > 0) x *= 10;
    return x;
}

/* True if a multiple of `unit` is within the bounds. */
static bool has_multiple(const bounds *b, wide unit)
{
    wide low = b->low / unit;
    if (low * unit < b->low) low++;
    return low * unit <= b->high;
}

static void note_bounds(compiler *c, const conjunction *of, const bounds *b)
{
    char *low = b->low_is ? spell(b->low_is) : NULL, *high = b->high_is ? spell(b->high_is) : NULL;
    if (low && high) note(c, of, "no value satisfies %s %s and %s %s", b->low_key, low, b->high_key, high);
    else note(c, of, "no value satisfies %s %s", low ? b->low_key : b->high_key, low ? low : high ? high : "");
    free(low);
    free(high);
}

/* Compiles numbers. Bounds beyond 15 digits leave the integers only. */
static void compile_number(compiler *c, const conjunction *of, unsigned types, int32_t id)
{
    const wide most = power(INTEGER_DIGITS + UNIT_SHIFT), large = power(BOUNDED_DIGITS + UNIT_SHIFT);
    bounds b = {.low = -most, .high = most};
    bool whole = !(types & TYPE_FRACTION);
    size_t i = 0;
    read_bounds(of, &b);
    for (const json_t *v; (v = next_value(of, "multipleOf", &i));) whole |= json_number_value(v) == 1;
    whole |= b.bounded && (b.low >= large || b.high <= -large);
    if (b.low >= most || b.high <= -most || !has_multiple(&b, whole ? power(UNIT_SHIFT) : 1)) {
        note_bounds(c, of, &b);
        return;
    }
    node *p = build_at(c->b, id);
    p->kind = NODE_NUMBER;
    p->number.low = b.low;
    p->number.high = b.high;
    p->number.bounded = b.bounded;
    p->number.exponent = !whole && !b.bounded;
    p->number.fraction = whole ? 0 : FRACTION_DIGITS;
    p->number.digits = whole ? INTEGER_DIGITS : b.bounded ? BOUNDED_DIGITS : 2 * FRACTION_DIGITS;
}

/* ---- arrays ---- */

/* Returns the schema of item `at` in one schema, or NULL; prefix: number of listed items. */
static const json_t *item_of(const json_t *s, size_t at, size_t *prefix)
{
    const json_t *items = json_object_get(s, "items"), *list = json_object_get(s, "prefixItems");
    if (json_is_array(items)) {
        list = items;
        items = json_object_get(s, "additionalItems");
    }
    *prefix = json_array_size(list);
    return at < *prefix ? json_array_get(list, at) : items;
}

static status compile_item(compiler *c, const conjunction *of, size_t at, int depth, int32_t *out)
{
    conjunction all = {0};
    size_t unused;
    status st = ST_OK;
    for (size_t i = 0; i < of->n && st == ST_OK; i++) {
        const json_t *s = item_of(of->list[i].s, at, &unused);
        if (s) st = add_schema(c, &all, s, 0);
    }
    if (st == ST_OK) st = compile(c, &all, depth + 1, out);
    mem_free(all.list);
    return st;
}

static status compile_array(compiler *c, const conjunction *of, int depth, int32_t id)
{
    uint32_t low, high;
    size_t n = 0, k;
    int32_t *prefix, items;
    span s;
    TRY(count_range(c, of, "minItems", "maxItems", SCHEMA_LENGTH, &low, &high));
    if (low > high) {
        note(c, of, "no value satisfies minItems %u and maxItems %u", (unsigned)low, (unsigned)high);
        return ST_OK;
    }
    for (size_t i = 0; i < of->n; i++) {
        (void)item_of(of->list[i].s, 0, &k);
        if (k > n) n = k;
    }
    TRY(MEM_NEW(&prefix, n, c->e));
    status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) st = compile_item(c, of, i, depth, &prefix[i]);
    if (st == ST_OK) st = compile_item(c, of, n, depth, &items);
    if (st == ST_OK && !build_refs(c->b, prefix, n, &s)) st = out_of_memory(c);
    mem_free(prefix);
    TRY(st);
    node *p = build_at(c->b, id);
    p->kind = NODE_ARRAY;
    p->array.prefix = s;
    p->array.items = items;
    p->array.min = low;
    p->array.max = high;
    return ST_OK;
}

/* ---- objects ---- */

/* The properties of a conjunction: names in order, a set of them, and of additional members. */
typedef struct {
    json_t *names; /* name: true if required */
    bool closed;   /* no additional members */
    bool open;     /* additional members are declared */
} members;

static status list_names(compiler *c, const conjunction *of, members *m)
{
    const char *name;
    json_t *v;
    bool good = m->names != NULL;
    for (size_t i = 0; i < of->n; i++) {
        const json_t *other = json_object_get(of->list[i].s, "additionalProperties");
        m->closed |= json_is_false(other);
        m->open |= other && !json_is_false(other);
        json_object_foreach(json_object_get(of->list[i].s, "properties"), name, v) if (!json_object_get(m->names, name))
            good &= json_object_set_new(m->names, name, json_false()) == 0;
    }
    if (json_object_size(m->names) > 0 && !m->open) m->closed = true;
    for (size_t i = 0; i < of->n; i++) {
        const json_t *list = json_object_get(of->list[i].s, "required");
        for (size_t k = 0; k < json_array_size(list); k++)
            good &= json_object_set_new(m->names, json_string_value(json_array_get(list, k)), json_true()) == 0;
    }
    return good ? ST_OK : out_of_memory(c);
}

/* Compiles property `name`, or additional members for NULL. A schema that does not list a name applies its
 * additionalProperties. */
static status compile_member(compiler *c, const conjunction *of, const char *name, int depth, int32_t *out)
{
    conjunction all = {0};
    status st = ST_OK;
    for (size_t i = 0; i < of->n && st == ST_OK; i++) {
        const json_t *s = of->list[i].s, *own = name ? json_object_get(json_object_get(s, "properties"), name) : NULL;
        if (!own) own = json_object_get(s, "additionalProperties");
        if (own) st = add_schema(c, &all, own, 0);
    }
    if (st == ST_OK && all.never && name) note(c, of, "property '%.60s' allows no value", name);
    if (st == ST_OK) st = compile(c, &all, depth + 1, out);
    mem_free(all.list);
    return st;
}

/* Compiles all properties: their values and quoted keys. */
static status compile_members(compiler *c, const conjunction *of, const members *m, int depth, node *to)
{
    property *list;
    literal *keys;
    size_t n = 0;
    const char *name;
    json_t *required;
    TRY(MEM_NEW(&list, json_object_size(m->names), c->e));
    status st = MEM_NEW(&keys, json_object_size(m->names), c->e);
    if (st != ST_OK) keys = NULL;
    json_object_foreach(m->names, name, required)
    {
        if (st != ST_OK) break;
        json_t *quoted = json_string(name);
        char *text = quoted ? spell(quoted) : NULL;
        json_decref(quoted);
        if (!text) st = out_of_memory(c);
        if (!text) break;
        keys[n] = (literal){text, (uint32_t)strlen(text), (int32_t)n};
        list[n++].required = json_is_true(required);
        st = compile_member(c, of, name, depth, &list[n - 1].value);
    }
    if (st == ST_OK &&
        !(build_literals(c->b, keys, n, &to->object.keys) && build_properties(c->b, list, n, &to->object.properties)))
        st = out_of_memory(c);
    for (size_t i = 0; i < n; i++) free((char *)(uintptr_t)keys[i].text);
    mem_free(keys);
    mem_free(list);
    return st;
}

/* Checks the number of members. Equal additional keys are not prevented, so that two of them may count as one. */
static status count_members(compiler *c, const conjunction *of, const members *m, node *to)
{
    uint32_t low, high, required = 0;
    const uint32_t listed = (uint32_t)json_object_size(m->names);
    const char *name;
    json_t *v;
    TRY(count_range(c, of, "minProperties", "maxProperties", SCHEMA_LENGTH, &low, &high));
    json_object_foreach(m->names, name, v) required += json_is_true(v);
    to->object.max = UNLIMITED;
    if (low > required && (listed > 0 || low > 1 || m->closed))
        TRY(document_refuse(&c->d, path_of(c, of), "minProperties", "more than the required properties", c->e));
    else if (low > required) to->object.min = 1;
    if (high >= (m->closed ? listed : UNLIMITED)) return ST_OK;
    if (listed > 0 || high > SCHEMA_MAP)
        return document_refuse(&c->d, path_of(c, of), "maxProperties", "less than the listed properties", c->e);
    to->object.max = high;
    return ST_OK;
}

static status compile_object(compiler *c, const conjunction *of, int depth, int32_t id)
{
    members m = {.names = json_object()};
    node to = {.kind = NODE_OBJECT};
    to.object.additional = NO_NODE;
    status st = list_names(c, of, &m);
    if (st == ST_OK) st = count_members(c, of, &m, &to);
    if (st == ST_OK) st = compile_members(c, of, &m, depth, &to);
    if (st == ST_OK && !m.closed) st = compile_member(c, of, NULL, depth, &to.object.additional);
    if (st == ST_OK) *build_at(c->b, id) = to;
    json_decref(m.names);
    return st;
}

/* ---- conjunctions by type ---- */

/* Compiles the values of one type to node id, which stays empty if there are none. */
static status compile_type(compiler *c, const conjunction *of, unsigned type, unsigned types, int depth, int32_t id)
{
    static const literal words[] = {{"null", 4, NO_NODE}, {"true", 4, NO_NODE}, {"false", 5, NO_NODE}};
    span s;
    switch (type) {
    case TYPE_NULL:
    case TYPE_BOOLEAN:
        if (!build_literals(c->b, words + (type == TYPE_BOOLEAN), type == TYPE_NULL ? 1 : 2, &s))
            return out_of_memory(c);
        build_at(c->b, id)->kind = NODE_LITERALS;
        build_at(c->b, id)->list = s;
        return ST_OK;
    case TYPE_INTEGER: compile_number(c, of, types, id); return ST_OK;
    case TYPE_STRING: return compile_string(c, of, id);
    case TYPE_ARRAY: return compile_array(c, of, depth, id);
    default: return compile_object(c, of, depth, id);
    }
}

static status compile_types(compiler *c, const conjunction *of, int depth, int32_t id)
{
    static const unsigned order[] = {TYPE_OBJECT, TYPE_ARRAY, TYPE_STRING, TYPE_INTEGER, TYPE_BOOLEAN, TYPE_NULL};
    int32_t list[sizeof order / sizeof *order];
    unsigned types = of->never ? 0 : TYPE_ANY;
    size_t n = 0;
    span s;
    for (size_t i = 0; i < of->n; i++) types &= schema_types(of->list[i].s);
    if (types == 0) note(c, of, "no value is allowed");
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (types & order[i]) list[n++] = id;
    for (size_t i = 0, k = 0; i < sizeof order / sizeof *order; i++) {
        if (!(types & order[i])) continue;
        if (n > 1 && (list[k] = build_node(c->b, NODE_NEVER)) < 0) return out_of_memory(c);
        TRY(compile_type(c, of, order[i], types, depth, list[k++]));
    }
    if (n <= 1) return ST_OK;
    if (!build_refs(c->b, list, n, &s)) return out_of_memory(c);
    build_at(c->b, id)->kind = NODE_CHOICE;
    build_at(c->b, id)->list = s;
    return ST_OK;
}

/* ---- memory of conjunctions ---- */

static uint32_t *slot_of(const compiler *c, const conjunction *of)
{
    uint64_t hash = of->never;
    for (size_t i = 0; i < of->n; i++)
        hash = (hash ^ (uint64_t)(uintptr_t)of->list[i].s ^ of->list[i].chosen) * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(hash >> 32) & (c->n_table - 1);
    for (; c->table[i]; i = (i + 1) & (c->n_table - 1)) {
        const conjunction *k = &c->known[c->table[i] - 1].of;
        bool same = k->n == of->n && k->never == of->never;
        for (size_t j = 0; j < of->n && same; j++)
            same = k->list[j].s == of->list[j].s && k->list[j].chosen == of->list[j].chosen;
        if (same) break;
    }
    return &c->table[i];
}

/* Adds a conjunction with a new node. */
static status remember(compiler *c, const conjunction *of, uint32_t *slot, int32_t *id)
{
    known k = {.node = build_node(c->b, NODE_NEVER)};
    if (k.node < 0) return out_of_memory(c);
    if (c->n_known == SCHEMA_NODES)
        return err_set(c->e, ST_UNSUPPORTED, "%s: more than %d schemas after merging", c->d.o->root, SCHEMA_NODES);
    TRY(MEM_ROOM(&c->known, &c->cap_known, c->n_known + 1, c->e));
    TRY(MEM_NEW(&k.of.list, of->n, c->e));
    if (of->n) memcpy(k.of.list, of->list, of->n * sizeof *of->list);
    k.of.n = of->n;
    k.of.never = of->never;
    c->known[c->n_known] = k;
    *slot = (uint32_t)++c->n_known;
    *id = k.node;
    return ST_OK;
}

/* True if a conjunction has keywords other than annotations. */
static bool restricts(const conjunction *of)
{
    bool any = of->never;
    for (size_t i = 0; i < of->n; i++) any |= json_object_size(of->list[i].s) > 0;
    return any;
}

static status compile(compiler *c, const conjunction *of, int depth, int32_t *out)
{
    size_t at = 0, i = 0;
    unsigned which;
    if (!restricts(of)) {
        *out = grammar_value(c->b);
        return *out < 0 ? out_of_memory(c) : ST_OK;
    }
    uint32_t *slot = slot_of(c, of);
    if (*slot) {
        *out = c->known[*slot - 1].node;
        return ST_OK;
    }
    if (depth > SCHEMA_CHAIN) return err_set(c->e, ST_UNSUPPORTED, "%s: nested too deeply", path_of(c, of));
    TRY(remember(c, of, slot, out));
    const json_t *value = next_value(of, "const", &i), *values = (i = 0, next_value(of, "enum", &i));
    if (value) {
        json_t *one = json_pack("[O]", value);
        status st = one ? compile_values(c, of, one, *out) : out_of_memory(c);
        json_decref(one);
        return st;
    }
    if (values) return compile_values(c, of, values, *out);
    const json_t *list = find_branches(of, &at, &which);
    return list ? compile_union(c, of, list, at, which, depth, *out) : compile_types(c, of, depth, *out);
}

/* ---- schemas ---- */

static void close_compiler(compiler *c)
{
    for (size_t i = 0; i < c->n_known; i++) mem_free(c->known[i].of.list);
    mem_free(c->known);
    mem_free(c->table);
    document_close(&c->d);
}

status grammar_schema(grammar_node *out, grammar_builder *b, const json_t *schema, const schema_options *o, err *e)
{
    compiler c = {.b = b, .n_table = 4 * 8192, .e = e};
    conjunction root = {0};
    *out = -1;
    status st = document_check(&c.d, schema, o, e);
    if (st == ST_OK) st = MEM_NEW(&c.table, c.n_table, e);
    if (st == ST_OK) st = add_schema(&c, &root, schema, 0);
    if (st == ST_OK) st = compile(&c, &root, 0, out);
    if (st == ST_OK) {
        build_nesting(b);
        if (build_at(b, *out)->nesting == UNLIMITED)
            st = err_set(e, ST_USAGE, "%s%s", *c.why ? c.why : o->root, *c.why ? "" : ": recursion without an end");
    }
    if (st != ST_OK) *out = -1;
    mem_free(root.list);
    close_compiler(&c);
    return st;
}
