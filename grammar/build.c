/* SPDX-License-Identifier: MIT */
/* Construction of grammars from nodes. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/program.h"
#include "kernels/base/mem.h"

struct block {
    block *next;
    char bytes[];
};

struct grammar_builder {
    grammar g;
    size_t cap_nodes, cap_refs, cap_literals, cap_properties;
    int32_t value, object; /* any value, any object; NO_NODE: not built yet */
    err error;
};

status grammar_begin(grammar_builder **out, bool compact, err *e)
{
    TRY(MEM_NEW(out, 1, e));
    (*out)->g.compact = compact;
    (*out)->value = (*out)->object = NO_NODE;
    return ST_OK;
}

/* ---- parts ---- */

void build_fail(grammar_builder *b, status st, const char *why)
{
    err_set(&b->error, st, "%s", why);
}

status build_status(const grammar_builder *b, err *e)
{
    return b->error.code == ST_OK ? ST_OK : err_set(e, b->error.code, "%s", b->error.msg);
}

static bool good(const grammar_builder *b)
{
    return b->error.code == ST_OK;
}

int32_t build_node(grammar_builder *b, node_kind kind)
{
    grammar *g = &b->g;
    if (g->n_nodes >= NODES_MAX) build_fail(b, ST_UNSUPPORTED, "the grammar is too large");
    if (!good(b) || MEM_ROOM(&g->nodes, &b->cap_nodes, g->n_nodes + 1, &b->error) != ST_OK) return -1;
    g->nodes[g->n_nodes] = (node){.kind = kind};
    return (int32_t)g->n_nodes++;
}

node *build_at(grammar_builder *b, int32_t id)
{
    return &b->g.nodes[id];
}

/* Returns memory that lives as long as the grammar, or NULL. */
static void *keep(grammar_builder *b, const void *bytes, size_t n)
{
    block *p;
    if (!good(b) || mem_alloc((void **)&p, sizeof *p + n + 1, 1, "a grammar", &b->error) != ST_OK) return NULL;
    p->next = b->g.blocks;
    b->g.blocks = p;
    if (bytes) memcpy(p->bytes, bytes, n);
    return p->bytes;
}

bool build_refs(grammar_builder *b, const int32_t *refs, size_t n, span *out)
{
    grammar *g = &b->g;
    for (size_t i = 0; i < n; i++)
        if (refs[i] == -1) return false;
    if (!good(b) || MEM_ROOM(&g->refs, &b->cap_refs, g->n_refs + n, &b->error) != ST_OK) return false;
    if (n) memcpy(g->refs + g->n_refs, refs, n * sizeof *refs);
    *out = (span){(uint32_t)g->n_refs, (uint32_t)n};
    g->n_refs += n;
    return true;
}

