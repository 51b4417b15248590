/* SPDX-License-Identifier: MIT */
/* K/V rows of some layers of one sequence. Selections name rows by slots.
 *
 * Exact stores (f32, f16, bf16, q8, q4): a slot is a row; the method decides which, may reuse and move them.
 * Stores with codes (kivi, logquant, hf): the slot of a token is its position for ever (kv_store_by_position); which
 * rows are exact follows from the count of tokens, and of hf from where prompts ended, and is the same in all layers
 * and heads. */
#ifndef ATTENTION_STORE_H
#define ATTENTION_STORE_H

#include "attention/sequence.h"
#include "attention/state.h"

typedef struct kv_store kv_store;
typedef struct row_tier row_tier; /* tier.h */

/* True if a format quantizes. Its stores go by position and need a slot for every token. */
static inline bool kv_has_codes(const kv_format *f)
{
    return f->kind != KV_EXACT;
}

typedef struct {
    backend *be;
    const attn_spec *spec; /* kv: the format; text: for errors */
    const attn_shape *shape;
    const attn_limits *lim;
    const bool *layers; /* [n_layers]: those that have rows */
    size_t n_heads;     /* regions of a layer */
    int64_t slots;      /* of a layer */
    row_tier *tier;     /* NULL: the device's memory; borrowed */
} kv_store_options;

/* Address space is reserved, memory taken as rows are written. On failure nothing is held. */
status kv_store_create(kv_store **out, const kv_store_options *o, err *e);
void kv_store_free(kv_store *s);
void kv_store_reset(kv_store *s);
bool kv_store_by_position(const kv_store *s);
/* True if no row is quantized between two forwards: attention is then over exact rows. */
bool kv_store_exact(const kv_store *s);
/* True if one of the tokens [from, to) is quantized. */
bool kv_store_coded_in(const kv_store *s, int64_t from, int64_t to);
/* The rows of a layer, as attn_job and attn_seg take them. */
const kv_rows *kv_store_rows(const kv_store *s, int layer);

/* Rows with a region for each query head as one region a kv head: while the regions of a group hold the same, reading
 * the first of them is what `full` does. */
static inline kv_rows kv_rows_together(const kv_rows *rows, size_t n_kv_heads)
{
    kv_rows r = *rows;
    size_t copies = r.n_kv_heads / n_kv_heads;
    r.n_kv_heads = n_kv_heads;
    r.cap *= copies;
    r.codes.cap *= copies;
    return r;
}

/* Makes the slots [from, to) of a layer available, which may lie in a file. Required before any read except attention
 * over a segment. */
static inline void kv_need(backend *be, const kv_rows *rows, int64_t from, int64_t to)
{
    if (rows->tier) be->ops->tier->span(be, rows, from, to);
}

/* A forward of n_tok tokens after `length`, in this order: begin; rows written for each layer; layer_end after
 * attention (quantizes what is due); end. flags: ATTN_*. */
void kv_store_begin(kv_store *s, int64_t length, int64_t n_tok, unsigned flags);
/* Target of the rows from position `pos` on: slots first, first + 1, ..., or slots i64 [n][n_lists] as in kv_write.
 * Stores by position choose by pos alone. */
typedef struct {
    int64_t pos, first;
    buf slots; /* p NULL: consecutive */
    size_t n_lists;
} kv_target;
/* Returns the job that writes rows k, v [n][n_heads][head_dim] f32. */
kv_write_job kv_store_job(const kv_store *s, int layer, kv_target to, buf k, buf v, size_t n);
void kv_store_layer_end(kv_store *s, int layer);
void kv_store_end(kv_store *s);
/* Exact stores: the rows of a layer from `from` on hold nothing any more; their memory is given back. Stores with
 * codes do so by themselves with what a prompt leaves quantized. */
void kv_store_discard(kv_store *s, int layer, int64_t from);
/* Drops the tokens from n on. False: a token was quantized since the sequence had n tokens, so that its exact row is
 * gone; nothing changes. Otherwise the store is as if it had never held more than n tokens. */
bool kv_store_rewind(kv_store *s, int64_t n);

/* Reason for a refusal of kv_store_rewind. */
#define KV_NO_REWIND "tokens were quantized since"

/* Walks over the rows of n tokens (state.h); exact stores: the slots [0, n_rows). */
status kv_store_state(kv_store *s, attn_state *v, int64_t n, int64_t n_rows, err *e);

/* Bytes of n rows in all regions: of exact stores any n, of stores with codes the tokens [0, n) as they are held
 * now (n - length of them not yet ended). */
size_t kv_store_bytes(const kv_store *s, int64_t n);
/* The same of one region where only the tokens pos[0..n) (ascending) are left: a group of codes counts while
 * one of its tokens is left. */
size_t kv_store_bytes_of(const kv_store *s, const int64_t *pos, int64_t n);
/* At least that for any n of the first n_all tokens. */
size_t kv_store_bytes_most(const kv_store *s, int64_t n_all, int64_t n);
/* Most bytes of one layer with `slots` slots: stores with codes hold a prompt unquantized up to its end. */
status kv_plan_bytes(size_t *out, const kv_format *f, const attn_shape *shape, const attn_limits *lim, size_t n_heads,
                     int64_t slots, err *e);
/* Bytes of a store's maps from n slots to rows, one set for all layers; chunk: most tokens of a forward. */
size_t kv_map_bytes(const kv_format *f, int64_t n, int64_t chunk);

#endif
