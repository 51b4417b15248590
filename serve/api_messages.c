/* SPDX-License-Identifier: MIT */
/* Anthropic's Messages API as translations: a request becomes a chat request, events of its reply become blocks.
 * Source: the types and accumulators of anthropic-python 2.14. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/base/mem.h"
#include "serve/api_impl.h"
#include "serve/api_stream.h"
#include "serve/api_translate.h"

/* ---- requests ---- */

/* Adds the texts of blocks, or a text, with a separator. */
static bool add_text(buffer *b, const json_t *content, const char *separator, const char *path, api_error *e)
{
    err why = {0};
    bool any = false;
    if (api_is_text(content)) return translate_add(b, json_string_value(content), e);
    if (content && !json_is_array(content)) return api_bad(e, "messages", "%s: expected a string or blocks", path);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i), *type = json_object_get(block, "type");
        const json_t *text = json_object_get(block, api_is(type, "tool_reference") ? "tool_name" : "text");
        if ((!api_is(type, "text") && !api_is(type, "tool_reference")) || !api_is_text(text))
            return api_bad(e, "messages", "%s[%zu]: %.40s blocks are not supported", path, i,
                           json_is_string(type) ? json_string_value(type) : "such");
        if (strncmp(json_string_value(text), "x-anthropic-billing-header:", 27) == 0) continue; /* differs each time */
        if (any && buffer_add(b, separator, strlen(separator), &why) != ST_OK) return api_no_memory(e);
        if (!translate_add(b, json_string_value(text), e)) return false;
        any = true;
    }
    return true;
}

static bool read_system(const translation *t, api_error *e)
{
    buffer b = {0};
    const json_t *system = api_field(t->from, "system");
    bool good = !system || add_text(&b, system, "\n\n", "system", e);
    if (good && b.n) good = translate_message(t, "system", b.p, b.n, e) != NULL;
    mem_free(b.p);
    return good;
}

/* Adds the result of a tool. */
static bool read_result(const translation *t, const json_t *block, const char *path, api_error *e)
{
    buffer b = {0};
    json_t *m = NULL, *id = json_object_get(block, "tool_use_id");
    bool good = !json_is_true(json_object_get(block, "is_error")) || translate_add(&b, "Error: ", e);
    good = good && add_text(&b, api_field(block, "content"), "\n", path, e);
    if (good && !api_is_text(id)) good = api_bad(e, "messages", "%s.tool_use_id: expected a string", path);
    if (good) m = translate_message(t, "tool", b.p, b.n, e);
    mem_free(b.p);
    return m && (json_object_set(m, "tool_call_id", id) == 0 || api_no_memory(e));
}

/* Texts and calls of one message. */
typedef struct {
    buffer text, thinking;
    json_t *calls;
} parts;

static bool read_block(const translation *t, parts *p, const json_t *block, bool assistant, const char *path,
                       api_error *e)
{
    const json_t *type = json_object_get(block, "type"), *text = json_object_get(block, "text");
    const json_t *thinking = json_object_get(block, "thinking"), *name = json_object_get(block, "name");
    if (api_is(type, "text") && api_is_text(text)) return translate_add(&p->text, json_string_value(text), e);
    if (!assistant && api_is(type, "tool_result")) return read_result(t, block, path, e);
    if (assistant && api_is(type, "thinking") && api_is_text(thinking))
        return translate_add(&p->thinking, json_string_value(thinking), e);
    if (assistant && api_is(type, "redacted_thinking")) return true;
    if (assistant && api_is(type, "tool_use") && api_is_text(name)) {
        json_t *input = api_field(block, "input"), *id = json_object_get(block, "id");
        return translate_call(p->calls, id, name, input ? input : json_null(), e);
    }
    const bool media = api_is(type, "image") || api_is(type, "document") || api_is(type, "search_result");
    if (!assistant || media || !json_is_string(type))
        return api_bad(e, "messages", "%s: %.40s blocks are not supported", path,
                       json_is_string(type) ? json_string_value(type) : "such");
    return api_note(t->ignored, json_string_value(type)) || api_no_memory(e);
}

static bool read_blocks(const translation *t, parts *p, const json_t *content, bool assistant, size_t i, api_error *e)
{
    char path[64];
    if (api_is_text(content)) return translate_add(&p->text, json_string_value(content), e);
    if (!json_is_array(content))
        return api_bad(e, "messages", "messages[%zu].content: expected a string or an array", i);
    for (size_t k = 0; k < json_array_size(content); k++) {
        snprintf(path, sizeof path, "messages[%zu].content[%zu]", i, k);
        if (!read_block(t, p, json_array_get(content, k), assistant, path, e)) return false;
    }
    return true;
}

