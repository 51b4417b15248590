/* SPDX-License-Identifier: MIT */
/* The parts of the schema compiler. Private to grammar/ and its tests. */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include <stdbool.h>

#include "grammar/program.h"

enum {
    SCHEMA_NODES = 10000, /* subschemas, and combinations of them */
    SCHEMA_NESTING = 64,
    SCHEMA_CHAIN = 256, /* schemas of the same value, by $ref, allOf, anyOf and oneOf */
    SCHEMA_BRANCHES = 64,
    SCHEMA_PROPERTIES = 5000, /* in total */
    SCHEMA_MEMBERS = 1000,    /* of an object */
    SCHEMA_VALUES = 5000,     /* of an enum */
    SCHEMA_VALUE_BYTES = 256 << 10,
    SCHEMA_LENGTH = 65536, /* of strings and arrays */
    SCHEMA_MAP = 64        /* additional properties that are counted */
};

/* Types of values as bits. FRACTION: numbers that are not integers. */
enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_FRACTION = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ANY = 127
};

/* ---- schema_check.c: the keywords of a document ---- */

/* A subschema that the root reaches. */
typedef struct {
    const json_t *at;
    char *path;
    int color; /* search for circles: 0 not visited, 1 in progress, 2 done */
} subschema;

typedef struct {
    const json_t *root;
    const schema_options *o;
    subschema *list;
    size_t n, cap;
    uint32_t *table; /* [n_table] hash table of indexes + 1 */
    size_t n_table, n_properties;
} document;

/* Checks all subschemas that are reached from the root. Errors as grammar_schema. */
status document_check(document *d, const json_t *root, const schema_options *o, err *e);
void document_close(document *d);
/* Returns the path of a subschema. */
const char *document_path(const document *d, const json_t *schema);
/* Returns the schema to which a $ref of a checked document points, or NULL. */
const json_t *document_target(const document *d, const json_t *schema);
/* Refuses a keyword, or lists it if the schema is lenient. */
status document_refuse(const document *d, const char *path, const char *keyword, const char *why, err *e);

/* Returns the types that `type` allows; TYPE_ANY without one. */
unsigned schema_types(const json_t *schema);
/* Returns the type of a value; of the numbers that equal an integer TYPE_INTEGER. */
unsigned schema_type_of(const json_t *value);
/* Reads a bound as a decimal number. *infinite: beyond all numbers that are generated. False: too many digits. */
bool schema_bound(const json_t *number, wide *out, bool *infinite);

/* ---- schema_valid.c ---- */

/* True if a value is valid under a schema of a checked document. Ignored keywords have no effect. */
bool schema_valid(const document *d, const json_t *schema, const json_t *value);
/* True if two values are equal, where 1 equals 1.0. */
bool schema_equal(const json_t *a, const json_t *b);

/* ---- schema_one.c ---- */

/* True if no value that is generated for one branch of a oneOf is valid under another: by types, by values, by const or
 * enum of a property that both require, or by the names of properties. Sufficient, not necessary. */
bool schema_exclusive(const document *d, const json_t *branches);

#endif
