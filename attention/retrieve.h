/* SPDX-License-Identifier: MIT */
/* What the methods share that keep all rows and attend a few: an index is built as rows come, prompts are
 * attended in full, and a decode step scores the items of the index (pages, tokens), chooses among them and
 * attends the chosen slots as one segment. While the query sees at most `budget` tokens the layer is attended
 * as by `full`, to the bit (methods.md 0.2.3). Slots are positions; rows behind a layer's sliding window
 * are no candidates (0.2.11).
 *
 * A method embeds `retrieve` first in its state, gives a retrieve_kind, and puts the functions below into its
 * row of the table. */
#ifndef ATTENTION_RETRIEVE_H
#define ATTENTION_RETRIEVE_H

#include "attention/budget.h"
#include "attention/coarse.h"
#include "attention/store.h"
#include "kernels/ops_select.h"

typedef struct retrieve retrieve;

/* Names of the parameters that every retrieval method has. */
#define RETRIEVE_GQA_PARAM                                                                         \
    {                                                                                              \
        "gqa", GQA_NAMES, "how the query heads of a kv head share a selection (methods.md 0.2.4)", \
            GQA_VOTE, 0, GQA_COUNT - 1                                                             \
    }

/* Items that a step's selection is about, in a layer that sees the slots [first, n). */
typedef struct {
    int64_t lo, hi; /* candidates */
    int64_t head;   /* items before it are forced, */
    int64_t tail;   /* and those from it on */
    int64_t k;      /* candidates to take, unless a budget over layers says otherwise */
} retrieve_range;

/* What makes a method of its own. */
typedef struct {
    size_t size; /* bytes of its state */
    int64_t (*pool)(const attn_spec *s);    /* POOL_* */
    int64_t (*granule)(const attn_spec *s); /* slots of an item */
    int64_t (*most)(const attn_spec *s);    /* slots that a list can hold */
    retrieve_range (*range)(const attn_spec *s, int64_t first, int64_t n);
    /* Bytes of the index of one layer that holds n tokens. */
    status (*bytes)(size_t *out, const attn_spec *s, const attn_shape *shape, int64_t n, err *e);
    /* Allocates the index of every layer of r->base.layers; on failure `close` is called. */
    status (*open)(retrieve *r, err *e);
    void (*close)(retrieve *r);
    /* n keys k [n][n_kv_heads][head_dim] f32, rotated, of the positions pos[0].. */
    void (*add)(retrieve *r, int layer, buf pos, buf k, size_t n);
    /* First position whose key `redo` reads after a rewind to n tokens; n: none. */
    int64_t (*redo_from)(const attn_spec *s, int64_t n);
    /* The index of a layer that holds r->base.length tokens (state.h). */
    status (*state)(retrieve *r, attn_state *v, int layer, err *e);
    void (*redo)(retrieve *r, int layer, const kv_rows *rows, int64_t n);
    /* Scores of the candidates, as in ops_select.h: n is the step's {n, lo, hi}. */
    void (*score)(retrieve *r, int layer, buf score, size_t stride, buf q, size_t n_heads, buf n,
                  int64_t n_max);
    /* `score` and the votes of each kv head's queries at once, or NULL: scores become undefined. */
    void (*vote)(retrieve *r, int layer, buf out, buf score, size_t stride, buf q, size_t n_heads,
                 buf n, int64_t n_max);
    /* A second level over the index, and `score` of the candidates in its groups, by places (ops_select.h). */
    coarse_rule (*coarse)(const attn_spec *s);
    void (*score_groups)(retrieve *r, int layer, buf score, size_t stride, buf q, size_t n_heads, buf n,
                         const item_groups *g);
} retrieve_kind;

/* attn_method.alone: a vote over the layer. */
const char *retrieve_alone(const attn_spec *s);

struct retrieve {
    attn_ctx base;
    const retrieve_kind *kind;
    kv_store *store;
    int64_t granule, items; /* most items of a layer */
    size_t n_lists, idx_stride;
    gqa_mode gqa;
    attn_budget *budget; /* NULL: the same in all layers */
    coarse *coarse;      /* NULL: the whole index is scored */
    bool pooled;         /* since the last reset: its means hold decode steps */
    int64_t *host;       /* for uploads */
    buf state;     /* i64 [n_layers][R_COUNT] of retrieve.c */
    /* i64 [n_layers]: candidates to take in a layer of this step, retrieve_range.k, where no pool gives them. */
    buf k;
    /* f32 [n_heads][places] raw scores, and [n_lists][places] combined ones behind them; a place for each item, or
     * for those of the groups that a second level keeps */
    buf score;
    size_t places;
    buf idx,
        ranges; /* i32 [n_lists][idx_stride] of the layer at work; i64 [n_layers][n_lists][2] */
    buf probe;  /* f32 [n_kv_heads][head_dim]: gqa=mean_q */
};

/* The parts of attn_method. Methods write plan and create as calls with their kind. */
status retrieve_plan(attn_bytes *out, const retrieve_kind *kind, const attn_spec *s,
                     const attn_shape *shape, const attn_limits *lim, const bool *layers, err *e);
status retrieve_create(attn_ctx **out, const retrieve_kind *kind, const attn_ctx *base, err *e);
bool retrieve_dense(const attn_spec *s, const attn_shape *shape, int layer);
void retrieve_free(attn_ctx *c);
void retrieve_reset(attn_ctx *c);
bool retrieve_exact_prompt(const attn_ctx *c, int64_t n);
void retrieve_step_begin(attn_ctx *c, const attn_part *p);
void retrieve_append(attn_ctx *c, const attn_part *p, int layer, buf k_raw, buf k, buf v);
void retrieve_select(attn_ctx *c, const attn_part *p, int layer, buf q_raw, buf q, attn_sel *sel);
void retrieve_layer_end(attn_ctx *c, const attn_part *p, int layer);
void retrieve_step_end(attn_ctx *c, const attn_part *p);
const char *retrieve_rewind(attn_ctx *c, int64_t n);
status retrieve_state(attn_ctx *c, attn_state *v, err *e);
void retrieve_held(const attn_ctx *c, int64_t n_new, attn_bytes *out);
int64_t retrieve_attended(const attn_ctx *c, int layer);
int64_t retrieve_positions(const attn_ctx *c, int layer, int kv_head, int64_t *out);

#define RETRIEVE_HOOKS                                                                             \
    .pages = true, .dense = retrieve_dense, .free = retrieve_free, .reset = retrieve_reset,                       \
    .exact_prompt = retrieve_exact_prompt, .step_begin = retrieve_step_begin,                      \
    .append = retrieve_append, .select = retrieve_select, .layer_end = retrieve_layer_end,         \
    .step_end = retrieve_step_end, .rewind = retrieve_rewind, .state = retrieve_state,             \
    .held = retrieve_held, .attended = retrieve_attended, .positions = retrieve_positions

#endif
