/* SPDX-License-Identifier: MIT */
/* Paths, and answers that need no model. */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/base/mem.h"
#include "serve/api_translate.h"
#include "serve/http.h"
#include "serve/metrics.h"

static const struct {
    const char *method, *path;
    http_route route;
} paths[] = {{"GET", "/health", ROUTE_HEALTH},
             {"GET", "/v1/models", ROUTE_MODELS},
             {"GET", "/v1/models/", ROUTE_MODELS},
             {"GET", "/metrics", ROUTE_METRICS},
             {"GET", "/tokenizer_info", ROUTE_INFO},
             {"POST", "/tokenize", ROUTE_TOKENIZE},
             {"POST", "/detokenize", ROUTE_DETOKENIZE},
             {"POST", "/v1/completions", ROUTE_COMPLETIONS},
             {"POST", "/v1/chat/completions", ROUTE_CHAT},
             {"POST", "/v1/messages", ROUTE_MESSAGES},
             {"POST", "/v1/messages/count_tokens", ROUTE_COUNT},
             {"POST", "/v1/responses", ROUTE_RESPONSES},
             {"POST", "/v1/responses/input_tokens", ROUTE_INPUT_TOKENS},
             {"GET", "/api/hello", ROUTE_HELLO},
             {"GET", "/", ROUTE_PAGE},
             {"GET", "/lens", ROUTE_PAGE},
             {"POST", "/lens", ROUTE_LENS},
             {"GET", "/lens/", ROUTE_LENS_MAP}};

/* True if a path is `own`, with or without a final slash. */
static bool is_path(const char *own, const char *path)
{
    const size_t n = strlen(own);
    return strncmp(own, path, n) == 0 && (!path[n] || (n > 1 && strcmp(path + n, "/") == 0));
}

bool http_find(http_route *out, const char *method, const char *path, const char **rest, const char **takes,
               api_error *e)
{
    *takes = NULL;
    *rest = NULL;
    while (path[0] == '/' && path[1] == '/') path++; /* a base URL that ends with a slash */
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        const char *own = paths[i].path;
        size_t n = strlen(own);
        bool begins = n > 1 && own[n - 1] == '/'; /* the remaining path is `rest` */
        if (begins ? strncmp(own, path, n) != 0 || !path[n] : !is_path(own, path)) continue;
        *rest = begins ? path + n : NULL;
        *out = paths[i].route;
        if (strcmp(paths[i].method, method) == 0) return true;
        if (strcmp(paths[i].method, "GET") == 0 && strcmp(method, "HEAD") == 0) return true;
        *takes = paths[i].method;
    }
    if (*takes) return api_fail(e, 405, NULL, "%.100s: expected method %s, found %.16s", path, *takes, method);
    return api_fail(e, 404, NULL, "unknown path %.100s", path);
}

/* ---- counts ---- */

static const int statuses[HTTP_STATUSES] = {200, 204, 400, 401, 403, 404, 405, 413, 415, 421, 429, 499, 500, 503, 0};
static const char *const reasons[HTTP_REASONS] = {
    "queue_full", "memory_exceeded", "draining", "context_length_exceeded", "invalid_api_key", "other"};

void http_count(http_counts *c, http_route route, int http_status, const char *code)
{
    int i = 0, k = 0;
    if (http_status == 0) http_status = 499;
    while (i < HTTP_STATUSES - 1 && statuses[i] != http_status) i++;
    c->requests[route][i]++;
    while (k < HTTP_REASONS - 1 && (!code || strcmp(code, reasons[k]) != 0)) k++;
    if (http_status >= 400 && http_status != 499) c->refused[k]++;
}

const char *http_path(http_route route)
{
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (paths[i].route == route) return paths[i].path;
    return "other";
}

char *http_metrics(const http_counts *c, scheduler *s)
{
    metric all[N_ROUTES * HTTP_STATUSES], refused[HTTP_REASONS];
    size_t n = 0, size;
    char *text = NULL;
    FILE *f = open_memstream(&text, &size);
    if (!f) return NULL;
    for (int r = 0; r < N_ROUTES; r++)
        for (int i = 0; i < HTTP_STATUSES; i++) {
            if (c->requests[r][i] == 0) continue;
            metric *m = &all[n++];
            *m = (metric){"kvasir_requests_total", "", c->requests[r][i]};
            snprintf(m->label, sizeof m->label, "endpoint=\"%s\",status=\"%d\"", http_path((http_route)r), statuses[i]);
        }
    for (int i = 0; i < HTTP_REASONS; i++) {
        refused[i] = (metric){"kvasir_refused_total", "", c->refused[i]};
        snprintf(refused[i].label, sizeof refused[i].label, "reason=\"%s\"", reasons[i]);
    }
    metrics_write(f, "counter", all, n);
    metrics_write(f, "counter", refused, HTTP_REASONS);
    sched_metrics(s, f);
    fclose(f);
    return text;
}

/* ---- answers ---- */

static char *text_of(json_t *j)
{
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}

static json_t *model_json(const http_options *o, const char *id, api_style style)
{
    const call_support *c = o->rules.calls;
    const time_t created = (time_t)o->created;
    char at[32];
    struct tm utc;
    strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&created, &utc));
    if (style == API_MESSAGES)
        return json_pack("{s:s, s:s, s:s, s:s, s:s, s:I}", "type", "model", "id", id, "display_name", id, "created_at",
                         at, "lifecycle", "active", "max_input_tokens", (json_int_t)sched_options_of(o->sched)->ctx);
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:{s:s?, s:b}}", "id", id, "object", "model", "created",
                     (json_int_t)o->created, "owned_by", "kvasir", "max_model_len",
                     (json_int_t)sched_options_of(o->sched)->ctx, "kvasir", "tool_calls",
                     c && c->format ? c->format->name : NULL, "thinking", c && c->think_close);
}

