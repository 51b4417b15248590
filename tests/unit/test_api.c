/* SPDX-License-Identifier: MIT */
/* Bodies of requests, and answers, without a server. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api.h"
#include "serve/http.h"
#include "tests/tap.h"

/* ---- what is refused ---- */

static void check_refused(void)
{
    static const struct {
        int chat, strict;
        const char *body;
        int http;
        const char *param, *part;
    } all[] = {
        {0, 0, "", 400, "", "the body"},
        {0, 0, "[]", 400, "", "the body"},
        {0, 0, "{\"prompt\":\"a\",\"prompt\":\"b\"}", 400, "", "prompt"},
        {0, 0, "{}", 400, "prompt", "is missing"},
        {0, 0, "{\"prompt\":null}", 400, "prompt", "is missing"},
        {0, 0, "{\"prompt\":7}", 400, "prompt", "found a whole number"},
        {0, 0, "{\"prompt\":[1,-2]}", 400, "prompt", "token ids"},
        {0, 0, "{\"prompt\":[[1],\"a\",{}]}", 400, "prompt", "found an object"},
        {0, 0, "{\"prompt\":\"a\",\"max_tokens\":0}", 400, "max_tokens", "needs echo"},
        {0, 0, "{\"prompt\":\"a\",\"max_tokens\":-1}", 400, "max_tokens", "from 0"},
        {0, 0, "{\"prompt\":\"a\",\"max_tokens\":1.5}", 400, "max_tokens", "whole number"},
        {0, 0, "{\"prompt\":\"a\",\"max_tokens\":\"many\"}", 400, "max_tokens", "found a text"},
        {0, 0, "{\"prompt\":\"a\",\"seed\":1e400}", 400, "", "the body"},
        {0, 0, "{\"prompt\":\"a\",\"temperature\":-1}", 400, "temperature", "from 0"},
        {0, 0, "{\"prompt\":\"a\",\"temperature\":\"hot\"}", 400, "temperature", "found a text"},
        {0, 0, "{\"prompt\":\"a\",\"n\":17}", 400, "n", "from 1 to 16"},
        {0, 0, "{\"prompt\":\"a\",\"best_of\":2}", 400, "best_of", "more than n"},
        {0, 0, "{\"prompt\":\"a\",\"logprobs\":21}", 400, "logprobs", "to 20"},
        {0, 0, "{\"prompt\":\"a\",\"stop\":[\"\"]}", 400, "stop", "not empty"},
        {0, 0, "{\"prompt\":\"a\",\"stop\":\"b\\u0000c\"}", 400, "stop", "U+0000"},
        {0, 0, "{\"prompt\":\"a\",\"stream\":1}", 400, "stream", "true or false"},
        {0, 0, "{\"prompt\":\"a\",\"stream_options\":3}", 400, "stream_options", "object"},
        {0, 0, "{\"prompt\":\"a\",\"tools\":[{}]}", 400, "tools", "not supported"},
        {0, 0, "{\"prompt\":\"a\",\"suffix\":\"b\"}", 400, "suffix", "not supported"},
        {0, 0, "{\"prompt\":\"a\",\"presence_penalty\":1}", 400, "presence_penalty", "only 0"},
        {0, 0, "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\"}}", 400, "response_format", "only"},
        {0, 1, "{\"prompt\":\"a\",\"colour\":1}", 400, "colour", "unknown field 'colour'"},
        {0, 0, "{\"prompt\":\"a\",\"attn\":1}", 400, "attn", "text"},
        {0, 0, "{\"prompt\":\"a\",\"decode\":-3}", 400, "decode", "from 0"},
        {0, 0, "{\"prompt\":\"a\",\"cache_prefix\":1}", 400, "cache_prefix", "true or false"},
        {0, 0, "{\"prompt\":\"a\",\"cache_salt\":1}", 400, "cache_salt", "text"},
        {1, 0, "{\"messages\":[]}", 400, "messages", "expected a list"},
        {1, 0, "{\"messages\":[{}]}", 400, "messages", "without a role"},
        {1, 0, "{\"messages\":[{\"role\":\"tool\",\"content\":\"a\"}]}", 400, "messages", "unknown role 'tool'"},
        {1, 0, "{\"messages\":[{\"role\":\"user\",\"content\":3}]}", 400, "messages", "content"},
        {1, 0, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400, "messages",
         "image_url"},
        {1, 0, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":1}", 400, "top_logprobs",
         "needs"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        api_request r;
        api_error e = {0};
        bool taken =
            api_read(&r, all[i].chat ? API_CHAT : API_COMPLETION, all[i].body, strlen(all[i].body), all[i].strict, &e);
        ok(!taken && e.http == all[i].http && strcmp(e.param, all[i].param) == 0 && strstr(e.message, all[i].part),
           "%.60s: refused (%d %s: %s)", all[i].body, e.http, e.param, e.message);
        if (taken) api_free(&r);
    }
}

static void check_deep(void)
{
    char body[512] = "{\"prompt\":\"a\",\"metadata\":";
    api_request r;
    api_error e = {0};
    memset(body + strlen(body), '[', 200);
    ok(!api_read(&r, API_COMPLETION, body, strlen(body), false, &e) && e.http == 400, "deep nesting is refused");
}

/* ---- what is taken ---- */

static void check_taken(void)
{
    static const char body[] =
        "{\"prompt\":[\"a\",\"b\"],\"n\":3,\"seed\":-5,\"stop\":\"x\",\"logprobs\":0,\"top_k\":-1,"
        "\"colour\":1,\"none\":null,\"budget\":64,\"skip\":\"0+2\",\"attn\":\"quest\"}";
    api_request r;
    api_error e = {0};
    if (!ok(api_read(&r, API_COMPLETION, body, strlen(body), false, &e), "a completion is taken: %s", e.message))
        return;
    is_int((long long)r.n_prompts, 2, "two prompts");
    is_int(r.n, 3, "n");
    is_int(r.max_tokens, 16, "max_tokens is 16 unless it is said");
    ok(r.seeded && r.sampling.seed == (uint64_t)-5, "seed");
    ok(r.logprobs && r.top_logprobs == 0, "logprobs 0: the token's own alone");
    is_int(r.sampling.top_k, 0, "top_k -1: off");
    ok(r.sampling.temp == 1 && r.sampling.top_p == 1, "temperature and top_p are 1");
    is_str(r.budget, "64", "a budget may be a number");
    is_str(r.skip, "0+2", "or a text");
    is_int(r.decode, -1, "decode is not given");
    is_int((long long)json_array_size(r.ignored), 1, "an unknown field is told, a null one is not there");
    is_str(json_string_value(json_array_get(r.ignored, 0)), "colour", "its name");
    api_free(&r);
}

static void check_chat(void)
{
    static const char body[] = "{\"messages\":[{\"role\":\"developer\",\"content\":\"be brief\"},{\"role\":\"user\","
                               "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}],"
                               "\"max_completion_tokens\":7,\"logprobs\":true,\"top_logprobs\":2}";
    api_request r;
    api_error e = {0};
    if (!ok(api_read(&r, API_CHAT, body, strlen(body), true, &e), "a chat is taken: %s", e.message)) return;
    is_int((long long)r.n_messages, 2, "two messages");
    is_str(r.messages[0].role, "system", "a developer is the system");
    is_str(r.messages[1].content, "ab", "parts are joined");
    is_int(r.max_tokens, 7, "max_completion_tokens");
    is_int(r.top_logprobs, 2, "top_logprobs");
    api_free(&r);
}

static void check_lens(void)
{
    static const struct {
        const char *body, *param;
    } bad[] = {{"{\"prompt\":\"a\"}", "strategies"},
               {"{\"prompt\":\"a\",\"strategies\":[]}", "strategies"},
               {"{\"prompt\":\"a\",\"strategies\":[\"a\",\"b\",\"c\",\"d\"]}", "strategies"},
               {"{\"prompt\":\"a\",\"strategies\":[1]}", "strategies"},
               {"{\"prompt\":[\"a\",\"b\"],\"strategies\":[\"quest\"]}", "prompt"},
               {"{\"strategies\":[\"quest\"]}", "prompt"},
               {"{\"prompt\":\"a\",\"strategies\":[\"quest\"],\"max_tokens\":0}", "max_tokens"},
               {"{\"prompt\":\"a\",\"strategies\":[\"quest\"],\"temperature\":1}", "temperature"}};
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"strategies\":[\"quest\",\"h2o\"],"
        "\"drive\":\"h2o\",\"budget\":64}";
    api_request r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        api_error e = {0};
        bool taken = api_read(&r, API_LENS, bad[i].body, strlen(bad[i].body), true, &e);
        ok(!taken && e.http == 400 && strcmp(e.param, bad[i].param) == 0, "a lens of %s: refused (%s)", bad[i].body,
           e.message);
        if (taken) api_free(&r);
    }
    api_error e = {0};
    if (!ok(api_read(&r, API_LENS, body, strlen(body), true, &e), "a lens is taken: %s", e.message)) return;
    ok(r.lens && r.chat && r.n_strategies == 2 && r.max_tokens == 32 && strcmp(r.drive, "h2o") == 0,
       "what it asks for");
    api_free(&r);
}

