/* SPDX-License-Identifier: MIT */
/* Bodies of requests. */
#include "config.h"

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

static bool no_memory(api_error *e)
{
    return api_fail(e, 500, NULL, "out of memory for a request");
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

/* Returns a field that is present and not null. */
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

/* True if a text has no U+0000. */
static bool is_c_text(const json_t *v)
{
    return strlen(json_string_value(v)) == json_string_length(v);
}

/* Types of fields: the first ones are stored at an offset of the request. A word is a text of the command line, which
 * may be a number. */
typedef enum {
    TYPE_BOOL,
    TYPE_NUMBER,
    TYPE_INT,
    TYPE_WHOLE, /* int64_t */
    TYPE_TEXT,
    TYPE_WORD,
    TYPE_ZERO,        /* only 0 is supported */
    TYPE_UNSUPPORTED, /* changes an answer in a way that is not supported */
    TYPE_OTHER        /* read elsewhere, or without effect */
} field_type;

enum { COMPLETION = 1 << API_COMPLETION, CHAT = 1 << API_CHAT, REPLY = COMPLETION | CHAT, LENS = 1 << API_LENS };

typedef struct {
    const char *name;
    unsigned kinds; /* of requests that have it */
    field_type type;
    size_t at;
    double low, high;
} field_row;

#define AT(member) offsetof(api_request, member)
#define LIMITLESS  -1e19, 1e19

/* The later one of two rows with the same target wins. */
static const field_row fields[] = {{"model", REPLY | LENS, TYPE_TEXT, AT(model), 0, 0},
                                   {"prompt", COMPLETION | LENS, TYPE_OTHER, 0, 0, 0},
                                   {"messages", CHAT | LENS, TYPE_OTHER, 0, 0, 0},
                                   {"echo", COMPLETION, TYPE_BOOL, AT(echo), 0, 0},
                                   {"tools", REPLY, TYPE_UNSUPPORTED, 0, 0, 0},
                                   {"tool_choice", REPLY, TYPE_UNSUPPORTED, 0, 0, 0},
                                   {"functions", REPLY, TYPE_UNSUPPORTED, 0, 0, 0},
                                   {"suffix", REPLY, TYPE_UNSUPPORTED, 0, 0, 0},
                                   {"logit_bias", REPLY, TYPE_UNSUPPORTED, 0, 0, 0},
                                   {"presence_penalty", REPLY, TYPE_ZERO, 0, -2, 2},
                                   {"frequency_penalty", REPLY, TYPE_ZERO, 0, -2, 2},
                                   {"response_format", REPLY, TYPE_OTHER, 0, 0, 0},
                                   {"strategies", LENS, TYPE_OTHER, 0, 0, 0},
                                   {"drive", LENS, TYPE_TEXT, AT(drive), 0, 0},
                                   {"max_tokens", REPLY, TYPE_WHOLE, AT(max_tokens), 0, INT32_MAX},
                                   {"max_tokens", LENS, TYPE_WHOLE, AT(max_tokens), 1, INT32_MAX},
                                   {"max_completion_tokens", CHAT, TYPE_WHOLE, AT(max_tokens), 0, INT32_MAX},
                                   {"n", REPLY, TYPE_INT, AT(n), 1, API_MAX_CHOICES},
                                   {"best_of", REPLY, TYPE_INT, AT(best_of), 1, 1 << 10},
                                   {"temperature", REPLY, TYPE_NUMBER, AT(sampling.temp), 0, 100},
                                   {"top_p", REPLY, TYPE_NUMBER, AT(sampling.top_p), 0, 1},
                                   {"min_p", REPLY, TYPE_NUMBER, AT(sampling.min_p), 0, 1},
                                   {"repeat_penalty", REPLY, TYPE_NUMBER, AT(sampling.repeat_penalty), 0.01, 100},
                                   {"top_k", REPLY, TYPE_INT, AT(sampling.top_k), -1, INT32_MAX},
                                   {"seed", REPLY, TYPE_WHOLE, AT(sampling.seed), LIMITLESS},
                                   {"stop", REPLY, TYPE_OTHER, 0, 0, 0},
                                   {"stream", REPLY, TYPE_BOOL, AT(stream), 0, 0},
                                   {"stream", LENS, TYPE_OTHER, 0, 0, 0},
                                   {"stream_options", REPLY, TYPE_OTHER, 0, 0, 0},
                                   {"logprobs", CHAT, TYPE_BOOL, AT(logprobs), 0, 0},
                                   {"top_logprobs", CHAT, TYPE_INT, AT(top_logprobs), 0, API_MAX_LOGPROBS},
                                   {"logprobs", COMPLETION, TYPE_INT, AT(top_logprobs), 0, API_MAX_LOGPROBS},
                                   {"ignore_eos", REPLY | LENS, TYPE_BOOL, AT(ignore_eos), 0, 0},
                                   {"return_token_ids", REPLY, TYPE_BOOL, AT(return_token_ids), 0, 0},
                                   {"cache_prefix", REPLY, TYPE_BOOL, AT(cache_prefix), 0, 0},
                                   {"cache_salt", REPLY, TYPE_TEXT, AT(cache_salt), 0, 0},
                                   {"attn", REPLY, TYPE_TEXT, AT(attn), 0, 0},
                                   {"budget", REPLY | LENS, TYPE_WORD, AT(budget), 0, 0},
                                   {"kv", REPLY | LENS, TYPE_TEXT, AT(kv), 0, 0},
                                   {"skip", REPLY | LENS, TYPE_WORD, AT(skip), 0, 0},
                                   {"draft", REPLY, TYPE_TEXT, AT(draft), 0, 0},
                                   {"decode", REPLY, TYPE_WHOLE, AT(decode), 0, INT32_MAX},
                                   {"user", REPLY | LENS, TYPE_OTHER, 0, 0, 0},
                                   {"metadata", REPLY | LENS, TYPE_OTHER, 0, 0, 0},
                                   {"store", REPLY, TYPE_OTHER, 0, 0, 0}};

enum { N_FIELDS = sizeof fields / sizeof *fields };

static bool read_number(void *to, const field_row *f, const json_t *v, api_error *e)
{
    const double x = json_number_value(v);
    if (!json_is_number(v)) return api_bad(e, f->name, "%s: expected a number, found %s", f->name, kind(v));
    if (!(x >= f->low && x <= f->high))
        return api_bad(e, f->name, "%s: expected a number from %g to %g, found %g", f->name, f->low, f->high, x);
    if (f->type == TYPE_NUMBER) *(double *)to = x;
    else if (x != 0) return api_bad(e, f->name, "%s: only 0 is supported; repeat_penalty is ours", f->name);
    return true;
}

static bool read_whole(void *to, const field_row *f, const json_t *v, api_error *e)
{
    const int64_t x = json_integer_value(v);
    if (!json_is_integer(v)) return api_bad(e, f->name, "%s: expected a whole number, found %s", f->name, kind(v));
    if ((double)x < f->low || (double)x > f->high)
        return api_bad(e, f->name, "%s: expected a whole number from %.0f to %.0f, found %lld", f->name, f->low,
                       f->high, (long long)x);
    if (f->type == TYPE_INT) *(int *)to = (int)x;
    else *(int64_t *)to = x;
    return true;
}

static bool read_text(api_request *r, const char **to, const field_row *f, const json_t *v, api_error *e)
{
    if (f->type == TYPE_WORD && json_is_integer(v)) {
        json_t *text = json_sprintf("%lld", (long long)json_integer_value(v));
        if (json_object_set_new(r->body, f->name, text) != 0) return no_memory(e);
        v = text;
    }
    if (!json_is_string(v) || !is_c_text(v))
        return api_bad(e, f->name, "%s: expected a text, found %s", f->name, kind(v));
    *to = json_string_value(v);
    return true;
}

/* True for values of unsupported fields that ask for nothing. */
static bool is_nothing(const json_t *v)
{
    return (json_is_object(v) && json_object_size(v) == 0) || (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_string(v) && strcmp(json_string_value(v), "none") == 0);
}

static bool read_field(api_request *r, const field_row *f, const json_t *v, api_error *e)
{
    void *to = (char *)r + f->at;
    if (!v) return true;
    switch (f->type) {
    case TYPE_BOOL:
        if (!json_is_boolean(v)) return api_bad(e, f->name, "%s: expected true or false, found %s", f->name, kind(v));
        *(bool *)to = json_is_true(v);
        return true;
    case TYPE_NUMBER:
    case TYPE_ZERO: return read_number(to, f, v, e);
    case TYPE_INT:
    case TYPE_WHOLE: return read_whole(to, f, v, e);
    case TYPE_TEXT:
    case TYPE_WORD: return read_text(r, to, f, v, e);
    case TYPE_UNSUPPORTED: return is_nothing(v) || api_bad(e, f->name, "%s: is not supported here", f->name);
    default: return true;
    }
}

/* Reads the fields of a kind of request, and lists or refuses all others. */
static bool read_fields(api_request *r, api_kind of, bool strict, api_error *e)
{
    const char *name;
    json_t *v;
    json_object_foreach(r->body, name, v)
    {
        bool known = json_is_null(v);
        for (size_t i = 0; i < N_FIELDS; i++)
            known |= (fields[i].kinds & 1u << of) && strcmp(name, fields[i].name) == 0;
        if (!known && strict) return api_bad(e, name, "unknown field '%.60s'", name);
        if (!known && json_array_append_new(r->ignored, json_string(name)) != 0) return no_memory(e);
    }
    for (const field_row *f = fields; f < fields + N_FIELDS; f++)
        if ((f->kinds & 1u << of) && !read_field(r, f, field(r->body, f->name), e)) return false;
    return true;
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

/* Replaces the parts of a message by their texts, one after the other. */
static bool join_parts(json_t *message, const json_t *parts, api_error *e)
{
    buffer all = {0};
    err why = {0};
    bool good = true;
    for (size_t i = 0; i < json_array_size(parts) && good; i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text) || !is_c_text(text))
            good = api_bad(e, "messages", "messages: parts of type text alone are known, found %.40s",
                           type ? type : "a part without a type");
        else if (buffer_add(&all, json_string_value(text), json_string_length(text), &why) != ST_OK)
            good = no_memory(e);
    }
    if (good && json_object_set_new(message, "content", json_stringn(all.p ? all.p : "", all.n)) != 0)
        good = no_memory(e);
    mem_free(all.p);
    return good;
}

