/* SPDX-License-Identifier: MIT */
/* OpenAI's Responses API as translations: a request becomes a chat request, events of its reply become items. Nothing
 * is stored. Source: the types and the accumulator of openai-python 3.57. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/base/base64.h"
#include "kernels/base/mem.h"
#include "serve/api_impl.h"
#include "serve/api_stream.h"
#include "serve/api_translate.h"

/* Beginning of thinking as encrypted_content. */
#define KEPT "kv1."

/* ---- requests ---- */

/* Adds the texts of parts, or a text. */
static bool add_text(buffer *b, const json_t *content, const char *path, api_error *e)
{
    static const char *const types[] = {"input_text", "output_text", "text", "reasoning_text", "refusal"};
    if (api_is_text(content)) return translate_add(b, json_string_value(content), e);
    if (content && !json_is_array(content)) return api_bad(e, "input", "%s: expected a string or parts", path);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *type = json_object_get(part, "type");
        const json_t *text = json_object_get(part, api_is(type, "refusal") ? "refusal" : "text");
        bool known = false;
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) known |= api_is(type, types[k]);
        if (!known || !api_is_text(text))
            return api_bad(e, "input", "%s[%zu]: %.40s parts are not supported", path, i,
                           json_is_string(type) ? json_string_value(type) : "such");
        if (!translate_add(b, json_string_value(text), e)) return false;
    }
    return true;
}

/* Reader of the items of an input. reply: the assistant's message that further items complete, or NULL. */
typedef struct {
    const translation *t;
    json_t *reply;
    buffer thinking; /* thinking before the message */
} reader;

/* Returns the assistant's message, which is added if none is open. */
static json_t *reply_of(reader *r, api_error *e)
{
    if (!r->reply) r->reply = translate_message(r->t, "assistant", "", 0, e);
    if (r->reply && r->thinking.n && !translate_reply(r->reply, &r->thinking, NULL, e)) return NULL;
    r->thinking.n = 0;
    return r->reply;
}

static bool read_message(reader *r, const json_t *item, const char *path, api_error *e)
{
    const json_t *role = json_object_get(item, "role");
    const bool assistant = api_is(role, "assistant");
    json_t *reply = r->reply;
    buffer b = {0};
    bool good = add_text(&b, api_field(item, "content"), path, e);
    if (good && !api_is_text(role)) good = api_bad(e, "input", "%s.role: expected a string", path);
    if (good && !assistant) good = translate_message(r->t, json_string_value(role), b.p, b.n, e) != NULL;
    if (good && assistant) {
        const bool used = reply && *json_string_value(json_object_get(reply, "content"));
        if (used) r->reply = NULL;
        reply = reply_of(r, e);
        good = reply &&
               (json_object_set_new(reply, "content", json_stringn(b.p ? b.p : "", b.n)) == 0 || api_no_memory(e));
    }
    if (!assistant) r->reply = NULL;
    mem_free(b.p);
    return good;
}

static bool read_call(reader *r, const json_t *item, bool custom, const char *path, api_error *e)
{
    json_t *name = json_object_get(item, "name"), *reply = reply_of(r, e), *calls;
    json_t *text = json_object_get(item, custom ? "input" : "arguments");
    if (!reply) return false;
    if (!api_is_text(name) || !api_is_text(text)) return api_bad(e, "input", "%s: expected name and arguments", path);
    if (!json_object_get(reply, "tool_calls") && json_object_set_new(reply, "tool_calls", json_array()) != 0)
        return api_no_memory(e);
    calls = json_object_get(reply, "tool_calls");
    json_t *arguments = custom ? json_pack("{s:O}", "input", text) : json_incref(text);
    const bool good = translate_call(calls, json_object_get(item, "call_id"), name, arguments, e);
    json_decref(arguments);
    return good;
}

static bool read_output(reader *r, const json_t *item, const char *path, api_error *e)
{
    buffer b = {0};
    json_t *m = NULL, *id = json_object_get(item, "call_id");
    bool good = add_text(&b, api_field(item, "output"), path, e);
    if (good && !api_is_text(id)) good = api_bad(e, "input", "%s.call_id: expected a string", path);
    if (good) m = translate_message(r->t, "tool", b.p, b.n, e);
    mem_free(b.p);
    r->reply = NULL;
    return m && (json_object_set(m, "tool_call_id", id) == 0 || api_no_memory(e));
}

