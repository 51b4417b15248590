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

#define TALK "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

static const api_rules lax = {.sampling = {.temp = 1, .top_p = 1, .repeat_penalty = 1}};
static const api_rules strict = {.strict = true,
                                 .sampling = {.temp = 0.5, .top_k = 7, .top_p = 1, .repeat_penalty = 1}};

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
        {0, 0, "{}", 400, "prompt", "missing"},
        {0, 0, "{\"prompt\":null}", 400, "prompt", "missing"},
        {0, 0, "{\"prompt\":7}", 400, "prompt", "found an integer"},
        {0, 0, "{\"prompt\":[1,-2]}", 400, "prompt", "token id -2"},
        {0, 0, "{\"prompt\":[[1],\"a\",{}]}", 400, "prompt", "found an object"},
        {0, 0, "{\"prompt\":\"a\",\"max_tokens\":0}", 400, "max_tokens", "requires echo"},
        {0, 0, "{\"prompt\":\"a\",\"max_tokens\":-1}", 400, "max_tokens", "from 0"},
        {0, 0, "{\"prompt\":\"a\",\"max_tokens\":1.5}", 400, "max_tokens", "an integer, found a number"},
        {0, 0, "{\"prompt\":\"a\",\"max_tokens\":\"many\"}", 400, "max_tokens", "found a string"},
        {0, 0, "{\"prompt\":\"a\",\"seed\":1e400}", 400, "", "the body"},
        {0, 0, "{\"prompt\":\"a\",\"temperature\":-1}", 400, "temperature", "from 0"},
        {0, 0, "{\"prompt\":\"a\",\"temperature\":\"hot\"}", 400, "temperature", "found a string"},
        {0, 0, "{\"prompt\":\"a\",\"n\":17}", 400, "n", "from 1 to 16"},
        {0, 0, "{\"prompt\":\"a\",\"best_of\":2}", 400, "best_of", "at most n"},
        {0, 0, "{\"prompt\":\"a\",\"logprobs\":21}", 400, "logprobs", "to 20"},
        {0, 0, "{\"prompt\":\"a\",\"stop\":[\"\"]}", 400, "stop", "non-empty"},
        {0, 0, "{\"prompt\":\"a\",\"stop\":\"b\\u0000c\"}", 400, "stop", "U+0000"},
        {0, 0, "{\"prompt\":\"a\",\"stream\":1}", 400, "stream", "true or false"},
        {0, 0, "{\"prompt\":\"a\",\"stream_options\":3}", 400, "stream_options", "object"},
        {0, 0, "{\"prompt\":\"a\",\"tools\":[{}]}", 400, "tools", "unsupported field"},
        {0, 0, "{\"prompt\":\"a\",\"suffix\":\"b\"}", 400, "suffix", "unsupported field"},
        {0, 0, "{\"prompt\":\"a\",\"presence_penalty\":3}", 400, "presence_penalty", "from -2 to 2"},
        {0, 0, "{\"prompt\":\"a\",\"frequency_penalty\":\"1\"}", 400, "frequency_penalty", "found a string"},
        {0, 0, "{\"prompt\":\"a\",\"repetition_penalty\":20}", 400, "repetition_penalty", "to 10"},
        {0, 0, "{\"prompt\":\"a\",\"top_p\":1.5}", 400, "top_p", "from 0 to 1"},
        {0, 0, "{\"prompt\":\"a\",\"max_tokens\":3000000000}", 400, "max_tokens", "to 2147483647, found 3000000000"},
        {0, 0, "{\"prompt\":\"a\",\"max_tokens\":1e30}", 400, "max_tokens", "expected an integer"},
        {0, 0, "{\"prompt\":\"a\",\"seed\":18446744073709551616}", 400, "",
         "in 'seed': too big integer near '18446744073709551616'; integers are from -2^63 to 2^63 - 1"},
        {0, 0, "{\"prompt\":\"a\",\"n\":\"2\"}", 400, "n", "found a string"},
        {0, 0, "{\"prompt\":\"a\",\"n\":0}", 400, "n", "from 1"},
        {0, 0, "{\"prompt\":[2147483648]}", 400, "prompt", "token id 2147483648"},
        {0, 0, "{\"prompt\":[1,4294967297]}", 400, "prompt", "token id 4294967297"},
        {0, 0, "{\"prompt\":[1,1.5]}", 400, "prompt", "found a number"},
        {0, 0, "{\"prompt\":[1,\"2\"]}", 400, "prompt", "found a string"},
        {0, 0, "{\"prompt\":[true]}", 400, "prompt", "found true"},
        {0, 0, "{\"prompt\":\"a\",\"prompt\":\"b\"}", 400, "", "duplicate"},
        {0, 0, "{\"prompt\":\"a\",\"stop\":5}", 400, "stop", "non-empty"},
        {0, 0, "{\"prompt\":\"a\",\"stop\":[null]}", 400, "stop", "non-empty"},
        {0, 0, "{\"prompt\":\"a\",\"response_format\":{\"type\":\"xml\"}}", 400, "response_format", ".type: expected"},
        {0, 0, "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\"},\"ignore_eos\":true}", 400,
         "ignore_eos", "mutually exclusive"},
        {0, 0, "{\"prompt\":\"a\",\"json_whitespace\":3}", 400, "json_whitespace", "expected"},
        {0, 1, "{\"prompt\":\"a\",\"colour\":1}", 400, "colour", "unknown field 'colour'"},
        {0, 0, "{\"prompt\":\"a\",\"attn\":1}", 400, "attn", "expected a string"},
        {0, 0, "{\"prompt\":\"a\",\"decode\":-3}", 400, "decode", "from 0"},
        {0, 0, "{\"prompt\":\"a\",\"cache_prefix\":1}", 400, "cache_prefix", "true or false"},
        {0, 0, "{\"prompt\":\"a\",\"cache_salt\":1}", 400, "cache_salt", "expected a string"},
        {0, 0, "{\"prompt\":\"a\",\"repetition_penalty\":0}", 400, "repetition_penalty", "found 0"},
        {0, 0, "{\"prompt\":\"a\",\"repeat_penalty\":-1}", 400, "repeat_penalty", "found -1"},
        {0, 0, "{\"prompt\":\"a\",\"seed\":\"1\"}", 400, "seed", "found a string"},
        {0, 0, "{\"prompt\":\"a\",\"logprobs\":true}", 400, "logprobs", "found true"},
        {0, 0, "{\"prompt\":\"a\",\"max_tokens\":0}", 400, "max_tokens", "0 requires echo"},
        {1, 0, "{" TALK ",\"max_tokens\":0}", 400, "max_tokens", "must be at least 1"},
        {1, 0, "{" TALK ",\"max_completion_tokens\":0}", 400, "max_completion_tokens", "must be at least 1"},
        {1, 0, "{" TALK ",\"presence_penalty\":-2.5}", 400, "presence_penalty", "from -2 to 2"},
        {1, 0, "{" TALK ",\"logprobs\":5}", 400, "logprobs", "true or false"},
        {1, 0, "{" TALK ",\"logprobs\":true,\"top_logprobs\":21}", 400, "top_logprobs", "to 20"},
        {1, 0, "{" TALK ",\"logprobs\":true,\"top_logprobs\":-1}", 400, "top_logprobs", "found -1"},
        {1, 0, "{" TALK ",\"logprobs\":true,\"top_logprobs\":\"5\"}", 400, "top_logprobs", "found a string"},
        {1, 0, "{" TALK ",\"chat_template_kwargs\":5}", 400, "chat_template_kwargs", "expected an object"},
        {1, 0, "{\"messages\":[null]}", 400, "messages", "without a role"},
        {1, 0, "{\"messages\":{\"role\":\"user\"}}", 400, "messages", "expected an array"},
        {1, 0, "{\"messages\":[{\"role\":\"system\",\"content\":null}]}", 400, "messages", "content"},
        {1, 0, "{\"messages\":[]}", 400, "messages", "expected an array"},
        {1, 0, "{\"messages\":[{}]}", 400, "messages", "without a role"},
        {1, 0, "{\"messages\":[{\"role\":\"critic\",\"content\":\"a\"}]}", 400, "messages", "role 'critic'"},
        {1, 0, "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", 400, "messages", "content"},
        {1, 0, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":[1]}", 400,
         "chat_template_kwargs", "expected an object"},
        {1, 0, "{\"messages\":[{\"role\":\"user\",\"content\":3}]}", 400, "messages", "content"},
        {1, 0, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400, "messages",
         "image_url"},
        {1, 0, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":1}", 400, "top_logprobs",
         "requires"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        api_request r;
        api_error e = {0};
        bool taken = api_read(&r, all[i].chat ? API_CHAT : API_COMPLETION, all[i].body, strlen(all[i].body),
                              all[i].strict ? &strict : &lax, &e);
        ok(!taken && e.http == all[i].http && strcmp(e.param, all[i].param) == 0 && strstr(e.message, all[i].part),
           "%.60s: refused (%d %s: %s)", all[i].body, e.http, e.param, e.message);
        if (taken) api_free(&r);
    }
}

