/* SPDX-License-Identifier: MIT */
/* Untrusted JSON, parsed with Jansson: bounded size and depth, no duplicate keys, valid UTF-8 only. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "kernels/base/err.h"

/* Parses one JSON object from memory; name is the file's name for messages. Accepts the output of Python's json module:
 * an integer beyond 64 bits is read as a real; NaN, Infinity and numbers beyond double are read as strings of their
 * spelling ("NaN"). Errors: ST_FORMAT for bad syntax, with line and column; for nesting deeper than max_depth; for a
 * byte order mark, UTF-16 or a Git LFS pointer. The caller frees *out with json_decref. */
status json_parse_object(json_t **out, const char *text, size_t n, const char *name, int max_depth, err *e);

/* Like json_parse_object, for any value. */
status json_parse_any(json_t **out, const char *text, size_t n, const char *name, int max_depth, err *e);

/* Parses one JSON object of data strictly, without Python's extensions. Its strings may contain U+0000 (see
 * json_string_length), and errors name the member. */
status json_parse_data(json_t **out, const char *text, size_t n, const char *name, int max_depth, err *e);

/* Like json_parse_object, from a file of at most max_bytes. */
status json_read_object(json_t **out, const char *path, size_t max_bytes, int max_depth, err *e);

#endif
