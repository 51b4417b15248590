/* SPDX-License-Identifier: MIT */
/* Bodies of requests. */
#include "config.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "serve/api.h"

/* ---- errors ---- */

static const char *type_of(int http)
{
    return http == 401   ? "authentication_error"
           : http == 403 ? "permission_error"
           : http == 404 ? "not_found_error"
           : http == 429 ? "rate_limit_error"
           : http >= 500 ? "server_error"
                         : "invalid_request_error";
}

__attribute__((format(printf, 5, 0))) static void set(api_error *e, int http, const char *code, const char *param,
                                                      const char *fmt, va_list args)
{
    err clean = {0};
    char text[256];
    if (e->http) return; /* the first one wins */
    vsnprintf(text, sizeof text, fmt, args);
    err_set(&clean, ST_USAGE, "%s", text); /* no control characters, no broken UTF-8 */
    *e = (api_error){.http = http, .type = type_of(http), .code = code};
    snprintf(e->param, sizeof e->param, "%s", param);
    snprintf(e->message, sizeof e->message, "%s", clean.msg);
}

bool api_bad(api_error *e, const char *param, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    set(e, 400, NULL, param, fmt, args);
    va_end(args);
    return false;
}

bool api_fail(api_error *e, int http, const char *code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    set(e, http, code, "", fmt, args);
    va_end(args);
    return false;
}

char *api_error_text(const api_error *e)
{
    json_t *j = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", e->message, "type", e->type, "param",
                          *e->param ? e->param : NULL, "code", e->code);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}

/* ---- fields ---- */

/* A field that is there and not null. */
static const json_t *field(const json_t *body, const char *name)
{
    const json_t *v = json_object_get(body, name);
    return json_is_null(v) ? NULL : v;
}

static const char *kind(const json_t *v)
{
    static const char *const names[] = {"an object", "a list", "a text", "a whole number",
                                        "a number",  "true",   "false",  "null"};
    return names[json_typeof(v)];
}

static bool get_bool(bool *out, const json_t *body, const char *name, api_error *e)
{
    const json_t *v = field(body, name);
    if (!v) return true;
    if (!json_is_boolean(v)) return api_bad(e, name, "%s: expected true or false, found %s", name, kind(v));
    *out = json_is_true(v);
    return true;
}

static bool get_number(double *out, const json_t *body, const char *name, double low, double high, api_error *e)
{
    const json_t *v = field(body, name);
    if (!v) return true;
    if (!json_is_number(v)) return api_bad(e, name, "%s: expected a number, found %s", name, kind(v));
    double x = json_number_value(v);
    if (!(x >= low && x <= high))
        return api_bad(e, name, "%s: expected a number from %g to %g, found %g", name, low, high, x);
    *out = x;
    return true;
}

static bool get_whole(int64_t *out, const json_t *body, const char *name, int64_t low, int64_t high, api_error *e)
{
    const json_t *v = field(body, name);
    if (!v) return true;
    if (!json_is_integer(v)) return api_bad(e, name, "%s: expected a whole number, found %s", name, kind(v));
    int64_t x = json_integer_value(v);
    if (x < low || x > high)
        return api_bad(e, name, "%s: expected a whole number from %lld to %lld, found %lld", name, (long long)low,
                       (long long)high, (long long)x);
    *out = x;
    return true;
}

/* Whether a text has no U+0000. */
static bool is_c_text(const json_t *v)
{
    return strlen(json_string_value(v)) == json_string_length(v);
}

static bool get_text(const char **out, const json_t *body, const char *name, api_error *e)
{
    const json_t *v = field(body, name);
    if (!v) return true;
    if (!json_is_string(v) || !is_c_text(v)) return api_bad(e, name, "%s: expected a text, found %s", name, kind(v));
    *out = json_string_value(v);
    return true;
}

