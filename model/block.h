/* SPDX-License-Identifier: MIT */
/* Blocks: a model is a list of them, each one residual update x += f(norm(x)). A kind of block is one file block_*.c.
 * Not for other folders. */
#ifndef MODEL_BLOCK_H
#define MODEL_BLOCK_H

#include "attention/sequence.h"
#include "attention/state.h"
#include "model/weights.h"

typedef struct decoder decoder;
typedef struct walk walk;

struct block_kind {
    const char *name;
    bool keeps_kv; /* has keys and values in every sequence: it calls attn_layer with block.kv */
    size_t size;   /* of its weights, a struct of `weight` */
    /* Lists the weights: names, shapes, and this rank's part. */
    status (*weights)(walk *k, const model_config *c, void *w);
    /* Returns the bytes of decoder scratch for so many rows. */
    size_t (*scratch)(const model_config *c, size_t rows);
    /* Declares recurrent state of a sequence (recurrent.h); NULL: none. */
    void (*declare)(state_decl *d, const model_config *c);
    /* Adds to d->x [rows, hidden]. */
    void (*run)(decoder *d, const attn_step *s, const block *b, size_t rows);
};

struct block {
    const block_kind *kind;
    void *w;
    int layer, kv, state; /* index of the layer; among blocks with keys and values; among blocks with recurrent state */
};

extern const block_kind block_attention, block_swiglu;

typedef struct {
    weight norm, q_norm, k_norm; /* absent weights have p NULL */
    weight q, k, v, o, q_bias, k_bias, v_bias, o_bias;
} attention_weights;

typedef struct {
    weight norm, gate, up, down, gate_bias, up_bias, down_bias;
} swiglu_weights;

/* Allocates the blocks of a config with room for their weights. */
status blocks_create(block **out, size_t *n, const model_config *c, err *e);
/* The same with the weights of n others. */
status blocks_copy(block **out, const block *from, size_t n, const model_config *c, err *e);

/* Gives the keys' and values' rows [rows, kv heads, head_dim] f32 of an attention block's scratch. */
void attention_room(const decoder *d, const block *b, size_t rows, buf *k, buf *v);

/* ---- listing weights, for block_kind.weights ---- */

struct walk {
    weight_spec *list;
    size_t n, room;
    int layer; /* -1: not in a layer */
    size_t rank, ranks;
    err *e;
};

status walk_weight(walk *k, weight_spec w, const char *name);
/* A matrix of which each rank has as many rows, or columns. */
status walk_rows(walk *k, weight *slot, const char *name, size_t rows, size_t cols);
status walk_cols(walk *k, weight *slot, const char *name, size_t rows, size_t cols);
status walk_norm(walk *k, weight *slot, const char *name, size_t n);
/* The bias of a rank's rows, if it is wanted. */
status walk_bias(walk *k, bool wanted, weight *slot, const char *name, size_t n);
/* The bias of a sum over the ranks: the first rank adds it. */
status walk_sum_bias(walk *k, bool wanted, weight *slot, const char *name, size_t n);

#endif
