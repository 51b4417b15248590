/* SPDX-License-Identifier: MIT */
/* Other APIs: requests as chat requests, replies as their answers and events. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "serve/api_stream.h"
#include "serve/api_translate.h"
#include "tests/tap.h"

typedef json_t *translate_body(const json_t *body, json_t *ignored, bool counts, api_error *e);

/* A body, the chat request that it becomes, and what is ignored; or the beginning of an error. */
typedef struct {
    const char *body, *want, *ignored;
} translation_row;

static void check_row(translate_body *translate, const translation_row *row)
{
    json_t *from = json_loads(row->body, 0, NULL), *ignored = json_array();
    api_error e = {0};
    json_t *to = translate(from, ignored, false, &e);
    char *text = to ? json_dumps(to, JSON_COMPACT | JSON_SORT_KEYS) : NULL, *list = json_dumps(ignored, JSON_COMPACT);
    if (text) {
        is_str(text, row->want, "%s", row->body);
        is_str(list, row->ignored ? row->ignored : "[]", "what is ignored");
    } else {
        ok(e.http == 400 && strncmp(e.message, row->want, strlen(row->want)) == 0, "%s: %s", row->body, e.message);
    }
    free(text);
    free(list);
    json_decref(to);
    json_decref(from);
    json_decref(ignored);
}

#define OFF    ",\"reasoning_effort\":\"none\"}"
#define HI     "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define HI_OUT "\"messages\":[{\"content\":\"a\",\"role\":\"user\"}]"