static bool read_message(const translation *t, size_t i, const json_t *m, api_error *e)
{
    const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content");
    const bool assistant = api_is(role, "assistant"), system = api_is(role, "system") || api_is(role, "ctx");
    const size_t before = json_array_size(t->messages);
    parts p = {.calls = json_array()};
    if (!assistant && !system && !api_is(role, "user") && !api_is(role, "msg")) {
        json_decref(p.calls);
        return api_bad(e, "messages", "messages[%zu].role: expected user or assistant", i);
    }
    bool good = p.calls && read_blocks(t, &p, content, assistant, i, e);
    const bool results = json_array_size(t->messages) > before;
    if (good && (p.text.n || assistant || (!results && !system))) {
        json_t *to = translate_message(t, assistant ? "assistant" : system ? "system" : "user", p.text.p, p.text.n, e);
        good = to && translate_reply(to, &p.thinking, p.calls, e);
    }
    mem_free(p.text.p);
    mem_free(p.thinking.p);
    json_decref(p.calls);
    return good;
}

static bool read_tools(const translation *t, api_error *e)
{
    const json_t *tools = api_field(t->from, "tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = api_field(tool, "type");
        if (type && !api_is(type, "custom")) {
            if (!api_note(t->ignored, json_is_string(type) ? json_string_value(type) : "tools"))
                return api_no_memory(e);
        } else if (!translate_tool(t, tool, "input_schema", e)) return false;
    }
    return true;
}

static bool read_choice(const translation *t, api_error *e)
{
    json_t *choice = api_field(t->from, "tool_choice"), *type = json_object_get(choice, "type");
    json_t *name = json_object_get(choice, "name"), *to = NULL;
    if (!choice) return true;
    if (api_is(type, "auto") || api_is(type, "none")) to = json_incref(type);
    if (api_is(type, "any")) to = json_string("required");
    if (api_is(type, "tool") && api_is_text(name))
        to = json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name);
    if (!to) return api_bad(e, "tool_choice", "tool_choice.type: expected auto, any, tool with a name, or none");
    if (json_is_true(json_object_get(choice, "disable_parallel_tool_use")) &&
        !translate_set(t, "parallel_tool_calls", json_false(), e)) {
        json_decref(to);
        return false;
    }
    return translate_set(t, "tool_choice", to, e);
}

/* Reads thinking and output_config: the effort and the format of the answer. */
static bool read_output(const translation *t, api_error *e)
{
    const json_t *type = json_object_get(api_field(t->from, "thinking"), "type");
    json_t *budget = json_object_get(api_field(t->from, "thinking"), "budget_tokens");
    const json_t *config = api_field(t->from, "output_config"), *format = api_field(config, "format");
    json_t *effort = api_field(config, "effort");
    const bool off = !type || api_is(type, "disabled");
    if (!format) format = api_field(t->from, "output_format");
    if (!translate_set(t, "reasoning_effort",
                       off      ? json_string("none")
                       : effort ? json_incref(effort)
                                : json_string("medium"),
                       e))
        return false;
    if (!off && budget && !translate_set(t, "thinking_budget", json_incref(budget), e)) return false;
    json_t *schema = json_object_get(format, "schema");
    if (format && (!api_is(json_object_get(format, "type"), "json_schema") || !schema))
        return api_bad(e, "output_config",
                       "output_config.format: expected {\"type\": \"json_schema\", \"schema\": ..}");
    return !format || translate_set(t, "response_format",
                                    json_pack("{s:s, s:{s:s, s:O}}", "type", "json_schema", "json_schema", "name",
                                              "output", "schema", schema),
                                    e);
}

static bool read_all(const translation *t, bool counts, api_error *e)
{
    static const char *const same[] = {"model", "max_tokens", "temperature", "top_p", "top_k", "stream", NULL};
    static const char *const read[] = {"messages",      "system",        "tools",          "tool_choice", "thinking",
                                       "output_config", "output_format", "stop_sequences", NULL};
    const json_t *messages = api_field(t->from, "messages"), *container = api_field(t->from, "container");
    json_t *stops = api_field(t->from, "stop_sequences");
    if (!counts && !api_field(t->from, "max_tokens")) return api_bad(e, "max_tokens", "max_tokens: is missing");
    if (container || json_array_size(api_field(t->from, "mcp_servers")) > 0)
        return api_bad(e, "container", "container and mcp_servers: unsupported fields");
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return api_bad(e, "messages", "messages: expected an array of messages");
    if (!translate_fields(t, same, read, e) || !read_system(t, e) || !read_tools(t, e) || !read_choice(t, e) ||
        !read_output(t, e))
        return false;
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!read_message(t, i, json_array_get(messages, i), e)) return false;
    return !stops || translate_set(t, "stop", json_incref(stops), e);
}

json_t *api_from_messages(const json_t *body, json_t *ignored, bool counts, api_error *e)
{
    translation t;
    if (!translate_begin(&t, body, ignored, e)) return NULL;
    return translate_end(&t, read_all(&t, counts, e));
}

/* ---- answers ---- */