/* Reads thinking from the content of an item, or from the text that an answer encoded. Other texts are dropped. */
static bool read_thinking(reader *r, const json_t *item, const char *path, api_error *e)
{
    const json_t *content = api_field(item, "content"), *code = api_field(item, "encrypted_content");
    const char *text = api_is_text(code) ? json_string_value(code) : "";
    bool good = true;
    if (json_array_size(content) > 0 || api_is_text(content)) return add_text(&r->thinking, content, path, e);
    if (strncmp(text, KEPT, sizeof KEPT - 1) != 0) return true;
    text += sizeof KEPT - 1;
    char *out = malloc(strlen(text) + 1);
    const size_t n = out ? base64_read(out, text) : 0;
    json_t *valid = out ? json_stringn(out, n) : NULL;
    if (api_is_text(valid)) good = translate_add(&r->thinking, json_string_value(valid), e);
    json_decref(valid);
    free(out);
    return good;
}

static bool read_item(reader *r, size_t i, const json_t *item, api_error *e)
{
    char path[48];
    const json_t *type = api_field(item, "type");
    snprintf(path, sizeof path, "input[%zu]", i);
    if (!type || api_is(type, "message")) return read_message(r, item, path, e);
    if (api_is(type, "reasoning")) return read_thinking(r, item, path, e);
    if (api_is(type, "function_call")) return read_call(r, item, false, path, e);
    if (api_is(type, "custom_tool_call")) return read_call(r, item, true, path, e);
    if (api_is(type, "function_call_output") || api_is(type, "custom_tool_call_output"))
        return read_output(r, item, path, e);
    if (!json_is_string(type) || api_is(type, "item_reference"))
        return api_bad(e, "input", "%s: item_reference is not supported; nothing is stored", path);
    return api_note(r->t->ignored, json_string_value(type)) || api_no_memory(e);
}

static bool read_input(const translation *t, api_error *e)
{
    const json_t *input = api_field(t->from, "input"), *system = api_field(t->from, "instructions");
    reader r = {.t = t};
    bool good = true;
    if (system && !api_is_text(system)) return api_bad(e, "instructions", "instructions: expected a string");
    if (system && !translate_message(t, "system", json_string_value(system), json_string_length(system), e))
        return false;
    if (!input || api_is_text(input)) {
        const char *text = input ? json_string_value(input) : "";
        return translate_message(t, "user", text, strlen(text), e) != NULL;
    }
    if (!json_is_array(input)) return api_bad(e, "input", "input: expected a string or an array");
    for (size_t i = 0; i < json_array_size(input) && good; i++) good = read_item(&r, i, json_array_get(input, i), e);
    mem_free(r.thinking.p);
    return good && (json_array_size(t->messages) > 0 || translate_message(t, "user", "", 0, e));
}

/* Adds a custom tool as a function with one text. */
static bool read_custom(const translation *t, const json_t *tool, api_error *e)
{
    json_t *f = json_pack("{s:O*, s:O*, s:{s:s, s:{s:{s:s}}, s:[s]}}", "name", json_object_get(tool, "name"),
                          "description", api_field(tool, "description"), "parameters", "type", "object", "properties",
                          "input", "type", "string", "required", "input");
    const bool good = f && translate_tool(t, f, "parameters", e);
    json_decref(f);
    if (good && api_field(tool, "format")) return api_note(t->ignored, "format") || api_no_memory(e);
    return good || api_no_memory(e);
}

static bool read_tools(const translation *t, api_error *e)
{
    const json_t *tools = api_field(t->from, "tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        bool good;
        if (api_is(type, "function")) good = translate_tool(t, tool, "parameters", e);
        else if (api_is(type, "custom")) good = read_custom(t, tool, e);
        else good = api_note(t->ignored, json_is_string(type) ? json_string_value(type) : "tools") || api_no_memory(e);
        if (!good) return false;
    }
    return true;
}

/* Reads the functions to which a choice restricts the calls. */
static bool read_allowed(const translation *t, const json_t *choice, api_error *e)
{
    const json_t *list = json_object_get(choice, "tools");
    json_t *to = json_array();
    for (size_t i = 0; i < json_array_size(list); i++)
        json_array_append_new(to, json_pack("{s:s, s:{s:O*}}", "type", "function", "function", "name",
                                            json_object_get(json_array_get(list, i), "name")));
    return translate_set(t, "tool_choice",
                         json_pack("{s:s, s:{s:O*, s:o}}", "type", "allowed_tools", "allowed_tools", "mode",
                                   json_object_get(choice, "mode"), "tools", to),
                         e);
}

