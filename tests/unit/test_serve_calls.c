/* SPDX-License-Identifier: MIT */
/* Required tool calls of the server, whose model is random: in the three APIs, as streams, with drafts. */
#include "config.h"

#include "tests/unit/serve_util.h"

#define SCHEMA                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9}},\"required\":["    \
    "\"n\"],"                                                                                                          \
    "\"additionalProperties\":false}"
#define SAMPLING "\"temperature\":1.5,\"seed\":3,\"max_tokens\":85"
#define CHAT                                                                                                           \
    "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"parallel_tool_calls\":false,\"tools\":[{\"type\":"         \
    "\"function\","                                                                                                    \
    "\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":" SCHEMA "}}]," SAMPLING

/* Returns the body of an answer. */
static char *body_at(const char *path, const char *body)
{
    char *reply = post(path, body), *from = reply ? strstr(reply, "\r\n\r\n") : NULL;
    char *copy = from ? strdup(from + 4) : strdup("");
    free(reply);
    return copy;
}

static json_t *answer(const char *path, const char *body)
{
    char *text = body_at(path, body);
    json_t *j = json_loads(text, 0, NULL);
    if (!j) printf("# %s\n", text);
    free(text);
    return j;
}

/* True if a text is an object of the schema. */
static bool fits(const char *text)
{
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    const json_t *n = json_object_get(j, "n");
    const bool good = json_object_size(j) == 1 && json_integer_value(n) >= 1 && json_integer_value(n) <= 9;
    json_decref(j);
    return good;
}

static const json_t *first(const json_t *o, const char *list)
{
    return json_array_get(json_object_get(o, list), 0);
}

static const char *text_at(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static void check_chat(void)
{
    static const char *const choices[] = {"\"required\"", "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"};
    for (int i = 0; i < 4; i++) {
        char body[1024];
        snprintf(body, sizeof body, "{" CHAT ",\"tool_choice\":%s%s}", choices[i % 2],
                 i < 2 ? "" : ",\"draft\":\"ngram:adapt=off\"");
        json_t *j = answer("/v1/chat/completions", body);
        const json_t *choice = first(j, "choices"), *message = json_object_get(choice, "message");
        const json_t *call = first(message, "tool_calls"), *f = json_object_get(call, "function");
        is_str(text_at(choice, "finish_reason"), "tool_calls", "request %d: finish_reason", i);
        ok(json_is_null(json_object_get(message, "content")), "no content");
        is_str(text_at(f, "name"), "f", "the name");
        is_int((long long)strlen(text_at(call, "id") ? text_at(call, "id") : ""), 9, "an id of nine characters");
        ok(fits(text_at(f, "arguments")), "the arguments follow the schema: %s", text_at(f, "arguments"));
        json_decref(j);
    }
}

/* The pieces of a stream are the whole call. */
static void check_stream(void)
{
    char joined[512] = "",
         *text = body_at("/v1/chat/completions", "{" CHAT ",\"tool_choice\":\"required\",\"stream\":true}");
    json_t *whole = answer("/v1/chat/completions", "{" CHAT ",\"tool_choice\":\"required\"}");
    const json_t *call = first(json_object_get(first(whole, "choices"), "message"), "tool_calls");
    int named = 0;
    for (char *at = text; (at = strstr(at, "data: {"));) {
        char *end = strstr(at, "\n\n");
        json_t *j = json_loadb(at + 6, end ? (size_t)(end - at - 6) : 0, 0, NULL);
        const json_t *piece = first(json_object_get(first(j, "choices"), "delta"), "tool_calls");
        const char *arguments = text_at(json_object_get(piece, "function"), "arguments");
        if (piece) ok(json_is_integer(json_object_get(piece, "index")), "a piece has an index");
        if (text_at(piece, "id")) named++, is_str(text_at(piece, "id"), text_at(call, "id"), "the id of the same seed");
        snprintf(joined + strlen(joined), sizeof joined - strlen(joined), "%s", arguments ? arguments : "");
        json_decref(j);
        at += 6;
    }
    is_int(named, 1, "one piece has the id");
    is_str(joined, text_at(json_object_get(call, "function"), "arguments"), "the pieces are the arguments");
    json_decref(whole);
    free(text);
}

static void check_other_apis(void)
{
    json_t *j = answer("/v1/messages",
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"name\":\"f\",\"strict\":"
                       "true,\"input_schema\":" SCHEMA "}],\"tool_choice\":{\"type\":\"any\","
                       "\"disable_parallel_tool_use\":true}," SAMPLING "}");
    const json_t *call = first(j, "content");
    char *input = json_dumps(json_object_get(call, "input"), 0);
    is_str(text_at(j, "stop_reason"), "tool_use", "a message stops for a tool");
    ok(fits(input) && strcmp(text_at(call, "name"), "f") == 0, "its block is the call: %s", input);
    free(input);
    json_decref(j);
    char *text =
        body_at("/v1/responses",
                "{\"input\":\"a\",\"stream\":true,\"seed\":3,\"parallel_tool_calls\":false,\"tools\":[{\"type\":"
                "\"function\",\"name\":\"f\",\"strict\":true,\"parameters\":" SCHEMA
                "}],\"tool_choice\":\"required\",\"max_output_tokens\":200}");
    const char *last = strstr(text, "event: response.completed\ndata: ");
    j = last ? json_loads(last + 32, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    const json_t *item = first(json_object_get(j, "response"), "output");
    is_str(text_at(item, "type"), "function_call", "a response ends with the call");
    ok(fits(text_at(item, "arguments")), "its arguments follow the schema");
    json_decref(j);
    free(text);
}

static void check_refused(void)
{
    char *text =
        body_at("/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
                "\"name\":\"f\",\"strict\":true,\"parameters\":{\"not\":{}}}}]}");
    ok(strstr(text, "\"tools[0].function.parameters.not: not supported\"") && strstr(text, "schema_unsupported"),
       "a schema that is not supported: %s", text);
    free(text);
}

int main(void)
{
    err e = {0};
    v.tools = "hermes";
    if (start(&e)) {
        check_chat();
        check_stream();
        check_other_apis();
        check_refused();
    }
    if (v.sched) sched_stop(v.sched);
    http_stop(v.http);
    stop();
    return tap_done();
}
