/* SPDX-License-Identifier: MIT */
/* Paths, and the answers that need no model. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
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
             {"GET", "/", ROUTE_PAGE},
             {"GET", "/lens", ROUTE_PAGE},
             {"POST", "/lens", ROUTE_LENS},
             {"GET", "/lens/", ROUTE_LENS_MAP}};

bool http_find(http_route *out, const char *method, const char *path, const char **rest, api_error *e)
{
    const char *takes = NULL;
    *rest = NULL;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        const char *own = paths[i].path;
        size_t n = strlen(own);
        bool begins = n > 1 && own[n - 1] == '/'; /* what follows is `rest` */
        if (begins ? strncmp(own, path, n) != 0 : strcmp(own, path) != 0) continue;
        *rest = begins ? path + n : NULL;
        *out = paths[i].route;
        if (strcmp(paths[i].method, method) == 0) return true;
        if (strcmp(paths[i].method, "GET") == 0 && strcmp(method, "HEAD") == 0) return true;
        takes = paths[i].method;
    }
    if (takes) return api_fail(e, 405, NULL, "%.100s takes %s, found %.16s", path, takes, method);
    return api_fail(e, 404, NULL, "there is no %.100s here", path);
}

/* ---- counts ---- */

static const int statuses[HTTP_STATUSES] = {200, 204, 400, 401, 403, 404, 405, 413, 421, 429, 499, 500, 503, 0};
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

static const char *path_of(int route)
{
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if ((int)paths[i].route == route) return paths[i].path;
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
            snprintf(m->label, sizeof m->label, "endpoint=\"%s\",status=\"%d\"", path_of(r), statuses[i]);
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

static json_t *model_json(const http_options *o, const char *id)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:I}", "id", id, "object", "model", "created", (json_int_t)o->created,
                     "owned_by", "kvasir", "max_model_len", (json_int_t)sched_options_of(o->sched)->ctx);
}

char *http_models(const http_options *o, const char *id, api_error *e)
{
    const sched_options *s = sched_options_of(o->sched);
    json_t *list = json_array(), *one = NULL;
    for (size_t i = 0; i <= s->n_aliases && !one; i++) {
        const char *name = i ? s->aliases[i - 1].name : s->model;
        if (!id) json_array_append_new(list, model_json(o, name));
        else if (strcmp(id, name) == 0) one = model_json(o, name);
    }
    if (!id) return text_of(json_pack("{s:s, s:o}", "object", "list", "data", list));
    json_decref(list);
    if (!one) api_fail(e, 404, "model_not_found", "there is no model '%.80s' here, only '%.80s'", id, s->model);
    return text_of(one);
}

/* The spelling of a token, or null. */
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

/* Encodes a text with its special tokens, and BOS unless the body refuses it. */
static status encode_text(scheduler *s, const json_t *text, bool bos, token_list *out, err *e)
{
    const int32_t first = tokenizer_bos(sched_options_of(s)->tok);
    TRY(sched_encode(s, json_string_value(text), json_string_length(text), TOKENIZE_SPECIAL, out, e));
    if (!bos || !tokenizer_adds_bos(sched_options_of(s)->tok) || (out->n > 0 && out->ids[0] == first)) return ST_OK;
    TRY(token_list_push(out, first, e));
    memmove(out->ids + 1, out->ids, (out->n - 1) * sizeof *out->ids);
    out->ids[0] = first;
    return ST_OK;
}

/* Encodes the text, or the conversation, of a body. */
static bool encode(const http_options *o, api_request *r, token_list *out, api_error *e)
{
    const json_t *text = json_object_get(r->body, "prompt"), *list = json_object_get(r->body, "messages");
    const bool bos = !json_is_false(json_object_get(r->body, "add_special_tokens"));
    err why = {0};
    status st;
    if (!text) text = json_object_get(r->body, "content");
    if (list && !api_read_messages(r, list, e)) return false;
    if (!list && !json_is_string(text)) return api_bad(e, "prompt", "prompt: expected a text");
    if (list) st = sched_encode_chat(o->sched, r->messages, r->n_messages, out, &why);
    else st = encode_text(o->sched, text, bos, out, &why);
    return st == ST_OK || api_bad(e, list ? "messages" : "prompt", "%s", why.msg);
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
