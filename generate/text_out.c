/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "generate/text_out.h"

enum { BEFORE = 16 }; /* tokens that decide whether a text begins with a space; special tokens have no text */

status text_out_open(text_out *t, const tokenizer *tok, const char *const *stop, int n_stop, err *e)
{
    *t = (text_out){.stops = {.stop = stop, .n_stop = n_stop}};
    return token_stream_create(&t->stream, tok, e);
}

void text_out_close(text_out *t)
{
    token_stream_free(t->stream);
    stop_text_free(&t->stops);
    *t = (text_out){0};
}

status text_out_begin(text_out *t, const int32_t *ids, size_t n, bool echo, err *e)
{
    const char *text;
    size_t k;
    for (size_t i = echo || n < BEFORE ? 0 : n - BEFORE; i < n; i++) {
        TRY(token_stream_push(t->stream, ids[i], &text, &k, e));
        if (echo) TRY(t->write(t->ctx, text, k, e));
    }
    return ST_OK;
}

status text_out_add(text_out *t, const char *text, size_t n, err *e)
{
    if (n == 0) return ST_OK;
    TRY(stop_text_add(&t->stops, text, n, &text, &n, &t->stopped, e));
    return t->write(t->ctx, text, n, e);
}

status text_out_token(text_out *t, int32_t id, err *e)
{
    const char *text;
    size_t n;
    TRY(token_stream_push(t->stream, id, &text, &n, e));
    return text_out_add(t, text, n, e);
}

status text_out_end(text_out *t, bool cut, err *e)
{
    const char *text;
    size_t n;
    if (t->stream && !t->stopped && !cut) {
        TRY(token_stream_end(t->stream, &text, &n, e));
        TRY(text_out_add(t, text, n, e));
    }
    if (t->stopped) return ST_OK;
    stop_text_rest(&t->stops, &text, &n);
    return t->write(t->ctx, text, n, e);
}
