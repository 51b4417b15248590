/* SPDX-License-Identifier: MIT */
/* Request bodies. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "serve/api_impl.h"
#include "serve/api_translate.h"

/* ---- fields ---- */

/* Types of fields. The types before TYPE_UNSUPPORTED are stored at an offset of the request. A word is an option value,
 * given as a string or an integer. */
typedef enum {
    TYPE_BOOL,
    TYPE_NUMBER,
    TYPE_INT,
    TYPE_WHOLE, /* int64_t */
    TYPE_TEXT,
    TYPE_WORD,
    TYPE_UNSUPPORTED, /* refused, since it would change the answer */
    TYPE_OTHER        /* read elsewhere, or ignored */
} field_type;

enum { COMPLETION = 1 << API_COMPLETION, CHAT = 1 << API_CHAT, REPLY = COMPLETION | CHAT, LENS = 1 << API_LENS };

typedef struct {
    const char *name;
    unsigned kinds; /* bit set of the request kinds that have the field */
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
                                   {"chat_template_kwargs", CHAT | LENS, TYPE_OTHER, 0, 0, 0},
                                   {"echo", COMPLETION, TYPE_BOOL, AT(echo), 0, 0},
                                   {"tools", COMPLETION, TYPE_UNSUPPORTED, 0, 0, 0},
                                   {"tools", CHAT, TYPE_OTHER, 0, 0, 0},
                                   {"tool_choice", CHAT, TYPE_OTHER, 0, 0, 0},
                                   {"parallel_tool_calls", CHAT, TYPE_OTHER, 0, 0, 0},
                                   {"reasoning_effort", CHAT | LENS, TYPE_OTHER, 0, 0, 0},
                                   {"thinking_budget", CHAT, TYPE_WHOLE, AT(thinking_budget), 0, INT32_MAX},
                                   {"continue_final_message", CHAT | LENS, TYPE_OTHER, 0, 0, 0},
                                   {"tool_choice", COMPLETION, TYPE_UNSUPPORTED, 0, 0, 0},
                                   {"functions", REPLY, TYPE_UNSUPPORTED, 0, 0, 0},
                                   {"suffix", REPLY, TYPE_UNSUPPORTED, 0, 0, 0},
                                   {"logit_bias", REPLY, TYPE_UNSUPPORTED, 0, 0, 0},
                                   {"presence_penalty", REPLY, TYPE_NUMBER, AT(sampling.presence_penalty), -2, 2},
                                   {"frequency_penalty", REPLY, TYPE_NUMBER, AT(sampling.frequency_penalty), -2, 2},
                                   {"json_whitespace", REPLY, TYPE_OTHER, 0, 0, 0},
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
                                   {"repeat_penalty", REPLY, TYPE_NUMBER, AT(sampling.repeat_penalty), 0.01, 10},
                                   {"repetition_penalty", REPLY, TYPE_NUMBER, AT(sampling.repeat_penalty), 0.01, 10},
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
                                   {"return_progress", REPLY | LENS, TYPE_BOOL, AT(return_progress), 0, 0},
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
    if (!json_is_number(v)) return api_bad(e, f->name, "%s: expected a number, found %s", f->name, api_type_name(v));
    if (!(x >= f->low && x <= f->high))
        return api_bad(e, f->name, "%s: expected a number from %g to %g, found %g", f->name, f->low, f->high, x);
    *(double *)to = x;
    return true;
}

static bool read_whole(void *to, const field_row *f, const json_t *v, api_error *e)
{
    const double real = json_real_value(v);
    const bool whole = json_is_real(v) && real == floor(real) && fabs(real) < 9.2e18; /* 16.0 is the integer 16 */
    const int64_t x = whole ? (int64_t)real : json_integer_value(v);
    if (!json_is_integer(v) && !whole)
        return api_bad(e, f->name, "%s: expected an integer, found %s", f->name, api_type_name(v));
    if ((double)x < f->low || (double)x > f->high)
        return api_bad(e, f->name, "%s: expected an integer from %.0f to %.0f, found %lld", f->name, f->low, f->high,
                       (long long)x);
    if (f->type == TYPE_INT) *(int *)to = (int)x;
    else *(int64_t *)to = x;
    return true;
}

