/* SPDX-License-Identifier: MIT */
/* ParisKV's index of one sequence: codes of all tokens in each layer, and the search among the indexed ones.
 * The method (pariskv.c) says which tokens are indexed; slots are positions. methods.md 8.3. */
#ifndef ATTENTION_PARIS_INDEX_H
#define ATTENTION_PARIS_INDEX_H

#include "attention/method.h"

typedef struct {
    int64_t k;         /* most tokens to find */
    int64_t rho, beta; /* percent; 0: by the number of indexed tokens */
    size_t rounds;     /* of the rotation, 0: none */
    size_t n_tiers;    /* 6 or 1 */
    bool vote;         /* rerank by all query heads of a group, not by their mean */
    bool center, alpha;
} paris_options;

/* What the ops of one layer read in a forward; ranges are a first token and a count. */
typedef struct {
    int64_t sink[2], rest[2]; /* regions that are attended as they are */
    int64_t index[2];         /* the indexed tokens that the layer sees */
    int64_t next[2];          /* the same after the end of a prompt, or after a rewind */
    int64_t encode[2];        /* tokens to encode */
    int64_t mean[2];          /* tokens of the mean, if it is due */
    int64_t k;                /* tokens to find, at most those of index */
    int64_t limit[6];         /* the search's own: limits of the tiers, */
    int64_t cand[3];          /* number of candidates, 0, number of candidates */
} paris_ranges;

typedef struct paris_search paris_search;

/* Adds the bytes of the layers in c->layers at lim->n_tokens tokens. */
status paris_search_plan(attn_bytes *out, const paris_options *o, const attn_shape *shape,
                         const attn_limits *lim, const bool *layers, err *e);
status paris_search_create(paris_search **out, const attn_ctx *c, const paris_options *o, err *e);
void paris_search_free(paris_search *s);
/* Adds the bytes that n tokens hold. */
void paris_search_held(const paris_search *s, int64_t n, attn_bytes *out);

/* The codes of n tokens (state.h). */
status paris_search_state(paris_search *s, attn_state *v, int64_t n, err *e);

/* The ranges of a layer: written by the method, in effect after upload. */
paris_ranges *paris_search_ranges(const paris_search *s, int layer);
void paris_search_upload(paris_search *s);
/* A member of them in ops memory, by its offset in the struct. */
buf paris_search_at(const paris_search *s, int layer, size_t offset);

/* Encodes ranges.encode from rows, where these tokens lie exactly; mean: takes that of ranges.mean first. */
void paris_search_encode(paris_search *s, int layer, const kv_rows *rows, bool mean);
/* Takes the bucket counts of ranges.next. Must precede any change of codes that were counted. */
void paris_search_count(paris_search *s, int layer);
/* The ranges.k best of ranges.index for queries q [n_heads][head_dim], rotated: one list per kv head in seg (all but
 * its rows). */
void paris_search_run(paris_search *s, int layer, buf q, attn_seg *seg);

#endif
