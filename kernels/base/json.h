/* SPDX-License-Identifier: MIT */
/* JSON files from outside, through Jansson: bounded size and depth, no duplicate keys, no bad UTF-8. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "kernels/base/err.h"

/* Parses one JSON object from memory; name is the file's name for messages. Errors: ST_FORMAT with
 * line and column; nesting deeper than max_depth. The caller frees *out with json_decref. */
status json_parse_object(json_t **out, const char *text, size_t n, const char *name, int max_depth, err *e);

/* The same for data: its texts may hold U+0000 (json_string_length tells their ends), and errors name the member. */
status json_parse_data(json_t **out, const char *text, size_t n, const char *name, int max_depth, err *e);

/* The first from a file of at most max_bytes. */
status json_read_object(json_t **out, const char *path, size_t max_bytes, int max_depth, err *e);

#endif
