/* SPDX-License-Identifier: MIT */
/* Splits the text of a reply into content, thinking and tool calls while it is generated. No HTTP, no sampling. */
#ifndef TOKENIZER_CALL_PARSE_H
#define TOKENIZER_CALL_PARSE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"
#include "tokenizer/call_format.h"

typedef enum { CALL_TEXT, CALL_REASONING, CALL_BEGIN, CALL_ARGS, CALL_END } call_event;

/* Receives one event. index: number of the call. text: the name and the id with a NUL between for CALL_BEGIN, an id of
 * length 0 if the model gave none; a piece of JSON for CALL_ARGS. The arguments of a call are a prefix of valid JSON,
 * and complete unless the reply was cut or the model made an error. */
typedef status call_sink(void *ctx, call_event what, int index, const char *text, size_t n, err *e);

enum { CALL_MOST = 128, CALL_HELD = 64 << 10, CALL_ARGS_MOST = 4 << 20 };

typedef struct {
    const call_format *format;            /* NULL: calls are text */
    bool alone;                           /* a reply that begins with text has no calls */
    const json_t *tools;                  /* OpenAI's array: names and types of parameters */
    const char *think_open, *think_close; /* markers of thinking; NULL: none */
    bool thinking;                        /* the reply starts inside thinking */
    const char *const *special; /* markers that are special tokens of the vocabulary, up to a NULL; NULL: none */
} call_rules;

typedef struct call_parser call_parser;

/* Creates a parser; rules and what they refer to must live as long. */
status call_parser_open(call_parser **out, const call_rules *rules, call_sink *sink, void *ctx, err *e);
void call_parser_free(call_parser *p);
/* Adds text[0, n). special: the spelling of one special token, matched as a whole and otherwise dropped. Joined, the
 * events depend on the bytes and these flags only, not on the cuts. */
status call_parser_add(call_parser *p, const char *text, size_t n, bool special, err *e);
/* Ends the reply: held text becomes text, an open call ends. */
status call_parser_end(call_parser *p, err *e);
bool call_parser_thinks(const call_parser *p);
/* Returns the number of calls that began, and of those among them with faulty arguments. */
int call_parser_calls(const call_parser *p);
int call_parser_bad(const call_parser *p);

#endif
