/* SPDX-License-Identifier: MIT */
/* Text to token ids and back, one interface over SentencePiece, byte-level BPE (tokenizer.json or
 * vocab.json + merges.txt) and tiktoken; special tokens; chat templates by family. */
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

/* Opens the tokenizer of a Hugging Face model folder: tokenizer.json, else tokenizer.model
 * (SentencePiece or tiktoken, told by its content), else vocab.json + merges.txt; with
 * tokenizer_config.json, special_tokens_map.json and generation_config.json where present. Needs no
 * model file. Errors: ST_IO, ST_FORMAT, ST_UNSUPPORTED (naming file and field). */
status tokenizer_open(tokenizer **out, const char *dir, err *e);
void tokenizer_free(tokenizer *t);

/* One line for `info`: kind and vocabulary, e.g. "byte-level BPE (tokenizer.json), 128256 tokens".
 */
const char *tokenizer_describe(const tokenizer *t);
/* Number of ids, special tokens included: ids are below it. */
int32_t tokenizer_n_ids(const tokenizer *t);
/* The BOS id that encoding may add, -1 if the tokenizer has none. tokenizer_adds_bos: whether the
 * reference puts it in front of plain text by default (Llama, Mistral: yes; Qwen: no). */
int32_t tokenizer_bos(const tokenizer *t);
bool tokenizer_adds_bos(const tokenizer *t);
/* Whether id ends generation (tokenizer's eos, generation_config's eos_token_id list, end-of-turn).
 */
bool tokenizer_is_eos(const tokenizer *t, int32_t id);
/* Appends the ids for which this holds. */
status tokenizer_eos_ids(const tokenizer *t, token_list *out, err *e);
bool tokenizer_is_special(const tokenizer *t, int32_t id);
/* Id of an added token (special ones and others such as <think>) by its spelling, -1 if unknown. */
int32_t tokenizer_special_id(const tokenizer *t, const char *spelling);

enum {
    TOKENIZE_BOS = 1, /* BOS in front, where the tokenizer has one */
    /* Spellings of special tokens become these tokens; else they are plain text. Added tokens that
     * are not special (Qwen's <think>) are found in either case, as the reference does. */
    TOKENIZE_SPECIAL = 2,
};

/* Appends the ids of text[0..n) to out. Any bytes are accepted: invalid UTF-8 goes byte by byte
 * through the byte tokens (replaced by U+FFFD where the vocabulary has none). */
status tokenizer_encode(const tokenizer *t, const char *text, size_t n, unsigned flags, token_list *out, err *e);

/* Text of ids[0..n), special tokens dropped unless keep_special. *out is NUL-terminated, freed with
 * mem_free; *len may be NULL. Ids outside the vocabulary decode to nothing. */
status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool keep_special, char **out, size_t *len,
                        err *e);

/* What one id adds in the middle of a text, as bytes that need not be characters; special tokens by their spelling.
 * *out is NUL-terminated, freed with mem_free. */
status tokenizer_bytes(const tokenizer *t, int32_t id, char **out, size_t *len, err *e);

/* Hugging Face's clean-up of decoded text, in place: " ." becomes ".", " n't" becomes "n't", and so
 * on; *n is updated and a NUL put behind. tokenizer_cleans_up: whether tokenizer_config.json asks
 * for it (clean_up_tokenization_spaces true: Llama-3 yes, Mistral and Qwen no). Decoding itself
 * never does it. Source: evals.md 1.3, item 4. */
bool tokenizer_cleans_up(const tokenizer *t);
void tokenizer_clean_up(char *text, size_t *n);

/* Streaming: feeds one id, gives the bytes that are final now in *text (valid until the next
 * call), *len >= 0. A partial UTF-8 character is held back until it is complete or known to be
 * broken (then U+FFFD, as the reference decoder prints). The concatenation of all pieces and of
 * token_stream_end equals tokenizer_decode of all ids. */
typedef struct token_stream token_stream;
status token_stream_create(token_stream **out, const tokenizer *t, err *e);
void token_stream_free(token_stream *s);
status token_stream_push(token_stream *s, int32_t id, const char **text, size_t *len, err *e);
status token_stream_end(token_stream *s, const char **text, size_t *len, err *e);

/* Chat. A conversation as the family's template writes it. */
typedef struct {
    const char *role; /* "system", "user" or "assistant" */
    const char *content;
} chat_message;

/* Name of the folder's template ("llama3", "llama3.1", "mistral-v1", "mistral-v3", "qwen2",
 * "qwen2.5", "qwen3", "chatml", "vicuna", "llama2"), told by marks in chat_template and by the
 * special tokens, or NULL if unknown. */
const char *tokenizer_chat_template(const tokenizer *t);
/* NULL-terminated list of the template names that chat_encode accepts. */
const char *const *chat_template_names(void);
/* Appends the ids of a whole conversation with the generation prompt (BOS included where the
 * family has it), ready for prefill. name NULL: the folder's own. ST_UNSUPPORTED with the list of
 * names when there is none; ST_USAGE for a bad order of roles. Qwen3: thinking disabled.
 * Source: evals.md section 3 (the families' published templates). */
status chat_encode(const tokenizer *t, const char *name, const chat_message *msgs, size_t n, token_list *out, err *e);
/* The same as text, special tokens (BOS too) by their spelling, as apply_chat_template gives it. *out: NUL-
 * terminated, mem_free. For one user message (and a system one) encoding
 * it with TOKENIZE_SPECIAL gives chat_encode's ids, but a message that spells a special token then has it: as
 * references do that tokenize the rendered text. */
status chat_render(const tokenizer *t, const char *name, const chat_message *msgs, size_t n, char **out, size_t *len,
                   err *e);

#endif
