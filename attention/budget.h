/* SPDX-License-Identifier: MIT */
/* How many items (tokens, pages, blocks) each layer of a step may choose: as many in every layer, or shares of a pool
 * that travels across the layers by the entropy of their scores. For any selector. Use: budget_declare in declare;
 * budget_reset in reset; open in begin; take in select, layers in order; close in end.
 * Source: ActQKV eqs. 11-12 with the integer rules of methods.md 9.3 and 9.7. */
#ifndef ATTENTION_BUDGET_H
#define ATTENTION_BUDGET_H

#include "attention/method.h"
#include "kernels/ops_block.h"

enum { POOL_FIXED, POOL_ENTROPY };

#define ATTN_POOL_PARAM(def)                                                                                           \
    {                                                                                                                  \
        "pool", "fixed entropy",                                                                                       \
            "budget of a decode step: the same in all layers, or shared out by the entropy of their scores", def, 0, 1 \
    }

/* A member of the method's struct. */
typedef struct {
    backend *be;
    bool pooled;
    int *rank;                       /* [n_layers] place of a layer among those that share */
    bool open;                       /* the layers of this forward share a pool */
    entropy_pool pool;               /* its buffers are those below */
    buf pools, k, count, sum, theta; /* k i64 [n_layers] */
} attn_budget;

/* at: offset of the attn_budget; kind of the means that last: MEM_STATE or MEM_COUNTS. */
void budget_declare(attn_decl *d, size_t at, mem_kind kind);
/* pool: POOL_*. The layers that share are those of v->layers. */
void budget_reset(attn_budget *b, const attn_view *v, int64_t pool);
/* Whether loaded means can be. */
status budget_check(const attn_budget *b, err *e);
/* Begins a forward. With `shared` and POOL_ENTROPY its layers share nominal items a layer; else each may take as many.
 */
void budget_open(attn_budget *b, int64_t nominal, bool shared);
/* The items that `layer` may choose by the scores f32 of the candidates n: i64 [1] in ops memory; p NULL: the nominal
 * number. */
buf budget_take(attn_budget *b, int layer, buf score, item_range n);
/* The forward ends: its entropies count in the means of later ones. */
void budget_close(attn_budget *b);

/* Most items that a layer may get. */
static inline int64_t budget_most(int64_t pool, int64_t nominal)
{
    return pool == POOL_ENTROPY ? 2 * nominal : nominal;
}

#endif
