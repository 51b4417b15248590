/* SPDX-License-Identifier: MIT */
/* Messages and tools of a request, in the form that chat templates expect. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/base/mem.h"
#include "kernels/base/sha256.h"
#include "serve/api_impl.h"
#include "tokenizer/call_tags.h"

enum { MESSAGES_MOST = 10000, TOOLS_MOST = 128, NAME_MOST = 128, TOOLS_BYTES = 1 << 20, CALL_ID = 9 };

static bool set(json_t *object, const char *key, json_t *value, api_error *e)
{
    return json_object_set_new(object, key, value) == 0 || api_no_memory(e);
}

/* ---- content ---- */

/* Replaces the parts of message i by their concatenated texts. */
static bool join_parts(json_t *message, const json_t *parts, size_t i, api_error *e)
{
    buffer all = {0};
    err why = {0};
    bool good = true;
    for (size_t k = 0; k < json_array_size(parts) && good; k++) {
        const json_t *part = json_array_get(parts, k), *type = json_object_get(part, "type");
        const json_t *text = json_object_get(part, api_is(type, "refusal") ? "refusal" : "text");
        const bool known = api_is(type, "text") || api_is(type, "refusal");
        if (!known || !api_is_text(text))
            good = api_bad(e, "messages", "messages[%zu].content[%zu]: %.40s parts are not supported", i, k,
                           json_is_string(type) && !known ? json_string_value(type) : "such");
        else if (buffer_add(&all, json_string_value(text), json_string_length(text), &why) != ST_OK)
            good = api_no_memory(e);
    }
    if (good) good = set(message, "content", json_stringn(all.p ? all.p : "", all.n), e);
    mem_free(all.p);
    return good;
}

static bool read_content(json_t *m, size_t i, api_error *e)
{
    const json_t *content = json_object_get(m, "content"), *refusal = json_object_get(m, "refusal");
    const bool assistant = api_is(json_object_get(m, "role"), "assistant");
    if (json_is_array(content)) return join_parts(m, content, i, e);
    if (assistant && !api_field(m, "content") && json_is_string(refusal))
        return set(m, "content", json_incref((json_t *)(uintptr_t)refusal), e);
    if (assistant && !api_field(m, "content")) return true;
    return api_is_text(content) ||
           api_bad(e, "messages", "messages[%zu].content: expected a string without U+0000, or parts of type text", i);
}

/* ---- calls ---- */

static bool is_alphanumeric(const char *s, size_t n)
{
    return strspn(s, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") >= n;
}

/* Returns the id of a call as templates expect it: without the prefixes of APIs and, for Mistral, of nine characters.
 */
static json_t *plain_id(const char *id, bool nine)
{
    static const char *const prefixes[] = {"call_", "toolu_", "fc_"};
    char hex[SHA256_HEX];
    sha256 sum;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        const size_t n = strlen(prefixes[i]);
        if (strncmp(id, prefixes[i], n) == 0 && strlen(id + n) == CALL_ID) return json_string(id + n);
    }
    if (!nine || (strlen(id) == CALL_ID && is_alphanumeric(id, CALL_ID))) return json_string(id);
    sha256_init(&sum);
    sha256_add(&sum, id, strlen(id));
    sha256_hex(&sum, hex);
    return json_stringn(hex, CALL_ID);
}

static bool read_id(json_t *m, const char *key, const api_rules *rules, api_error *e)
{
    const char *id = json_string_value(json_object_get(m, key));
    const call_format *f = rules && rules->calls ? rules->calls->format : NULL;
    return !id || set(m, key, plain_id(id, f && strncmp(f->name, "mistral", 7) == 0), e);
}

/* Parses arguments, which clients send as a JSON text. Text that is no object becomes a member of one: an error of the
 * model must not end the conversation. */
static bool read_arguments(api_request *r, json_t *function, api_error *e)
{
    const json_t *given = json_object_get(function, "arguments");
    const char *text = json_string_value(given);
    if (given && !text && !json_is_null(given)) return true;
    json_t *v = text ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
    if (!json_is_object(v)) {
        json_decref(v);
        v = json_object();
        if (text && *text &&
            (!api_note(r->changes, "bad_arguments") || json_object_set_new(v, "arguments", json_string(text)) != 0))
            return api_no_memory(e);
    }
    return set(function, "arguments", v, e);
}

