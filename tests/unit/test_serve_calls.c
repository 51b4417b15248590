/* SPDX-License-Identifier: MIT */
/* Required tool calls of the server, whose model is random: in the three APIs, as streams, with drafts. */
#include "config.h"

#include "tests/unit/serve_util.h"

#define SCHEMA                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9}},\"required\":["    \
    "\"n\"],"                                                                                                          \
    "\"additionalProperties\":false}"
#define SAMPLING "\"temperature\":1.5,\"seed\":3"
#define MOST     ",\"max_tokens\":85"
#define TOOLS                                                                                                          \
    "\"parallel_tool_calls\":false,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,"    \
    "\"parameters\":" SCHEMA "}}]," SAMPLING
#define CHAT "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]," TOOLS MOST

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
                       "\"disable_parallel_tool_use\":true}," SAMPLING MOST "}");
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

/* A choice among the tools, with the arguments of any object. */
static void check_allowed(void)
{
    for (int i = 0; i < 2; i++) {
        char body[1024];
        snprintf(
            body, sizeof body,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"parallel_tool_calls\":false,\"max_tokens\":60,"
            "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":{"
            "\"name\":"
            "\"g\"}}],\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"required\",\"tools\":[{"
            "\"type\":\"function\",\"function\":{\"name\":\"%s\"}}]}}}",
            i ? "g" : "f");
        json_t *j = answer("/v1/chat/completions", body);
        const json_t *call = first(json_object_get(first(j, "choices"), "message"), "tool_calls");
        is_str(text_at(json_object_get(call, "function"), "name"), i ? "g" : "f", "only an allowed function is called");
        json_decref(j);
    }
}

/* Numbers of arguments have all their digits. */
static void check_digits(void)
{
    json_t *j = answer(
        "/v1/messages",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"name\":\"f\",\"strict\":true,"
        "\"input_schema\":{\"properties\":{\"x\":{\"const\":0.1234567890123}},\"required\":[\"x\"]}}],"
        "\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":true}," SAMPLING ",\"max_tokens\":200}");
    const json_t *x = json_object_get(json_object_get(first(j, "content"), "input"), "x");
    ok(json_real_value(x) == 0.1234567890123, "an argument is exact: %.17g", json_real_value(x));
    json_decref(j);
}

/* A prompt beyond the context fails within the stream, so that the client shortens it. */
static void check_too_long(void)
{
    char body[3600] = "{\"stream\":true,\"input\":\"";
    for (size_t n = strlen(body); n < 3000; n += 2) memcpy(body + n, "a ", 3);
    snprintf(body + strlen(body), 8, "\"}");
    char *text = post("/v1/responses", body);
    const char *created = strstr(text, "event: response.created"), *failed = strstr(text, "event: response.failed");
    ok(strstr(text, "200 OK") && created && failed && created < failed, "a response is created and fails");
    ok(failed && strstr(failed, "\"code\":\"context_length_exceeded\""), "its error has a code: %s", text);
    free(text);
    memcpy(strstr(body, "true"), "null", 4);
    text = post("/v1/responses", body);
    ok(strstr(text, " 400 ") && strstr(text, "context_length_exceeded"), "without a stream it is 400");
    free(text);
    ok(wait_for_none(), "no request remains");
}

static void check_pings(void)
{
    char *text =
        post("/v1/messages", "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Alice was beginning to "
                             "get very tired of sitting by her sister on the bank\"}],\"max_tokens\":4}");
    const char *started = strstr(text, "event: message_start"),
               *ping = strstr(text, "event: ping\ndata: {\"type\":\"ping\"}\n\n"),
               *content = strstr(text, "event: content_block_start");
    ok(started && ping && started < ping && (!content || ping < content), "pings while the prompt is computed: %s",
       text);
    free(text);
    text = post("/v1/chat/completions",
                "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Bertha was beginning to "
                "get very tired of sitting by her sister on the bank\"}],\"max_tokens\":4}");
    ok(strstr(text, "\n: ping\n\n"), "comments in the streams of the other APIs");
    free(text);
}

