/* SPDX-License-Identifier: MIT */
/* Answers as JSON. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/utf8.h"
#include "serve/api.h"

status buffer_add(buffer *b, const char *text, size_t n, err *e)
{
    if (b->at == b->n) b->at = b->n = 0;
    TRY(MEM_ROOM(&b->p, &b->cap, b->n + n, e));
    if (n) memcpy(b->p + b->n, text, n);
    b->n += n;
    return ST_OK;
}

int64_t api_characters(const char *text, size_t n)
{
    int64_t k = 0;
    for (size_t i = 0; i < n; i++) k += ((unsigned char)text[i] & 0xc0) != 0x80;
    return k;
}

static bool is_utf8(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int k = utf8_valid_len((const unsigned char *)s + i, n - i);
        if (k == 0) return false;
        i += (size_t)k;
    }
    return true;
}

/* JSON has no infinity: writes -9999 like OpenAI's servers. */
static json_t *logprob_json(float x)
{
    return json_real(isfinite(x) ? (double)x : -9999.0);
}

/* Returns the text of a token, or `bytes:\xe2\x80` for bytes that are not valid UTF-8. */
static json_t *token_text(const char *bytes, size_t n)
{
    char out[6 + 4 * 64 + 1] = "bytes:";
    size_t at = 6;
    if (is_utf8(bytes, n)) return json_stringn(bytes, n);
    for (size_t i = 0; i < n && i < 64; i++)
        at += (size_t)snprintf(out + at, sizeof out - at, "\\x%02x", (unsigned char)bytes[i]);
    return json_string(out);
}

/* Returns a token of a chat's logprobs: {"token","logprob","bytes"}. */
static json_t *chat_token(const api_head *h, const api_score *s)
{
    err e = {0};
    char *bytes;
    size_t n;
    if (tokenizer_bytes(h->tok, s->id, &bytes, &n, &e) != ST_OK) return NULL;
    json_t *list = json_array();
    for (size_t i = 0; i < n && list; i++)
        if (json_array_append_new(list, json_integer((unsigned char)bytes[i])) != 0) json_decref(list), list = NULL;
    json_t *j =
        json_pack("{s:o, s:o, s:o}", "token", token_text(bytes, n), "logprob", logprob_json(s->logprob), "bytes", list);
    mem_free(bytes);
    return j;
}

static json_t *chat_logprobs(const api_head *h, const api_choice *c)
{
    json_t *content = json_array();
    for (size_t i = 0; i < c->n_tokens; i++) {
        const api_token *t = &c->tokens[i];
        json_t *one = chat_token(h, &t->own), *top = json_array();
        for (int k = 0; k < t->n_top; k++) json_array_append_new(top, chat_token(h, &t->top[k]));
        if (json_object_set_new(one, "top_logprobs", top) != 0 || json_array_append_new(content, one) != 0) {
            json_decref(content);
            return NULL;
        }
    }
    return json_pack("{s:o, s:n}", "content", content, "refusal");
}

/* Returns the best tokens of a row by text. Of two tokens with the same text, the more likely one counts. */
static json_t *top_of(const api_head *h, const api_token *t)
{
    json_t *out = json_object();
    for (int k = 0; k <= t->n_top; k++) {
        const api_score *s = k < t->n_top ? &t->top[k] : &t->own;
        err e = {0};
        char *bytes;
        size_t n;
        if (tokenizer_bytes(h->tok, s->id, &bytes, &n, &e) != ST_OK) continue;
        json_t *text = token_text(bytes, n);
        const char *key = json_string_value(text);
        if (key && !json_object_get(out, key)) json_object_set_new(out, key, logprob_json(s->logprob));
        json_decref(text);
        mem_free(bytes);
    }
    return out;
}

static json_t *completion_logprobs(const api_head *h, const api_choice *c)
{
    json_t *tokens = json_array(), *own = json_array(), *top = json_array(), *offset = json_array();
    int64_t at = c->text_offset;
    for (size_t i = 0; i < c->n_tokens; i++) {
        const api_token *t = &c->tokens[i];
        err e = {0};
        char *bytes = NULL;
        size_t n = 0;
        (void)tokenizer_bytes(h->tok, t->own.id, &bytes, &n, &e);
        json_array_append_new(tokens, token_text(bytes ? bytes : "", n));
        json_array_append_new(own, t->known ? logprob_json(t->own.logprob) : json_null());
        json_array_append_new(top, t->known ? top_of(h, t) : json_null());
        json_array_append_new(offset, json_integer(at));
        bool shown = !tokenizer_is_special(h->tok, t->own.id);
        /* the first word of a text loses its space */
        if (shown && at == 0 && n && bytes[0] == ' ' && c->n_text && c->text[0] != ' ') at = -1;
        if (shown) at += api_characters(bytes ? bytes : "", n);
        mem_free(bytes);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", own, "top_logprobs", top,
                     "text_offset", offset);
}

