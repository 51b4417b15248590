/* SPDX-License-Identifier: MIT */
/* Text of a reply during generation: the bytes of its tokens, up to a stop string. */
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

/* Starts a text with n_stop borrowed stop strings. The caller sets write and ctx, and calls text_out_close, also after
 * an error. */
status text_out_open(text_out *t, const tokenizer *tok, const char *const *stop, int n_stop, err *e);
void text_out_close(text_out *t);
/* Takes the tokens before a text that continues them, so that its first word has the right leading space. echo: also
 * write their text. */
status text_out_begin(text_out *t, const int32_t *ids, size_t n, bool echo, err *e);
/* Writes the text of a token, except what may begin a stop string. */
status text_out_token(text_out *t, int32_t id, err *e);
status text_out_add(text_out *t, const char *text, size_t n, err *e);
/* Writes the text held back, unless the text was stopped. cut: the text ended early; the bytes of an incomplete
 * character are dropped. */
status text_out_end(text_out *t, bool cut, err *e);

#endif