static const translation_row messages_rows[] = {
    {"{\"max_tokens\":5," HI "}", "{\"max_tokens\":5," HI_OUT OFF, NULL},
    {"{" HI "}", "max_tokens: is missing", NULL},
    {"{\"max_tokens\":5}", "messages: expected an array", NULL},
    {"{\"max_tokens\":5,\"metadata\":{},\"temperature\":0.5,\"stop_sequences\":[\"x\"],\"attn\":\"quest\",\"betas\":[]"
     "," HI "}",
     "{\"attn\":\"quest\",\"max_tokens\":5," HI_OUT
     ",\"reasoning_effort\":\"none\",\"stop\":[\"x\"],\"temperature\":0.5}",
     "[\"metadata\",\"betas\"]"},
    {"{\"max_tokens\":5,\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: "
     "1\"},{\"type\":\"text\",\"text\":"
     "\"s\"},{\"type\":\"text\",\"text\":\"t\",\"cache_control\":{}}]," HI "}",
     "{\"max_tokens\":5,\"messages\":[{\"content\":\"s\\n\\nt\",\"role\":\"system\"},{\"content\":\"a\",\"role\":"
     "\"user\"}]" OFF,
     NULL},
    {"{\"max_tokens\":5,\"thinking\":{\"type\":\"adaptive\"},\"output_config\":{\"effort\":\"low\"}," HI "}",
     "{\"max_tokens\":5," HI_OUT ",\"reasoning_effort\":\"low\"}", NULL},
    {"{\"max_tokens\":5,\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}},{\"type\":\"bash_20250124\"}"
     "],"
     "\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}," HI "}",
     "{\"max_tokens\":5," HI_OUT
     ",\"parallel_tool_calls\":false,\"reasoning_effort\":\"none\",\"tool_choice\":\"auto\","
     "\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}},\"type\":\"function\"}]}",
     "[\"bash_20250124\"]"},
    {"{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{"
     "\"type\":"
     "\"thinking\",\"thinking\":\"t\",\"signature\":\"s\"},{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"tool_use\","
     "\"id\":"
     "\"i\",\"name\":\"f\",\"input\":{\"x\":1}},{\"type\":\"server_tool_use\"}]},{\"role\":\"user\",\"content\":[{"
     "\"type\":"
     "\"tool_result\",\"tool_use_id\":\"i\",\"is_error\":true,\"content\":[{\"type\":\"text\",\"text\":\"1\"},{"
     "\"type\":"
     "\"text\",\"text\":\"2\"}]},{\"type\":\"text\",\"text\":\"c\"}]}]}",
     "{\"max_tokens\":5,\"messages\":[{\"content\":\"a\",\"role\":\"user\"},{\"content\":\"b\",\"reasoning_content\":"
     "\"t\","
     "\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":{\"x\":1},\"name\":\"f\"},\"id\":\"i\","
     "\"type\":"
     "\"function\"}]},{\"content\":\"Error: "
     "1\\n2\",\"role\":\"tool\",\"tool_call_id\":\"i\"},{\"content\":\"c\",\"role\":"
     "\"user\"}]" OFF,
     "[\"server_tool_use\"]"},
    {"{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
     "\"image\"}]}]}",
     "messages[0].content[1]: image blocks are not supported", NULL},
    {"{\"max_tokens\":5,\"tools\":[{\"name\":\"f\"}],\"tool_choice\":{\"type\":\"some\"}," HI "}", "tool_choice.type",
     NULL},
};

#define CHAT(messages) "{\"messages\":[" messages "]}"
#define SAID           "{\"content\":\"a\",\"role\":\"user\"}"

static const translation_row responses_rows[] = {
    {"{\"input\":\"a\"}", CHAT(SAID), NULL},
    {"{}", CHAT("{\"content\":\"\",\"role\":\"user\"}"), NULL},
    {"{\"input\":[],\"instructions\":\"s\"}", CHAT("{\"content\":\"s\",\"role\":\"system\"}"), NULL},
    {"{\"input\":\"a\",\"max_output_tokens\":3,\"reasoning\":{\"effort\":\"low\"},\"store\":true,\"service_tier\":"
     "\"x\"}",
     "{\"max_tokens\":3,\"messages\":[" SAID "],\"reasoning_effort\":\"low\"}", "[\"service_tier\"]"},
    {"{\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_"
     "text\","
     "\"text\":\"t\"}]},{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":"
     "\"b\"}]},"
     "{\"type\":\"function_call\",\"call_id\":\"i\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"custom_tool_"
     "call\","
     "\"call_id\":\"k\",\"name\":\"g\",\"input\":\"x\"},{\"type\":\"function_call_output\",\"call_id\":\"i\","
     "\"output\":"
     "\"1\"},{\"type\":\"custom_tool_call_output\",\"call_id\":\"k\",\"output\":[{\"type\":\"input_text\",\"text\":"
     "\"2\"}]},"
     "{\"type\":\"compaction\"},{\"role\":\"user\",\"content\":\"a\"}]}",
     CHAT(SAID
          ",{\"content\":\"b\",\"reasoning_content\":\"t\",\"role\":\"assistant\",\"tool_calls\":[{\"function\":{"
          "\"arguments\":\"{}\",\"name\":\"f\"},\"id\":\"i\",\"type\":\"function\"},{\"function\":{\"arguments\":{"
          "\"input\":\"x\"},\"name\":\"g\"},\"id\":\"k\",\"type\":\"function\"}]},{\"content\":\"1\",\"role\":\"tool\","
          "\"tool_call_id\":\"i\"},{\"content\":\"2\",\"role\":\"tool\",\"tool_call_id\":\"k\"}," SAID),
     "[\"compaction\"]"},
    {"{\"input\":[{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"assistant\",\"content\":\"c\"}]}",
     CHAT("{\"content\":\"b\",\"role\":\"assistant\"},{\"content\":\"c\",\"role\":\"assistant\"}"), NULL},
    {"{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"},{\"type\":\"custom\",\"name\":\"g\"}],\"tool_choice\":"
     "\"auto\"}",
     "{\"messages\":[" SAID
     "],\"tool_choice\":\"auto\",\"tools\":[{\"function\":{\"name\":\"g\",\"parameters\":{\"properties\":{"
     "\"input\":{\"type\":\"string\"}},\"required\":[\"input\"],\"type\":\"object\"}},\"type\":\"function\"}]}",
     "[\"web_search\"]"},
    {"{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{}}}}",
     "{\"messages\":[" SAID
     "],\"response_format\":{\"json_schema\":{\"name\":\"n\",\"schema\":{}},\"type\":\"json_schema\"}}",
     NULL},
    {"{\"input\":[{\"type\":\"reasoning\",\"encrypted_content\":\"kv1.SWNoIGTDpGNodGU=\"},{\"role\":\"assistant\","
     "\"content\":"
     "\"b\"},{\"type\":\"reasoning\",\"encrypted_content\":\"kv1./"
     "w==\"},{\"type\":\"reasoning\",\"encrypted_content\":\"gAAA\"}"
     "]}",
     CHAT("{\"content\":\"b\",\"reasoning_content\":\"Ich d\u00e4chte\",\"role\":\"assistant\"}"), NULL},
    {"{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":\"allowed_tools\","
     "\"mode\":"
     "\"auto\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}}",
     "{\"messages\":[" SAID
     "],\"tool_choice\":{\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[{\"function\":{\"name\":\"f\"},"
     "\"type\":\"function\"}]},\"type\":\"allowed_tools\"},\"tools\":[{\"function\":{\"name\":\"f\"},\"type\":"
     "\"function\"}]}",
     NULL},
    {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}", "input[0][0]: input_image parts",
     NULL},
    {"{\"input\":[{\"type\":\"item_reference\"}]}", "input[0]: item_reference", NULL},
    {"{\"input\":\"a\",\"previous_response_id\":\"x\"}", "previous_response_id: unsupported", NULL},
    {"{\"input\":\"a\",\"max_output_tokens\":0}", "max_output_tokens: expected", NULL},
};

