/* SPDX-License-Identifier: MIT */
/* Parameters of tool calls that are written as text: types of a schema, and values as JSON. */
#ifndef TOKENIZER_CALL_TAGS_H
#define TOKENIZER_CALL_TAGS_H

#include <jansson.h>

#include "tokenizer/call_json.h"

enum {
    TYPE_NULL = 1,
    TYPE_STRING = 2,
    TYPE_BOOLEAN = 4,
    TYPE_INTEGER = 8,
    TYPE_NUMBER = 16,
    TYPE_OBJECT = 32,
    TYPE_ARRAY = 64,
    TYPE_QUOTED = 128, /* a string as JSON, in quotes */
    TYPE_JSON = TYPE_NULL | TYPE_BOOLEAN | TYPE_INTEGER | TYPE_NUMBER | TYPE_OBJECT | TYPE_ARRAY | TYPE_QUOTED
};

/* Types that a parameter of a function may have. */
typedef struct {
    unsigned types;       /* bit set; 0: unknown */
    const json_t *values; /* enum, or NULL */
} call_type;

/* Returns the function of a name in OpenAI's array of tools, or NULL. */
const json_t *call_function(const json_t *tools, const char *name);
/* Returns the type of a parameter of a function. */
call_type call_type_of(const json_t *function, const char *parameter);
/* True if each value of the type is its text. */
bool call_type_is_text(call_type t);
/* Appends the JSON of a text. */
status call_value(call_text *out, call_type t, const char *text, size_t n, err *e);

#endif
