/* SPDX-License-Identifier: MIT */
/* The family of methods that evict: lists of the rows that each layer keeps, prompts, pruning.
 *
 * While nothing was evicted, rows lie at slots = positions and are attended as by `full`. A prompt is attended whole
 * and pruned at its end (or after each chunk); decode steps attend what is kept and the new token, then drop one. A
 * method gives its rule, and scores what is kept in its hook `observe` or in `vote`. */
#ifndef ATTENTION_EVICT_H
#define ATTENTION_EVICT_H

#include "attention/demote.h"
#include "attention/method.h"
#include "kernels/ops_evict.h"
#include "kernels/ops_select.h"

/* The rule of a method, with its parameters. */
typedef struct {
    gqa_mode gqa;    /* heads that share a list; GQA_PER_Q stores one K/V region per query head */
    int how;         /* COMBINE_*: of the heads that share a list */
    int64_t recent;  /* newest entries that are never dropped */
    bool sums;       /* scores last from step to step; else each pruning has its own */
    bool each_chunk; /* prompts are pruned after each chunk, not at their end */
    bool once;       /* only the first prompt is pruned and decode steps drop nothing, */
    bool each_turn;  /* or every prompt is */
    demote_rule low; /* as the parameters say */
} evict_rule;

/* attn_method.kind. */
typedef struct {
    int64_t least; /* smallest budget */
    /* Fills the zeroed rule; gqa, how and low are set. */
    void (*rule)(const attn_spec *s, evict_rule *r);
    /* Scores a layer's entries before a prompt is pruned; NULL: observe has done so. */
    void (*vote)(attn_view *v, const attn_part *p, int layer);
    /* Entries that a list keeps of n tokens, half of them the newest; at most one more with each token. NULL: the
     * budget, and the rule's newest. */
    int64_t (*share)(const attn_spec *s, int64_t n);
} evict_kind;

/* State; methods with a struct of their own embed it first. */
typedef struct {
    evict_rule rule;
    size_t n_lists, stride;
    buf *at, *slot, *sum; /* [n_layers] columns of lists as in kept_rows: slot unless by position, sum with rule.sums */
    buf range, seen;      /* of all layers */
    kept_rows *kept;      /* [n_layers] made of these */
    buf score;            /* f32 [n_lists][stride] where scores do not last */
    buf logits;           /* f32 [n_heads][stride] scores of a decode step, where it counts */
    buf slots;            /* i64 [chunk][n_lists] */
    kv_rows together;     /* rows of the layer at work, one region a kv head */
    buf k, v;             /* GQA_PER_Q: rows of a forward, a copy for each query head */
    int64_t *counts;      /* host: as range */
    bool scored;          /* this forward's attention leaves its scores in logits */
    bool due;             /* this forward ends with pruning */
    demoted low;          /* what was dropped */
    int64_t attended;     /* entries of a list with this forward's; with windows at most */
    int64_t turns;        /* prompts so far */
} evict_ctx;

/* The parameter gqa: how heads share what is kept. per_q stores as many times the K/V bytes as there are heads in a
 * group. */
#define EVICT_GQA_PARAM(def)                                                                                           \
    "gqa", GQA_NAMES,                                                                                                  \
        "how heads share a set of tokens: combinations of their attention weights; per_q: each head its own, with as " \
        "many times the K/V bytes as there are heads in a group",                                                      \
        def, 0, GQA_COUNT - 1

/* rule.each_chunk as a parameter. */
#define EVICT_PREFILL_PARAM                                                                                            \
    "prefill_evict", "end chunk",                                                                                      \
        "when a prompt is evicted from: at its end, or after each chunk (bounded memory, other results)", 0, 0, 1

/* attn_method.check, or a part of it: refuses a gqa that has no meaning for weights, and a budget below the least. */
status evict_check(const attn_spec *s, const attn_shape *shape, err *e);
/* The family's hooks, parts of those of methods that have their own. */
void evict_reset(attn_view *v);
void evict_begin(attn_view *v, const attn_part *p);
void evict_append(const attn_turn *t, size_t n, int layer);
void evict_layer_end(attn_view *v, const attn_part *p, int layer);
/* The hook `observe` of methods whose scores are sums of the weights of all queries. */
void evict_add_weights(attn_view *v, const attn_part *p, int layer, buf q, buf lse);
/* Returns a job over what a layer keeps, of queries q at positions qpos with their lse. listed: through its lists, as a
 * vote must; v->listed in observe. */
attn_job evict_job(const attn_view *v, int layer, bool listed, size_t n_tok, buf q, buf lse, buf qpos);
/* Scores [stride] of a list of all heads, of this rank's heads so far: adds up those of all ranks. Their mean would
 * choose the same. */
void evict_add_ranks(const attn_view *v, buf score);
/* True if a prompt that ends with n more tokens will be pruned then. */
bool evict_prunes(const attn_view *v, int64_t n);

#endif