static bool read_calls(api_request *r, json_t *m, size_t i, const api_rules *rules, api_error *e)
{
    json_t *calls = api_field(m, "tool_calls"), *call;
    size_t k;
    if (!calls) return json_object_del(m, "tool_calls") <= 0;
    if (!json_is_array(calls) || json_array_size(calls) > CALL_MOST)
        return api_bad(e, "messages", "messages[%zu].tool_calls: expected an array of at most %d calls", i, CALL_MOST);
    if (json_array_size(calls) == 0) return json_object_del(m, "tool_calls") == 0;
    json_array_foreach(calls, k, call)
    {
        json_t *f = json_object_get(call, "function");
        if (!api_is_text(json_object_get(f, "name")))
            return api_bad(e, "messages", "messages[%zu].tool_calls[%zu].function.name: expected a string", i, k);
        if (!read_arguments(r, f, e) || !read_id(call, "id", rules, e)) return false;
    }
    return true;
}

/* Returns the position of a result's call, the number of calls if it has none. */
static size_t rank_of(const json_t *calls, const json_t *result)
{
    const char *id = json_string_value(json_object_get(result, "tool_call_id"));
    size_t i = 0;
    while (i < json_array_size(calls) && (!id || !api_is(json_object_get(json_array_get(calls, i), "id"), id))) i++;
    return i;
}

/* Completes the result of a tool from its call. */
static bool read_result(json_t *m, const json_t *calls, size_t i, const api_rules *rules, api_error *e)
{
    if (!read_id(m, "tool_call_id", rules, e)) return false;
    const bool has_id = api_field(m, "tool_call_id");
    if (!has_id && json_array_size(calls) > 1) return api_bad(e, "messages", "messages[%zu].tool_call_id: missing", i);
    const json_t *call = json_array_get(calls, has_id ? rank_of(calls, m) : 0);
    json_t *id = json_object_get(call, "id"), *name = json_object_get(json_object_get(call, "function"), "name");
    if (!has_id && id && json_object_set(m, "tool_call_id", id) != 0) return api_no_memory(e);
    if (name && !api_field(m, "name") && json_object_set(m, "name", name) != 0) return api_no_memory(e);
    return true;
}

/* Sorts neighbouring results [from, to) into the order of their calls, because templates match them by position. */
static void sort_results(json_t *list, const json_t *calls, size_t from, size_t to)
{
    for (size_t i = from + 1; i < to; i++) {
        size_t k = i;
        json_t *m = json_incref(json_array_get(list, i));
        for (; k > from && rank_of(calls, json_array_get(list, k - 1)) > rank_of(calls, m); k--)
            json_array_set(list, k, json_array_get(list, k - 1));
        json_array_set_new(list, k, m);
    }
}

/* ---- messages ---- */

/* Checks a message, and changes it to the form that templates expect. */
static bool read_message(api_request *r, json_t *m, size_t i, const api_rules *rules, api_error *e)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(m, "role"));
    bool known = false;
    if (!role) return api_bad(e, "messages", "messages[%zu]: message without a role", i);
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) known |= strcmp(role, roles[k]) == 0;
    if (!known)
        return api_bad(e, "messages",
                       "messages[%zu]: role '%.40s', expected system, developer, user, assistant or tool", i, role);
    if (strcmp(role, "assistant") == 0 && !read_calls(r, m, i, rules, e)) return false;
    if (!read_content(m, i, e)) return false;
    return strcmp(role, "developer") != 0 || set(m, "role", json_string("system"), e);
}

static bool has_role(const json_t *m, const char *role)
{
    return api_is(json_object_get(m, "role"), role);
}

/* Joins the system messages at the beginning with a blank line. */
static bool join_systems(json_t *list, api_error *e)
{
    while (json_array_size(list) > 1 && has_role(json_array_get(list, 0), "system") &&
           has_role(json_array_get(list, 1), "system")) {
        json_t *first = json_array_get(list, 0);
        json_t *both = json_sprintf("%s\n\n%s", json_string_value(json_object_get(first, "content")),
                                    json_string_value(json_object_get(json_array_get(list, 1), "content")));
        if (!set(first, "content", both, e) || json_array_remove(list, 1) != 0) return false;
    }
    return true;
}

/* Reads the messages, and the results of each message's calls. */
static bool read_messages(api_request *r, json_t *list, const api_rules *rules, api_error *e)
{
    const json_t *calls = NULL;
    size_t first = 0, n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        json_t *m = json_array_get(list, i);
        if (!read_message(r, m, i, rules, e)) return false;
        if (has_role(m, "tool")) {
            if (!read_result(m, calls, i, rules, e)) return false;
            continue;
        }
        sort_results(list, calls, first, i);
        first = i + 1;
        calls = json_object_get(m, "tool_calls");
    }
    sort_results(list, calls, first, n);
    if (json_array_size(calls) > 0 && first == n)
        return api_bad(e, "messages", "messages[%zu]: tool_calls without results", n - 1);
    return join_systems(list, e);
}

