/* SPDX-License-Identifier: MIT */
/* Requests and answers of the OpenAI HTTP API, with our own fields, as JSON in memory: no sockets, no model. Fields:
 * doc/serve.md. Sources: OpenAI's API reference, and the requests of openai-python and lm-evaluation-harness. */
#ifndef SERVE_API_H
#define SERVE_API_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"
#include "model/sampler.h"
#include "tokenizer/call_support.h"
#include "tokenizer/chat.h"

enum {
    API_MAX_DEPTH = 128,
    API_MAX_PROMPTS = 256,
    API_MAX_CHOICES = 16, /* maximum of n */
    API_MAX_STOPS = 16,
    API_MAX_LOGPROBS = 20,
    API_MAX_STRATEGIES = 3, /* maximum in a lens */
    API_MAX_BODY = 32 << 20,
    API_ID = 40
};

/* API of a chat, which decides the form of its answers. */
typedef enum { API_OPENAI, API_MESSAGES, API_RESPONSES } api_style;

/* Error of a request. http 0: none. An empty param and a NULL code are null in the answer. */
typedef struct {
    int http;
    const char *type, *code;
    char param[32];
    char message[256];
} api_error;

/* Sets the error of a bad request (400 invalid_request_error) in field param; returns false. */
bool api_bad(api_error *e, const char *param, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Sets another error, whose type follows from the status; returns false. */
bool api_fail(api_error *e, int http, const char *code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Returns {"error":{"message","type","param","code"}}, freed with free(), or NULL if out of memory. */
char *api_error_text(const api_error *e);
/* The same in the form of a style: Messages have {"type":"error","error":{"type","message"},"request_id"}. */
char *api_error_styled(const api_error *e, api_style style, const char *id);

/* Byte queue: bytes are appended at the end and read from the front. */
typedef struct {
    char *p;
    size_t n, cap, at; /* at: offset of the first unread byte */
} buffer;

/* Appends text. Reuses the memory of a buffer that was read to its end. ST_NOMEM. */
status buffer_add(buffer *b, const char *text, size_t n, err *e);

/* A prompt as text or as token ids. */
typedef struct {
    const char *text; /* NULL: ids */
    size_t n;
    token_list ids;
} api_prompt;

/* Form of a reply. json: one JSON value. */
typedef struct {
    bool json, lenient, compact; /* lenient: unsupported keywords are ignored; compact: without white space */
    const json_t *schema;        /* in body; NULL: any object */
} api_format;

/* A completion, chat completion or lens request. Strings live in body. */
typedef struct {
    json_t *body;
    bool chat;
    api_style style;
    json_t *original;  /* body in the form of another API, whose answers read fields of it; NULL: OpenAI's chat */
    bool shortened;    /* max_tokens was lowered to the room in the context, as other APIs than OpenAI's chats do */
    const char *model; /* name as sent; NULL: the only model */
    api_prompt *prompts;
    size_t n_prompts;
    chat_input talk;         /* conversation of a chat */
    json_t *tools;           /* functions that a chat may call, in body; NULL: none */
    bool calls;              /* calls are recognized in the reply */
    bool one_call;           /* the reply ends after the first call */
    bool must_call;          /* the reply is a call, after thinking */
    bool strict;             /* arguments of a function follow its schema */
    const json_t *only;      /* function, or array of the functions, that may be called, in body; NULL: all */
    json_t *effort;          /* variables of the template that reasoning_effort set; NULL: none */
    json_t *changes;         /* names of the changes to messages that the template needed */
    int64_t max_tokens;      /* -1: not given */
    int64_t thinking_budget; /* most tokens of thinking before its closing marker; -1: not given */
    int n, best_of;
    sampler_options sampling;
    bool seeded;
    const char *stop[API_MAX_STOPS];
    int n_stop;
    bool stream, include_usage, echo, ignore_eos, return_token_ids;
    bool return_progress; /* streams report how much of the prompt is computed */
    bool logprobs;
    int top_logprobs;
    const char *attn, *budget, *kv, *skip; /* values of the options of the same names; NULL: not given */
    const char *draft;                     /* value of --draft; NULL: none */
    int64_t decode;                        /* number of last prompt tokens fed as decode steps; -1: not given */
    bool cache_prefix;                     /* false: bypasses the prefix cache */
    const char *cache_salt;                /* requests share cache entries only if their salts are equal; NULL: none */
    api_format format;
    bool lens;
    const char *strategies[API_MAX_STRATEGIES], *drive;
    int n_strategies;
    json_t *ignored; /* names of unknown fields */
} api_request;

/* Kinds of requests. A lens takes a prompt or a chat. API_MESSAGE and API_RESPONSE are chats in the
 * form of the Messages and the Responses API. */
typedef enum { API_COMPLETION, API_CHAT, API_LENS, API_MESSAGE, API_RESPONSE } api_kind;

/* Settings of the server for all requests. */
typedef struct {
    bool strict;               /* unknown fields are errors */
    sampler_options sampling;  /* for fields that a request does not have */
    const call_support *calls; /* tool calls of the model; NULL: none */
} api_rules;

/* Returns the sampling of OpenAI's API: temperature and top_p 1. */
sampler_options api_sampling(void);
/* Reads a request body. False: *e has the reason, and r is empty. */
bool api_read(api_request *r, api_kind of, const char *body, size_t n, const api_rules *rules, api_error *e);
void api_free(api_request *r);

/* Parses a body that is one JSON object. NULL: *e has the reason. */
json_t *api_parse(const char *body, size_t n, api_error *e);
/* Reads a list of token ids. param: name of the field, for *e. */
bool api_read_ids(token_list *out, const json_t *list, const char *param, api_error *e);
/* api_format.c: reads response_format, after the other fields. */
bool api_read_format(api_request *r, api_error *e);
/* chat_in.c: reads the conversation of a chat: messages, tools and variables of the template. */
bool api_read_chat(api_request *r, const api_rules *rules, api_error *e);
/* True if the request allows calls of this function. */
bool api_may_call(const api_request *r, const char *name);

/* ---- answers ---- */

/* Token and its log-probability: the log softmax of raw logits. */
typedef struct {
    int32_t id;
    float logprob;
} api_score;

typedef struct {
    api_score own;
    bool known; /* false: the first token, which has no prediction */
    int n_top;
    api_score top[API_MAX_LOGPROBS];
} api_token;

/* A piece of a chat reply: [at, at + n) of the text of its list, as call_sink has it. index: -1 for content and
 * thinking. */
typedef struct {
    call_event what;
    int index;
    size_t at, n;
} api_event;

typedef struct {
    api_event *list;
    size_t n, cap;
    buffer text;
} api_events;

/* Appends an event, or extends the last one. */
status api_events_add(api_events *l, call_event what, int index, const char *text, size_t n, err *e);
void api_events_free(api_events *l);

/* One choice of an answer, or the part of it that a chunk of a stream adds. */
typedef struct {
    int index;
    const char *text; /* of a completion */
    size_t n_text;
    const api_events *events; /* of a chat; NULL: none. A chunk has at most one event: */
    const api_event *event;
    const api_token *tokens; /* for logprobs */
    size_t n_tokens;
    int64_t text_offset;       /* offset of the first token, in characters */
    const char *finish_reason; /* NULL: not finished */
    const int32_t *ids;        /* for return_token_ids */
    size_t n_ids;
    bool first; /* first chunk of a stream, which has the role */
} api_choice;

/* Members that all objects of one answer share. */
typedef struct {
    const api_request *r;
    const tokenizer *tok;
    char id[API_ID];
    int64_t created;
    const char *model, *fingerprint;
} api_head;

/* Returns the message of a chat, or NULL if out of memory. */
json_t *api_message_json(const api_events *l);
/* Returns a choice as JSON, or NULL if out of memory. chunk: in the form of a stream. */
json_t *api_choice_json(const api_head *h, const api_choice *c, bool chunk);
/* Returns an answer; takes choices, usage and kvasir. In a chunk, usage NULL is omitted, or null if the request asked
 * for usage. */
json_t *api_answer(const api_head *h, json_t *choices, json_t *usage, json_t *kvasir, bool chunk);
/* Number of prompt tokens, of those from the prefix cache, and of those in the KV cache; time since admission. */
typedef struct {
    int64_t total, cached, done, ms;
} api_progress;

/* Returns a chunk of a stream that reports progress, as llama.cpp's server does. */
json_t *api_progress_json(const api_head *h, const api_progress *p);
/* Returns token ids as a list. */
json_t *api_ids(const int32_t *ids, size_t n);
/* Returns the number of characters of valid UTF-8. */
int64_t api_characters(const char *text, size_t n);

#endif
