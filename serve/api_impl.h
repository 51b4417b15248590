/* SPDX-License-Identifier: MIT */
/* Shared by the readers of requests. */
#ifndef SERVE_API_IMPL_H
#define SERVE_API_IMPL_H

#include <string.h>

#include "serve/api.h"

/* Returns a field that is present and not null. */
static inline json_t *api_field(const json_t *body, const char *name)
{
    json_t *v = json_object_get(body, name);
    return json_is_null(v) ? NULL : v;
}

/* Returns the type of a value with its article. */
static inline const char *api_type_name(const json_t *v)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return names[json_typeof(v)];
}

/* True if a value is a string without U+0000. */
static inline bool api_is_text(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

/* True if a value is this string. */
static inline bool api_is(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

static inline bool api_no_memory(api_error *e)
{
    return api_fail(e, 500, NULL, "out of memory for a request");
}

/* Adds a word to a list once. False: out of memory. */
static inline bool api_note(json_t *list, const char *word)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (api_is(json_array_get(list, i), word)) return true;
    return json_array_append_new(list, json_string(word)) == 0;
}

#endif
