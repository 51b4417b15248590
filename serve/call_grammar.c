/* SPDX-License-Identifier: MIT */
/* Grammars of replies with tool calls: required calls, and arguments that follow a schema. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "serve/api_impl.h"
#include "serve/sched_impl.h"
#include "tokenizer/call_tags.h"

enum { NOTHING = -2, PARTS = 16 };

typedef struct {
    grammar_builder *b;
    const scheduler *s;
    const job *j;
    const call_writing *w;
    bool loose; /* only `strict` functions follow their schema */
    bool lenient;
} composer;

/* A sequence of nodes; empty texts add none. */
typedef struct {
    grammar_node list[PARTS];
    size_t n;
} sequence_parts;

static void add(sequence_parts *p, grammar_node node)
{
    if (p->n < PARTS) p->list[p->n++] = node;
}

/* Adds a text, in which spellings of special tokens are these tokens. */
static void add_text(const composer *c, sequence_parts *p, const char *text)
{
    if (text && *text) add(p, grammar_spelled(c->b, c->s->o.tok, text));
}

static grammar_node sequence_of(const composer *c, const sequence_parts *p)
{
    return p->n == 1 ? p->list[0] : grammar_sequence(c->b, p->list, p->n);
}

/* Returns what follows the key of a parameter: any text. */
static grammar_node text_value(const composer *c)
{
    sequence_parts p = {0};
    add_text(c, &p, c->w->value);
    add(&p, grammar_until(c->b, c->w->until));
    return sequence_of(c, &p);
}

/* Returns what follows the key of a parameter: a value as JSON. */
static grammar_node json_value(const composer *c, grammar_node value)
{
    sequence_parts p = {0};
    add_text(c, &p, c->w->json ? c->w->json : c->w->value);
    add(&p, value);
    add_text(c, &p, c->w->until);
    return sequence_of(c, &p);
}

/* Stores the arguments of a function as tags: any of its parameters, in any order. */
static status tag_arguments(const composer *c, sequence_parts *p, const json_t *function, err *e)
{
    const json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");
    const size_t n = json_object_size(properties);
    const char **names, *name;
    grammar_node *then = NULL;
    json_t *v;
    size_t i = 0;
    sequence_parts end = {0}, some = {0}, one = {0};
    add_text(c, &end, c->w->end);
    if (n == 0) {
        add(p, sequence_of(c, &end));
        return ST_OK;
    }
    TRY(MEM_NEW(&names, n, e));
    status st = MEM_NEW(&then, n, e);
    const grammar_node values[] = {text_value(c), c->w->json ? json_value(c, grammar_value(c->b)) : NOTHING};
    const grammar_node after = c->w->json ? grammar_choice(c->b, values, 2) : values[0];
    json_object_foreach((json_t *)(uintptr_t)properties, name, v)
    {
        if (st != ST_OK || !*name) continue;
        names[i] = name;
        then[i++] = after;
    }
    if (st == ST_OK && i) {
        add_text(c, &one, c->w->key);
        add(&one, grammar_names(c->b, names, then, i));
        add(&some, grammar_repeat(c->b, sequence_of(c, &one), NOTHING, CALL_MOST));
        add_text(c, &some, c->w->end);
        const grammar_node either[] = {sequence_of(c, &some), sequence_of(c, &end)};
        add(p, grammar_choice(c->b, either, 2));
    }
    mem_free(then);
    mem_free(names);
    return st;
}

/* True if a property allows each text. */
static bool is_any_text(const json_t *schema)
{
    static const char *const keys[] = {"type", "title", "description", "default", "examples", "format", NULL};
    const char *key, *type = json_string_value(json_object_get(schema, "type"));
    const json_t *v;
    bool any = type && strcmp(type, "string") == 0;
    json_object_foreach((json_t *)(uintptr_t)schema, key, v)
    {
        int k = 0;
        while (keys[k] && strcmp(keys[k], key) != 0) k++;
        any &= keys[k] != NULL;
    }
    return any;
}

