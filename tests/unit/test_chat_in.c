/* SPDX-License-Identifier: MIT */
/* Chats with tools: what a template gets, and replies as messages and chunks. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api.h"
#include "tests/tap.h"

static call_support calls = {.prints_tools = true};

static bool read(api_request *r, const char *body, const char *format, bool described, api_error *e)
{
    api_rules rules = {.sampling = api_sampling(), .calls = &calls};
    calls.format = format ? call_format_named(format) : NULL;
    calls.described = described;
    *e = (api_error){0};
    return api_read(r, API_CHAT, body, strlen(body), &rules, e);
}

#define TOOL(name)     "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
#define USER           "{\"role\":\"user\",\"content\":\"a\"}"
#define CALL(id, args) "{\"id\":\"" id "\",\"function\":{\"name\":\"f\",\"arguments\":" args "}}"
#define CALLS(list)    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" list "]}"
#define RESULT(id)     "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" id "\"}"
#define TALK(messages) "{\"messages\":[" messages "]}"
#define WITH(fields)   "{\"messages\":[" USER "],\"tools\":[" TOOL("f") "]," fields "}"

static void check_refused(void)
{
    static const struct {
        const char *body, *param, *part;
    } rows[] = {
        {"{\"messages\":[" USER "],\"tools\":{}}", "tools", "an array"},
        {"{\"messages\":[" USER "],\"tools\":[{\"type\":\"custom\"}]}", "tools", "tools[0]: expected"},
        {"{\"messages\":[" USER "],\"tools\":[" TOOL("a b") "]}", "tools", "tools[0].function.name"},
        {"{\"messages\":[" USER "],\"tools\":[" TOOL("f") "," TOOL("f") "]}", "tools", "tools[1].function.name: dup"},
        {"{\"messages\":[" USER
         "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[1]}}]}",
         "tools", "parameters: expected a schema, found an array"},
        {WITH("\"tool_choice\":\"any\""), "tool_choice", "expected"},
        {WITH("\"tool_choice\":{\"type\":\"function\"}"), "tool_choice", "expected"},
        {WITH("\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}"), "tool_choice",
         "no function 'g'"},
        {WITH("\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[]}}"),
         "tool_choice", "tool_choice.allowed_tools: expected"},
        {WITH("\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"none\",\"tools\":[1]}}"),
         "tool_choice", "tool_choice.allowed_tools: expected"},
        {WITH("\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[{\"type\":"
              "\"function\",\"function\":{\"name\":\"g\"}}]}}"),
         "tool_choice", "tools has no function 'g'"},
        {"{\"messages\":[" USER "],\"tool_choice\":\"required\"}", "tool_choice", "requires tools"},
        {WITH("\"parallel_tool_calls\":1"), "parallel_tool_calls", "true or false"},
        {WITH("\"reasoning_effort\":\"huge\""), "reasoning_effort", "expected none"},
        {WITH("\"continue_final_message\":true"), "continue_final_message", "not the assistant's"},
        {WITH("\"chat_template_kwargs\":{\"tools\":1}"), "chat_template_kwargs", "kwargs.tools: set by the server"},
        {TALK(USER "," CALLS(CALL("x", "\"{}\""))), "messages", "messages[1]: tool_calls without results"},
        {TALK(USER "," CALLS(CALL("x", "\"{}\"") "," CALL("y", "\"{}\"")) ",{\"role\":\"tool\",\"content\":\"1\"}"),
         "messages", "messages[2].tool_call_id: missing"},
        {TALK("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\"}]}"),
         "messages", "messages[0].content[1]: image_url parts are not supported"},
        {TALK(USER ",{\"role\":\"assistant\",\"tool_calls\":[{}]}"), "messages",
         "messages[1].tool_calls[0].function.name"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        api_request r;
        api_error e;
        const bool taken = read(&r, rows[i].body, "hermes", false, &e);
        ok(!taken && e.http == 400 && strcmp(e.param, rows[i].param) == 0 && strstr(e.message, rows[i].part),
           "refused: %s (%s: %s)", rows[i].body, e.param, e.message);
        if (taken) api_free(&r);
    }
}

/* A model without a format refuses tools, but not tool_choice none. */
static void check_unsupported(void)
{
    api_request r;
    api_error e;
    ok(!read(&r, WITH("\"n\":1"), NULL, false, &e) && e.code && strcmp(e.code, "tools_unsupported") == 0,
       "a model without a format: %s", e.message);
    if (ok(read(&r, WITH("\"tool_choice\":\"none\""), NULL, false, &e), "tool_choice none")) {
        ok(json_array_size(r.talk.tools) == 1 && !r.calls, "shows the tools, and calls are text");
        api_free(&r);
    }
}