static bool read_choice(const translation *t, api_error *e)
{
    json_t *choice = api_field(t->from, "tool_choice"), *name = json_object_get(choice, "name");
    if (!choice) return true;
    if (json_is_string(choice)) return translate_set(t, "tool_choice", json_incref(choice), e);
    if (api_is(json_object_get(choice, "type"), "allowed_tools")) return read_allowed(t, choice, e);
    if (!api_is_text(name))
        return api_bad(e, "tool_choice", "tool_choice: expected a string or a function with a name");
    return translate_set(t, "tool_choice", json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name),
                         e);
}

/* Reads text.format and reasoning.effort. */
static bool read_form(const translation *t, api_error *e)
{
    json_t *format = api_field(api_field(t->from, "text"), "format"), *effort, *nested;
    effort = api_field(api_field(t->from, "reasoning"), "effort");
    if (effort && !translate_set(t, "reasoning_effort", json_incref(effort), e)) return false;
    if (!format || api_is(json_object_get(format, "type"), "text")) return true;
    if (!api_is(json_object_get(format, "type"), "json_schema"))
        return translate_set(t, "response_format", json_incref(format), e);
    nested = json_copy(format);
    json_object_del(nested, "type");
    return translate_set(t, "response_format", json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", nested),
                         e);
}

/* Refuses fields that need stored responses or would change the answer. */
static bool check_fields(const json_t *body, api_error *e)
{
    static const char *const refused[] = {"previous_response_id", "conversation", "prompt", "moderation"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (api_field(body, refused[i])) return api_bad(e, refused[i], "%s: unsupported field", refused[i]);
    if (json_is_true(api_field(body, "background")))
        return api_bad(e, "background", "background: responses are not stored; send false");
    if (api_is(api_field(body, "truncation"), "auto"))
        return api_bad(e, "truncation", "truncation: only \"disabled\" is supported");
    return true;
}

static bool read_all(const translation *t, api_error *e)
{
    static const char *const same[] = {"model", "temperature", "top_p", "stream", "parallel_tool_calls", NULL};
    static const char *const read[] = {
        "input",      "instructions", "tools", "tool_choice", "text", "reasoning", "max_output_tokens",
        "background", "truncation",   "store", "metadata",    "user", "include",   NULL};
    json_t *most = api_field(t->from, "max_output_tokens");
    if (!check_fields(t->from, e) || !translate_fields(t, same, read, e) || !read_input(t, e) || !read_tools(t, e) ||
        !read_choice(t, e) || !read_form(t, e))
        return false;
    if (most && (!json_is_integer(most) || json_integer_value(most) < 1))
        return api_bad(e, "max_output_tokens", "max_output_tokens: expected an integer from 1");
    return !most || translate_set(t, "max_tokens", json_incref(most), e);
}

json_t *api_from_responses(const json_t *body, json_t *ignored, bool counts, api_error *e)
{
    translation t;
    (void)counts;
    if (!translate_begin(&t, body, ignored, e)) return NULL;
    return translate_end(&t, read_all(&t, e));
}

/* ---- answers ---- */

/* Returns a field of the request, or a default, which is taken. */
static json_t *echo(const api_stream *s, const char *name, json_t *otherwise)
{
    json_t *v = api_field(s->head->r->original, name);
    if (!v) return otherwise;
    json_decref(otherwise);
    return json_incref(v);
}

static json_t *usage_json(const api_usage *u)
{
    return json_pack("{s:I, s:{s:I, s:i}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)u->prompt,
                     "input_tokens_details", "cached_tokens", (json_int_t)u->cached, "cache_write_tokens", 0,
                     "output_tokens", (json_int_t)u->generated, "output_tokens_details", "reasoning_tokens",
                     (json_int_t)u->thinking, "total_tokens", (json_int_t)(u->prompt + u->generated));
}

/* Returns a response without its output; takes usage. */
static json_t *response_json(const api_stream *s, const char *state, json_t *usage)
{
    json_t *j = json_pack("{s:s, s:s, s:I, s:s, s:n, s:n, s:s, s:b, s:n, s:o}", "id", s->head->id, "object", "response",
                          "created_at", (json_int_t)s->head->created, "status", state, "error", "incomplete_details",
                          "model", s->head->model, "store", 0, "previous_response_id", "usage", usage);
    static const char *const nulls[] = {"instructions", "max_output_tokens", "user"};
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++)
        json_object_set_new(j, nulls[i], echo(s, nulls[i], json_null()));
    json_object_set_new(j, "parallel_tool_calls", echo(s, "parallel_tool_calls", json_true()));
    json_object_set_new(j, "reasoning", echo(s, "reasoning", json_pack("{s:n, s:n}", "effort", "summary")));
    json_object_set_new(j, "temperature", echo(s, "temperature", json_real(s->head->r->sampling.temp)));
    json_object_set_new(j, "top_p", echo(s, "top_p", json_real(s->head->r->sampling.top_p)));
    json_object_set_new(j, "text", echo(s, "text", json_pack("{s:{s:s}}", "format", "type", "text")));
    json_object_set_new(j, "tool_choice", echo(s, "tool_choice", json_string("auto")));
    json_object_set_new(j, "tools", echo(s, "tools", json_array()));
    json_object_set_new(j, "metadata", echo(s, "metadata", json_object()));
    json_object_set_new(j, "truncation", json_string("disabled"));
    json_object_set(j, "output", s->items);
    return j;
}

