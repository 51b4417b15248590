/* SPDX-License-Identifier: MIT */
/* InfLLM's memory blocks: the family of methods that read a local band at true distances and selected memory blocks at
 * one fixed distance. doc/methods.md 12.1.
 *
 * Rows are stored raw, and slots are positions. The band of the newest query is the last `local` tokens. The tokens
 * before it are the sinks, then full memory blocks, then pending tokens that do not fill a block yet. All counts follow
 * from the number of tokens. Sinks, selected blocks and pending tokens are attended at the distance local - 1: their
 * keys stay raw, and queries are rotated to that distance. Keys of the band are rotated as attention reads them. A
 * prompt window rotates them in a scratch copy of its band, which all its queries read. Blocks are formed after a
 * window, from the attention that their tokens received in the band and that a ring holds. Over a quantized store they
 * are formed from dequantized keys. While everything fits into the band, it is the only segment, contiguous as in
 * `full`.
 *
 * A method embeds block_memory first in its struct and calls blocks_reset and blocks_begin in these hooks. */
#ifndef ATTENTION_BLOCKS_H
#define ATTENTION_BLOCKS_H

#include "attention/method.h"
#include "kernels/ops_block.h"

/* First parameters of every method, with the method's defaults. */
enum { BLOCKS_SINK, BLOCKS_LOCAL, BLOCKS_WINDOW, BLOCKS_BLOCK, BLOCKS_REPS, BLOCKS_OWN };
#define BLOCKS_PARAMS(sink, local, window, block, reps)                                                                \
    [BLOCKS_SINK] = {"sink", NULL, "first tokens, always attended", sink, 0, 1 << 20},                                 \
    [BLOCKS_LOCAL] = {"local", NULL, "newest tokens, attended at their true distances", local, 1, 1 << 20},            \
    [BLOCKS_WINDOW] = {"window", NULL, "prompt tokens that choose their blocks together; --chunk must be a multiple",  \
                       window,   1,    1 << 20},                                                                       \
    [BLOCKS_BLOCK] = {"block", NULL, "tokens per memory block", block, 1, 1 << 16},                                    \
    [BLOCKS_REPS] = {"reps", NULL, "most attended tokens of a block; their mean key represents it", reps, 1, 1 << 16}

typedef struct {
    int64_t sink, local, window, block, reps;
    int64_t most; /* most blocks of a selection */
} block_rule;

/* Returns the number of blocks that fit into the budget. */
int64_t blocks_budget(const attn_spec *s);
/* Rejects a budget below one block and more representatives than tokens per block. */
status blocks_check(const attn_spec *s, const attn_shape *shape, err *e);
/* The hook `regions`: sinks, band and pending tokens are always attended. A layer whose window is within the band is
 * dense. */
void blocks_regions(const attn_spec *s, attn_regions *r);

/* Hooks of the family's methods: attn_method.kind. */
typedef struct {
    int64_t (*most)(const attn_spec *s); /* most blocks of a selection; NULL: blocks_budget */
    /* Chooses among the first n blocks for the current window and writes their numbers after the header of `chosen`.
     * `queries` holds the window's queries at the fixed distance, except in decode steps with n = 0. n = 0: no choice
     * is made and nothing is read. */
    void (*choose)(attn_view *v, const attn_part *p, int layer, int64_t n);
} block_kind;

/* Sizes, which follow from the rule and the limits of a sequence. */
typedef struct {
    int64_t most, back; /* most blocks of a selection; positions before a forward that tables cover */
    size_t blocks;      /* most blocks of a layer */
    size_t rows;        /* queries of a window */
    size_t band, table, far,
        form;    /* rows of the scratch copy, rotation table, far list, and of blocks formed at once */
    size_t at;   /* entries of block_memory.at */
    size_t ring; /* positions whose mass is held */
    size_t dim;  /* n_heads * head_dim */
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
    buf chosen;         /* i64 [2]: first entry and count, then i32 numbers of the selected blocks */
    buf at, table, far_pos, far_table, sums;
    buf list;                     /* i64 [2]: first entry and count, then i32 positions of the far tokens */
    int64_t *pos;                 /* host copy of `at`, for uploads */
    int64_t table_from, table_to; /* positions in `table` */
    bool observed;                /* the current layer had queries */
} block_memory;

/* The family's part of the hooks with these names. */
void blocks_reset(attn_view *v);
void blocks_begin(attn_view *v, const attn_part *p);

/* Returns the number of blocks that a layer holds after n tokens. */
int64_t blocks_after(const block_rule *r, int64_t n);
/* Returns the index of a layer. Requires limits that admit at least one block. */
block_index blocks_index(const attn_view *v, int layer);
/* Returns the blocks that a window whose first query is `query` may choose. */
item_range blocks_candidates(const attn_view *v, int layer, int64_t query);
/* Writes the k best blocks by `score` to `chosen`. budget: i64 [1] that replaces k; p NULL: k. */
void blocks_choose(const attn_view *v, item_range items, int64_t k, buf budget);

#endif