static int by_text(const void *a, const void *b)
{
    const literal *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

bool build_literals(grammar_builder *b, const literal *list, size_t n, span *out)
{
    grammar *g = &b->g;
    if (n >= UINT16_MAX) build_fail(b, ST_UNSUPPORTED, "too many literals");
    if (!good(b) || MEM_ROOM(&g->literals, &b->cap_literals, g->n_literals + n + 1, &b->error) != ST_OK) return false;
    literal *to = g->literals + g->n_literals;
    for (size_t i = 0; i < n; i++) {
        to[i] = list[i];
        if (!(to[i].text = keep(b, list[i].text, list[i].n))) return false;
    }
    qsort(to, n, sizeof *to, by_text);
    *out = (span){(uint32_t)g->n_literals, (uint32_t)n};
    g->n_literals += n;
    return true;
}

bool build_properties(grammar_builder *b, const property *list, size_t n, span *out)
{
    grammar *g = &b->g;
    uint32_t last = (uint32_t)n;
    if (!good(b) || MEM_ROOM(&g->properties, &b->cap_properties, g->n_properties + n + 1, &b->error) != ST_OK)
        return false;
    property *to = g->properties + g->n_properties;
    to[n] = (property){.value = NO_NODE, .last = last}; /* so that the index after the last one is valid */
    for (size_t i = n; i-- > 0;) {
        to[i] = list[i];
        if (list[i].required) last = (uint32_t)i;
        to[i].last = last;
    }
    *out = (span){(uint32_t)g->n_properties, (uint32_t)n};
    g->n_properties += n + 1;
    return true;
}

/* ---- nodes ---- */

static int32_t literals(grammar_builder *b, const literal *list, size_t n)
{
    span s;
    if (!build_literals(b, list, n, &s)) return -1;
    int32_t id = build_node(b, NODE_LITERALS);
    if (id >= 0) build_at(b, id)->list = s;
    return id;
}

grammar_node grammar_text(grammar_builder *b, const char *text, size_t n)
{
    return literals(b, &(literal){text, (uint32_t)n, NO_NODE}, 1);
}

grammar_node grammar_names(grammar_builder *b, const char *const *names, const grammar_node *then, size_t n)
{
    literal *list;
    int32_t id = -1;
    if (!good(b) || MEM_NEW(&list, n, &b->error) != ST_OK) return -1;
    bool all = true;
    for (size_t i = 0; i < n; i++) {
        list[i] = (literal){names[i], (uint32_t)strlen(names[i]), then[i]};
        all &= then[i] != -1;
    }
    if (all) id = literals(b, list, n);
    mem_free(list);
    return id;
}

grammar_node grammar_token(grammar_builder *b, int32_t token)
{
    int32_t id = build_node(b, NODE_TOKEN);
    if (id >= 0) build_at(b, id)->token = token;
    return id;
}

grammar_node grammar_blank(grammar_builder *b)
{
    return build_node(b, NODE_BLANK);
}

static int32_t list_node(grammar_builder *b, node_kind kind, const int32_t *of, size_t n)
{
    span s;
    if (!build_refs(b, of, n, &s)) return -1;
    int32_t id = build_node(b, kind);
    if (id >= 0) build_at(b, id)->list = s;
    return id;
}

grammar_node grammar_sequence(grammar_builder *b, const grammar_node *parts, size_t n)
{
    return list_node(b, NODE_SEQUENCE, parts, n);
}

grammar_node grammar_choice(grammar_builder *b, const grammar_node *of, size_t n)
{
    return list_node(b, NODE_CHOICE, of, n);
}

grammar_node grammar_repeat(grammar_builder *b, grammar_node of, grammar_node separator, size_t most)
{
    int32_t id = of == -1 || separator == -1 ? -1 : build_node(b, NODE_REPEAT);
    if (id < 0) return -1;
    node *p = build_at(b, id);
    p->repeat.of = of;
    p->repeat.separator = separator;
    p->repeat.most = most < UNLIMITED ? (uint32_t)most : UNLIMITED;
    return id;
}

/* Returns the table of Knuth, Morris and Pratt (1977) for a marker. */
static const uint8_t *match_table(grammar_builder *b, const char *marker, size_t n)
{
    uint8_t *match = keep(b, NULL, n);
    if (!match) return NULL;
    for (size_t i = 1, k = 0; i < n; i++) {
        match[i] = (uint8_t)k;
        while (k > 0 && marker[i] != marker[k]) k = match[k];
        k += marker[i] == marker[k];
    }
    return match;
}

static int32_t free_text(grammar_builder *b, const char *marker, int32_t token, bool ends, bool special)
{
    size_t n = marker ? strlen(marker) : 0;
    if (n > UINT8_MAX) build_fail(b, ST_UNSUPPORTED, "the marker after free text is too long");
    const char *text = keep(b, marker, n);
    const uint8_t *match = text ? match_table(b, text, n) : NULL;
    int32_t id = match ? build_node(b, NODE_FREE) : -1;
    if (id < 0) return -1;
    node *p = build_at(b, id);
    p->free.marker = text;
    p->free.match = match;
    p->free.n = (uint32_t)n;
    p->free.token = marker ? -1 : token;
    p->free.ends = ends;
    p->free.special = special;
    return id;
}

grammar_node grammar_free(grammar_builder *b, const char *marker, int32_t token, bool ends)
{
    return free_text(b, marker, token, ends, true);
}

grammar_node grammar_until(grammar_builder *b, const char *marker)
{
    return free_text(b, marker, -1, false, false);
}

/* ---- any value ---- */

static int32_t any_string(grammar_builder *b)
{
    int32_t id = build_node(b, NODE_STRING);
    if (id >= 0) build_at(b, id)->string.max = UNLIMITED;
    return id;
}

static int32_t any_number(grammar_builder *b)
{
    int32_t id = build_node(b, NODE_NUMBER);
    if (id < 0) return -1;
    node *p = build_at(b, id);
    p->number.digits = 2 * FRACTION_DIGITS;
    p->number.fraction = FRACTION_DIGITS;
    p->number.exponent = true;
    return id;
}

/* Builds the choice of all values, which its arrays and objects contain. */
static void build_any(grammar_builder *b)
{
    static const literal words[] = {{"true", 4, NO_NODE}, {"false", 5, NO_NODE}, {"null", 4, NO_NODE}};
    span none, all;
    int32_t value = build_node(b, NODE_CHOICE), object = build_node(b, NODE_OBJECT), array = build_node(b, NODE_ARRAY);
    const int32_t of[] = {any_string(b), any_number(b), object, array, literals(b, words, 3)};
    if (!build_refs(b, of, sizeof of / sizeof *of, &all) || !build_properties(b, NULL, 0, &none)) return;
    build_at(b, value)->list = all;
    node *p = build_at(b, object);
    p->object.properties = none;
    p->object.additional = value;
    p->object.max = UNLIMITED;
    p = build_at(b, array);
    p->array.items = value;
    p->array.max = UNLIMITED;
    b->value = value;
    b->object = object;
}

grammar_node grammar_value(grammar_builder *b)
{
    if (b->value < 0) build_any(b);
    return good(b) ? b->value : -1;
}

grammar_node grammar_object(grammar_builder *b)
{
    return grammar_value(b) < 0 ? -1 : b->object;
}

/* ---- nesting ---- */

static uint32_t nesting_of(const grammar *g, int32_t id)
{
    return id < 0 ? UNLIMITED : g->nodes[id].nesting;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Returns the least nesting of the items that an array must have. */
static uint32_t of_items(const grammar *g, const node *p)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < p->array.min && i <= p->array.prefix.n; i++)
        most = larger(most, nesting_of(g, i < p->array.prefix.n ? g->refs[p->array.prefix.first + i] : p->array.items));
    return most;
}