static void check_messages(void)
{
    static const struct {
        const char *format, *body, *want;
    } rows[] = {
        {"hermes",
         TALK(USER "," CALLS(CALL("call_abcdefgh1", "\"{\\\"b\\\":1,\\\"a\\\":2}\"")) "," RESULT("call_abcdefgh1")),
         "[" USER
         ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"abcdefgh1\",\"function\":{\"name\":"
         "\"f\",\"arguments\":{\"b\":1,\"a\":2}}}]},{\"role\":\"tool\",\"tool_call_id\":\"abcdefgh1\",\"content\":"
         "\"call_abcdefgh1\",\"name\":\"f\"}]"},
        {"mistral3", TALK(USER "," CALLS(CALL("x", "\"\"")) "," RESULT("x")),
         "[" USER
         ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"2d711642b\",\"function\":{\"name\":"
         "\"f\",\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_call_id\":\"2d711642b\",\"content\":\"x\",\"name\":"
         "\"f\"}]"},
        {"hermes", TALK(USER "," CALLS(CALL("x", "\"{}\"") "," CALL("y", "\"[1\"")) "," RESULT("y") "," RESULT("x")),
         "[" USER "," CALLS(CALL("x", "{}") "," CALL(
             "y", "{\"arguments\":\"[1\"}")) ",{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":\"x\",\"name\":"
                                             "\"f\"},{\"role\":\"tool\","
                                             "\"tool_call_id\":\"y\",\"content\":\"y\",\"name\":\"f\"}]"},
        {"hermes", TALK("{\"role\":\"developer\",\"content\":\"1\"},{\"role\":\"system\",\"content\":\"2\"}," USER),
         "[{\"role\":\"system\",\"content\":\"1\\n\\n2\"}," USER "]"},
        {"hermes", TALK(USER ",{\"role\":\"assistant\",\"refusal\":\"no\"}," USER),
         "[" USER ",{\"role\":\"assistant\",\"refusal\":\"no\",\"content\":\"no\"}," USER "]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        api_request r;
        api_error e;
        if (!ok(read(&r, rows[i].body, rows[i].format, false, &e), "messages %zu are taken: %s", i, e.message))
            continue;
        char *got = json_dumps(r.talk.messages, JSON_COMPACT);
        is_str(got, rows[i].want, "messages %zu", i);
        free(got);
        api_free(&r);
    }
}

/* The server describes tools, calls and results in text. */
static void check_described(void)
{
    static const char body[] =
        "{\"messages\":[" USER
        "," CALLS(CALL("x", "\"{\\\"n\\\":1}\"") "," CALL("y", "\"{}\"")) "," RESULT("x") "," RESULT(
            "y") "],\"tools\":[" TOOL("f") "],\"parallel_tool_calls\":false,\"reasoning_effort\":\"none\"}";
    api_request r;
    api_error e;
    if (!ok(read(&r, body, "hermes", true, &e), "described tools: %s", e.message)) return;
    const json_t *m = r.talk.messages;
    const char *system = json_string_value(json_object_get(json_array_get(m, 0), "content"));
    ok(system && strstr(system, "\n{\"name\": \"f\", \"parameters\"") && !r.talk.tools, "a system message lists them");
    is_str(json_string_value(json_object_get(json_array_get(m, 2), "content")),
           "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", "
           "\"arguments\": {}}\n</tool_call>",
           "calls are text");
    is_str(json_string_value(json_object_get(json_array_get(m, 3), "content")),
           "<tool_response>\nx\n</tool_response>\n<tool_response>\ny\n</tool_response>", "results are one user's text");
    is_int((long long)json_array_size(m), 4, "messages");
    ok(r.calls && r.one_call && json_is_false(json_object_get(r.talk.args, "enable_thinking")),
       "one call; reasoning_effort none turns thinking off");
    api_free(&r);
}

static void is_json(json_t *got, const char *want, const char *name)
{
    char *text = json_dumps(got, JSON_COMPACT);
    is_str(text, want, "%s", name);
    free(text);
    json_decref(got);
}

static void check_replies(void)
{
    api_events l = {0};
    err e = {0};
    const api_request r = {.chat = true};
    const api_head h = {.r = &r};
    is_json(api_message_json(&l), "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null}", "an empty reply");
    api_events_add(&l, CALL_REASONING, -1, "x", 1, &e);
    api_events_add(&l, CALL_REASONING, -1, "y", 1, &e);
    is_json(api_message_json(&l),
            "{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"reasoning_content\":\"xy\"}",
            "thinking alone");
    api_events_add(&l, CALL_TEXT, -1, "Hi", 2, &e);
    api_events_add(&l, CALL_BEGIN, 0, "f\0abcdefgh1", 11, &e);
    api_events_add(&l, CALL_ARGS, 0, "{\"a\": ", 6, &e);
    api_events_add(&l, CALL_ARGS, 0, "1}", 2, &e);
    api_events_add(&l, CALL_END, 0, "", 0, &e);
    is_json(api_message_json(&l),
            "{\"role\":\"assistant\",\"content\":\"Hi\",\"refusal\":null,\"reasoning_content\":\"xy\",\"tool_calls\":["
            "{\"id\":\"abcdefgh1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": "
            "1}\"}}]}",
            "a message with thinking, content and a call");
    is_int((long long)l.n, 5, "pieces of one kind are joined");
    static const char *const deltas[] = {
        "{\"reasoning_content\":\"xy\"}", "{\"content\":\"Hi\"}",
        ("{\"tool_calls\":[{\"id\":\"abcdefgh1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}"
         ","
         "\"index\":0}]}"),
        "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\": 1}\"}}]}"};
    for (size_t i = 0; i < 4; i++) {
        const api_choice c = {.events = &l, .event = &l.list[i]};
        json_t *choice = api_choice_json(&h, &c, true);
        is_json(json_incref(json_object_get(choice, "delta")), deltas[i], "a chunk");
        json_decref(choice);
    }
    api_events_free(&l);
}

int main(void)
{
    check_refused();
    check_unsupported();
    check_messages();
    check_described();
    check_replies();
    return tap_done();
}