json_t *api_ids(const int32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

/* ---- chat replies ---- */

static const char *text_of(const api_events *l, const api_event *v)
{
    return l->text.p + v->at;
}

/* Returns a call without arguments. */
static json_t *call_json(const api_events *l, const api_event *v, bool chunk)
{
    const char *name = text_of(l, v), *id = name + strlen(name) + 1;
    json_t *j = json_pack("{s:s%, s:s, s:{s:s, s:s}}", "id", id, v->n - strlen(name) - 1, "type", "function",
                          "function", "name", name, "arguments", "");
    if (chunk) json_object_set_new(j, "index", json_integer(v->index));
    return j;
}

/* Appends text to the string at key. */
static void append(json_t *o, const char *key, const char *text, size_t n)
{
    const json_t *before = json_object_get(o, key);
    if (!json_is_string(before)) json_object_set_new(o, key, json_stringn(text, n));
    else json_object_set_new(o, key, json_pack("s%+%", json_string_value(before), json_string_length(before), text, n));
}

json_t *api_message_json(const api_events *l)
{
    json_t *m = json_pack("{s:s, s:n, s:n}", "role", "assistant", "content", "refusal"), *calls = json_array();
    for (size_t i = 0; i < l->n; i++) {
        const api_event *v = &l->list[i];
        json_t *call = json_array_get(calls, json_array_size(calls) - 1);
        if (v->what == CALL_TEXT) append(m, "content", text_of(l, v), v->n);
        if (v->what == CALL_REASONING) append(m, "reasoning_content", text_of(l, v), v->n);
        if (v->what == CALL_BEGIN) json_array_append_new(calls, call_json(l, v, false));
        if (v->what == CALL_ARGS) append(json_object_get(call, "function"), "arguments", text_of(l, v), v->n);
    }
    if (l->n == 0) json_object_set_new(m, "content", json_string(""));
    if (json_array_size(calls) > 0) json_object_set(m, "tool_calls", calls);
    json_decref(calls);
    return m;
}

/* Returns what a chunk adds to a message. */
static json_t *delta_json(const api_choice *c)
{
    const api_event *v = c->event;
    if (c->first) return json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    if (!v) return json_object();
    const char *text = text_of(c->events, v);
    if (v->what == CALL_TEXT) return json_pack("{s:s%}", "content", text, v->n);
    if (v->what == CALL_REASONING) return json_pack("{s:s%}", "reasoning_content", text, v->n);
    if (v->what == CALL_BEGIN) return json_pack("{s:[o]}", "tool_calls", call_json(c->events, v, true));
    return json_pack("{s:[{s:i, s:{s:s%}}]}", "tool_calls", "index", v->index, "function", "arguments", text, v->n);
}

json_t *api_choice_json(const api_head *h, const api_choice *c, bool chunk)
{
    json_t *logprobs = !h->r->logprobs ? json_null() : h->r->chat ? chat_logprobs(h, c) : completion_logprobs(h, c);
    json_t *j;
    if (h->r->chat)
        j = json_pack("{s:i, s:o, s:o, s:s?}", "index", c->index, chunk ? "delta" : "message",
                      chunk ? delta_json(c) : api_message_json(c->events), "logprobs", logprobs, "finish_reason",
                      c->finish_reason);
    else
        j = json_pack("{s:i, s:s%, s:o, s:s?}", "index", c->index, "text", c->text, c->n_text, "logprobs", logprobs,
                      "finish_reason", c->finish_reason);
    if (j && h->r->return_token_ids) json_object_set_new(j, "token_ids", api_ids(c->ids, c->n_ids));
    return j;
}

json_t *api_answer(const api_head *h, json_t *choices, json_t *usage, json_t *kvasir, bool chunk)
{
    const char *object = !h->r->chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
    json_t *j =
        json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", h->id, "object", object, "created", (json_int_t)h->created,
                  "model", h->model, "system_fingerprint", h->fingerprint, "choices", choices);
    if (usage) json_object_set_new(j, "usage", usage);
    else if (chunk && h->r->include_usage) json_object_set_new(j, "usage", json_null());
    if (kvasir) json_object_set_new(j, "kvasir", kvasir);
    return j;
}

json_t *api_progress_json(const api_head *h, const api_progress *p)
{
    json_t *j = api_answer(h, json_array(), NULL, NULL, true);
    json_t *counts = json_pack("{s:I, s:I, s:I, s:I}", "total", (json_int_t)p->total, "cache", (json_int_t)p->cached,
                               "processed", (json_int_t)p->done, "time_ms", (json_int_t)p->ms);
    if (json_object_set_new(j, "prompt_progress", counts) == 0) return j;
    json_decref(j);
    return NULL;
}