/* Stores what follows the key of a property: its value as text, or as JSON if it cannot be a string. */
static status strict_value(const composer *c, grammar_node *out, const json_t *function, const char *name,
                           const char *root, err *e)
{
    static const char *const shared[] = {"$defs", "definitions"};
    const json_t *all = json_object_get(function, "parameters");
    const json_t *own = json_object_get(json_object_get(all, "properties"), name);
    const unsigned types = call_type_of(function, name).types;
    const schema_options o = {.root = root, .lenient = c->lenient};
    grammar_node value = -1;
    if (is_any_text(own)) {
        *out = text_value(c);
        return ST_OK;
    }
    if (!c->w->json && (!types || (types & TYPE_STRING)))
        return err_set(e, ST_UNSUPPORTED,
                       "%s.properties.%.60s: strict supports strings without conditions in tags only", root, name);
    json_t *copy = json_copy((json_t *)(uintptr_t)own);
    for (int i = 0; copy && i < 2; i++)
        if (json_object_get(all, shared[i])) json_object_set(copy, shared[i], json_object_get(all, shared[i]));
    const status st = grammar_schema(&value, c->b, copy, &o, e);
    json_decref(copy);
    if (st == ST_OK) *out = json_value(c, value);
    return st;
}

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), name) == 0) return true;
    return false;
}

/* Refuses conditions on the whole of the parameters, which tags cannot follow. */
static status check_strict(const json_t *schema, const char *root, err *e)
{
    static const char *const keys[] = {"$ref", "allOf", "anyOf",         "oneOf",
                                       "enum", "const", "minProperties", "maxProperties"};
    const json_t *list = json_object_get(schema, "required"), *properties = json_object_get(schema, "properties");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(schema, keys[i]))
            return err_set(e, ST_UNSUPPORTED, "%s.%s: not supported for strict calls in tags", root, keys[i]);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_object_get(properties, json_string_value(json_array_get(list, i))))
            return err_set(e, ST_UNSUPPORTED, "%s.required[%zu]: strict calls in tags need a property of this name",
                           root, i);
    if (json_object_size(properties) > CALL_MOST)
        return err_set(e, ST_UNSUPPORTED, "%s.properties: more than %d for strict calls in tags", root, (int)CALL_MOST);
    return ST_OK;
}

/* Stores the arguments of a strict function as tags: its parameters in the order of the schema. */
static status strict_tags(const composer *c, sequence_parts *p, const json_t *function, const char *root, err *e)
{
    const json_t *schema = json_object_get(function, "parameters"), *v;
    const schema_options o = {.root = root, .lenient = c->lenient};
    const char *names[CALL_MOST], *name;
    grammar_node after[CALL_MOST], rest, whole;
    sequence_parts end = {0};
    size_t n = 0, last;
    TRY(grammar_schema(&whole, c->b, schema, &o, e)); /* for its messages: the tags check less */
    TRY(check_strict(schema, root, e));
    json_object_foreach(json_object_get(schema, "properties"), name, v) names[n++] = name;
    add_text(c, &end, c->w->end);
    rest = sequence_of(c, &end);
    last = n; /* properties up to this one, the next required one, may follow */
    for (size_t k = n; k-- > 0;) {
        grammar_node value = -1;
        sequence_parts one = {0}, keyed = {0};
        const bool required = is_required(schema, names[k]);
        TRY(strict_value(c, &value, function, names[k], root, e));
        add(&one, value);
        add(&one, rest);
        after[k] = sequence_of(c, &one);
        if (required) last = k;
        add_text(c, &keyed, c->w->key);
        add(&keyed, grammar_names(c->b, names + k, after + k, (last < n ? last + 1 : n) - k));
        const grammar_node either[] = {sequence_of(c, &keyed), sequence_of(c, &end)};
        rest = last < n ? either[0] : grammar_choice(c->b, either, 2);
    }
    add(p, rest);
    return ST_OK;
}

