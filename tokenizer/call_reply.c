/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/call_reply.h"

static status add_rest(call_parser *p, token_stream *s, err *e)
{
    const char *text;
    size_t n;
    TRY(token_stream_end(s, &text, &n, e));
    return call_parser_add(p, text, n, false, e);
}

status call_reply_token(call_parser *p, token_stream *s, const tokenizer *t, int32_t id, err *e)
{
    const char *text;
    size_t n;
    const bool special = tokenizer_is_special(t, id);
    if (special) TRY(add_rest(p, s, e));
    TRY(token_stream_push(s, id, &text, &n, e));
    return n ? call_parser_add(p, text, n, special, e) : ST_OK;
}

status call_reply_end(call_parser *p, token_stream *s, err *e)
{
    TRY(add_rest(p, s, e));
    return call_parser_end(p, e);
}