static bool read_text(api_request *r, const char **to, const field_row *f, const json_t *v, api_error *e)
{
    if (f->type == TYPE_WORD && json_is_integer(v)) {
        json_t *text = json_sprintf("%lld", (long long)json_integer_value(v));
        if (json_object_set_new(r->body, f->name, text) != 0) return api_no_memory(e);
        v = text;
    }
    if (!api_is_text(v)) return api_bad(e, f->name, "%s: expected a string, found %s", f->name, api_type_name(v));
    *to = json_string_value(v);
    return true;
}

/* True for a value of an unsupported field that has no effect. */
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
        if (!json_is_boolean(v))
            return api_bad(e, f->name, "%s: expected true or false, found %s", f->name, api_type_name(v));
        *(bool *)to = json_is_true(v);
        return true;
    case TYPE_NUMBER: return read_number(to, f, v, e);
    case TYPE_INT:
    case TYPE_WHOLE: return read_whole(to, f, v, e);
    case TYPE_TEXT:
    case TYPE_WORD: return read_text(r, to, f, v, e);
    case TYPE_UNSUPPORTED: return is_nothing(v) || api_bad(e, f->name, "%s: unsupported field", f->name);
    default: return true;
    }
}

/* Reads the fields of a request kind. Other fields are listed as ignored, or refused. */
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
        if (!known && json_array_append_new(r->ignored, json_string(name)) != 0) return api_no_memory(e);
    }
    for (const field_row *f = fields; f < fields + N_FIELDS; f++)
        if ((f->kinds & 1u << of) && !read_field(r, f, api_field(r->body, f->name), e)) return false;
    return true;
}

/* ---- prompts ---- */

bool api_read_ids(token_list *out, const json_t *list, const char *param, api_error *e)
{
    err why = {0};
    if (!json_is_array(list)) return api_bad(e, param, "%s: expected an array of token ids", param);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        int64_t id = json_integer_value(v);
        if (!json_is_integer(v)) return api_bad(e, param, "%s: expected token ids, found %s", param, api_type_name(v));
        if (id < 0 || id > INT32_MAX)
            return api_bad(e, param, "%s: token id %lld is outside the vocabulary", param, (long long)id);
        if (token_list_push(out, (int32_t)id, &why) != ST_OK) return api_fail(e, 500, NULL, "%s", why.msg);
    }
    return true;
}

static bool read_prompt(api_prompt *p, const json_t *v, api_error *e)
{
    if (json_is_array(v)) return api_read_ids(&p->ids, v, "prompt", e);
    if (!json_is_string(v))
        return api_bad(e, "prompt", "prompt: expected a string or token ids, found %s", api_type_name(v));
    p->text = json_string_value(v);
    p->n = json_string_length(v);
    return true;
}

/* Reads a text, token ids, or a list of either. */
static bool read_prompts(api_request *r, const json_t *v, api_error *e)
{
    err why = {0};
    if (!v) return api_bad(e, "prompt", "prompt: missing");
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

/* ---- other fields ---- */

static bool read_stops(api_request *r, const json_t *v, api_error *e)
{
    if (!v) return true;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > API_MAX_STOPS) return api_bad(e, "stop", "stop: %zu strings, expected at most %d", n, API_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(v) ? json_array_get(v, i) : v;
        if (!api_is_text(text) || !*json_string_value(text))
            return api_bad(e, "stop", "stop: expected non-empty strings without U+0000");
        r->stop[r->n_stop++] = json_string_value(text);
    }
    return true;
}

static bool read_stream_options(api_request *r, const json_t *o, api_error *e)
{
    static const field_row usage = {"include_usage", REPLY, TYPE_BOOL, AT(include_usage), 0, 0};
    if (o && !json_is_object(o)) return api_bad(e, "stream_options", "stream_options: expected an object");
    return read_field(r, &usage, api_field(o, "include_usage"), e);
}

static bool read_strategies(api_request *r, const json_t *list, api_error *e)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n < 1 || n > API_MAX_STRATEGIES)
        return api_bad(e, "strategies", "strategies: expected an array of 1 to %d strings", API_MAX_STRATEGIES);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_array_get(list, i);
        if (!api_is_text(text))
            return api_bad(e, "strategies", "strategies: expected strings, found %s", api_type_name(text));
        r->strategies[r->n_strategies++] = json_string_value(text);
    }
    return true;
}

