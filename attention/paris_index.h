/* SPDX-License-Identifier: MIT */
/* ParisKV's index of one sequence: codes of all tokens in each layer, and the search among the indexed ones.
 * The method (pariskv.c) says which tokens are indexed; slots are positions. doc/methods.md 8.3. */
#ifndef ATTENTION_PARIS_INDEX_H
#define ATTENTION_PARIS_INDEX_H

#include "attention/method.h"
#include "kernels/ops_paris.h"

typedef struct {
    int64_t k;         /* most tokens to find */
    int64_t rho, beta; /* percent; 0: by the number of indexed tokens */
    size_t rounds;     /* of the rotation, 0: none */
    size_t n_levels;   /* of the collision score: 6 or 1 */
    bool center, alpha;
} paris_options;

/* What a forward does in one layer. */
typedef struct {
    slot_range index;  /* the indexed tokens that the layer sees */
    slot_range next;   /* the same after the end of a prompt, or after a rewind */
    slot_range encode; /* tokens to encode */
    slot_range mean;   /* tokens of the mean, if it is due */
    int64_t k;         /* tokens to find, at most those of index */
} paris_ranges;

/* A member of the method's struct. Lists of buffers are those of paris_index, by layer; the rest is work space. */
typedef struct {
    paris_options o;
    paris_ranges *ranges; /* [n_layers] */
    bool *finds;          /* [n_layers] whether the forward at hand searches there */
    buf *id, *code, *count, *counted, *mean;
    buf sign;
    buf probe;        /* mean queries [n_kv_heads][head_dim] */
    buf y, norm;      /* rotated queries [n_heads][dim], and their norms */
    buf bonus, score; /* u8 [n_kv_heads][n_tokens] */
    buf cand;         /* i32, the same shape */
    buf final;        /* f32 [n_kv_heads][n_tokens] */
    buf idx, lists;   /* i32 [n_kv_heads][k], and their ranges, by layer */
} paris_search;

/* at: offset of the paris_search. */
void paris_declare(attn_decl *d, size_t at, const paris_options *o);
void paris_open(const attn_view *v, paris_search *s, const paris_options *o); /* in reset */
/* Walks over the declared buffers, and checks the codes' counts. */
status paris_walk(attn_view *v, paris_search *s, attn_state *state, err *e);

/* Encodes ranges.encode from rows, where these tokens lie exactly; mean: takes that of ranges.mean first. */
void paris_encode(const attn_view *v, const paris_search *s, int layer, const kv_rows *rows, bool mean);
/* Takes the bucket counts of ranges.next. Must precede any change of codes that were counted. */
void paris_count(const attn_view *v, const paris_search *s, int layer);
/* The ranges.k best of ranges.index in rows for queries q [n_heads][head_dim], rotated: one list per kv head. */
attn_seg paris_find(const attn_view *v, const paris_search *s, int layer, const kv_rows *rows, buf q);

#endif