static void check_errors(void)
{
    api_error e = {0};
    api_bad(&e, "stop", "no \x1b %s", "good");
    api_bad(&e, "other", "later");
    char *text = api_error_text(&e);
    is_str(
        text,
        "{\"error\":{\"message\":\"no ? good\",\"type\":\"invalid_request_error\",\"param\":\"stop\",\"code\":null}}",
        "an error in OpenAI's shape, the first one, without control characters");
    free(text);
    e = (api_error){0};
    api_fail(&e, 503, "memory_exceeded", "too much");
    text = api_error_text(&e);
    is_str(
        text,
        "{\"error\":{\"message\":\"too much\",\"type\":\"server_error\",\"param\":null,\"code\":\"memory_exceeded\"}}",
        "one of the server");
    free(text);
}

/* ---- who may ask ---- */

static void check_guard(void)
{
    http_key keys[2];
    http_make_key(&keys[0], "ann", "secret-a");
    http_make_key(&keys[1], "bob", "secret-b");
    http_options o = {.host = "127.0.0.1", .host_name = "box.example", .cors = "https://page.example"};
    is_str(http_check_key(&o, NULL), "", "no key is needed where there is none");
    o.keys = keys;
    o.n_keys = 2;
    is_str(http_check_key(&o, "Bearer secret-b"), "bob", "a key has a name");
    ok(!http_check_key(&o, "Bearer secret-c") && !http_check_key(&o, "secret-a") && !http_check_key(&o, NULL) &&
           !http_check_key(&o, "Bearer "),
       "others are refused");
    ok(http_check_host(&o, "localhost:99") && http_check_host(&o, "[::1]:1") && http_check_host(&o, "BOX.example") &&
           http_check_host(&o, NULL),
       "names of this server");
    ok(!http_check_host(&o, "evil.example") && !http_check_host(&o, "localhost.evil") && !http_check_host(&o, ""),
       "other hosts are refused");
    ok(http_check_origin(&o, 8080, NULL) && http_check_origin(&o, 8080, "http://localhost:8080") &&
           http_check_origin(&o, 8080, "https://page.example"),
       "own pages and --cors");
    ok(!http_check_origin(&o, 8080, "http://localhost:8081") && !http_check_origin(&o, 8080, "https://evil.example") &&
           !http_check_origin(&o, 8080, "null"),
       "other origins are refused");
}

