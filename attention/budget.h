/* SPDX-License-Identifier: MIT */
/* How many items (tokens, pages, blocks) each layer of a step may choose: as many in every
 * layer, or shares of a pool that travels across the layers by the entropy of their scores. For
 * any selector. Use: open in step_begin; take in select, layers in order; close in step_end.
 * Source: ActQKV eqs. 11-12 with the integer rules of methods.md 9.3 and 9.7. */
#ifndef ATTENTION_BUDGET_H
#define ATTENTION_BUDGET_H

#include "attention/method.h"
#include "kernels/ops_block.h"

typedef struct attn_budget attn_budget;

enum { POOL_FIXED, POOL_ENTROPY };

/* Parameters of selectors. */
enum { BUDGET_TOTAL, BUDGET_EXTRA };
#define ATTN_MODE_PARAM(def)                                                                       \
    {                                                                                              \
        "budget_mode", "total extra",                                                              \
            "the budget counts forced tokens, or they come on top of it", def, 0, 1                \
    }
#define ATTN_POOL_PARAM(def)                                                                       \
    {                                                                                              \
        "pool", "fixed entropy",                                                                   \
            "budget of a decode step: the same in all layers, or shared out by the entropy of "    \
            "their scores",                                                                        \
            def, 0, 1                                                                              \
    }

/* pool: POOL_*. The layers that share are those of c->layers; n_windows: most pools at once (one
 * for each prompt window; 1 in decode steps). */
status attn_budget_create(attn_budget **out, const attn_ctx *c, int64_t pool, size_t n_windows,
                          err *e);
void attn_budget_free(attn_budget *b);
void attn_budget_reset(attn_budget *b);
/* The means of entropies (state.h). */
status attn_budget_state(attn_budget *b, attn_state *v, err *e);
/* A forward begins: in each of n_windows windows the layers share nominal items a layer, with
 * POOL_FIXED or n_windows = 0 each may take `nominal`. */
void attn_budget_open(attn_budget *b, int64_t nominal, size_t n_windows);
/* The items that `layer` may choose by these scores (softmax over scale * score): i64 [1] in ops
 * memory. */
buf attn_budget_take(attn_budget *b, int layer, size_t window, const item_scores *s, float scale);
/* The forward ends: its entropies count in the means of later ones. */
void attn_budget_close(attn_budget *b);

/* Most items that a layer may get. */
static inline int64_t attn_budget_most(int64_t pool, int64_t nominal)
{
    return pool == POOL_ENTROPY ? 2 * nominal : nominal;
}
/* Bytes of a budget's state. */
size_t attn_budget_bytes(const attn_shape *shape, size_t n_windows);

#endif