/* ---- tools ---- */

static bool is_name(const json_t *v)
{
    const char *s = api_is_text(v) ? json_string_value(v) : "";
    return *s && strlen(s) <= NAME_MOST &&
           !s[strspn(s, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-")];
}

static bool read_tool(json_t *tools, size_t i, api_error *e)
{
    json_t *tool = json_array_get(tools, i), *f = json_object_get(tool, "function"), *parameters;
    const json_t *name = json_object_get(f, "name");
    if (!api_is(json_object_get(tool, "type"), "function") || !json_is_object(f))
        return api_bad(e, "tools", "tools[%zu]: expected {\"type\": \"function\", \"function\": {..}}", i);
    if (!is_name(name))
        return api_bad(e, "tools", "tools[%zu].function.name: expected 1 to %d of A-Z, a-z, 0-9, _, . and -", i,
                       NAME_MOST);
    if (call_function(tools, json_string_value(name)) != f)
        return api_bad(e, "tools", "tools[%zu].function.name: duplicate name", i);
    if (api_field(f, "description") && !api_is_text(api_field(f, "description")))
        return api_bad(e, "tools", "tools[%zu].function.description: expected a string", i);
    const json_t *strict = api_field(f, "strict");
    if (strict && !json_is_boolean(strict))
        return api_bad(e, "tools", "tools[%zu].function.strict: expected true or false", i);
    parameters = api_field(f, "parameters");
    if (parameters && !json_is_object(parameters))
        return api_bad(e, "tools", "tools[%zu].function.parameters: expected a schema, found %s", i,
                       api_type_name(parameters));
    if (json_object_get(parameters, "properties") && !json_object_get(parameters, "type") &&
        !set((json_t *)(uintptr_t)parameters, "type", json_string("object"), e)) /* arguments are an object */
        return false;
    if (!parameters || json_object_size(parameters) == 0)
        return set(f, "parameters", json_pack("{s:s, s:{}}", "type", "object", "properties"), e);
    return true;
}

static const char *function_of(const json_t *choice)
{
    const json_t *name = json_object_get(json_object_get(choice, "function"), "name");
    return api_is(json_object_get(choice, "type"), "function") && api_is_text(name) ? json_string_value(name) : NULL;
}

bool api_may_call(const api_request *r, const char *name)
{
    const char *one = function_of(r->only);
    bool any = !r->only || (one && strcmp(one, name) == 0);
    for (size_t i = 0; i < json_array_size(r->only) && !any; i++)
        any = strcmp(function_of(json_array_get(r->only, i)), name) == 0;
    return any;
}

/* Checks that tools has a function, or those of a list. */
static bool check_only(const json_t *only, const json_t *tools, api_error *e)
{
    const bool list = json_is_array(only);
    for (size_t i = 0; i < (list ? json_array_size(only) : 1); i++) {
        const char *name = function_of(list ? json_array_get(only, i) : only);
        if (!name)
            return api_bad(e, "tool_choice",
                           "tool_choice: expected \"none\", \"auto\", \"required\", {\"type\": \"function\", "
                           "\"function\": {\"name\": ..}} or allowed_tools");
        if (!call_function(tools, name))
            return api_bad(e, "tool_choice", "tool_choice: tools has no function '%.60s'", name);
    }
    return true;
}

/* Reads tool_choice. *none: tools are shown, but calls are text. */
static bool read_choice(api_request *r, const json_t *tools, bool *none, api_error *e)
{
    const json_t *choice = api_field(r->body, "tool_choice"), *mode = choice;
    const json_t *allowed = json_object_get(choice, "allowed_tools");
    if (api_is(json_object_get(choice, "type"), "allowed_tools")) {
        mode = json_object_get(allowed, "mode");
        r->only = json_object_get(allowed, "tools");
        if ((!api_is(mode, "auto") && !api_is(mode, "required")) || json_array_size(r->only) == 0)
            return api_bad(e, "tool_choice",
                           "tool_choice.allowed_tools: expected a mode, auto or required, and an array of tools");
    } else if (choice && !api_is(choice, "none") && !api_is(choice, "auto") && !api_is(choice, "required")) {
        r->only = choice;
    }
    *none = api_is(mode, "none");
    r->must_call = api_is(mode, "required") || r->only == choice;
    if (!choice) r->must_call = false;
    return !r->only || check_only(r->only, tools, e);
}

static bool read_tools(api_request *r, const api_rules *rules, api_error *e)
{
    json_t *tools = api_field(r->body, "tools"), *parallel = api_field(r->body, "parallel_tool_calls");
    const call_support *s = rules ? rules->calls : NULL;
    bool none = false;
    if (tools && !json_is_array(tools)) return api_bad(e, "tools", "tools: expected an array");
    if (json_array_size(tools) > TOOLS_MOST)
        return api_bad(e, "tools", "tools: %zu tools, expected at most %d", json_array_size(tools), TOOLS_MOST);
    if (parallel && !json_is_boolean(parallel))
        return api_bad(e, "parallel_tool_calls", "parallel_tool_calls: expected true or false");
    r->one_call = json_is_false(parallel);
    if (!read_choice(r, tools, &none, e)) return false;
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!read_tool(tools, i, e)) return false;
    if (json_array_size(tools) == 0) return !r->must_call || api_bad(e, "tool_choice", "tool_choice: requires tools");
    if (json_dumpb(tools, NULL, 0, JSON_COMPACT) > TOOLS_BYTES)
        return api_bad(e, "tools", "tools: more than %d bytes", TOOLS_BYTES);
    if (!none && !(s && s->format)) {
        api_bad(e, "tools",
                s && s->prints_tools
                    ? "tools: the format of this model's calls is unknown; name one with serve --tools"
                    : "tools: this model's chat template ignores tools; start the server with --tools hermes to "
                      "describe them in the system message");
        e->code = "tools_unsupported";
        return false;
    }
    r->talk.tools = r->tools = tools;
    r->calls = !none;
    for (size_t i = 0; i < json_array_size(tools); i++)
        r->strict |= json_is_true(json_object_get(json_object_get(json_array_get(tools, i), "function"), "strict"));
    r->strict = r->strict && !none;
    return true;
}

/* ---- tools in the system message ---- */

static bool add(buffer *b, const char *text, api_error *e)
{
    err why = {0};
    return buffer_add(b, text, strlen(text), &why) == ST_OK || api_no_memory(e);
}

static bool add_json(buffer *b, const json_t *v, api_error *e)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY);
    const bool good = text ? add(b, text, e) : api_no_memory(e);
    free(text);
    return good;
}