char *http_models(const http_options *o, const char *id, api_style style, api_error *e)
{
    const sched_options *s = sched_options_of(o->sched);
    json_t *list = json_array(), *one = NULL;
    for (size_t i = 0; i <= s->n_aliases && !one; i++) {
        const char *name = i ? s->aliases[i - 1].name : s->model;
        if (!id) json_array_append_new(list, model_json(o, name, style));
        else if (strcmp(id, name) == 0) one = model_json(o, name, style);
    }
    if (!id && style == API_MESSAGES)
        return text_of(json_pack("{s:o, s:b, s:s, s:s}", "data", list, "has_more", 0, "first_id", s->model, "last_id",
                                 s->n_aliases ? s->aliases[s->n_aliases - 1].name : s->model));
    if (!id) return text_of(json_pack("{s:s, s:o}", "object", "list", "data", list));
    json_decref(list);
    if (!one) api_fail(e, 404, "model_not_found", "unknown model '%.80s'; this server has '%.80s'", id, s->model);
    return text_of(one);
}

/* Returns the text of a token, or null. */
static json_t *spelling(const tokenizer *t, int32_t id)
{
    err e = {0};
    char *text;
    size_t n;
    if (id < 0 || tokenizer_bytes(t, id, &text, &n, &e) != ST_OK) return json_null();
    json_t *j = json_stringn(text, n);
    mem_free(text);
    return j ? j : json_null();
}

char *http_info(const http_options *o)
{
    const sched_options *s = sched_options_of(o->sched);
    err e = {0};
    token_list eos = {0};
    (void)tokenizer_eos_ids(s->tok, &eos, &e);
    json_t *j = json_pack("{s:o, s:o, s:n, s:n, s:I}", "bos_token", spelling(s->tok, tokenizer_bos(s->tok)),
                          "eos_token", spelling(s->tok, eos.n ? eos.ids[0] : -1), "pad_token", "chat_template",
                          "max_length", (json_int_t)s->ctx);
    token_list_free(&eos);
    return text_of(j);
}

/* Encodes the text or the messages of a body. */
static bool encode(const http_options *o, api_request *r, token_list *out, api_error *e)
{
    const json_t *text = json_object_get(r->body, "prompt"), *list = json_object_get(r->body, "messages");
    const bool bos = !json_is_false(json_object_get(r->body, "add_special_tokens"));
    err why = {0};
    status st = ST_OK;
    if (!text) text = json_object_get(r->body, "content");
    if (list && !api_read_chat(r, &o->rules, e)) return false;
    if (!list && !json_is_string(text)) return api_bad(e, "prompt", "prompt: expected a string");
    chat_text rendered = {0};
    if (list) st = api_render_chat(o->sched, r, &rendered, &why);
    if (list && st == ST_OK) st = sched_encode_chat(o->sched, &rendered, out, &why);
    if (!list) st = sched_encode(o->sched, json_string_value(text), json_string_length(text), bos, out, &why);
    chat_text_free(&rendered);
    return st == ST_OK || api_bad(e, list ? "messages" : "prompt", "%s", why.msg);
}

char *http_count_tokens(const http_options *o, api_style style, const char *body, size_t n, api_error *e)
{
    json_t *from = api_parse(body, n, e);
    api_request r = {.ignored = json_array()};
    token_list ids = {0};
    char *text = NULL;
    if (from)
        r.body = style == API_MESSAGES ? api_from_messages(from, r.ignored, true, e)
                                       : api_from_responses(from, r.ignored, true, e);
    if (r.body && encode(o, &r, &ids, e))
        text = text_of(json_pack("{s:I, s:s*}", "input_tokens", (json_int_t)ids.n, "object",
                                 style == API_RESPONSES ? "response.input_tokens" : NULL));
    token_list_free(&ids);
    json_decref(from);
    api_free(&r);
    return text;
}

char *http_tokenize(const http_options *o, const char *body, size_t n, api_error *e)
{
    api_request r = {.body = api_parse(body, n, e)};
    token_list ids = {0};
    char *text = NULL;
    if (!r.body) return NULL;
    if (encode(o, &r, &ids, e))
        text = text_of(json_pack("{s:o, s:I, s:I}", "tokens", api_ids(ids.ids, ids.n), "count", (json_int_t)ids.n,
                                 "max_model_len", (json_int_t)sched_options_of(o->sched)->ctx));
    token_list_free(&ids);
    api_free(&r);
    return text;
}

char *http_detokenize(const http_options *o, const char *body, size_t n, api_error *e)
{
    json_t *j = api_parse(body, n, e);
    token_list ids = {0};
    char *text = NULL, *answer = NULL;
    size_t len;
    err why = {0};
    if (!j) return NULL;
    if (api_read_ids(&ids, json_object_get(j, "tokens"), "tokens", e)) {
        if (tokenizer_decode(sched_options_of(o->sched)->tok, ids.ids, ids.n, true, &text, &len, &why) == ST_OK)
            answer = text_of(json_pack("{s:s%}", "prompt", text, len));
        else api_fail(e, 500, NULL, "%s", why.msg);
    }
    mem_free(text);
    token_list_free(&ids);
    json_decref(j);
    return answer;
}