/* Refuses a maximum of 0 new tokens by the field that set it. */
static bool no_tokens(const api_request *r, api_error *e)
{
    const bool newer = r->chat && api_field(r->body, "max_completion_tokens");
    const char *name = newer ? "max_completion_tokens" : "max_tokens";
    return api_bad(e, name, r->chat ? "%s: must be at least 1" : "%s: 0 requires echo", name);
}

/* Checks fields that depend on each other. */
static bool check_reply(api_request *r, api_error *e)
{
    if (!api_read_format(r, e)) return false;
    if (r->max_tokens == 0 && !r->echo) return no_tokens(r, e);
    if (r->best_of > r->n) return api_bad(e, "best_of", "best_of: %d, expected at most n", r->best_of);
    if (r->chat && r->top_logprobs > 0 && !r->logprobs)
        return api_bad(e, "top_logprobs", "top_logprobs: requires logprobs");
    return true;
}

static bool read_reply(api_request *r, api_error *e)
{
    if (!check_reply(r, e) || !read_stops(r, api_field(r->body, "stop"), e) ||
        !read_stream_options(r, api_field(r->body, "stream_options"), e))
        return false;
    if (!r->chat) r->logprobs = r->top_logprobs >= 0;
    if (r->top_logprobs < 0) r->top_logprobs = 0;
    if (r->sampling.top_k < 0) r->sampling.top_k = 0; /* -1: off, as in other servers */
    r->seeded = api_field(r->body, "seed") != NULL;
    return true;
}

static bool read_lens(api_request *r, api_error *e)
{
    r->lens = r->stream = true;
    if (r->n_prompts > 1)
        return api_bad(e, "prompt", "prompt: expected one prompt for a lens, found %zu", r->n_prompts);
    return read_strategies(r, api_field(r->body, "strategies"), e);
}

json_t *api_parse(const char *body, size_t n, api_error *e)
{
    json_t *j;
    err why = {0};
    const size_t mark = file_mark(body, n);
    status st = json_parse_data(&j, body + mark, n - mark, "the body", API_MAX_DEPTH, &why);
    if (st == ST_OK) return j;
    if (st == ST_NOMEM) api_fail(e, 500, NULL, "%s", why.msg);
    else api_fail(e, 400, NULL, "%s", why.msg);
    return NULL;
}

sampler_options api_sampling(void)
{
    return (sampler_options){.temp = 1, .top_p = 1, .repeat_penalty = 1};
}

/* Replaces the body of another API by that of a chat. */
static bool translate(api_request *r, api_kind of, api_error *e)
{
    json_t *from = r->body;
    r->style = of == API_MESSAGE ? API_MESSAGES : API_RESPONSES;
    r->body = of == API_MESSAGE ? api_from_messages(from, r->ignored, false, e)
                                : api_from_responses(from, r->ignored, false, e);
    r->original = from;
    return r->body != NULL;
}

bool api_read(api_request *r, api_kind of, const char *body, size_t n, const api_rules *rules, api_error *e)
{
    static const int64_t max_tokens[] = {
        [API_COMPLETION] = 16, [API_CHAT] = -1, [API_LENS] = 32, [API_MESSAGE] = -1, [API_RESPONSE] = -1};
    *r = (api_request){.body = api_parse(body, n, e),
                       .ignored = json_array(),
                       .max_tokens = max_tokens[of],
                       .thinking_budget = -1,
                       .n = 1,
                       .sampling = rules->sampling,
                       .top_logprobs = -1,
                       .cache_prefix = true,
                       .decode = -1};
    bool good = r->body && (r->ignored || api_no_memory(e));
    if (good && of >= API_MESSAGE) good = translate(r, of, e);
    if (of >= API_MESSAGE) of = API_CHAT;
    const json_t *messages = api_field(r->body, "messages");
    r->chat = of == API_CHAT || (of == API_LENS && messages);
    if (good) good = r->chat ? api_read_chat(r, rules, e) : read_prompts(r, api_field(r->body, "prompt"), e);
    if (good) good = read_fields(r, of, rules->strict, e) && (of == API_LENS ? read_lens(r, e) : read_reply(r, e));
    if (!good) api_free(r);
    return good;
}

void api_free(api_request *r)
{
    for (size_t i = 0; i < r->n_prompts; i++) token_list_free(&r->prompts[i].ids);
    mem_free(r->prompts);
    json_decref(r->ignored);
    json_decref(r->effort);
    json_decref(r->original);
    json_decref(r->changes);
    json_decref(r->body);
    *r = (api_request){0};
}