static bool read_message(chat_message *m, json_t *v, api_error *e)
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
    if (json_is_array(content)) {
        if (!join_parts(v, content, e)) return false;
        content = json_object_get(v, "content");
    }
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
        if (!read_message(&r->messages[i], json_array_get(list, i), e)) return false;
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

static bool read_stream_options(api_request *r, const json_t *o, api_error *e)
{
    static const field_row usage = {"include_usage", REPLY, TYPE_BOOL, AT(include_usage), 0, 0};
    if (o && !json_is_object(o)) return api_bad(e, "stream_options", "stream_options: expected an object");
    return read_field(r, &usage, field(o, "include_usage"), e);
}

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

/* Checks fields against each other. */
static bool check_reply(api_request *r, api_error *e)
{
    const json_t *format = field(r->body, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format && (!type || strcmp(type, "text") != 0))
        return api_bad(e, "response_format", "response_format: only {\"type\": \"text\"} is supported");
    if (r->max_tokens == 0 && !r->echo) return api_bad(e, "max_tokens", "max_tokens: 0 needs echo");
    if (r->best_of > r->n) return api_bad(e, "best_of", "best_of: %d is more than n", r->best_of);
    if (r->chat && r->top_logprobs > 0 && !r->logprobs)
        return api_bad(e, "top_logprobs", "top_logprobs needs logprobs");
    return true;
}