static json_t *usage_json(const api_usage *u)
{
    return json_pack("{s:I, s:i, s:I, s:I, s:{s:I}}", "input_tokens", (json_int_t)(u->prompt - u->cached),
                     "cache_creation_input_tokens", 0, "cache_read_input_tokens", (json_int_t)u->cached,
                     "output_tokens", (json_int_t)u->generated, "output_tokens_details", "thinking_tokens",
                     (json_int_t)u->thinking);
}

static json_t *message_json(const api_stream *s, json_t *content, const char *reason, const char *stop,
                            const api_usage *u)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s?, s:s?, s:o}", "id", s->head->id, "type", "message", "role",
                     "assistant", "model", s->head->model, "content", content, "stop_reason", reason, "stop_sequence",
                     stop, "usage", usage_json(u));
}

static status begin(api_stream *s, const api_usage *u, err *e)
{
    return api_stream_event(
        s, json_pack("{s:s, s:o}", "type", "message_start", "message", message_json(s, json_array(), NULL, NULL, u)),
        e);
}

static int index_of(const api_stream *s)
{
    return (int)json_array_size(s->items);
}

static status open_block(api_stream *s, const char *name, const char *id, err *e)
{
    if (s->kind == CALL_TEXT) s->item = json_pack("{s:s, s:s}", "type", "text", "text", "");
    else if (s->kind == CALL_REASONING)
        s->item = json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", "");
    else
        s->item = json_pack("{s:s, s:o, s:s, s:{}}", "type", "tool_use", "id", json_sprintf("toolu_%s", id), "name",
                            name, "input");
    return api_stream_event(s,
                            json_pack("{s:s, s:i, s:o}", "type", "content_block_start", "index", index_of(s),
                                      "content_block", json_deep_copy(s->item)),
                            e);
}

static status delta(api_stream *s, const char *type, const char *key, const char *text, size_t n, err *e)
{
    return api_stream_event(s,
                            json_pack("{s:s, s:i, s:{s:s, s:s%}}", "type", "content_block_delta", "index", index_of(s),
                                      "delta", "type", type, key, text, n),
                            e);
}

static bool omits_thinking(const api_stream *s)
{
    const json_t *thinking = api_field(s->head->r->original, "thinking");
    return api_is(json_object_get(thinking, "display"), "omitted");
}

static status add(api_stream *s, const char *text, size_t n, err *e)
{
    if (s->kind == CALL_TEXT) return delta(s, "text_delta", "text", text, n, e);
    if (s->kind == CALL_REASONING)
        return omits_thinking(s) ? ST_OK : delta(s, "thinking_delta", "thinking", text, n, e);
    return delta(s, "input_json_delta", "partial_json", text, n, e);
}

static status close_block(api_stream *s, err *e)
{
    const size_t n = s->kind == CALL_REASONING && omits_thinking(s) ? 0 : s->text.n;
    json_t *text = s->kind == CALL_ARGS ? api_arguments(s->text.p, n) : json_stringn(s->text.p, n);
    const char *key = s->kind == CALL_TEXT ? "text" : s->kind == CALL_REASONING ? "thinking" : "input";
    if (json_object_set_new(s->item, key, text) != 0) return err_set(e, ST_NOMEM, "out of memory for an answer");
    if (s->kind == CALL_REASONING) {
        json_object_set_new(s->item, "signature", json_string("kvasir"));
        TRY(delta(s, "signature_delta", "signature", "kvasir", 6, e));
    }
    return api_stream_event(s, json_pack("{s:s, s:i}", "type", "content_block_stop", "index", index_of(s)), e);
}

static json_t *answer(api_stream *s, const char *finish, const char *stop, const api_usage *u, json_t *kvasir)
{
    const char *reason = strcmp(finish, "length") == 0
                             ? s->head->r->shortened ? "model_context_window_exceeded" : "max_tokens"
                         : strcmp(finish, "tool_calls") == 0 ? "tool_use"
                         : stop                              ? "stop_sequence"
                                                             : "end_turn";
    json_t *j = message_json(s, json_incref(s->items), reason, strcmp(reason, "stop_sequence") == 0 ? stop : NULL, u);
    if (!j) json_decref(kvasir);
    else if (kvasir) json_object_set_new(j, "kvasir", kvasir);
    return j;
}

static status end(api_stream *s, const json_t *a, err *e)
{
    TRY(api_stream_event(s,
                         json_pack("{s:s, s:{s:O, s:O}, s:O, s:O*}", "type", "message_delta", "delta", "stop_reason",
                                   json_object_get(a, "stop_reason"), "stop_sequence",
                                   json_object_get(a, "stop_sequence"), "usage", json_object_get(a, "usage"), "kvasir",
                                   json_object_get(a, "kvasir")),
                         e));
    return api_stream_event(s, json_pack("{s:s}", "type", "message_stop"), e);
}

static status fail(api_stream *s, const api_error *why, err *e)
{
    char *text = api_error_styled(why, API_MESSAGES, s->head->id);
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return api_stream_event(s, j, e);
}

const api_form messages_form = {begin, open_block, add, close_block, answer, end, fail};