/* Puts a description of the tools before the first message. */
static bool describe(json_t *list, const json_t *tools, api_error *e)
{
    buffer b = {0};
    json_t *first = json_array_get(list, 0);
    const bool system = has_role(first, "system");
    const char *own = system ? json_string_value(json_object_get(first, "content")) : "";
    bool good = add(&b, own, e) && add(&b, *own ? "\n\n" : "", e) &&
                add(&b, "You can call these functions, one JSON object per line:\n<tools>\n", e);
    for (size_t i = 0; i < json_array_size(tools) && good; i++)
        good = add_json(&b, json_object_get(json_array_get(tools, i), "function"), e) && add(&b, "\n", e);
    good = good && add(&b,
                       "</tools>\nTo call a function, write its name and its arguments as JSON between these tags:\n"
                       "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"PARAMETER\": \"VALUE\"}}\n</tool_call>",
                       e);
    json_t *text = good ? json_stringn(b.p, b.n) : NULL;
    mem_free(b.p);
    if (!good) return false;
    if (system) return set(first, "content", text, e);
    return json_array_insert_new(list, 0, json_pack("{s:s, s:o}", "role", "system", "content", text)) == 0 ||
           api_no_memory(e);
}

/* Writes the calls of a message into its content. */
static bool describe_calls(json_t *m, api_error *e)
{
    buffer b = {0};
    const json_t *calls = json_object_get(m, "tool_calls");
    const char *text = json_string_value(json_object_get(m, "content"));
    bool good = add(&b, text ? text : "", e);
    for (size_t i = 0; i < json_array_size(calls) && good; i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        good = add(&b, b.n ? "\n<tool_call>\n{\"name\": " : "<tool_call>\n{\"name\": ", e) &&
               add_json(&b, json_object_get(f, "name"), e) && add(&b, ", \"arguments\": ", e) &&
               add_json(&b, json_object_get(f, "arguments"), e) && add(&b, "}\n</tool_call>", e);
    }
    if (good) good = set(m, "content", json_stringn(b.p ? b.p : "", b.n), e);
    mem_free(b.p);
    json_object_del(m, "tool_calls");
    return good;
}

