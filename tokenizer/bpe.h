/* SPDX-License-Identifier: MIT */
/* Byte-pair encoding of one pre-token, over byte strings: tokens are kept as the bytes they stand
 * for, so that byte-level tokenizer.json, vocab.json + merges.txt and tiktoken share it. */
#ifndef TOKENIZER_BPE_H
#define TOKENIZER_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"
#include "tokenizer/tokenizer.h"

enum { BPE_MAX_IDS = 1 << 22 }; /* ids above are taken for a broken file */

typedef struct bpe bpe;

/* Reused between calls of bpe_encode; start from {0}. */
typedef struct {
    void *syms, *heap;
    size_t cap;
} bpe_scratch;
void bpe_scratch_free(bpe_scratch *s);

enum {
    BPE_WHOLE_WORDS = 1, /* a pre-token that is a token is taken as it is */
    BPE_BY_RANK = 2,     /* tiktoken: neighbours whose bytes together are a token merge, rank = id */
};

/* An empty vocabulary sized for n_tokens and n_merges entries (more of them is an error). */
status bpe_create(bpe **out, size_t n_tokens, size_t n_merges, unsigned flags, err *e);
void bpe_free(bpe *b);

/* Adds a token. Errors: ST_FORMAT for an id outside 0..BPE_MAX_IDS-1, an id or bytes given twice;
 * `what` names file and field. reachable false: only decoding knows it (its text is not in the byte
 * alphabet). */
status bpe_add_token(bpe *b, int32_t id, const char *bytes, size_t n, bool reachable, const char *what, err *e);
/* Adds a merge of rank `rank`; a pair given twice keeps the later rank, as the reference does. */
status bpe_add_merge(bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t merged, err *e);
/* Call once after the last token: bytes without a token get unk (or -1: they are dropped, as the
 * reference does). Returns the number of bytes without a token. */
int bpe_finish(bpe *b, int32_t unk);

/* Id of the token with these bytes, -1 if there is none. */
int32_t bpe_find(const bpe *b, const char *bytes, size_t n);
/* Whether bpe_find would give id. */
bool bpe_is(const bpe *b, int32_t id, const char *bytes, size_t n);
int32_t bpe_n_ids(const bpe *b); /* highest id + 1 */
size_t bpe_n_tokens(const bpe *b);
/* Bytes of a token, NULL for an id without one. */
const char *bpe_token(const bpe *b, int32_t id, size_t *n);

/* Appends the ids of one pre-token. Source: Sennrich et al. 2016, the lowest rank first and the
 * leftmost of equals. */
status bpe_encode(const bpe *b, const char *text, size_t n, bpe_scratch *s, token_list *out, err *e);
/* Appends the token of one byte. */
status bpe_encode_byte(const bpe *b, unsigned char c, token_list *out, err *e);

#endif