/* ---- replies ---- */

static const char plain_call[] = "w\0k3JvP0aQz";

static void add_call(api_events *l, const char *args, err *e)
{
    (void)api_events_add(l, CALL_BEGIN, 0, plain_call, sizeof plain_call - 1, e);
    (void)api_events_add(l, CALL_ARGS, 0, args, strlen(args), e);
    (void)api_events_add(l, CALL_END, 0, "", 0, e);
}

/* Ends a reply; returns its events, and the whole answer in *answer. */
static char *reply_of(const api_form *form, const api_head *h, const api_events *l, const char *finish, json_t **answer)
{
    const api_usage usage = {.prompt = 9, .cached = 0, .generated = 18};
    buffer out = {0};
    api_stream s;
    err e = {0};
    *answer = NULL;
    status st = api_stream_open(&s, form, h, &out, &e);
    if (st == ST_OK) st = api_stream_begin(&s, &usage, &e);
    if (st == ST_OK) st = api_stream_add(&s, l, &e);
    if (st == ST_OK) st = api_stream_end(&s, answer, finish, NULL, &usage, NULL, &e);
    is_ok(st, &e, "a reply is made");
    if (st == ST_OK) st = buffer_add(&out, "", 1, &e);
    api_stream_free(&s);
    return out.p;
}

static void check_messages_reply(void)
{
    static const char want[] =
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\","
        "\"role\":\"assistant\",\"model\":\"demo\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,"
        "\"usage\":{"
        "\"input_tokens\":9,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":18,"
        "\"output_tokens_details\":{\"thinking_tokens\":0}}}}\n\n"
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":"
        "\"tool_use\",\"id\":\"toolu_k3JvP0aQz\",\"name\":\"w\",\"input\":{}}}\n\n"
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":"
        "\"input_json_delta\",\"partial_json\":\"{\\\"city\\\": \\\"Paris\\\"}\"}}\n\n"
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
        "event: message_delta\ndata: "
        "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":"
        "null},\"usage\":{\"input_tokens\":9,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,"
        "\"output_tokens\":18,\"output_tokens_details\":{\"thinking_tokens\":0}}}\n\n"
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    const api_request r = {.chat = true, .style = API_MESSAGES};
    const api_head h = {.r = &r, .id = "msg_1", .model = "demo"};
    api_events l = {0};
    json_t *answer;
    err e = {0};
    add_call(&l, "{\"city\": \"Paris\"}", &e);
    char *text = reply_of(&messages_form, &h, &l, "tool_calls", &answer);
    is_str(text, want, "the events of a call");
    mem_free(text);
    json_decref(answer);
    api_events_free(&l);
    (void)api_events_add(&l, CALL_REASONING, -1, "t", 1, &e);
    (void)api_events_add(&l, CALL_TEXT, -1, "b", 1, &e);
    add_call(&l, "{\"a\": [1], \"b\": {\"c\": 2, \"d", &e);
    mem_free(reply_of(&messages_form, &h, &l, "length", &answer));
    text = json_dumps(json_object_get(answer, "content"), JSON_COMPACT);
    is_str(text,
           "[{\"type\":\"thinking\",\"thinking\":\"t\",\"signature\":\"kvasir\"},{\"type\":\"text\",\"text\":\"b\"},{"
           "\"type\":\"tool_use\",\"id\":\"toolu_k3JvP0aQz\",\"name\":\"w\",\"input\":{\"a\":[1]}}]",
           "blocks; an argument that was cut is left out");
    is_str(json_string_value(json_object_get(answer, "stop_reason")), "max_tokens", "stop_reason");
    free(text);
    json_decref(answer);
    api_events_free(&l);
}