/* Memory for a text of n bytes that lives as long as the request. */
static char *own_text(api_request *r, size_t n, api_error *e)
{
    char *text = NULL;
    err why = {0};
    if (MEM_NEW(&text, n + 1, &why) == ST_OK && MEM_GROW(&r->owned, r->n_owned + 1, &why) == ST_OK)
        return r->owned[r->n_owned++] = text;
    mem_free(text);
    api_fail(e, 500, NULL, "%s", why.msg);
    return NULL;
}

/* A word of the command line, which may come as a number. */
static bool get_word(const char **out, api_request *r, const char *name, api_error *e)
{
    enum { DIGITS = 24 };
    const json_t *v = field(r->body, name);
    if (!v || !json_is_integer(v)) return get_text(out, r->body, name, e);
    char *text = own_text(r, DIGITS, e);
    if (text) snprintf(text, DIGITS, "%lld", (long long)json_integer_value(v));
    *out = text;
    return text != NULL;
}

/* ---- prompts ---- */

bool api_read_ids(token_list *out, const json_t *list, const char *param, api_error *e)
{
    err why = {0};
    if (!json_is_array(list)) return api_bad(e, param, "%s: expected a list of token ids", param);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        int64_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return api_bad(e, param, "%s: expected token ids, found %s", param, kind(v));
        if (token_list_push(out, (int32_t)id, &why) != ST_OK) return api_fail(e, 500, NULL, "%s", why.msg);
    }
    return true;
}

static bool read_prompt(api_prompt *p, const json_t *v, api_error *e)
{
    if (json_is_array(v)) return api_read_ids(&p->ids, v, "prompt", e);
    if (!json_is_string(v)) return api_bad(e, "prompt", "prompt: expected a text or token ids, found %s", kind(v));
    p->text = json_string_value(v);
    p->n = json_string_length(v);
    return true;
}

/* A text, ids, or a list of these. */
static bool read_prompts(api_request *r, const json_t *v, api_error *e)
{
    err why = {0};
    if (!v) return api_bad(e, "prompt", "prompt: is missing");
    bool several = json_is_array(v) && json_array_size(v) > 0 && !json_is_number(json_array_get(v, 0));
    size_t n = several ? json_array_size(v) : 1;
    if (n > API_MAX_PROMPTS)
        return api_bad(e, "prompt", "prompt: %zu prompts, expected at most %d", n, API_MAX_PROMPTS);
    if (MEM_NEW(&r->prompts, n, &why) != ST_OK) return api_fail(e, 500, NULL, "%s", why.msg);
    r->n_prompts = n;
    for (size_t i = 0; i < n; i++)
        if (!read_prompt(&r->prompts[i], several ? json_array_get(v, i) : v, e)) return false;
    return true;
}

/* The texts of a message's parts, one behind the other. */
static bool join_parts(api_request *r, const char **out, const json_t *parts, api_error *e)
{
    size_t n = 0, at = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text) || !is_c_text(text))
            return api_bad(e, "messages", "messages: parts of type text alone are known, found %.40s",
                           type ? type : "a part without a type");
        n += json_string_length(text);
    }
    char *joined = own_text(r, n, e);
    if (!joined) return false;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *text = json_object_get(json_array_get(parts, i), "text");
        memcpy(joined + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    *out = joined;
    return true;
}

static bool read_message(api_request *r, chat_message *m, const json_t *v, api_error *e)
{
    static const char *const roles[][2] = {
        {"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"}};
    const char *role = json_string_value(json_object_get(v, "role"));
    const json_t *content = json_object_get(v, "content");
    if (!role) return api_bad(e, "messages", "messages: a message without a role");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(role, roles[i][0]) == 0) m->role = roles[i][1];
    if (!m->role)
        return api_bad(e, "messages", "messages: unknown role '%.40s' (system, developer, user, assistant)", role);
    if (json_is_array(content)) return join_parts(r, &m->content, content, e);
    if (!json_is_string(content) || !is_c_text(content))
        return api_bad(e, "messages", "messages: content: expected a text without U+0000, or parts of type text");
    m->content = json_string_value(content);
    return true;
}