/* Adds the number of a call. */
static status add_number(const composer *c, sequence_parts *p, err *e)
{
    const schema_options o = {.root = "$"};
    grammar_node number = -1;
    json_t *schema = json_pack("{s:s, s:i, s:i}", "type", "integer", "minimum", 0, "maximum", CALL_MOST - 1);
    const status st = grammar_schema(&number, c->b, schema, &o, e);
    json_decref(schema);
    add_text(c, p, c->w->number);
    add(p, number);
    return st;
}

/* Adds the arguments of a function, and the end of the call. strict: they follow the schema. */
static status add_arguments(const composer *c, sequence_parts *p, const json_t *function, const char *root, bool strict,
                            err *e)
{
    const schema_options o = {.root = root, .lenient = c->lenient};
    grammar_node node = -1;
    if (c->w->key) return (strict ? strict_tags(c, p, function, root, e) : tag_arguments(c, p, function, e));
    if (strict) TRY(grammar_schema(&node, c->b, json_object_get(function, "parameters"), &o, e));
    add(p, strict ? node : grammar_object(c->b));
    add_text(c, p, c->w->end);
    return ST_OK;
}

/* True if the arguments of a function follow its schema without the member strict: the schema compiles, of which
 * keywords that are not supported are left out. */
static bool may_follow(const composer *c, const json_t *function, const char *root)
{
    composer trial = *c;
    sequence_parts unused = {0};
    trial.lenient = true;
    if (c->loose || json_is_boolean(json_object_get(function, "strict")) ||
        grammar_begin(&trial.b, true, NULL) != ST_OK)
        return false;
    const bool good = add_arguments(&trial, &unused, function, root, true, NULL) == ST_OK;
    (void)grammar_finish(NULL, trial.b, -1, NULL);
    return good;
}

/* Stores what follows the name of tool i: its arguments and the end of the call. */
static status arguments_of(const composer *c, grammar_node *out, size_t i, const json_t *function, err *e)
{
    char root[64];
    sequence_parts p = {0};
    composer own = *c;
    if (c->w->number) TRY(add_number(c, &p, e));
    add_text(c, &p, c->w->after);
    snprintf(root, sizeof root, "tools[%zu].function.parameters", i);
    own.lenient = may_follow(c, function, root);
    TRY(add_arguments(&own, &p, function, root, own.lenient || json_is_true(json_object_get(function, "strict")), e));
    *out = sequence_of(c, &p);
    return ST_OK;
}

/* Stores a choice of the functions that may be called, from their names on. */
static status functions_of(const composer *c, grammar_node *out, err *e)
{
    const json_t *tools = c->j->r.tools;
    const char *names[CALL_MOST];
    grammar_node then[CALL_MOST];
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(tools) && n < CALL_MOST; i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function");
        names[n] = json_string_value(json_object_get(f, "name"));
        if (!api_may_call(&c->j->r, names[n])) continue;
        TRY(arguments_of(c, &then[n++], i, f, e));
    }
    *out = grammar_names(c->b, names, then, n);
    return ST_OK;
}

/* Returns one or more calls and nothing else. */
static grammar_node required(const composer *c, grammar_node functions)
{
    sequence_parts all = {0}, call = {0}, between = {0};
    add_text(c, &call, c->w->before);
    add(&call, functions);
    add_text(c, &between, c->w->separator);
    add_text(c, &all, c->w->first);
    const grammar_node separator = between.n ? sequence_of(c, &between) : NOTHING;
    add(&all, grammar_repeat(c->b, sequence_of(c, &call), separator, c->w->one || c->j->r.one_call ? 1 : CALL_MOST));
    add_text(c, &all, c->w->last);
    return sequence_of(c, &all);
}

