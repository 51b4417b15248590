/* SPDX-License-Identifier: MIT */
/* A model is a list of blocks, each one residual update x += f(norm(x)). Each kind of block is one file block_*.c.
 * Private to model/. */
#ifndef MODEL_BLOCK_H
#define MODEL_BLOCK_H

#include "attention/sequence.h"
#include "attention/state.h"
#include "model/weights.h"

typedef struct decoder decoder;
typedef struct walk walk;

struct block_kind {
    const char *name;
    bool keeps_kv;      /* has keys and values in every sequence and calls attn_layer with block.kv */
    size_t size;        /* bytes of its weights, a struct of `weight` */
    size_t expert_size; /* bytes more for each expert of the config */
    /* Lists the weights with names, shapes and this rank's part. */
    status (*weights)(walk *k, const model_config *c, void *w);
    /* Returns the bytes of decoder scratch for `rows` rows. */
    size_t (*scratch)(const model_config *c, size_t rows);
    /* Declares the recurrent state of a sequence (recurrent.h). NULL: none. */
    void (*declare)(state_decl *d, const model_config *c);
    /* Adds the block's output to d->x [rows, hidden]. */
    void (*run)(decoder *d, const attn_step *s, const block *b, size_t rows);
};

struct block {
    const block_kind *kind;
    void *w;
    /* indices among layers, among blocks with keys and values, and among blocks with recurrent state; -1: none */
    int layer, kv, state;
};

extern const block_kind block_attention, block_swiglu, block_moe;

typedef struct {
    weight norm, q_norm, k_norm, post_norm; /* p is NULL in absent weights */
    weight q, k, v, gate, o, q_bias, k_bias, v_bias, o_bias;
} attention_weights;

typedef struct {
    weight norm, post_norm, gate, up, down, gate_bias, up_bias, down_bias;
} swiglu_weights;

typedef struct {
    weight gate, up, down;
} expert_weights;

typedef struct {
    weight norm, router;
    weight open;                     /* gate of the shared expert; with `shared` absent in models without one */
    expert_weights shared, expert[]; /* [n_experts] */
} moe_weights;

/* Allocates the blocks of a config with room for their weights. */
status blocks_create(block **out, size_t *n, const model_config *c, err *e);
/* Allocates the blocks of a config and copies the weights of the n blocks of `from`. */
status blocks_copy(block **out, const block *from, size_t n, const model_config *c, err *e);

/* Returns in *k and *v the rows [rows, kv heads, head_dim] f32 in an attention block's scratch. */
void attention_scratch(const decoder *d, const block *b, size_t rows, buf *k, buf *v);

/* ---- listing weights, for block_kind.weights ---- */

struct walk {
    weight_spec *list;
    size_t n, room;
    int layer; /* -1: not in a layer */
    size_t rank, ranks;
    const char *whole; /* walk_whole */
    size_t whole_rows, whole_next;
    err *e;
};

status walk_weight(walk *k, weight_spec w, const char *name);
/* Lists a matrix that is split over the ranks by rows or by columns. rows, cols: shape of this rank's part. */
status walk_rows(walk *k, weight *slot, const char *name, size_t rows, size_t cols);
status walk_cols(walk *k, weight *slot, const char *name, size_t rows, size_t cols);
/* Lists a matrix like walk_rows. It is multiplied in one call with the matrix listed before it. */
status walk_more_rows(walk *k, weight *slot, const char *name, size_t rows, size_t cols);
/* Makes the weights listed next by walk_rows or walk_bias consecutive rows of a tensor that files may have instead.
 * rows: all rows of this rank. name NULL: ends the list. */
void walk_whole(walk *k, const char *name, size_t rows);
status walk_norm(walk *k, weight *slot, const char *name, size_t n);
/* Lists a norm of a block: the family decides whether its gain is the weight or 1 + weight. */
status walk_block_norm(walk *k, const model_config *c, weight *slot, const char *name);
/* Lists a vector that no file has. name: for messages. */
status walk_constant(walk *k, weight *slot, const char *name, size_t n, float value);
/* Lists the bias of this rank's rows, if wanted. */
status walk_bias(walk *k, bool wanted, weight *slot, const char *name, size_t n);
/* Lists the bias of a sum over the ranks, if wanted. Only the first rank adds it. */
status walk_sum_bias(walk *k, bool wanted, weight *slot, const char *name, size_t n);

#endif
