/* SPDX-License-Identifier: MIT */
/* InfLLM's memory of blocks: what methods share that read a local band at true distances and
 * chosen blocks at one fixed distance. methods.md 12.1.
 *
 * Rows are stored raw, slot = position. Of n tokens the last `local` are the band of the newest
 * query; what left the band are first the sinks, then full blocks, then pending tokens that fill
 * no block yet: all counts follow from n. Sinks, chosen blocks and pending tokens stand at the
 * distance local - 1: their keys stay raw and queries are rotated there. Band rows are fetched
 * from the store (any store) for each layer and window and rotated in a scratch copy. Blocks are
 * formed behind a window from the attention that their tokens received in the band, which a ring
 * keeps; over a store with codes, from the keys that the codes give. */
#ifndef ATTENTION_BLOCKS_H
#define ATTENTION_BLOCKS_H

#include "attention/store.h"
#include "kernels/ops_block.h"

typedef struct {
    int64_t sink, local, window, block, reps;
    int64_t most; /* blocks of one selection */
} block_rule;

/* Sizes that follow from a rule and a sequence's limits. */
typedef struct {
    int64_t most;
    size_t blocks;  /* that a layer may ever hold */
    size_t rows;    /* of a window */
    size_t windows; /* of a forward */
    size_t band, table, far,
        form;    /* rows: scratch copy, rotation table, far list, blocks formed at once */
    size_t ring; /* positions whose mass is kept */
    size_t dim;  /* n_heads * head_dim */
} block_sizes;

block_sizes blocks_sizes(const block_rule *r, const attn_shape *shape, const attn_limits *lim);

/* State; methods embed it first. */
typedef struct {
    attn_ctx base;
    block_rule rule;
    block_sizes n;
    kv_store *store;
    block_index *index; /* [n_layers] */
    buf *mass;          /* [n_layers] f32 [n_heads][ring] */
    int64_t *host;      /* [n_layers] states of layers, as uploaded */
    kv_rows band, keys; /* scratch: rotated rows; raw keys of new blocks */
    buf state, place, at, table, far_pos, far_table, far_qpos, sums, list;
    int64_t done;  /* prompt tokens before this forward */
    bool observed; /* the layer at work had queries */
} block_ctx;

static inline block_ctx *blocks_of(attn_ctx *c)
{
    return (block_ctx *)c;
}

/* Buffers with their sizes, for allocation, release and plans alike. */
typedef struct {
    buf *b;
    size_t bytes;
} sized_buf;

status blocks_alloc(backend *be, const sized_buf *b, size_t n, const char *what, err *e);
void blocks_dealloc(backend *be, const sized_buf *b, size_t n);

/* Windows are cut from the start of a forward, so chunks must be multiples of them: else
 * ST_USAGE. */
status blocks_check_chunk(const attn_spec *s, const block_rule *r, const attn_limits *lim, err *e);
status blocks_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                   const attn_limits *lim, const bool *layers, const block_rule *r, err *e);
/* Fills a zeroed context. After a failure blocks_release releases what it holds, not the
 * context. */
status blocks_init(block_ctx *b, const attn_ctx *base, const block_rule *r, err *e);
void blocks_release(block_ctx *b);

/* First position of the window at hand. */
int64_t blocks_first(const block_ctx *b, const attn_part *p);
/* Blocks that a layer holds after n tokens. */
int64_t blocks_after(const block_ctx *b, int64_t n);
/* Whether the last query of the window sees more than its band. */
static inline bool blocks_beyond(const block_ctx *b, const attn_part *p)
{
    return blocks_first(b, p) + (int64_t)p->n_tok > b->rule.local;
}

/* In select, in this order. begin: counts of this window. far_queries: out
 * [n_tok][n_heads][head_dim] = q_raw at the fixed distance. band: the band as a segment. far:
 * sinks, blocks and pending tokens; block i32 with chosen i64 [2] as in far_list, chosen.p NULL:
 * none is chosen. */
void blocks_begin(block_ctx *b, const attn_part *p, int layer);
void blocks_far_queries(block_ctx *b, const attn_part *p, buf out, buf q_raw);
void blocks_band(block_ctx *b, const attn_part *p, int layer, attn_seg *seg);
void blocks_far(block_ctx *b, const attn_part *p, int layer, buf block, buf chosen, attn_seg *seg);
/* i64 [3]: blocks, first and end of those that the window may choose. */
buf blocks_candidates(const block_ctx *b, int layer);

/* Hooks of attn_method, or their share in one. */
void blocks_reset(attn_ctx *c);
void blocks_step_begin(attn_ctx *c, const attn_part *p);
void blocks_append(attn_ctx *c, const attn_part *p, int layer, buf k_raw, buf k, buf v);
bool blocks_observes(const attn_ctx *c, const attn_part *p, int layer);
void blocks_observe(attn_ctx *c, const attn_part *p, int layer, buf q, buf lse);
void blocks_layer_end(attn_ctx *c, const attn_part *p, int layer);
void blocks_step_end(attn_ctx *c, const attn_part *p);
const char *blocks_rewind(attn_ctx *c, int64_t n);
status blocks_state(attn_ctx *c, attn_state *v, err *e);
void blocks_held(const attn_ctx *c, int64_t n_new, attn_bytes *out);
int64_t blocks_attended(const attn_ctx *c, int layer);
int64_t blocks_positions(const attn_ctx *c, int layer, int head, int64_t *out);

#endif