bool api_read_messages(api_request *r, const json_t *list, api_error *e)
{
    err why = {0};
    if (!json_is_array(list) || json_array_size(list) == 0)
        return api_bad(e, "messages", "messages: expected a list of messages");
    if (MEM_NEW(&r->messages, json_array_size(list), &why) != ST_OK) return api_fail(e, 500, NULL, "%s", why.msg);
    r->n_messages = json_array_size(list);
    for (size_t i = 0; i < r->n_messages; i++)
        if (!read_message(r, &r->messages[i], json_array_get(list, i), e)) return false;
    return true;
}

/* ---- the rest ---- */

static bool read_stops(api_request *r, const json_t *v, api_error *e)
{
    if (!v) return true;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > API_MAX_STOPS) return api_bad(e, "stop", "stop: %zu texts, expected at most %d", n, API_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(text) || !*json_string_value(text) || !is_c_text(text))
            return api_bad(e, "stop", "stop: expected texts that are not empty and without U+0000");
        r->stop[r->n_stop++] = json_string_value(text);
    }
    return true;
}

static bool read_logprobs(api_request *r, api_error *e)
{
    int64_t top = -1;
    if (r->chat) {
        if (!get_bool(&r->logprobs, r->body, "logprobs", e) ||
            !get_whole(&top, r->body, "top_logprobs", 0, API_MAX_LOGPROBS, e))
            return false;
        if (top > 0 && !r->logprobs) return api_bad(e, "top_logprobs", "top_logprobs needs logprobs");
    } else {
        if (!get_whole(&top, r->body, "logprobs", 0, API_MAX_LOGPROBS, e)) return false;
        r->logprobs = top >= 0;
    }
    r->top_logprobs = top > 0 ? (int)top : 0;
    return true;
}

static bool read_sampling(api_request *r, api_error *e)
{
    int64_t top_k = 0, seed = 0;
    r->sampling = (sampler_options){.temp = 1, .top_p = 1, .repeat_penalty = 1};
    if (!get_number(&r->sampling.temp, r->body, "temperature", 0, 100, e) ||
        !get_number(&r->sampling.top_p, r->body, "top_p", 0, 1, e) ||
        !get_number(&r->sampling.min_p, r->body, "min_p", 0, 1, e) ||
        !get_number(&r->sampling.repeat_penalty, r->body, "repeat_penalty", 0.01, 100, e) ||
        !get_whole(&top_k, r->body, "top_k", -1, INT32_MAX, e) ||
        !get_whole(&seed, r->body, "seed", INT64_MIN, INT64_MAX, e))
        return false;
    r->sampling.top_k = top_k > 0 ? (int)top_k : 0; /* -1, as others have it: off */
    r->seeded = field(r->body, "seed") != NULL;
    r->sampling.seed = (uint64_t)seed;
    return true;
}

static bool read_stream(api_request *r, api_error *e)
{
    const json_t *o = field(r->body, "stream_options");
    if (!get_bool(&r->stream, r->body, "stream", e)) return false;
    if (o && !json_is_object(o)) return api_bad(e, "stream_options", "stream_options: expected an object");
    return !o || get_bool(&r->include_usage, o, "include_usage", e);
}

static bool read_length(api_request *r, api_error *e)
{
    r->max_tokens = -1;
    if (!get_whole(&r->max_tokens, r->body, "max_tokens", 0, INT32_MAX, e)) return false;
    if (r->chat && !get_whole(&r->max_tokens, r->body, "max_completion_tokens", 0, INT32_MAX, e)) return false;
    if (!r->chat && r->max_tokens < 0) r->max_tokens = 16;
    if (r->max_tokens == 0 && !r->echo) return api_bad(e, "max_tokens", "max_tokens: 0 needs echo");
    return true;
}

