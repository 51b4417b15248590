/* SPDX-License-Identifier: MIT */
/* Store: K/V rows of some layers of one sequence. Selections address rows by slots.
 *
 * Float and block stores (f32, f16, bf16; q8, q4): a slot is a row. The method assigns slots and may reuse and move
 * rows. Quantized stores (kivi, logquant, hf): the slot of a token is always its position (kv_store_by_position). Some
 * tokens have float rows, the others are quantized. The set of float rows follows from the number of tokens, and with
 * hf also from the ends of prompts. It is the same in all layers and heads. */
#ifndef ATTENTION_STORE_H
#define ATTENTION_STORE_H

#include "attention/sequence.h"
#include "attention/state.h"

typedef struct kv_store kv_store;
typedef struct row_tier row_tier; /* tier.h */

/* True for quantized stores. They are addressed by position and need a slot for every token. */
static inline bool kv_has_codes(const kv_format *f)
{
    return f->kind != KV_PLAIN;
}

typedef struct {
    backend *be;
    const attn_spec *spec; /* kv: format; text: for errors */
    const attn_shape *shape;
    const attn_limits *lim;
    const bool *layers; /* [n_layers]: true for layers with rows */
    size_t n_heads;     /* regions per layer */
    int64_t slots;      /* slots per layer */
    row_tier *tier;     /* NULL: device memory; borrowed */
} kv_store_options;

/* Reserves address space; memory is taken as rows are written. On failure nothing remains allocated. */
status kv_store_create(kv_store **out, const kv_store_options *o, err *e);
void kv_store_free(kv_store *s);
void kv_store_reset(kv_store *s);
bool kv_store_by_position(const kv_store *s);
/* True if no row of a quantized store is quantized yet, and always for float and block stores. */
bool kv_store_plain(const kv_store *s);
/* True if one of the tokens [from, to) is quantized. */
bool kv_store_coded_in(const kv_store *s, int64_t from, int64_t to);
/* Returns the rows of a layer, for attn_job and attn_seg. */
const kv_rows *kv_store_rows(const kv_store *s, int layer);

/* Returns a view with one region per KV head of rows that have one per query head. Requires equal regions within each
 * group of query heads. */
static inline kv_rows kv_rows_by_kv_head(const kv_rows *rows, size_t n_kv_heads)
{
    kv_rows r = *rows;
    size_t copies = r.n_kv_heads / n_kv_heads;
    r.n_kv_heads = n_kv_heads;
    r.cap *= copies;
    r.codes.cap *= copies;
    return r;
}

/* Loads the slots [from, to) of a layer if they are in a file. Required before any read except attention over a
 * segment. */
static inline void kv_need(backend *be, const kv_rows *rows, int64_t from, int64_t to)
{
    if (rows->tier) be->ops->tier->span(be, rows, from, to);
}

/* Begins a forward of n_tok tokens after `length`. The caller then writes the rows of each layer, calls layer_end after
 * its attention (quantizes the rows that are due), and calls end after all layers. flags: ATTN_*. */
void kv_store_begin(kv_store *s, int64_t length, int64_t n_tok, unsigned flags);
/* Target slots of the rows from position `pos` on: first, first + 1, ..., or slots i64 [n][n_lists] as in kv_write.
 * Stores by position use only pos. */
typedef struct {
    int64_t pos, first;
    buf slots; /* p NULL: consecutive */
    size_t n_lists;
} kv_target;
/* Returns the job that writes rows k, v [n][n_heads][head_dim] f32. */
kv_write_job kv_store_job(const kv_store *s, int layer, kv_target to, buf k, buf v, size_t n);
void kv_store_layer_end(kv_store *s, int layer);
void kv_store_end(kv_store *s);
/* Float and block stores: releases the memory of a layer's rows from `from` on. Quantized stores release the float rows
 * of a prompt themselves. */
void kv_store_discard(kv_store *s, int layer, int64_t from);
/* Drops the tokens from n on, as if the store had never held them. Returns false and changes nothing if a token was
 * quantized since the sequence had n tokens, so that its float row is lost. */
bool kv_store_rewind(kv_store *s, int64_t n);

/* Reason for a failure of kv_store_rewind. */
#define KV_NO_REWIND "tokens were quantized since"

/* Walks over the rows of n tokens (state.h); float and block stores: the slots [0, n_rows). */
status kv_store_state(kv_store *s, attn_state *v, int64_t n, int64_t n_rows, err *e);

/* Returns the bytes of n rows in all regions of a layer. Quantized stores: of the tokens [0, n) in their current form,
 * which may include tokens of a forward that has not ended. */
size_t kv_store_bytes(const kv_store *s, int64_t n);
/* Returns the bytes of one region with only the tokens pos[0..n), ascending. A quantized group counts if any of its
 * tokens is among them. */
size_t kv_store_bytes_of(const kv_store *s, const int64_t *pos, int64_t n);
/* Returns an upper bound of kv_store_bytes_of for any n of the first n_all tokens. */
size_t kv_store_bytes_most(const kv_store *s, int64_t n_all, int64_t n);
/* Computes the peak bytes of one layer with `slots` slots. Quantized stores hold a prompt unquantized up to its end. */
status kv_plan_bytes(size_t *out, const kv_format *f, const attn_shape *shape, const attn_limits *lim, size_t n_heads,
                     int64_t slots, err *e);
/* Returns the bytes of a store's maps from n slots to rows, one set for all layers. chunk: most tokens of a forward. */
size_t kv_map_bytes(const kv_format *f, int64_t n, int64_t chunk);

#endif