/* Writes an event; takes data. */
static status event(api_stream *s, json_t *data, err *e)
{
    if (data) json_object_set_new(data, "sequence_number", json_integer(s->n_events));
    return api_stream_event(s, data, e);
}

/* Writes an event of the open item; takes data, its members beside the type and the item's place. */
static status item_event(api_stream *s, const char *type, json_t *data, err *e)
{
    json_t *j = json_pack("{s:s, s:O, s:i}", "type", type, "item_id", json_object_get(s->item, "id"), "output_index",
                          (int)json_array_size(s->items));
    if (j && data) json_object_update(j, data);
    if (j && s->kind != CALL_ARGS) json_object_set_new(j, "content_index", json_integer(0));
    json_decref(data);
    return event(s, j, e);
}

static status begin(api_stream *s, const api_usage *u, err *e)
{
    (void)u;
    json_t *r = response_json(s, "in_progress", json_null());
    json_t *copy = r ? json_deep_copy(r) : NULL; /* its list of items grows */
    json_decref(r);
    status st = event(s, json_pack("{s:s, s:O}", "type", "response.created", "response", copy), e);
    if (st == ST_OK) st = event(s, json_pack("{s:s, s:O}", "type", "response.in_progress", "response", copy), e);
    json_decref(copy);
    return st;
}

/* True if the request has a custom tool of this name. */
static bool is_custom(const api_stream *s, const char *name)
{
    const json_t *tools = api_field(s->head->r->original, "tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        if (api_is(json_object_get(tool, "type"), "custom") && api_is(json_object_get(tool, "name"), name)) return true;
    }
    return false;
}

static json_t *new_item(const api_stream *s, const char *name, const char *call)
{
    const char *id = strchr(s->head->id, '_');
    const int n = (int)json_array_size(s->items);
    const bool custom = s->kind == CALL_ARGS && is_custom(s, name);
    id = id ? id + 1 : s->head->id;
    if (s->kind == CALL_TEXT)
        return json_pack("{s:o, s:s, s:s, s:s, s:[]}", "id", json_sprintf("msg_%s%d", id, n), "type", "message", "role",
                         "assistant", "status", "in_progress", "content");
    if (s->kind == CALL_REASONING)
        return json_pack("{s:o, s:s, s:[], s:[], s:n, s:s}", "id", json_sprintf("rs_%s%d", id, n), "type", "reasoning",
                         "summary", "content", "encrypted_content", "status", "in_progress");
    return json_pack("{s:o, s:s, s:s, s:s, s:s, s:s}", "id", json_sprintf("%s_%s%d", custom ? "ctc" : "fc", id, n),
                     "type", custom ? "custom_tool_call" : "function_call", "call_id", call, "name", name,
                     custom ? "input" : "arguments", "", "status", "in_progress");
}

/* Returns the part of an item of text. */
static json_t *part_json(const api_stream *s, const char *text, size_t n)
{
    if (s->kind == CALL_REASONING) return json_pack("{s:s, s:s%}", "type", "reasoning_text", "text", text, n);
    return json_pack("{s:s, s:s%, s:[], s:[]}", "type", "output_text", "text", text, n, "annotations", "logprobs");
}

static status open_item(api_stream *s, const char *name, const char *id, err *e)
{
    s->item = new_item(s, name, id);
    TRY(event(s,
              json_pack("{s:s, s:i, s:o}", "type", "response.output_item.added", "output_index",
                        (int)json_array_size(s->items), "item", json_deep_copy(s->item)),
              e));
    if (s->kind == CALL_ARGS) return ST_OK;
    return item_event(s, "response.content_part.added", json_pack("{s:o}", "part", part_json(s, "", 0)), e);
}

static bool is_custom_item(const api_stream *s)
{
    return json_object_get(s->item, "input") != NULL;
}

