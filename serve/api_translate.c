/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "serve/api_translate.h"

#include "serve/api_impl.h"

bool translate_begin(translation *t, const json_t *from, json_t *ignored, api_error *e)
{
    *t = (translation){from, json_object(), json_array(), json_array(), ignored};
    if (t->to && t->messages && t->tools) return true;
    (void)translate_end(t, false);
    return api_no_memory(e);
}

json_t *translate_end(translation *t, bool good)
{
    if (good) good = json_object_set(t->to, "messages", t->messages) == 0;
    if (good && json_array_size(t->tools) > 0) good = json_object_set(t->to, "tools", t->tools) == 0;
    if (good && json_array_size(t->tools) == 0) json_object_del(t->to, "tool_choice");
    json_decref(t->messages);
    json_decref(t->tools);
    if (good) return t->to;
    json_decref(t->to);
    return NULL;
}

bool translate_set(const translation *t, const char *key, json_t *value, api_error *e)
{
    return json_object_set_new(t->to, key, value) == 0 || api_no_memory(e);
}

static bool is_in(const char *name, const char *const *list)
{
    while (*list && strcmp(*list, name) != 0) list++;
    return *list;
}

bool translate_fields(const translation *t, const char *const *same, const char *const *read, api_error *e)
{
    static const char *const own[] = {
        "attn", "budget", "kv",         "skip", "draft", "decode", "cache_salt", "cache_prefix", "chat_template_kwargs",
        "seed", "min_p",  "ignore_eos", NULL};
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)t->from, name, v)
    {
        const bool copied = is_in(name, same) || is_in(name, own);
        if (copied && json_object_set(t->to, name, v) != 0) return api_no_memory(e);
        if (!copied && !is_in(name, read) && !json_is_null(v) && !api_note(t->ignored, name)) return api_no_memory(e);
    }
    return true;
}

bool translate_add(buffer *b, const char *text, api_error *e)
{
    err why = {0};
    return buffer_add(b, text, strlen(text), &why) == ST_OK || api_no_memory(e);
}

json_t *translate_message(const translation *t, const char *role, const char *text, size_t n, api_error *e)
{
    json_t *m = json_pack("{s:s, s:s%}", "role", role, "content", text ? text : "", n);
    if (m && json_array_append_new(t->messages, m) == 0) return m;
    api_no_memory(e);
    return NULL;
}

bool translate_call(json_t *calls, json_t *id, const json_t *name, json_t *arguments, api_error *e)
{
    json_t *call = json_pack("{s:s, s:{s:s, s:O}}", "type", "function", "function", "name", json_string_value(name),
                             "arguments", arguments);
    if (call && api_is_text(id)) json_object_set(call, "id", id);
    return json_array_append_new(calls, call) == 0 || api_no_memory(e);
}

bool translate_reply(json_t *message, const buffer *thinking, json_t *calls, api_error *e)
{
    if (thinking->n && json_object_set_new(message, "reasoning_content", json_stringn(thinking->p, thinking->n)) != 0)
        return api_no_memory(e);
    return json_array_size(calls) == 0 || json_object_set(message, "tool_calls", calls) == 0 || api_no_memory(e);
}

bool translate_tool(const translation *t, const json_t *tool, const char *key, api_error *e)
{
    json_t *f = json_object();
    const char *const names[][2] = {
        {"name", "name"}, {"description", "description"}, {"strict", "strict"}, {key, "parameters"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *v = api_field(tool, names[i][0]);
        if (v) json_object_set(f, names[i][1], v);
    }
    return json_array_append_new(t->tools, json_pack("{s:s, s:o}", "type", "function", "function", f)) == 0 ||
           api_no_memory(e);
}