/* Returns text with any number of calls, or of sections of calls. */
static grammar_node voluntary(const composer *c, const char *open, grammar_node functions)
{
    const size_t skip = strlen(open);
    sequence_parts all = {0}, call = {0}, between = {0};
    add(&all, grammar_up_to(c->b, c->s->o.tok, open, true));
    add_text(c, &call, c->w->before + (c->w->first ? 0 : skip));
    add(&call, functions);
    if (!c->w->first) add(&all, sequence_of(c, &call));
    else {
        add_text(c, &between, c->w->separator);
        add_text(c, &all, c->w->first + skip);
        add(&all,
            grammar_repeat(c->b, sequence_of(c, &call), between.n ? sequence_of(c, &between) : NOTHING, CALL_MOST));
        add_text(c, &all, c->w->last);
    }
    return grammar_repeat(c->b, sequence_of(c, &all), NOTHING, CALL_MOST);
}

/* Returns a text that does not begin like a call, then `rest`. */
static grammar_node plain_text(const composer *c, const char *open, grammar_node rest)
{
    enum { FIRST = '!', LAST = 0xf4, BYTES = LAST - FIRST + 1 };
    char bytes[BYTES][2];
    const char *names[BYTES];
    grammar_node then[BYTES];
    size_t n = 0;
    for (int i = FIRST; i <= LAST; i++) {
        const bool marker = i == *open && tokenizer_special_id(c->s->o.tok, open) < 0;
        if (i == '{' || marker || (i > '~' && i < 0xc2)) continue;
        bytes[n][0] = (char)i;
        bytes[n][1] = 0;
        names[n] = bytes[n];
        then[n++] = rest;
    }
    return grammar_names(c->b, names, then, n);
}

/* Returns text, or a call that is the whole reply or follows the opening marker. */
static grammar_node voluntary_whole(const composer *c, const char *open, grammar_node functions)
{
    sequence_parts call = {0}, marked = {0}, rest = {0};
    add_text(c, &call, c->w->before);
    add(&call, functions);
    const grammar_node whole = sequence_of(c, &call);
    add_text(c, &marked, open);
    add(&marked, whole);
    add(&rest, grammar_up_to(c->b, c->s->o.tok, open, true));
    add(&rest, whole);
    const grammar_node some[] = {whole, sequence_of(c, &marked), plain_text(c, open, sequence_of(c, &rest))};
    const grammar_node all[] = {grammar_blank(c->b), grammar_choice(c->b, some, 3)};
    return grammar_sequence(c->b, all, 2);
}

/* Stores calls, or JSON of response_format. */
static status calls_or_json(const composer *c, grammar_node *out, grammar_node functions, const schema_options *o,
                            err *e)
{
    const json_t *schema = c->j->r.format.schema;
    grammar_node value = -1;
    if (schema) TRY(grammar_schema(&value, c->b, schema, o, e));
    const grammar_node json[] = {grammar_blank(c->b), schema ? value : grammar_object(c->b)};
    const grammar_node either[] = {required(c, functions), grammar_sequence(c->b, json, 2)};
    *out = grammar_choice(c->b, either, 2);
    return ST_OK;
}

static status compose(grammar **out, composer *c, const grammar_thinking *think, const schema_options *o, err *e)
{
    const call_format *f = c->s->o.calls->format;
    grammar_node functions, root = -1;
    TRY(grammar_begin(&c->b, true, e));
    status st = functions_of(c, &functions, e);
    if (st != ST_OK) root = -1;
    else if (c->j->r.must_call) root = required(c, functions);
    else if (c->j->r.format.json) st = calls_or_json(c, &root, functions, o, e);
    else root = f->whole ? voluntary_whole(c, f->open, functions) : voluntary(c, f->open, functions);
    if (st == ST_OK) return grammar_finish(out, c->b, grammar_think(c->b, think, root), e);
    (void)grammar_finish(NULL, c->b, -1, NULL);
    return st;
}

status call_grammar(grammar **out, const scheduler *s, const job *j, const grammar_thinking *think,
                    const schema_options *o, err *e)
{
    composer c = {.s = s, .j = j, .w = &s->o.calls->format->write};
    if (compose(out, &c, think, o, NULL) == ST_OK) return ST_OK;
    c.loose = true; /* all schemas together may be too large */
    return compose(out, &c, think, o, e);
}