/* Thinking that the client does not want, and numbers of arguments. */
static void check_omitted(void)
{
    api_request r = {.chat = true, .style = API_MESSAGES};
    const api_head h = {.r = &r, .id = "msg_1", .model = "demo"};
    api_events l = {0};
    json_t *answer;
    err e = {0};
    r.original = json_loads("{\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"}}", 0, NULL);
    (void)api_events_add(&l, CALL_REASONING, -1, "secret", 6, &e);
    (void)api_events_add(&l, CALL_TEXT, -1, "b", 1, &e);
    char *text = reply_of(&messages_form, &h, &l, "stop", &answer);
    ok(!strstr(text, "secret") && strstr(text, "signature_delta"), "display omitted: no thinking in the stream");
    mem_free(text);
    text = json_dumps(json_array_get(json_object_get(answer, "content"), 0), JSON_COMPACT);
    is_str(text, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"kvasir\"}", "an empty block in the answer");
    free(text);
    json_decref(answer);
    json_decref(r.original);
    api_events_free(&l);
}

/* Writes the types of events into one line. */
static void types_of(char *out, size_t size, const char *text)
{
    *out = 0;
    for (const char *at = text; at && (at = strstr(at, "event: "));) {
        at += 7;
        snprintf(out + strlen(out), size - strlen(out), "%s%.*s", *out ? " " : "", (int)strcspn(at, "\n"), at);
    }
}

static void check_responses_reply(void)
{
    api_request r = {.chat = true, .style = API_RESPONSES};
    const api_head h = {.r = &r, .id = "resp_1", .model = "demo"};
    api_events l = {0};
    char types[1024];
    json_t *answer;
    err e = {0};
    add_call(&l, "{\"city\": \"Paris\"}", &e);
    char *text = reply_of(&responses_form, &h, &l, "tool_calls", &answer);
    types_of(types, sizeof types, text);
    is_str(types,
           "response.created response.in_progress response.output_item.added response.function_call_arguments.delta "
           "response.function_call_arguments.done response.output_item.done response.completed",
           "the events of a call");
    mem_free(text);
    text = json_dumps(json_object_get(answer, "output"), JSON_COMPACT);
    is_str(text,
           "[{\"id\":\"fc_10\",\"type\":\"function_call\",\"call_id\":\"k3JvP0aQz\",\"name\":\"w\",\"arguments\":\"{"
           "\\\"city\\\": \\\"Paris\\\"}\",\"status\":\"completed\"}]",
           "its item");
    free(text);
    json_decref(answer);
    r.original = json_loads("{\"tools\":[{\"type\":\"custom\",\"name\":\"w\"}],\"metadata\":{\"a\":\"b\"},\"include\":["
                            "\"reasoning.encrypted_content\"]}",
                            0, NULL);
    api_events_free(&l);
    (void)api_events_add(&l, CALL_REASONING, -1, "t", 1, &e);
    add_call(&l, "{\"input\": \"ls\"}", &e);
    (void)api_events_add(&l, CALL_TEXT, -1, "b", 1, &e);
    mem_free(reply_of(&responses_form, &h, &l, "length", &answer));
    text = json_dumps(json_object_get(answer, "output"), JSON_COMPACT);
    is_str(
        text,
        "[{\"id\":\"rs_10\",\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":"
        "\"t\"}],\"encrypted_content\":\"kv1.dA==\",\"status\":\"completed\"},{\"id\":\"ctc_11\",\"type\":"
        "\"custom_tool_call\",\"call_id\":\"k3JvP0aQz\",\"name\":\"w\",\"input\":\"ls\",\"status\":\"completed\"},{"
        "\"id\":\"msg_12\",\"type\":\"message\",\"role\":\"assistant\",\"status\":\"incomplete\",\"content\":[{"
        "\"type\":"
        "\"output_text\",\"text\":\"b\",\"annotations\":[],\"logprobs\":[]}]}]",
        "thinking, a custom tool and content that was cut");
    free(text);
    text = json_dumps(json_object_get(answer, "metadata"), JSON_COMPACT);
    is_str(text, "{\"a\":\"b\"}", "metadata is repeated");
    free(text);
    json_decref(answer);
    json_decref(r.original);
    api_events_free(&l);
}

static void check_errors(void)
{
    api_error e = {0};
    api_fail(&e, 503, "draining", "the server is stopping");
    char *text = api_error_styled(&e, API_MESSAGES, "req_1");
    is_str(text,
           "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"the server is stopping\"},"
           "\"request_id\":\"req_1\"}",
           "an error of the Messages API");
    free(text);
}

int main(void)
{
    for (size_t i = 0; i < sizeof messages_rows / sizeof *messages_rows; i++)
        check_row(api_from_messages, &messages_rows[i]);
    for (size_t i = 0; i < sizeof responses_rows / sizeof *responses_rows; i++)
        check_row(api_from_responses, &responses_rows[i]);
    check_messages_reply();
    check_omitted();
    check_responses_reply();
    check_errors();
    return tap_done();
}
