/* SPDX-License-Identifier: MIT */
/* Tokens of a reply as events. */
#ifndef TOKENIZER_CALL_REPLY_H
#define TOKENIZER_CALL_REPLY_H

#include "tokenizer/call_parse.h"
#include "tokenizer/tokenizer.h"

/* Adds a token of a reply. The stream keeps special tokens. */
status call_reply_token(call_parser *p, token_stream *s, const tokenizer *t, int32_t id, err *e);
/* Ends the reply, and adds the bytes of an incomplete character. */
status call_reply_end(call_parser *p, token_stream *s, err *e);

#endif