static void check_routes(void)
{
    http_route r;
    const char *rest;
    api_error e = {0};
    ok(http_find(&r, "POST", "/v1/chat/completions", &rest, &e) && r == ROUTE_CHAT, "chat");
    ok(http_find(&r, "GET", "/v1/models/a/b", &rest, &e) && r == ROUTE_MODELS && strcmp(rest, "a/b") == 0, "one model");
    ok(http_find(&r, "GET", "/", &rest, &e) && r == ROUTE_PAGE, "the page");
    ok(http_find(&r, "GET", "/lens", &rest, &e) && r == ROUTE_PAGE, "and its lens");
    ok(http_find(&r, "POST", "/lens", &rest, &e) && r == ROUTE_LENS, "a lens");
    ok(http_find(&r, "GET", "/lens/a/3", &rest, &e) && r == ROUTE_LENS_MAP && strcmp(rest, "a/3") == 0, "a step of it");
    ok(!http_find(&r, "GET", "/v1/completions", &rest, &e) && e.http == 405, "another method");
    e = (api_error){0};
    ok(!http_find(&r, "GET", "/../etc/passwd", &rest, &e) && e.http == 404, "another path");
}

int main(void)
{
    check_refused();
    check_deep();
    check_taken();
    check_chat();
    check_lens();
    check_errors();
    check_guard();
    check_routes();
    return tap_done();
}