static void check_models(void)
{
    int fd = call();
    say(fd, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nanthropic-version: 2023-06-01\r\n\r\n");
    char *text = hear(fd, NULL), *body = strstr(text, "\r\n\r\n");
    close(fd);
    is_str(
        body ? body + 4 : text,
        "{\"data\":[{\"type\":\"model\",\"id\":\"llama31-f32-tied\",\"display_name\":\"llama31-f32-tied\",\"created_"
        "at\":"
        "\"1970-01-01T00:00:01Z\",\"lifecycle\":\"active\",\"max_input_tokens\":1024}],\"has_more\":false,\"first_id\":"
        "\"llama31-f32-tied\",\"last_id\":\"llama31-f32-tied\"}",
        "models in the form of the Messages API");
    free(text);
}

/* Requests with equal schemas share a grammar, and calls are counted. */
static void check_metrics(void)
{
    static const char compiled[] = "kvasir_schema_total{result=\"compiled\"} ",
                      cached[] = "kvasir_schema_total{result=\"cached\"} ",
                      complete[] = "kvasir_tool_calls_total{result=\"complete\"} ",
                      cut[] = "kvasir_tool_calls_total{result=\"cut\"} ";
    const int64_t n[] = {metric(compiled), metric(cached), metric(complete), metric(cut)};
    json_decref(answer("/v1/chat/completions", "{" CHAT ",\"tool_choice\":\"required\"}"));
    is_int(metric(compiled), n[0], "a known schema is not compiled");
    is_int(metric(cached), n[1] + 1, "its grammar is shared");
    is_int(metric(complete), n[2] + 1, "a complete call is counted");
    json_decref(answer("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]," TOOLS
                                               ",\"tool_choice\":\"required\",\"max_tokens\":42}"));
    is_int(metric(cut) + metric(complete), n[2] + n[3] + 2, "and one that was cut");
    is_int(metric("kvasir_schema_total{result=\"unsupported\"} "), 1, "and the schema that is not supported");
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

/* ---- formats ---- */

#define STRICT                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},\"k\":{\"enum\":["  \
    "\"a\",null]}},\"required\":[\"n\"],\"additionalProperties\":false}"

/* Strict calls are valid in all formats: random replies that end. */
static void check_formats(void)
{
    const call_format *before = v.calls.format;
    for (const call_format *f = call_formats; f->name; f++) {
        const bool tags = f->write.key && !f->write.json;
        char body[1024];
        v.calls.format = f;
        snprintf(
            body, sizeof body,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
            "\"name\":\"%s\",\"strict\":true,\"parameters\":%s}}],\"tool_choice\":\"required\","
            "\"max_tokens\":500," SAMPLING "%s}",
            f->name, tags ? SCHEMA : STRICT, f->write.one ? "" : ",\"parallel_tool_calls\":false");
        json_t *j = answer("/v1/chat/completions", body);
        const json_t *message = json_object_get(first(j, "choices"), "message");
        const char *arguments = text_at(json_object_get(first(message, "tool_calls"), "function"), "arguments");
        json_t *given = arguments ? json_loads(arguments, 0, NULL) : NULL;
        const json_t *n = json_object_get(given, "n"), *k = json_object_get(given, "k");
        ok(json_object_size(given) == (k ? 2u : 1u) && json_integer_value(n) >= 1 && json_integer_value(n) <= 9 &&
               (!k || json_is_null(k) || strcmp(json_string_value(k), "a") == 0),
           "%s: the arguments follow the schema: %s", f->name, arguments ? arguments : "none");
        json_decref(given);
        json_decref(j);
    }
    v.calls.format = call_format_named("qwen_xml");
    char *text =
        body_at("/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":\"required\",\"tools\":[{"
                "\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":"
                "\"object\",\"properties\":{\"a\":{\"type\":[\"string\",\"integer\"]}}}}}]}");
    ok(strstr(text, "parameters.properties.a: strict supports strings without"), "a union with text: %s", text);
    free(text);
    v.calls.format = before;
}

/* Required calls without the member strict follow the schema too, without the keywords that are not supported. */
static void check_absent(void)
{
    static const char *const formats[] = {"hermes", "qwen_xml"};
    const call_format *before = v.calls.format;
    for (size_t i = 0; i < 2; i++) {
        char body[1024];
        v.calls.format = call_format_named(formats[i]);
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"parallel_tool_calls\":false,"
                 "\"tool_choice\":\"required\",\"max_tokens\":200," SAMPLING ",\"tools\":[{\"type\":"
                 "\"function\",\"function\":{\"name\":\"%s\",\"parameters\":{\"type\":\"object\","
                 "\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9,\"not\":{}}},"
                 "\"required\":[\"n\"]}}}]}",
                 formats[i]);
        json_t *j = answer("/v1/chat/completions", body);
        const json_t *call = first(json_object_get(first(j, "choices"), "message"), "tool_calls");
        const char *arguments = text_at(json_object_get(call, "function"), "arguments");
        ok(fits(arguments), "%s without strict: %s", formats[i], arguments ? arguments : "none");
        json_decref(j);
    }
    v.calls.format = before;
}

/* With tools and response_format a reply is calls or JSON. */
static void check_json(void)
{
    static const char either[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"%d\"}],\"response_format\":{\"type\":\"json_schema\","
        "\"json_schema\":{\"name\":\"x\",\"schema\":{\"enum\":[\"a\",7]}}},\"max_tokens\":90," TOOLS "%s}";
    char body[1024];
    for (int i = 0; i < 4; i++) {
        snprintf(body, sizeof body, either, i, "");
        json_t *j = answer("/v1/chat/completions", body);
        const json_t *message = json_object_get(first(j, "choices"), "message"), *call = first(message, "tool_calls");
        const char *content = text_at(message, "content"), *text = content ? content + strspn(content, " \n") : "";
        const char *arguments = text_at(json_object_get(call, "function"), "arguments");
        ok(call ? fits(arguments) && !content : strcmp(text, "\"a\"") == 0 || strcmp(text, "7") == 0,
           "reply %d is a call or JSON: %s%s", i, text, call ? arguments : "");
        json_decref(j);
    }
    snprintf(body, sizeof body, either, 0, ",\"tool_choice\":\"required\"");
    json_t *j = answer("/v1/chat/completions", body);
    ok(first(json_object_get(first(j, "choices"), "message"), "tool_calls"), "required calls remain calls");
    json_decref(j);
    const call_format *before = v.calls.format;
    v.calls.format = call_format_named("llama3");
    snprintf(body, sizeof body, either, 0, "");
    char *text = body_at("/v1/chat/completions", body);
    ok(strstr(text, "response_format: this model's calls (llama3) are JSON too"), "llama3 refuses: %s", text);
    free(text);
    v.calls.format = before;
}

/* ---- templates ---- */

/* Faults of templates that raise nothing are found and repaired. */
static void check_repairs(void)
{
    static const char *const rows[][3] = {
        {"{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
         "{\"role\":\"user\",\"content\":\"None\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":"
         "\"x\",\"type\":"
         "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"b\"}",
         "[\"null_content\"]"},
        {"{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}",
         "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"}", "[\"late_system\"]"},
        {"{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
         "{\"role\":\"user\",\"content\":\"None\"},{\"role\":\"system\",\"content\":\"b\"}", "null"},
    };
    v.calls.described = false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[1024];
        err e = {0};
        is_ok(tokenizer_set_template(v.tok, rows[i][0], &e), &e, "template %zu", i);
        snprintf(body, sizeof body, "{\"messages\":[%s],\"max_tokens\":1}", rows[i][1]);
        json_t *j = answer("/v1/chat/completions", body);
        char *changes =
            json_dumps(json_object_get(json_object_get(j, "kvasir"), "prompt_changes"), JSON_ENCODE_ANY | JSON_COMPACT);
        is_str(changes ? changes : "null", rows[i][2], "template %zu: the changes", i);
        free(changes);
        json_decref(j);
    }
    v.calls.described = true;
}

/* Thinking ends at its budget: then the tokens of the closing marker follow. */
static void check_budget(void)
{
    static const char *const bodies[][2] = {
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"ignore_eos\":true,"
                                 "\"max_tokens\":40,\"seed\":1,\"thinking_budget\":5,\"draft\":\"ngram:adapt=off\"}"},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"ignore_eos\":true,"
                         "\"max_tokens\":40,\"seed\":1,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":5}}"}};
    token_list closing = {0};
    err e = {0};
    is_ok(tokenizer_encode(v.tok, "</think>", 8, TOKENIZE_SPECIAL, &closing, &e), &e, "the closing marker");
    is_ok(tokenizer_set_template(v.tok, "{{ messages[0].content }}<think>\n{% if false %}</think>{% endif %}", &e), &e,
          "a template that opens thinking");
    for (int i = 0; i < 2; i++) {
        json_t *j = answer(bodies[i][0], bodies[i][1]);
        const json_t *of =
            json_object_get(json_object_get(j, "usage"), i ? "output_tokens_details" : "completion_tokens_details");
        is_int(json_integer_value(json_object_get(of, i ? "thinking_tokens" : "reasoning_tokens")),
               5 + (long long)closing.n, "%s: tokens of thinking", bodies[i][0]);
        json_decref(j);
    }
    token_list_free(&closing);
}

