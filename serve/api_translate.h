/* SPDX-License-Identifier: MIT */
/* Request bodies of other APIs as bodies of chat completions. */
#ifndef SERVE_API_TRANSLATE_H
#define SERVE_API_TRANSLATE_H

#include "serve/api.h"

typedef struct {
    const json_t *from;
    json_t *to, *messages, *tools; /* messages and tools become part of `to` */
    json_t *ignored;               /* names of what was left out */
} translation;

bool translate_begin(translation *t, const json_t *from, json_t *ignored, api_error *e);
/* Returns the body, or NULL if not good. */
json_t *translate_end(translation *t, bool good);
/* Sets a field; takes the value. */
bool translate_set(const translation *t, const char *key, json_t *value, api_error *e);
/* Copies the fields of the list `same` and our own ones; lists those that are neither these nor read elsewhere. */
bool translate_fields(const translation *t, const char *const *same, const char *const *read, api_error *e);
bool translate_add(buffer *b, const char *text, api_error *e);
/* Appends a message and returns it; NULL: out of memory. */
json_t *translate_message(const translation *t, const char *role, const char *text, size_t n, api_error *e);
/* Appends a call to a list. arguments: a text or an object. */
bool translate_call(json_t *calls, json_t *id, const json_t *name, json_t *arguments, api_error *e);
/* Completes a reply with thinking and calls, if there are any. */
bool translate_reply(json_t *message, const buffer *thinking, json_t *calls, api_error *e);
/* Appends a function whose schema has the name `key`. */
bool translate_tool(const translation *t, const json_t *tool, const char *key, api_error *e);

/* Returns the chat request of a request body of the API, or NULL. counts: only its tokens are counted. */
json_t *api_from_messages(const json_t *body, json_t *ignored, bool counts, api_error *e);
json_t *api_from_responses(const json_t *body, json_t *ignored, bool counts, api_error *e);

#endif