/* Fields that change an answer and that nothing here does. */
static bool refuse(const json_t *body, api_error *e)
{
    static const char *const never[] = {"tools", "tool_choice", "functions", "suffix", "logit_bias"};
    static const char *const zero[] = {"presence_penalty", "frequency_penalty"};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        const json_t *v = field(body, never[i]);
        bool empty = (json_is_object(v) && json_object_size(v) == 0) || (json_is_array(v) && json_array_size(v) == 0);
        if (v && !empty && !(json_is_string(v) && strcmp(json_string_value(v), "none") == 0))
            return api_bad(e, never[i], "%s: is not supported here", never[i]);
    }
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++) {
        double x = 0;
        if (!get_number(&x, body, zero[i], -2, 2, e)) return false;
        if (x != 0) return api_bad(e, zero[i], "%s: only 0 is supported; repeat_penalty is ours", zero[i]);
    }
    const json_t *format = field(body, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format && (!type || strcmp(type, "text") != 0))
        return api_bad(e, "response_format", "response_format: only {\"type\": \"text\"} is supported");
    return true;
}

/* The names that are known; the others are told, or refused. */
static bool find_unknown(api_request *r, bool strict, api_error *e)
{
    static const char *const both[] = {"model",
                                       "max_tokens",
                                       "n",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "seed",
                                       "repeat_penalty",
                                       "stop",
                                       "stream",
                                       "stream_options",
                                       "logprobs",
                                       "ignore_eos",
                                       "attn",
                                       "budget",
                                       "kv",
                                       "skip",
                                       "decode",
                                       "cache_prefix",
                                       "cache_salt",
                                       "tools",
                                       "tool_choice",
                                       "draft",
                                       "functions",
                                       "suffix",
                                       "logit_bias",
                                       "presence_penalty",
                                       "user",
                                       "store",
                                       "response_format",
                                       "return_token_ids",
                                       "frequency_penalty",
                                       "best_of",
                                       "metadata"};
    static const char *const completion[] = {"prompt", "echo"};
    static const char *const chat[] = {"messages", "max_completion_tokens", "top_logprobs"};
    static const char *const lens[] = {"model", "prompt", "messages",   "strategies", "max_tokens", "drive",   "budget",
                                       "kv",    "skip",   "ignore_eos", "stream",     "user",       "metadata"};
    const char *name;
    json_t *v;
    json_object_foreach(r->body, name, v)
    {
        bool known = false;
        for (size_t i = 0; i < sizeof lens / sizeof *lens && r->lens; i++) known |= strcmp(name, lens[i]) == 0;
        for (size_t i = 0; i < sizeof both / sizeof *both && !r->lens; i++) known |= strcmp(name, both[i]) == 0;
        for (size_t i = 0; i < 2 && !r->chat && !r->lens; i++) known |= strcmp(name, completion[i]) == 0;
        for (size_t i = 0; i < 3 && r->chat && !r->lens; i++) known |= strcmp(name, chat[i]) == 0;
        if (known || json_is_null(v)) continue;
        if (strict) return api_bad(e, name, "unknown field '%.60s'", name);
        if (json_array_append_new(r->ignored, json_string(name)) != 0)
            return api_fail(e, 500, NULL, "out of memory for a request");
    }
    return true;
}

static bool read_ours(api_request *r, api_error *e)
{
    bool cache = true;
    r->decode = -1;
    if (!get_bool(&cache, r->body, "cache_prefix", e) || !get_text(&r->cache_salt, r->body, "cache_salt", e))
        return false;
    r->no_prefix = !cache;
    return get_text(&r->attn, r->body, "attn", e) && get_word(&r->budget, r, "budget", e) &&
           get_text(&r->kv, r->body, "kv", e) && get_word(&r->skip, r, "skip", e) &&
           get_text(&r->draft, r->body, "draft", e) && get_whole(&r->decode, r->body, "decode", 0, INT32_MAX, e);
}

static bool read_choices(api_request *r, api_error *e)
{
    int64_t n = 1, best = 0;
    if (!get_whole(&n, r->body, "n", 1, API_MAX_CHOICES, e) || !get_whole(&best, r->body, "best_of", 1, 1 << 10, e))
        return false;
    if (best > n) return api_bad(e, "best_of", "best_of: %lld is more than n", (long long)best);
    r->n = (int)n;
    return true;
}

