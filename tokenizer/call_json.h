/* SPDX-License-Identifier: MIT */
/* Checks JSON byte by byte, and reads the object of a tool call. */
#ifndef TOKENIZER_CALL_JSON_H
#define TOKENIZER_CALL_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

typedef enum { SCAN_BAD, SCAN_MORE, SCAN_DONE } scan_result;
typedef enum {
    SCAN_VALUE,       /* a value is expected; the initial state */
    SCAN_FIRST_VALUE, /* a value or ] */
    SCAN_FIRST_KEY,   /* a key or } */
    SCAN_KEY,
    SCAN_COLON,
    SCAN_AFTER, /* a comma or the end of the object or array */
    SCAN_STRING,
    SCAN_ESCAPE,
    SCAN_HEX,
    SCAN_WORD, /* true, false, null */
    SCAN_NUMBER,
    SCAN_END
} scan_state;

enum { SCAN_DEPTH = 128 };

/* State of a JSON text. Start from {0}. */
typedef struct {
    scan_state state;
    int depth;
    bool is_array[SCAN_DEPTH], is_key;
    int at; /* position within a word, an escape or the parts of a number */
    const char *word;
} json_scan;

/* Takes the next byte. SCAN_DONE: the outermost value, an object, array, string or word, ends with this byte. */
scan_result json_scan_byte(json_scan *s, unsigned char c);

/* A growing text. Start from {0}. */
typedef struct {
    char *p;
    size_t n, cap;
} call_text;

status call_text_add(call_text *t, const char *s, size_t n, err *e);
/* Appends bytes of a JSON string, escaped. */
status call_text_escape(call_text *t, const char *s, size_t n, err *e);

/* Members of the object of a call. */
typedef enum { MEMBER_OTHER, MEMBER_NAME, MEMBER_ID, MEMBER_ARGS } call_member;

typedef struct {
    json_scan scan;
    call_text key, name, id;
    call_text value; /* text of the member being read, unless it streams */
    call_text early; /* arguments before the name is known */
    call_member member;
    bool in_key, in_value, streams;
    bool has_args; /* arguments have begun */
    bool any;      /* a member was read */
} call_object;

typedef enum { OBJECT_BAD, OBJECT_MORE, OBJECT_ARGS, OBJECT_DONE } object_result;

/* Takes the next byte. OBJECT_ARGS: it belongs to arguments that stream; the other arguments are in `early`. whole: the
 * object may not begin with other members than name, type or function. */
status call_object_byte(call_object *o, char c, bool whole, object_result *what, err *e);
void call_object_reset(call_object *o);
void call_object_free(call_object *o);

#endif