static status add(api_stream *s, const char *text, size_t n, err *e)
{
    if (s->kind == CALL_TEXT)
        return item_event(s, "response.output_text.delta", json_pack("{s:s%, s:[]}", "delta", text, n, "logprobs"), e);
    if (s->kind == CALL_ARGS && is_custom_item(s)) return ST_OK; /* sent as one delta at its end */
    return item_event(s,
                      s->kind == CALL_ARGS ? "response.function_call_arguments.delta" : "response.reasoning_text.delta",
                      json_pack("{s:s%}", "delta", text, n), e);
}

static status close_call(api_stream *s, err *e)
{
    json_t *name = json_object_get(s->item, "name");
    if (!is_custom_item(s)) {
        json_object_set_new(s->item, "arguments", json_stringn(s->text.p, s->text.n));
        return item_event(s, "response.function_call_arguments.done",
                          json_pack("{s:O, s:O}", "name", name, "arguments", json_object_get(s->item, "arguments")), e);
    }
    json_t *arguments = api_arguments(s->text.p, s->text.n), *input = json_object_get(arguments, "input");
    if (json_is_string(input)) json_object_set(s->item, "input", input);
    json_decref(arguments);
    input = json_object_get(s->item, "input");
    TRY(item_event(s, "response.custom_tool_call_input.delta", json_pack("{s:O}", "delta", input), e));
    return item_event(s, "response.custom_tool_call_input.done", json_pack("{s:O}", "input", input), e);
}

static status close_text(api_stream *s, err *e)
{
    json_t *part = part_json(s, s->text.p, s->text.n), *text = json_object_get(part, "text");
    const bool content = s->kind == CALL_TEXT;
    status st =
        item_event(s, content ? "response.output_text.done" : "response.reasoning_text.done",
                   content ? json_pack("{s:O, s:[]}", "text", text, "logprobs") : json_pack("{s:O}", "text", text), e);
    if (st == ST_OK) st = item_event(s, "response.content_part.done", json_pack("{s:O}", "part", part), e);
    json_array_append(json_object_get(s->item, "content"), part);
    json_decref(part);
    return st;
}

/* True if the request asks for an item's part. */
static bool includes(const api_stream *s, const char *part)
{
    const json_t *list = api_field(s->head->r->original, "include");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (api_is(json_array_get(list, i), part)) return true;
    return false;
}

/* Encodes thinking, for clients that return it in the next turn instead of the text. It is no secret. */
static json_t *encode_thinking(const api_stream *s)
{
    char *text = malloc(base64_size(s->text.n) + 1);
    if (!text) return NULL;
    base64_write(text, (const unsigned char *)s->text.p, s->text.n);
    json_t *j = json_sprintf(KEPT "%s", text);
    free(text);
    return j;
}

static status close_item(api_stream *s, err *e)
{
    if (s->kind == CALL_REASONING && includes(s, "reasoning.encrypted_content") &&
        json_object_set_new(s->item, "encrypted_content", encode_thinking(s)) != 0)
        return err_set(e, ST_NOMEM, "out of memory for an answer");
    json_object_set_new(s->item, "status", json_string(s->cut ? "incomplete" : "completed"));
    TRY(s->kind == CALL_ARGS ? close_call(s, e) : close_text(s, e));
    return event(s,
                 json_pack("{s:s, s:i, s:O}", "type", "response.output_item.done", "output_index",
                           (int)json_array_size(s->items), "item", s->item),
                 e);
}

static json_t *answer(api_stream *s, const char *finish, const char *stop, const api_usage *u, json_t *kvasir)
{
    const bool cut = strcmp(finish, "length") == 0;
    (void)stop;
    json_t *j = response_json(s, cut ? "incomplete" : "completed", usage_json(u));
    if (j && cut) json_object_set_new(j, "incomplete_details", json_pack("{s:s}", "reason", "max_output_tokens"));
    if (!j) json_decref(kvasir);
    else if (kvasir) json_object_set_new(j, "kvasir", kvasir);
    return j;
}

static status end(api_stream *s, const json_t *a, err *e)
{
    const bool cut = api_is(json_object_get(a, "status"), "incomplete");
    return event(s, json_pack("{s:s, s:O}", "type", cut ? "response.incomplete" : "response.completed", "response", a),
                 e);
}

static status fail(api_stream *s, const api_error *why, err *e)
{
    json_t *r = response_json(s, "failed", json_null());
    json_object_set_new(
        r, "error", json_pack("{s:s, s:s}", "code", why->code ? why->code : "server_error", "message", why->message));
    return event(s, json_pack("{s:s, s:o}", "type", "response.failed", "response", r), e);
}

const api_form responses_form = {begin, open_item, add, close_item, answer, end, fail};