static uint32_t of_members(const grammar *g, const node *p)
{
    uint32_t most = p->object.min ? nesting_of(g, p->object.additional) : 0;
    for (uint32_t i = 0; i < p->object.properties.n; i++) {
        const property *q = &g->properties[p->object.properties.first + i];
        if (q->required) most = larger(most, nesting_of(g, q->value));
    }
    return most;
}

static uint32_t of_list(const grammar *g, const node *p)
{
    const bool choice = p->kind == NODE_CHOICE;
    uint32_t x = choice ? UNLIMITED : 0;
    for (uint32_t i = 0; i < p->list.n; i++) {
        const uint32_t one = nesting_of(g, g->refs[p->list.first + i]);
        x = choice ? (one < x ? one : x) : larger(x, one);
    }
    return x;
}

static uint32_t of_literals(const grammar *g, const node *p)
{
    uint32_t x = UNLIMITED;
    for (uint32_t i = 0; i < p->list.n; i++) {
        const int32_t then = g->literals[p->list.first + i].then;
        const uint32_t one = then < 0 ? 0 : nesting_of(g, then);
        if (one < x) x = one;
    }
    return x;
}

static uint32_t compute_nesting(const grammar *g, const node *p)
{
    switch (p->kind) {
    case NODE_NEVER: return UNLIMITED;
    case NODE_LITERALS: return of_literals(g, p);
    case NODE_CHOICE:
    case NODE_SEQUENCE: return of_list(g, p);
    case NODE_REPEAT: return nesting_of(g, p->repeat.of);
    case NODE_ARRAY: return of_items(g, p) == UNLIMITED ? UNLIMITED : of_items(g, p) + 1;
    case NODE_OBJECT: return of_members(g, p) == UNLIMITED ? UNLIMITED : of_members(g, p) + 1;
    default: return 0;
    }
}

void build_nesting(grammar_builder *b)
{
    grammar *g = &b->g;
    bool changed = good(b);
    for (size_t i = 0; i < g->n_nodes; i++) g->nodes[i].nesting = UNLIMITED;
    while (changed) {
        changed = false;
        for (size_t i = g->n_nodes; i-- > 0;) {
            const uint32_t x = compute_nesting(g, &g->nodes[i]);
            if (x > NESTING_MAX || x >= g->nodes[i].nesting) continue;
            g->nodes[i].nesting = x;
            changed = true;
        }
    }
}

/* ---- completion ---- */

static void release(grammar *g)
{
    for (block *p = g->blocks, *next; p; p = next) {
        next = p->next;
        mem_free(p);
    }
    mem_free(g->nodes);
    mem_free(g->refs);
    mem_free(g->literals);
    mem_free(g->properties);
}

void grammar_drop(grammar *g)
{
    if (g) release(g);
    mem_free(g);
}

status grammar_finish(grammar **out, grammar_builder *b, grammar_node root, err *e)
{
    status st = out ? build_status(b, e) : ST_OK;
    if (out) *out = NULL;
    if (out && st == ST_OK) st = MEM_NEW(out, 1, e);
    if (out && st == ST_OK) {
        build_nesting(b);
        b->g.root = root;
        **out = b->g;
    } else {
        release(&b->g);
    }
    mem_free(b);
    return st;
}
