/* SPDX-License-Identifier: MIT */
/* Text to token ids and back, with one interface for SentencePiece, byte-level BPE (tokenizer.json or vocab.json +
 * merges.txt) and tiktoken; special tokens. */
#ifndef TOKENIZER_TOKENIZER_H
#define TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

typedef struct tokenizer tokenizer;

/* A growing list of ids. Start from {0}; token_list_free releases it. */
typedef struct {
    int32_t *ids;
    size_t n, cap;
} token_list;

status token_list_push(token_list *l, int32_t id, err *e);
void token_list_free(token_list *l);

/* Opens the tokenizer of a Hugging Face model folder: tokenizer.json, else tokenizer.model (SentencePiece or tiktoken,
 * detected by content), else vocab.json + merges.txt. Also reads tokenizer_config.json, special_tokens_map.json and
 * generation_config.json if present. Needs no model file. Errors: ST_IO, ST_FORMAT, ST_UNSUPPORTED (naming file and
 * field). */
status tokenizer_open(tokenizer **out, const char *dir, err *e);
void tokenizer_free(tokenizer *t);

/* Returns a line for `info`: kind and vocabulary, e.g. "byte-level BPE (tokenizer.json), 128256 tokens". */
const char *tokenizer_describe(const tokenizer *t);
/* Returns a warning about values in the files that are ignored; NULL: none. */
const char *tokenizer_warning(const tokenizer *t);
/* Returns the number of ids, special tokens included; all ids are below it. */
int32_t tokenizer_n_ids(const tokenizer *t);
/* Returns the BOS id, -1 if there is none. tokenizer_adds_bos: true if the reference adds it before plain text by
 * default (Llama, Mistral: yes; Qwen: no). */
int32_t tokenizer_bos(const tokenizer *t);
bool tokenizer_adds_bos(const tokenizer *t);
/* True if id ends generation (tokenizer's eos, generation_config's eos_token_id list, end-of-turn). */
bool tokenizer_is_eos(const tokenizer *t, int32_t id);
/* Appends the ids for which tokenizer_is_eos is true. */
status tokenizer_eos_ids(const tokenizer *t, token_list *out, err *e);
bool tokenizer_is_special(const tokenizer *t, int32_t id);
/* Returns the id of an added token (special, or others such as <think>) by its spelling, -1 if unknown. */
int32_t tokenizer_special_id(const tokenizer *t, const char *spelling);

enum {
    TOKENIZE_BOS = 1, /* prepend BOS, or all tokens that tokenizer.json places before a text */
    /* Spellings of special tokens become these tokens; otherwise they are plain text. Added tokens that are not special
     * (Qwen's <think>) are matched in either case, as in the reference. */
    TOKENIZE_SPECIAL = 2,
};

/* Appends the ids of text[0..n) to out. Accepts any bytes: invalid UTF-8 is encoded with byte tokens, or as U+FFFD if
 * the vocabulary has none. */
status tokenizer_encode(const tokenizer *t, const char *text, size_t n, unsigned flags, token_list *out, err *e);
/* True if a text begins with the spelling of BOS. */
bool tokenizer_begins_with_bos(const tokenizer *t, const char *text, size_t n);
/* Appends the ids of a prompt that is no chat, as every interface reads it: with TOKENIZE_SPECIAL and, if bos is set
 * and the tokenizer adds it by default, TOKENIZE_BOS. A prompt that begins with BOS gets no second one. */
status tokenizer_encode_prompt(const tokenizer *t, const char *text, size_t n, bool bos, token_list *out, err *e);
/* Appends the ids of text[0..n) without adding BOS. Spellings of special tokens become these tokens only where no byte
 * of the spelling is input (input[i] = 1). The text is pre-tokenized as one: without such spellings in the input, the
 * ids are those of TOKENIZE_SPECIAL. */
status tokenizer_encode_marked(const tokenizer *t, const char *text, size_t n, const unsigned char *input,
                               token_list *out, err *e);

/* Decodes ids[0..n), without special tokens unless keep_special. *out is NUL-terminated and freed with mem_free; *len
 * may be NULL. Ids outside the vocabulary decode to nothing. */
status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool keep_special, char **out, size_t *len,
                        err *e);

/* Returns the bytes that an id adds within a text, which may be part of a character. Special tokens return their
 * spelling. *out is NUL-terminated and freed with mem_free. */
status tokenizer_bytes(const tokenizer *t, int32_t id, char **out, size_t *len, err *e);

/* tokenizer_clean_up applies Hugging Face's clean-up of decoded text in place: " ." becomes ".", " n't" becomes "n't",
 * and so on; it updates *n and appends a NUL. tokenizer_cleans_up: true if tokenizer_config.json asks for it
 * (clean_up_tokenization_spaces; Llama-3 yes, Mistral and Qwen no). Decoding never applies it. Source: evals.md 1.3,
 * item 4. */
bool tokenizer_cleans_up(const tokenizer *t);
void tokenizer_clean_up(char *text, size_t *n);

/* Streaming decoder. token_stream_push takes one id and returns the bytes that are final in *text, valid until the next
 * call; *len may be 0. Holds back a partial UTF-8 character until it is complete or invalid (then U+FFFD, as in the
 * reference decoder). All pieces and token_stream_end together equal tokenizer_decode of all ids. */
typedef struct token_stream token_stream;
status token_stream_create(token_stream **out, const tokenizer *t, err *e);
void token_stream_free(token_stream *s);
/* Special tokens give their spelling. */
void token_stream_keep_special(token_stream *s);
/* Gives each token as its own bytes, as tokenizer_bytes does: also halves of characters and special tokens. */
void token_stream_as_bytes(token_stream *s);
status token_stream_push(token_stream *s, int32_t id, const char **text, size_t *len, err *e);
status token_stream_end(token_stream *s, const char **text, size_t *len, err *e);

#endif
