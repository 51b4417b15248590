/* SPDX-License-Identifier: MIT */
/* The family of methods that evict: each layer has lists of the rows that it keeps, and prunes them.
 *
 * Before the first eviction, slots are positions and rows are attended as by `full`. A prompt is attended whole and
 * pruned at its end (or after each chunk). A decode step attends the kept rows and the new token, then drops one row. A
 * method provides its rule, and scores the kept rows in its hook `observe` or in `vote`. */
#ifndef ATTENTION_EVICT_H
#define ATTENTION_EVICT_H

#include "attention/demote.h"
#include "attention/method.h"
#include "kernels/ops_evict.h"
#include "kernels/ops_select.h"

/* Rule of a method with its parameters. */
typedef struct {
    gqa_mode gqa;     /* heads that use one list; GQA_PER_Q stores one K/V region per query head */
    int how;          /* COMBINE_*, over the heads that use one list */
    int64_t recent;   /* newest entries that are never dropped */
    bool sums;        /* scores persist from step to step; otherwise each pruning computes its own */
    bool each_chunk;  /* prompts are pruned after each chunk, not at their end */
    bool once;        /* only the first prompt is pruned; decode steps drop nothing */
    bool each_prompt; /* with once: later prompts are also pruned */
    demote_rule low;  /* from the parameters */
} evict_rule;

/* attn_method.kind. */
typedef struct {
    int64_t least; /* smallest budget */
    /* Fills the zeroed rule; gqa, how and low are set. */
    void (*rule)(const attn_spec *s, evict_rule *r);
    /* Scores a layer's entries before a prompt is pruned; NULL: observe does. */
    void (*vote)(attn_view *v, const attn_part *p, int layer);
    /* Returns the entries that a list keeps of n tokens, half of them the newest. It grows by at most one per token.
     * NULL: the budget, with the rule's `recent`. */
    int64_t (*keeps)(const attn_spec *s, int64_t n);
} evict_kind;

/* State of the family; a method with its own struct embeds it first. */
typedef struct {
    evict_rule rule;
    size_t n_lists, stride;
    buf *at, *slot, *sum; /* [n_layers] columns of kept_rows; slot: unless by position; sum: with rule.sums */
    buf range, seen;      /* all layers: ranges of lists; entries that a step attended */
    kept_rows *kept;      /* [n_layers] views of these buffers */
    buf score;            /* f32 [n_lists][stride], without rule.sums */
    buf logits;           /* f32 [n_heads][stride] logits of a decode step; p NULL: not needed */
    buf slots;            /* i64 [chunk][n_lists] slots of new rows */
    kv_rows by_kv_head;   /* rows of the current layer with one region per KV head */
    buf k, v;             /* GQA_PER_Q: new rows, one copy per query head */
    int64_t *counts;      /* host copy of range */
    bool scored;          /* attention of this forward writes its logits to `logits` */
    bool due;             /* this forward ends with pruning */
    demoted low;          /* demoted rows */
    int64_t attended;     /* entries of a list including this forward's; with sliding windows an upper bound */
    int64_t prompts;      /* number of prompts so far */
} evict_ctx;

/* Parameter gqa. With per_q the K/V bytes grow by the number of query heads per KV head. */
#define EVICT_GQA_PARAM(def)                                                                                           \
    "gqa", GQA_NAMES, "how the attention weights of heads combine; per_q: one set and one copy of K/V per query head", \
        def, 0, GQA_COUNT - 1

/* Parameter for rule.each_chunk. */
#define EVICT_PREFILL_PARAM                                                                                            \
    "prefill_evict", "end chunk",                                                                                      \
        "evict from a prompt at its end, or after each chunk (bounded memory, different results)", 0, 0, 1

/* attn_method.check, or a part of it: rejects a gqa that does not apply to weights, and a budget that is too small. */
status evict_check(const attn_spec *s, const attn_shape *shape, err *e);
/* The family's hooks; methods with their own hooks call them. */
void evict_reset(attn_view *v);
void evict_begin(attn_view *v, const attn_part *p);
void evict_append(const attn_task *t, size_t n, int layer);
void evict_layer_end(attn_view *v, const attn_part *p, int layer);
/* The hook `observe` of methods whose scores are sums of weights over all queries. */
void evict_add_weights(attn_view *v, const attn_part *p, int layer, buf q, buf lse);
/* Returns a job over the kept rows of a layer, for queries q at positions qpos with their lse. listed: read through the
 * lists; true in a vote, v->listed in observe. */
attn_job evict_job(const attn_view *v, int layer, bool listed, size_t n_tok, buf q, buf lse, buf qpos);
/* Sums the scores [stride] of a list that all heads use over all ranks. The sum selects the same rows as the mean. */
void evict_add_ranks(const attn_view *v, buf score);
/* True if a prompt that ends with n more tokens is pruned at its end. */
bool evict_prunes(const attn_view *v, int64_t n);

#endif
