/* SPDX-License-Identifier: MIT */
/* Renderings of Jinja templates for tests. */
#ifndef TESTS_UNIT_JINJA_UTIL_H
#define TESTS_UNIT_JINJA_UTIL_H

#include <string.h>

#include "tokenizer/jinja/jinja.h"

enum { JINJA_NOW = 1785067200 }; /* 2026-07-26 12:00:00 UTC */

/* Parses and renders; ST_FORMAT may be from either. */
static inline status render(const char *text, size_t n, const json_t *variables, jinja_text *out, err *e)
{
    jinja *j;
    *out = (jinja_text){0};
    status st = jinja_parse(&j, text, n, "test", e);
    if (st == ST_OK) st = jinja_render(j, variables, JINJA_NOW, out, e);
    jinja_free(j);
    return st;
}

/* True if a rendering is what a line of the reference says: "text", "raised" (a message) or "fails". */
static inline bool is_as_expected(status st, const jinja_text *got, const json_t *line)
{
    const json_t *want = json_object_get(line, st == ST_USAGE ? "raised" : "text");
    if (st != ST_OK && st != ST_USAGE) return st == ST_FORMAT && json_object_get(line, "fails");
    return want && got->n == json_string_length(want) && memcmp(got->text, json_string_value(want), got->n) == 0;
}

#endif
