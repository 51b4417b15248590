/* SPDX-License-Identifier: MIT */
/* Added tokens: spellings that are matched in the text before pre-tokenization. */
#ifndef TOKENIZER_ADDED_H
#define TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"
#include "tokenizer/normalize.h"

typedef struct {
    char *text;
    size_t n;
    char *form; /* set by added_sort: the normalized text, NULL if it is the same */
    size_t n_form;
    int32_t id;
    size_t order;        /* set by added_push; of equal texts the first one stays */
    bool special;        /* control token: dropped by decoding, plain text unless asked for */
    bool normalized;     /* matched in normalized text, otherwise in the original text */
    bool lstrip, rstrip; /* also matches white space before, after */
    bool single_word;    /* matched only between non-word characters */
} added_token;

/* Set of added tokens. Start from {0}. */
typedef struct {
    added_token *items; /* sorted by text after added_sort */
    size_t n, cap;
    int32_t *by_id;      /* indices into items, sorted by id */
    int32_t *by_form;    /* the same, sorted by `normalized` and the text that is matched */
    size_t n_plain;      /* number of those that are not normalized */
    bool starts[2][256]; /* first bytes of matched texts, by `normalized` */
    size_t longest;      /* bytes of the longest matched text */
} added_set;

/* Copies tok and its text. An empty text is ignored, as in the reference. */
status added_push(added_set *s, const added_token *tok, const char *what, err *e);
/* Sorts the set for the searches below; call again after added_push. Tokens with `normalized` match their text as z
 * changes it, as in the reference. ST_FORMAT if two texts have one id or one text has two ids. */
status added_sort(added_set *s, const normalizer *z, const char *what, err *e);
void added_free(added_set *s);

/* Returns the text that a token matches, and decodes to as in the reference: the normalized one if it has one. */
const char *added_matched(const added_token *a, size_t *n);
const added_token *added_by_text(const added_set *s, const char *text, size_t n);
const added_token *added_by_id(const added_set *s, int32_t id);

/* A text and the origin of its bytes. A special token is matched only if all its bytes are trusted. */
typedef struct {
    const char *text;
    size_t n;
    const unsigned char *input; /* [n] 1: the byte is untrusted input; NULL: all bytes have the origin all_input */
    bool all_input;
} marked_text;

/* Finds the first token in m.text[from..m.n): the longest of those at the leftmost position. NULL if there is none.
 * [*start, *end) is the matched text, *start >= from. */
const added_token *added_find(const added_set *s, marked_text m, size_t from, bool normalized, size_t *start,
                              size_t *end);

#endif
