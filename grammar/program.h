/* SPDX-License-Identifier: MIT */
/* Compiled grammars: a graph of nodes. Private to grammar/ and its tests. */
#ifndef GRAMMAR_PROGRAM_H
#define GRAMMAR_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "grammar/grammar.h"

__extension__ typedef __int128 wide; /* decimal numbers in units of 1e-15 */

enum {
    NODES_MAX = 50000,    /* nodes of a grammar */
    NESTING_MAX = 128,    /* nesting of generated arrays and objects */
    NO_NODE = -2,         /* nothing follows, or is allowed */
    FRACTION_DIGITS = 15, /* most digits after the point */
    UNIT_SHIFT = 15,      /* a `wide` 1 is 1e-15 */
    BOUNDED_DIGITS = 15,  /* most digits of a number with bounds; their doubles are distinct */
    INTEGER_DIGITS = 18
};

#define UNLIMITED UINT32_MAX

typedef enum {
    NODE_NEVER, /* no text */
    NODE_LITERALS,
    NODE_STRING,
    NODE_NUMBER,
    NODE_ARRAY,
    NODE_OBJECT,
    NODE_CHOICE,
    NODE_SEQUENCE,
    NODE_REPEAT,
    NODE_TOKEN,
    NODE_BLANK,
    NODE_FREE,
    NODE_END /* after the whole text */
} node_kind;

/* A literal of a sorted list. `then`: node of a value that follows; of a key, the index of its property. */
typedef struct {
    const char *text;
    uint32_t n;
    int32_t then;
} literal;

typedef struct {
    int32_t value;
    bool required;
    uint32_t last; /* index of the first required property from this one on; number of properties if there is none */
} property;

/* A range of a list of the grammar. */
typedef struct {
    uint32_t first, n;
} span;

typedef struct {
    node_kind kind;
    uint32_t nesting; /* least nesting of arrays and objects in a text; UNLIMITED: no text exists */
    union {
        span list; /* CHOICE, SEQUENCE: refs; LITERALS: literals */
        struct {
            uint32_t min, max;
        } string; /* code points */
        struct {
            wide low, high;
            bool bounded, exponent;
            int32_t digits, fraction; /* most digits in total, and after the point */
        } number;
        struct {
            span prefix; /* refs */
            int32_t items;
            uint32_t min, max;
        } array;
        struct {
            span keys, properties; /* equally many */
            int32_t additional;
            uint32_t min, max; /* number of additional properties */
        } object;
        struct {
            int32_t of, separator;
            uint32_t most;
        } repeat;
        int32_t token;
        /* match: [n] length of the longest marker prefix that ends before a byte that does not match */
        struct {
            const char *marker;
            const uint8_t *match;
            uint32_t n;
            int32_t token;
            bool ends, special;
        } free;
    };
} node;

/* A block of memory in a list, which the grammar owns. */
typedef struct block block;

struct grammar {
    node *nodes;
    int32_t *refs;
    literal *literals;
    property *properties;
    size_t n_nodes, n_refs, n_literals, n_properties;
    int32_t root;
    bool compact;
    block *blocks;
};

/* build.c, for schema.c. All return false after an error, which the builder keeps. */

/* Adds an empty node. */
int32_t build_node(grammar_builder *b, node_kind kind);
/* Returns a node, valid until the next one is added. */
node *build_at(grammar_builder *b, int32_t id);
/* Appends lists. */
bool build_refs(grammar_builder *b, const int32_t *refs, size_t n, span *out);
/* Appends and sorts literals, whose texts are copied. */
bool build_literals(grammar_builder *b, const literal *list, size_t n, span *out);
bool build_properties(grammar_builder *b, const property *list, size_t n, span *out);
/* Records an error; the first one wins. */
void build_fail(grammar_builder *b, status st, const char *why);
/* Returns ST_OK, or the recorded error. */
status build_status(const grammar_builder *b, err *e);
/* Computes `nesting` of all nodes. */
void build_nesting(grammar_builder *b);

#endif