static bool read_reply(api_request *r, api_error *e)
{
    if (!check_reply(r, e) || !read_stops(r, field(r->body, "stop"), e) ||
        !read_stream_options(r, field(r->body, "stream_options"), e))
        return false;
    if (!r->chat) r->logprobs = r->top_logprobs >= 0;
    if (r->top_logprobs < 0) r->top_logprobs = 0;
    if (r->sampling.top_k < 0) r->sampling.top_k = 0; /* -1, as others have it: off */
    r->seeded = field(r->body, "seed") != NULL;
    return true;
}

static bool read_lens(api_request *r, api_error *e)
{
    r->lens = r->stream = true;
    if (r->n_prompts > 1) return api_bad(e, "prompt", "prompt: a lens has one, found %zu", r->n_prompts);
    return read_strategies(r, field(r->body, "strategies"), e);
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

bool api_read(api_request *r, api_kind of, const char *body, size_t n, bool strict, api_error *e)
{
    static const int64_t max_tokens[] = {[API_COMPLETION] = 16, [API_CHAT] = -1, [API_LENS] = 32};
    *r = (api_request){.body = api_parse(body, n, e),
                       .ignored = json_array(),
                       .max_tokens = max_tokens[of],
                       .n = 1,
                       .sampling = {.temp = 1, .top_p = 1, .repeat_penalty = 1},
                       .top_logprobs = -1,
                       .cache_prefix = true,
                       .decode = -1};
    const json_t *messages = field(r->body, "messages");
    bool good = r->body && (r->ignored || no_memory(e));
    r->chat = of == API_CHAT || (of == API_LENS && messages);
    if (good) good = r->chat ? api_read_messages(r, messages, e) : read_prompts(r, field(r->body, "prompt"), e);
    if (good) good = read_fields(r, of, strict, e) && (of == API_LENS ? read_lens(r, e) : read_reply(r, e));
    if (!good) api_free(r);
    return good;
}

void api_free(api_request *r)
{
    for (size_t i = 0; i < r->n_prompts; i++) token_list_free(&r->prompts[i].ids);
    mem_free(r->prompts);
    mem_free(r->messages);
    json_decref(r->ignored);
    json_decref(r->body);
    *r = (api_request){0};
}
