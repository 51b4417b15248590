/* SPDX-License-Identifier: MIT */
/* The bytes of the tokens of a vocabulary as tries, and sets of tokens for free text. Private to grammar/ and its
 * tests. */
#ifndef GRAMMAR_VOCAB_H
#define GRAMMAR_VOCAB_H

#include "grammar/grammar.h"

enum {
    TOKEN_BYTES_MAX = 255, /* longer tokens are never allowed */
    NO_TOKEN = 0xffffff,
    ROOM_SETS = 32 /* sets by number of characters */
};

/* A node in depth-first order: a byte after those of its ancestors, and the token that ends there. */
typedef struct {
    uint64_t token : 24, size : 24; /* size: number of nodes of the subtree */
    uint64_t byte : 8, depth : 8;   /* depth: from 1 */
} trie_node;

typedef struct {
    trie_node *nodes;
    size_t n;
} trie;

typedef struct {
    const char *bytes;
    uint32_t n, characters; /* n 0: no text token. characters: number of code points of a whole token, else 0 */
    int32_t same;           /* next token with the same bytes; -1: none */
} vocab_token;

struct grammar_vocab {
    size_t vocab, n_words; /* n_words: 64-bit words of a set */
    vocab_token *tokens;   /* [vocab] */
    char *bytes;
    /* whole: tokens of whole characters that need no escape in a JSON string; rest: all others. */
    trie whole, rest;
    uint64_t *room;           /* [ROOM_SETS + 1, n_words] whole tokens of at most 1, 2, .. characters, and all */
    uint64_t *text, *special; /* [n_words] all text tokens; all special tokens, without EOS */
    int32_t *longest;         /* [n_longest] whole tokens of more than ROOM_SETS characters */
    size_t n_longest;
    token_list eos;
};

static inline bool set_has(const uint64_t *set, int32_t id)
{
    return set[id / 64] >> id % 64 & 1;
}

static inline void set_add(uint64_t *set, int32_t id)
{
    set[id / 64] |= (uint64_t)1 << id % 64;
}

static inline void set_remove(uint64_t *set, int32_t id)
{
    set[id / 64] &= ~((uint64_t)1 << id % 64);
}

/* Returns the whole tokens of at most n characters, of those that have a set. */
const uint64_t *vocab_room(const grammar_vocab *v, uint32_t n);

#endif