static bool read_all(api_request *r, bool strict, api_error *e)
{
    if (!get_text(&r->model, r->body, "model", e)) return false;
    if (r->chat ? !api_read_messages(r, field(r->body, "messages"), e)
                : !read_prompts(r, field(r->body, "prompt"), e) || !get_bool(&r->echo, r->body, "echo", e))
        return false;
    return find_unknown(r, strict, e) && refuse(r->body, e) && read_length(r, e) && read_choices(r, e) &&
           read_sampling(r, e) && read_stops(r, field(r->body, "stop"), e) && read_stream(r, e) &&
           read_logprobs(r, e) && get_bool(&r->ignore_eos, r->body, "ignore_eos", e) &&
           get_bool(&r->return_token_ids, r->body, "return_token_ids", e) && read_ours(r, e);
}

json_t *api_parse(const char *body, size_t n, api_error *e)
{
    json_t *j;
    err why = {0};
    status st = json_parse_data(&j, body, n, "the body", API_MAX_DEPTH, &why);
    if (st == ST_OK) return j;
    if (st == ST_NOMEM) api_fail(e, 500, NULL, "%s", why.msg);
    else api_fail(e, 400, NULL, "%s", why.msg);
    return NULL;
}

bool api_read(api_request *r, bool chat, const char *body, size_t n, bool strict, api_error *e)
{
    *r = (api_request){.chat = chat, .body = api_parse(body, n, e)};
    if (!r->body) return false;
    r->ignored = json_array();
    bool good = r->ignored ? read_all(r, strict, e) : api_fail(e, 500, NULL, "out of memory for a request");
    if (!good) api_free(r);
    return good;
}

/* ---- the lens ---- */

static bool read_strategies(api_request *r, const json_t *list, api_error *e)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n < 1 || n > API_MAX_STRATEGIES)
        return api_bad(e, "strategies", "strategies: expected a list of 1 to %d texts", API_MAX_STRATEGIES);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_array_get(list, i);
        if (!json_is_string(text) || !is_c_text(text))
            return api_bad(e, "strategies", "strategies: expected texts, found %s", kind(text));
        r->strategies[r->n_strategies++] = json_string_value(text);
    }
    return true;
}

static bool read_lens(api_request *r, bool strict, api_error *e)
{
    r->chat = field(r->body, "messages") != NULL;
    r->lens = r->stream = true;
    r->n = 1;
    r->decode = -1;
    r->max_tokens = 32;
    if (r->chat ? !api_read_messages(r, field(r->body, "messages"), e) : !read_prompts(r, field(r->body, "prompt"), e))
        return false;
    if (r->n_prompts > 1) return api_bad(e, "prompt", "prompt: a lens has one, found %zu", r->n_prompts);
    return get_text(&r->model, r->body, "model", e) && read_strategies(r, field(r->body, "strategies"), e) &&
           get_text(&r->drive, r->body, "drive", e) &&
           get_whole(&r->max_tokens, r->body, "max_tokens", 1, INT32_MAX, e) && get_word(&r->budget, r, "budget", e) &&
           get_text(&r->kv, r->body, "kv", e) && get_word(&r->skip, r, "skip", e) &&
           get_bool(&r->ignore_eos, r->body, "ignore_eos", e) && find_unknown(r, strict, e);
}

bool api_read_lens(api_request *r, const char *body, size_t n, bool strict, api_error *e)
{
    *r = (api_request){.body = api_parse(body, n, e)};
    if (!r->body) return false;
    r->ignored = json_array();
    bool good = r->ignored ? read_lens(r, strict, e) : api_fail(e, 500, NULL, "out of memory for a request");
    if (!good) api_free(r);
    return good;
}

void api_free(api_request *r)
{
    for (size_t i = 0; i < r->n_prompts; i++) token_list_free(&r->prompts[i].ids);
    for (size_t i = 0; i < r->n_owned; i++) mem_free(r->owned[i]);
    mem_free(r->owned);
    mem_free(r->prompts);
    mem_free(r->messages);
    json_decref(r->ignored);
    json_decref(r->body);
    *r = (api_request){0};
}
