/* SPDX-License-Identifier: MIT */
/* Byte-pair encoding of one pre-token. Tokens are stored as the bytes they stand for, so that byte-level
 * tokenizer.json, vocab.json + merges.txt, tiktoken and the characters of SentencePiece share the code. */
#ifndef TOKENIZER_BPE_H
#define TOKENIZER_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"
#include "tokenizer/tokenizer.h"

enum { BPE_MAX_IDS = 1 << 22 }; /* limit; higher ids indicate a broken file */

typedef struct bpe bpe;

/* Scratch of bpe_encode, reused between calls. Start from {0}. */
typedef struct {
    void *syms, *heap;
    size_t cap;
} bpe_scratch;
void bpe_scratch_free(bpe_scratch *s);

enum {
    BPE_WHOLE_WORDS = 1,   /* a pre-token that is in the vocabulary becomes that token */
    BPE_BY_RANK = 2,       /* tiktoken: adjacent tokens merge if their bytes form a token, whose id is the rank */
    BPE_CHARACTERS = 4,    /* merging starts from characters, not from bytes */
    BPE_BYTE_FALLBACK = 8, /* with BPE_CHARACTERS: a character without a token becomes its bytes, <0xE2> and so on */
    BPE_FUSE_UNKNOWN = 16, /* with BPE_CHARACTERS: neighbouring unknown characters become one token */
};

/* Creates an empty vocabulary for at most n_tokens tokens and n_merges merges. */
status bpe_create(bpe **out, size_t n_tokens, size_t n_merges, unsigned flags, err *e);
void bpe_free(bpe *b);

/* Adds a token. Errors: ST_FORMAT for an id outside 0..BPE_MAX_IDS-1, a duplicate id or duplicate bytes. `what` names
 * file and field. reachable false: only for decoding (its text is not in the byte alphabet). */
status bpe_add_token(bpe *b, int32_t id, const char *bytes, size_t n, bool reachable, const char *what, err *e);
/* Adds a merge of rank `rank`. A duplicate pair takes the later rank, as in the reference. */
status bpe_add_merge(bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t merged, err *e);
/* Finishes the vocabulary; call once after the last token. Bytes, or characters, without a token become unk (-1: they
 * are dropped, as in the reference). Returns the number of bytes without a token. */
int bpe_finish(bpe *b, int32_t unk);

/* Returns the id of the token with these bytes, -1 if there is none. */
int32_t bpe_find(const bpe *b, const char *bytes, size_t n);
/* True if bpe_find returns id. */
bool bpe_is(const bpe *b, int32_t id, const char *bytes, size_t n);
int32_t bpe_n_ids(const bpe *b); /* highest id + 1 */
size_t bpe_n_tokens(const bpe *b);
/* Returns the bytes of a token; NULL for an id without token. */
const char *bpe_token(const bpe *b, int32_t id, size_t *n);

/* Appends the ids of one pre-token. Merges the lowest rank first, the leftmost of equals. Source: Sennrich et al.
 * 2016. */
status bpe_encode(const bpe *b, const char *text, size_t n, bpe_scratch *s, token_list *out, err *e);
/* Appends the token of one byte that is not part of valid UTF-8. */
status bpe_encode_byte(const bpe *b, unsigned char c, token_list *out, err *e);

#endif
