/* SPDX-License-Identifier: MIT */
/* Text of a reply while it is generated: the bytes of its tokens, up to a stop string. */
#ifndef GENERATE_TEXT_OUT_H
#define GENERATE_TEXT_OUT_H

#include "tokenizer/stop_text.h"
#include "tokenizer/tokenizer.h"

typedef struct {
    token_stream *stream;
    stop_text stops;
    bool stopped; /* at a stop string */
    status (*write)(void *ctx, const char *text, size_t n, err *e);
    void *ctx;
} text_out;

/* Starts a text. stop: n_stop borrowed strings. The caller sets write and ctx. text_out_close after an error too. */
status text_out_open(text_out *t, const tokenizer *tok, const char *const *stop, int n_stop, err *e);
void text_out_close(text_out *t);
/* Takes the tokens before a text that continues them: its first word has a space before it if it has one in the whole.
 * echo: they are part of the text. */
status text_out_begin(text_out *t, const int32_t *ids, size_t n, bool echo, err *e);
/* Writes the text of a token, except what may be the beginning of a stop string. */
status text_out_token(text_out *t, int32_t id, err *e);
status text_out_add(text_out *t, const char *text, size_t n, err *e);
/* Writes what was held back, unless the text was stopped. cut: the text ended early, so that the bytes of an incomplete
 * character are left out. */
status text_out_end(text_out *t, bool cut, err *e);

#endif