/* Values that are accepted: (body, seed). */
static void check_accepted(void)
{
    static const struct {
        const char *more;
        int64_t seed;
    } all[] = {{"\"seed\":-1", -1},
               {"\"seed\":1.0", 1},
               {"\"seed\":1e18", 1000000000000000000},
               {"\"seed\":9223372036854775807", INT64_MAX},
               {"\"seed\":-9223372036854775808", INT64_MIN},
               {"\"top_logprobs\":0", 0},
               {"\"max_tokens\":2,\"max_completion_tokens\":null", 0},
               {"\"chat_template_kwargs\":null", 0},
               {"\"chat_template_kwargs\":{}", 0},
               {"\"frequency_penalty\":2,\"n\":2,\"stream\":true", 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char body[256];
        api_request r;
        api_error e = {0};
        snprintf(body, sizeof body, "{" TALK ",%s}", all[i].more);
        if (!ok(api_read(&r, API_CHAT, body, strlen(body), &lax, &e), "%s is accepted %s", all[i].more, e.message))
            continue;
        ok((int64_t)r.sampling.seed == all[i].seed, "its seed");
        api_free(&r);
    }
}

static void check_deep(void)
{
    char body[512] = "{\"prompt\":\"a\",\"metadata\":";
    api_request r;
    api_error e = {0};
    memset(body + strlen(body), '[', 200);
    ok(!api_read(&r, API_COMPLETION, body, strlen(body), &lax, &e) && e.http == 400, "deep nesting is refused");
}

/* ---- what is taken ---- */

/* Forms of fields that clients send. */
static void check_forms(void)
{
    static const char body[] =
        "\xef\xbb\xbf{\"prompt\":[\"a\"],\"n\":2.0,\"max_tokens\":16.0,\"stop\":null,\"stream\":null,\"temperature\":"
        "null,"
        "\"logit_bias\":null,\"top_p\":0,\"min_p\":1,\"repetition_penalty\":1.25,\"presence_penalty\":-2,"
        "\"frequency_penalty\":0.5,\"stream_options\":{\"include_usage\":true},\"user\":\"u\",\"service_tier\":"
        "\"auto\"}";
    static const char nulls[] =
        "{\"prompt\":[1,2],\"max_tokens\":null,\"n\":null,\"stop\":[],\"seed\":null,\"tools\":[]}";
    api_request r;
    api_error e = {0};
    if (!ok(api_read(&r, API_COMPLETION, body, sizeof body - 1, &lax, &e), "forms of fields: %s", e.message)) return;
    ok(r.n == 2 && r.max_tokens == 16, "2.0 and 16.0 are integers");
    const sampler_options *s = &r.sampling;
    ok(s->top_p == 0 && s->min_p == 1 && s->temp == 1, "top_p 0, min_p 1, temperature null");
    ok(s->repeat_penalty == 1.25 && s->presence_penalty == -2 && s->frequency_penalty == 0.5, "penalties");
    ok(r.include_usage && !r.stream && r.n_stop == 0, "stream_options; null stop and stream");
    is_int((long long)json_array_size(r.ignored), 1, "service_tier is ignored");
    api_free(&r);
    if (!ok(api_read(&r, API_COMPLETION, nulls, sizeof nulls - 1, &lax, &e), "null fields: %s", e.message)) return;
    ok(r.max_tokens == 16 && r.n == 1 && !r.seeded && r.n_stop == 0 && r.prompts[0].ids.n == 2, "have the defaults");
    api_free(&r);
}

static void check_taken(void)
{
    static const char body[] =
        "{\"prompt\":[\"a\",\"b\"],\"n\":3,\"seed\":-5,\"stop\":\"x\",\"logprobs\":0,\"top_k\":-1,"
        "\"colour\":1,\"none\":null,\"budget\":64,\"skip\":\"0+2\",\"attn\":\"quest\"}";
    api_request r;
    api_error e = {0};
    if (!ok(api_read(&r, API_COMPLETION, body, strlen(body), &lax, &e), "a completion is taken: %s", e.message)) return;
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
    is_int((long long)json_array_size(r.ignored), 1, "an unknown field is listed, a null field is not");
    is_str(json_string_value(json_array_get(r.ignored, 0)), "colour", "its name");
    api_free(&r);
}

static void check_chat(void)
{
    static const char body[] = "{\"messages\":[{\"role\":\"developer\",\"content\":\"be brief\"},{\"role\":\"user\","
                               "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},"
                               "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                               "\"arguments\":\"{\\\"x\\\":1}\"}}]},{\"role\":\"tool\",\"content\":\"3\"}],"
                               "\"chat_template_kwargs\":{\"enable_thinking\":false},\"max_completion_tokens\":7,"
                               "\"logprobs\":true,\"top_logprobs\":2}";
    api_request r;
    api_error e = {0};
    if (!ok(api_read(&r, API_CHAT, body, strlen(body), &strict, &e), "a chat is taken: %s", e.message)) return;
    char *text = json_dumps(r.talk.messages, JSON_COMPACT);
    is_str(text,
           "[{\"role\":\"system\",\"content\":\"be brief\"},{\"role\":\"user\",\"content\":\"ab\"},"
           "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}]},"
           "{\"role\":\"tool\",\"content\":\"3\",\"name\":\"f\"}]",
           "a developer is the system, parts are joined, arguments are parsed");
    free(text);
    ok(json_is_false(json_object_get(r.talk.args, "enable_thinking")), "chat_template_kwargs");
    is_int(r.max_tokens, 7, "max_completion_tokens");
    is_int(r.top_logprobs, 2, "top_logprobs");
    ok(r.sampling.temp == 0.5 && r.sampling.top_k == 7, "the server's sampling, where the request has none");
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
        bool taken = api_read(&r, API_LENS, bad[i].body, strlen(bad[i].body), &strict, &e);
        ok(!taken && e.http == 400 && strcmp(e.param, bad[i].param) == 0, "a lens of %s: refused (%s)", bad[i].body,
           e.message);
        if (taken) api_free(&r);
    }
    api_error e = {0};
    if (!ok(api_read(&r, API_LENS, body, strlen(body), &strict, &e), "a lens is taken: %s", e.message)) return;
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
    char names[HTTP_NAMES];
    http_own_names(names, "127.0.0.1");
    is_str(names, "", "a server on one address has no further names");
    http_own_names(names, "::");
    ok(*names && !strstr(names, "127.0.0.1"), "on all addresses: %s", names);
    o.names = "box 192.0.2.7 [2001:db8::7]";
    ok(http_check_host(&o, "192.0.2.7:8080") && http_check_host(&o, "[2001:DB8::7]:1") && http_check_host(&o, "Box") &&
           http_check_origin(&o, 8080, "http://192.0.2.7:8080"),
       "further names");
    ok(!http_check_host(&o, "192.0.2") && !http_check_host(&o, "box 192.0.2.7") && !http_check_host(&o, ""),
       "but no parts of them");
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
    const char *takes, *rest;
    api_error e = {0};
    ok(http_find(&r, "POST", "/v1/chat/completions", &rest, &takes, &e) && r == ROUTE_CHAT, "chat");
    ok(http_find(&r, "GET", "/v1/models/a/b", &rest, &takes, &e) && r == ROUTE_MODELS && strcmp(rest, "a/b") == 0,
       "one model");
    ok(http_find(&r, "GET", "/", &rest, &takes, &e) && r == ROUTE_PAGE, "the page");
    ok(http_find(&r, "GET", "/lens", &rest, &takes, &e) && r == ROUTE_PAGE, "and its lens");
    ok(http_find(&r, "POST", "/lens", &rest, &takes, &e) && r == ROUTE_LENS, "a lens");
    ok(http_find(&r, "GET", "/lens/a/3", &rest, &takes, &e) && r == ROUTE_LENS_MAP && strcmp(rest, "a/3") == 0,
       "a step of it");
    ok(!http_find(&r, "GET", "/v1/completions", &rest, &takes, &e) && e.http == 405, "another method");
    e = (api_error){0};
    is_str(takes, "POST", "and the method of the path");
    e = (api_error){0};
    ok(http_find(&r, "POST", "/v1/completions/", &rest, &takes, &e) && r == ROUTE_COMPLETIONS, "a final slash");
    ok(http_find(&r, "GET", "//v1/models/", &rest, &takes, &e) && r == ROUTE_MODELS && !rest, "two slashes first");
    ok(http_find(&r, "HEAD", "/v1/models", &rest, &takes, &e) && r == ROUTE_MODELS, "HEAD");
    ok(!http_find(&r, "POST", "/v1/completions/x", &rest, &takes, &e) && e.http == 404, "a path below");
    e = (api_error){0};
    ok(!http_find(&r, "GET", "/../etc/passwd", &rest, &takes, &e) && e.http == 404, "another path");
}

int main(void)
{
    check_refused();
    check_accepted();
    check_deep();
    check_taken();
    check_forms();
    check_chat();
    check_lens();
    check_errors();
    check_guard();
    check_routes();
    return tap_done();
}
