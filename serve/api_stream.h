/* SPDX-License-Identifier: MIT */
/* Replies in other APIs than OpenAI's chat completions. A reply is a list of items: thinking, content, calls. The same
 * code makes whole answers and streams, whose events are written on the way. */
#ifndef SERVE_API_STREAM_H
#define SERVE_API_STREAM_H

#include "serve/api.h"

/* Numbers of tokens. cached: part of the prompt that came from the prefix cache; thinking: part of generated. */
typedef struct {
    int64_t prompt, cached, generated, thinking;
} api_usage;

typedef struct api_stream api_stream;

typedef struct {
    /* Writes the first events. */
    status (*begin)(api_stream *s, const api_usage *usage, err *e);
    /* Opens an item of s->kind. name, id: of a call. */
    status (*open)(api_stream *s, const char *name, const char *id, err *e);
    status (*add)(api_stream *s, const char *text, size_t n, err *e);
    /* Completes the open item, whose text is s->text. */
    status (*close)(api_stream *s, err *e);
    /* Returns the whole answer; takes kvasir, which may be NULL. NULL: out of memory. */
    json_t *(*answer)(api_stream *s, const char *finish, const char *stop, const api_usage *usage, json_t *kvasir);
    /* Writes the last events for the whole answer. */
    status (*end)(api_stream *s, const json_t *answer, err *e);
    /* Writes the event of an error, which ends the stream. */
    status (*fail)(api_stream *s, const api_error *why, err *e);
} api_form;

struct api_stream {
    const api_form *form;
    const api_head *head;
    buffer *out;     /* events; NULL: none are written */
    json_t *items;   /* complete items */
    json_t *item;    /* the open item, NULL: none */
    call_event kind; /* of the open item: CALL_TEXT, CALL_REASONING or CALL_ARGS */
    buffer text;     /* of the open item */
    int n_events;
    bool begun, cut; /* cut: the open item is incomplete */
};

status api_stream_open(api_stream *s, const api_form *form, const api_head *head, buffer *out, err *e);
void api_stream_free(api_stream *s);
status api_stream_begin(api_stream *s, const api_usage *usage, err *e);
status api_stream_add(api_stream *s, const api_events *l, err *e);
/* Ends the reply and returns the whole answer in *answer, which the caller frees. stop: the stop text that ended it. */
status api_stream_end(api_stream *s, json_t **answer, const char *finish, const char *stop, const api_usage *usage,
                      json_t *kvasir, err *e);
/* Writes an event; takes data, whose member `type` names it. */
status api_stream_event(api_stream *s, json_t *data, err *e);
/* Returns the arguments of a call as an object; members that were cut are left out. NULL: out of memory. */
json_t *api_arguments(const char *text, size_t n);

extern const api_form messages_form, responses_form;

#endif
