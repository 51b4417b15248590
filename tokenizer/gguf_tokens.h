/* SPDX-License-Identifier: MIT */
/* Tokenizers of GGUF files. */
#ifndef TOKENIZER_GGUF_TOKENS_H
#define TOKENIZER_GGUF_TOKENS_H

#include "kernels/base/gguf.h"
#include "tokenizer/impl.h"

enum { GGUF_STAGES = 6 };
enum {
    PRE_WHOLE = 1, /* a piece that is a token is taken as it is */
    PRE_BOS = 2,   /* a text begins with BOS by default */
    PRE_NFC = 4
};

/* Rules that a name in tokenizer.ggml.pre stands for. */
typedef struct {
    const char *names; /* separated by spaces */
    unsigned flags;
    const char *stages[GGUF_STAGES]; /* expressions, each of which cuts the pieces of the one before; NULL: no more */
} gguf_pre;

/* Returns the row of a name; NULL: unknown. */
const gguf_pre *gguf_pre_find(const char *name);

/* Reads vocabulary, added tokens, BOS, stops and the chat template of a file into an empty tokenizer.
 * Errors: ST_FORMAT and ST_UNSUPPORTED name file and key. */
status gguf_tokenizer_load(tokenizer *t, const gguf *g, err *e);
/* Opens the tokenizer of an open file (tokenizer_open takes a path). It does not refer to the file. */
status tokenizer_open_gguf(tokenizer **out, const gguf *g, err *e);

#endif
