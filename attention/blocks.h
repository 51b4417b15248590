/* SPDX-License-Identifier: MIT */
/* InfLLM's memory blocks: what methods share that read a local band at true distances and chosen memory blocks at one
 * fixed distance. doc/methods.md 12.1.
 *
 * Rows are stored raw, slot = position. Of n tokens the last `local` are the band of the newest query. What left the
 * band are first the sinks, then full memory blocks, then pending tokens that fill no block yet: all counts follow from
 * n. Sinks, chosen blocks and pending tokens stand at the distance local - 1: their keys stay raw and queries are
 * rotated there. Keys of the band are rotated where attention reads them; those of a prompt window in a scratch copy of
 * its band, which all its queries read. Blocks are formed behind a window from the attention that their tokens received
 * in the band, which a ring keeps; over a store with codes, from the keys that the codes give. While everything fits
 * into the band, it is the only segment, contiguous as in `full`.
 *
 * A method embeds block_memory first in its struct and calls blocks_reset and blocks_begin in these hooks. */
#ifndef ATTENTION_BLOCKS_H
#define ATTENTION_BLOCKS_H

#include "attention/method.h"
#include "kernels/ops_block.h"

/* The first parameters of every method, with its defaults. */
enum { BLOCKS_SINK, BLOCKS_LOCAL, BLOCKS_WINDOW, BLOCKS_BLOCK, BLOCKS_REPS, BLOCKS_OWN };
#define BLOCKS_PARAMS(sink, local, window, block, reps)                                                                \
    [BLOCKS_SINK] = {"sink", NULL, "first tokens, always attended", sink, 0, 1 << 20},                                 \
    [BLOCKS_LOCAL] = {"local", NULL, "newest tokens, attended at their true distances", local, 1, 1 << 20},            \
    [BLOCKS_WINDOW] = {"window", NULL, "prompt tokens that choose their blocks together; chunks are multiples of it",  \
                       window,   1,    1 << 20},                                                                       \
    [BLOCKS_BLOCK] = {"block", NULL, "tokens of a memory block", block, 1, 1 << 16},                                   \
    [BLOCKS_REPS] = {"reps", NULL, "best tokens of a memory block, whose mean key stands for it", reps, 1, 1 << 16}

typedef struct {
    int64_t sink, local, window, block, reps;
    int64_t most; /* blocks of one selection */
} block_rule;

/* Blocks that the budget has room for. */
int64_t blocks_budget(const attn_spec *s);
/* Refuses a budget below one block, more representatives than tokens. */
status blocks_check(const attn_spec *s, const attn_shape *shape, err *e);
/* Beside sinks and band the tokens that fill no block yet always stay. A layer that sees no further than the band is
 * dense. */
void blocks_regions(const attn_spec *s, attn_regions *r);

/* Requirements on the family's methods: attn_method.kind. */
typedef struct {
    int64_t (*most)(const attn_spec *s); /* blocks of a selection; NULL: blocks_budget */
    /* Chooses among the first n blocks for the window at hand, whose queries at the fixed distance are in `queries` (in
     * decode steps with n = 0 they are not): numbers behind `chosen`. n = 0: no choice, nothing is read. */
    void (*choose)(attn_view *v, const attn_part *p, int layer, int64_t n);
} block_kind;

/* Sizes that follow from the rule and a sequence's limits. */
typedef struct {
    int64_t most, back;            /* blocks of a selection; positions before a forward that tables need */
    size_t blocks;                 /* that a layer may ever hold */
    size_t rows;                   /* of a window */
    size_t band, table, far, form; /* rows: scratch copy, rotation table, far list, blocks formed at once */
    size_t at;                     /* positions of tables */
    size_t ring;                   /* positions whose mass is kept */
    size_t dim;                    /* n_heads * head_dim */
} block_sizes;

block_sizes blocks_sizes(const attn_spec *s, const attn_shape *shape, const attn_limits *lim);

typedef struct {
    block_rule rule;
    block_sizes n;
    buf *rep, *mass;    /* block_index.rep; f32 [n_heads][ring] */
    kv_rows band, keys; /* scratch: rotated rows; raw keys of new blocks */
    buf queries;        /* f32 [rows][n_heads][head_dim] at the fixed distance */
    buf weights, probe; /* f32 [rows]; f32 [dim]: for block_ops.probe */
    buf score;          /* f32 [blocks] */
    buf chosen;         /* i64 [2]: first entry and count of the chosen blocks, whose i32 numbers follow */
    buf at, table, far_pos, far_table, sums;
    buf list;                     /* i64 [2]: first entry and count of the far tokens, whose i32 positions follow */
    int64_t *pos;                 /* for uploads: at */
    int64_t table_from, table_to; /* positions that table holds */
    bool observed;                /* the layer at work had queries */
} block_memory;

/* Shares in hooks of the same names. */
void blocks_reset(attn_view *v);
void blocks_begin(attn_view *v, const attn_part *p);

/* Blocks that a layer holds after n tokens. */
int64_t blocks_after(const block_rule *r, int64_t n);
/* The index of a layer, where any block fits into the limits. */
block_index blocks_index(const attn_view *v, int layer);
/* Those that a window may choose whose first query is `query`. */
item_range blocks_candidates(const attn_view *v, int layer, int64_t query);
/* Takes blocks into `chosen` by `score`: k; budget: i64 [1] in its place, p NULL: k it is. */
void blocks_choose(const attn_view *v, item_range items, int64_t k, buf budget);

#endif
