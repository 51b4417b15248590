/* SPDX-License-Identifier: MIT */
/* Requests and answers of OpenAI's HTTP interface, with fields of our own, as JSON in memory: no sockets, no model.
 * Fields: doc/serve.md; the sources are OpenAI's API reference and what openai-python and lm-evaluation-harness send.
 */
#ifndef SERVE_API_H
#define SERVE_API_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"
#include "model/sampler.h"
#include "tokenizer/tokenizer.h"

enum {
    API_MAX_DEPTH = 32,
    API_MAX_PROMPTS = 256,
    API_MAX_CHOICES = 16, /* n */
    API_MAX_STOPS = 16,
    API_MAX_LOGPROBS = 20,
    API_MAX_STRATEGIES = 3, /* of a lens */
    API_MAX_BODY = 32 << 20,
    API_ID = 40
};

/* Error of a request; http 0: none. The answer has type, param and code, the latter two null where empty. */
typedef struct {
    int http;
    const char *type, *code;
    char param[32];
    char message[256];
} api_error;

/* Sets the error of a bad request (400 invalid_request_error) that names a field; returns false. */
bool api_bad(api_error *e, const char *param, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Any other; type follows from the status. Returns false. */
bool api_fail(api_error *e, int http, const char *code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* {"error":{"message","type","param","code"}}, freed with free(); NULL when out of memory. */
char *api_error_text(const api_error *e);

/* Bytes that are appended and read in order. */
typedef struct {
    char *p;
    size_t n, cap, at; /* bytes from `at` on are not read yet */
} buffer;

/* Appends. Memory of a buffer that was read to its end is used again. ST_NOMEM. */
status buffer_add(buffer *b, const char *text, size_t n, err *e);

/* A text, or its ids. */
typedef struct {
    const char *text; /* NULL: ids */
    size_t n;
    token_list ids;
} api_prompt;

/* A completion, a chat completion, or a lens. Strings live in body. */
typedef struct {
    json_t *body;
    bool chat;
    const char *model; /* as it was sent; NULL: the only one */
    api_prompt *prompts;
    size_t n_prompts;
    chat_message *messages;
    size_t n_messages;
    int64_t max_tokens; /* -1: not given */
    int n, best_of;
    sampler_options sampling;
    bool seeded;
    const char *stop[API_MAX_STOPS];
    int n_stop;
    bool stream, include_usage, echo, ignore_eos, return_token_ids;
    bool logprobs;
    int top_logprobs;
    const char *attn, *budget, *kv, *skip; /* words of the options of the same names; NULL: not given */
    const char *draft;                     /* the word of --draft; NULL: none */
    int64_t decode;                        /* tokens at the prompt's end that are fed as decode steps; -1: not given */
    bool cache_prefix;                     /* false: the prefix cache neither serves nor keeps it */
    const char *cache_salt;                /* only requests with the same text serve each other; NULL: none */
    bool lens;
    const char *strategies[API_MAX_STRATEGIES], *drive;
    int n_strategies;
    json_t *ignored; /* names of unknown fields */
} api_request;

/* Kinds of requests. A lens has a prompt or a chat. */
typedef enum { API_COMPLETION, API_CHAT, API_LENS } api_kind;

/* Reads a body. False: *e has the reason, and r is empty. strict: unknown fields are refused. */
bool api_read(api_request *r, api_kind of, const char *body, size_t n, bool strict, api_error *e);
void api_free(api_request *r);

/* A body that is one JSON object, as the requests above read it; NULL: *e says why. */
json_t *api_parse(const char *body, size_t n, api_error *e);
/* Token ids of a list; param: the field's name, for *e. */
bool api_read_ids(token_list *out, const json_t *list, const char *param, api_error *e);
/* {"messages": [...]} of a body, as a chat has them. */
bool api_read_messages(api_request *r, const json_t *list, api_error *e);

/* ---- answers ---- */

/* A token and its logarithm of the softmax of raw logits, with the best ones of that row. */
typedef struct {
    int32_t id;
    float logprob;
} api_score;

typedef struct {
    api_score own;
    bool known; /* false: the first token of all, which nothing predicts */
    int n_top;
    api_score top[API_MAX_LOGPROBS];
} api_token;

/* Part of a choice that goes into an answer: all of it, or the news of a stream. */
typedef struct {
    int index;
    const char *text;
    size_t n_text;
    const api_token *tokens; /* of logprobs */
    size_t n_tokens;
    int64_t text_offset;       /* of the first of them, in characters */
    const char *finish_reason; /* NULL: it continues */
    const int32_t *ids;        /* return_token_ids */
    size_t n_ids;
    bool first; /* of a stream: the role is said */
} api_choice;

/* Members of every object of one answer. */
typedef struct {
    const api_request *r;
    const tokenizer *tok;
    char id[API_ID];
    int64_t created;
    const char *model, *fingerprint;
} api_head;

/* One choice as JSON; chunk: of a stream. NULL when out of memory. */
json_t *api_choice_json(const api_head *h, const api_choice *c, bool chunk);
/* The whole answer (takes choices, usage and kvasir); chunk: usage NULL leaves it out, or makes it null where the
 * request asked for usage. */
json_t *api_answer(const api_head *h, json_t *choices, json_t *usage, json_t *kvasir, bool chunk);
/* Ids as a list. */
json_t *api_ids(const int32_t *ids, size_t n);
/* Characters of valid UTF-8. */
int64_t api_characters(const char *text, size_t n);

#endif