/* Turns result i of a tool into a user's message, or adds it to the one before. *merged: message i is removed. */
static bool describe_result(json_t *list, size_t i, bool *merged, api_error *e)
{
    json_t *m = json_array_get(list, i), *before = i ? json_array_get(list, i - 1) : NULL;
    *merged = has_role(before, "user") && json_object_get(before, "tool_call_id");
    json_t *to = *merged ? before : m;
    json_t *text = json_sprintf("%s%s<tool_response>\n%s\n</tool_response>",
                                *merged ? json_string_value(json_object_get(before, "content")) : "",
                                *merged ? "\n" : "", json_string_value(json_object_get(m, "content")));
    if (!*merged && !json_object_get(m, "tool_call_id") && !set(m, "tool_call_id", json_string(""), e)) return false;
    if (!set(to, "role", json_string("user"), e) || !set(to, "content", text, e)) return false;
    if (*merged) json_array_remove(list, i);
    return true;
}

/* Writes tools, calls and results as text, for templates that ignore them. */
static bool describe_all(api_request *r, json_t *list, api_error *e)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *m = json_array_get(list, i);
        bool merged = false;
        if (json_object_get(m, "tool_calls") && !describe_calls(m, e)) return false;
        if (has_role(m, "tool") && !describe_result(list, i, &merged, e)) return false;
        i -= merged;
    }
    r->talk.tools = NULL;
    return !r->tools || describe(list, r->tools, e);
}

/* ---- variables of the template ---- */

static bool read_variables(api_request *r, api_error *e)
{
    static const char *const own[] = {"messages", "tools", "bos_token", "eos_token"};
    const json_t *args = api_field(r->body, "chat_template_kwargs");
    if (args && !json_is_object(args))
        return api_bad(e, "chat_template_kwargs", "chat_template_kwargs: expected an object");
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (json_object_get(args, own[i]))
            return api_bad(e, "chat_template_kwargs", "chat_template_kwargs.%s: set by the server", own[i]);
    r->talk.args = args;
    return true;
}

/* Sets the variables that templates read for reasoning_effort, unless the request sets them itself. */
static bool read_effort(api_request *r, api_error *e)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    static const char *const switches[] = {"enable_thinking", "thinking"}, *const values[] = {"reasoning_effort",
                                                                                              "thinking_effort"};
    json_t *effort = api_field(r->body, "reasoning_effort"), *args = api_field(r->body, "chat_template_kwargs");
    bool known = !effort, good = true;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++) known |= api_is(effort, efforts[i]);
    if (!known)
        return api_bad(e, "reasoning_effort",
                       "reasoning_effort: expected none, minimal, low, medium, high, xhigh or max");
    if (!effort) return true;
    if (!args && !set(r->body, "chat_template_kwargs", args = json_object(), e)) return false;
    r->effort = json_object();
    for (int i = 0; i < 2 && good; i++) {
        if (!json_object_get(args, switches[i]))
            good = set(r->effort, switches[i], json_boolean(!api_is(effort, "none")), e);
        if (good && !json_object_get(args, values[i]))
            good = json_object_set(r->effort, values[i], effort) == 0 || api_no_memory(e);
    }
    if (good && json_object_update(args, r->effort) != 0) good = api_no_memory(e);
    r->talk.args = args;
    return good;
}

static bool read_end(api_request *r, const json_t *list, api_error *e)
{
    const json_t *end = api_field(r->body, "continue_final_message");
    const bool assistant = has_role(json_array_get(list, json_array_size(list) - 1), "assistant");
    if (end && !json_is_boolean(end))
        return api_bad(e, "continue_final_message", "continue_final_message: expected true or false");
    if (json_is_true(end) && !assistant)
        return api_bad(e, "continue_final_message", "continue_final_message: the last message is not the assistant's");
    r->talk.end = json_is_false(end) ? CHAT_REPLIES : CHAT_CONTINUES;
    if (assistant && r->must_call && r->talk.end == CHAT_CONTINUES)
        return api_bad(e, "tool_choice",
                       "tool_choice: the last message is the assistant's; set "
                       "continue_final_message to false");
    return true;
}

bool api_read_chat(api_request *r, const api_rules *rules, api_error *e)
{
    json_t *list = api_field(r->body, "messages");
    if (!json_is_array(list) || json_array_size(list) == 0)
        return api_bad(e, "messages", "messages: expected an array of messages");
    if (json_array_size(list) > MESSAGES_MOST)
        return api_bad(e, "messages", "messages: %zu messages, expected at most %d", json_array_size(list),
                       MESSAGES_MOST);
    r->talk = (chat_input){.messages = list};
    if (!r->changes && !(r->changes = json_array())) return api_no_memory(e);
    if (!read_messages(r, list, rules, e) || !read_tools(r, rules, e) || !read_variables(r, e) || !read_effort(r, e) ||
        !read_end(r, list, e))
        return false;
    return !(rules && rules->calls && rules->calls->described) || describe_all(r, list, e);
}