static long long usage(const json_t *answer, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(answer, "usage"), key));
}

/* Returns the number of cached tokens of the turn after a call. message: of the first answer. */
static long long cached_after(const json_t *message, const char *fields)
{
    char *text = json_dumps(message, 0), body[2048];
    snprintf(body, sizeof body,
             "{" TOOLS ",\"tool_choice\":\"required\",\"max_tokens\":4%s,\"messages\":[{\"role\":\"user\","
             "\"content\":\"a\"},%s,{\"role\":"
             "\"tool\",\"content\":\"b\"}]}",
             fields, text);
    json_t *j = answer("/v1/chat/completions", body);
    const json_t *details = json_object_get(json_object_get(j, "usage"), "prompt_tokens_details");
    const long long n = details ? json_integer_value(json_object_get(details, "cached_tokens")) : -1;
    json_decref(j);
    free(text);
    return n;
}

/* The model writes a call in other tokens and with other blanks than the template: the next turn reuses its rows. */
static void check_next_turn(void)
{
    json_t *j = answer("/v1/chat/completions", "{" CHAT ",\"tool_choice\":\"required\"}");
    json_t *message = json_object_get(first(j, "choices"), "message");
    const long long prompt = usage(j, "prompt_tokens"), all = prompt + usage(j, "completion_tokens");
    const long long rows = (all - 2) / U_CHUNK * U_CHUNK;       /* of all tokens but EOS and the one before it */
    const long long before = (prompt + 12) / U_CHUNK * U_CHUNK; /* up to the call's first tokens */
    ok(rows > before + U_CHUNK, "a call of several chunks: %lld tokens, %lld of the prompt", all, prompt);
    ok(cached_after(message, ",\"cache_prefix\":false") == 0, "without the cache nothing is reused");
    const long long next = cached_after(message, "");
    ok(next >= rows, "the next turn reuses the rows of the call: %lld tokens", next);
    ok(cached_after(message, ",\"cache_salt\":\"x\"") == 0, "not with another salt");
    json_t *f = json_object_get((json_t *)(uintptr_t)first(message, "tool_calls"), "function");
    json_object_set_new(f, "arguments", json_string("{\"n\": 0}"));
    const long long edited = cached_after(message, "");
    ok(edited > 0 && edited < rows, "other arguments are not the reply: %lld tokens", edited);
    json_decref(j);
}

int main(void)
{
    err e = {0};
    v.tools = "hermes";
    v.ctx = 1024;
    v.ping_ns = 1;
    if (start(&e)) {
        check_chat();
        check_next_turn();
        check_stream();
        check_other_apis();
        check_allowed();
        check_digits();
        check_too_long();
        check_pings();
        check_models();
        check_refused();
        check_metrics();
        check_formats();
        check_absent();
        check_json();
        check_repairs();
        check_budget();
        ok(metric("kvasir_mask_seconds_count ") > 0, "the times of masks are counted");
    }
    if (v.sched) sched_stop(v.sched);
    http_stop(v.http);
    stop();
    return tap_done();
}
