/* SPDX-License-Identifier: MIT */
/* What methods of eviction share: lists of the rows that each layer keeps, prompts, pruning, counts.
 *
 * While nothing was evicted, rows lie at slots = positions and are attended as by `full`. A prompt is
 * attended whole and pruned at its end (or after each chunk); decode steps attend what is kept and
 * the new token, then drop one. A method says how it scores what is kept, in `observe`. */
#ifndef ATTENTION_EVICT_H
#define ATTENTION_EVICT_H

#include "attention/store.h"
#include "kernels/ops_evict.h"
#include "kernels/ops_select.h"

/* Heads that share a list. EVICT_EACH stores one K/V region per query head. */
typedef enum { EVICT_LAYER, EVICT_GROUP, EVICT_EACH } evict_lists;

typedef struct evict_ctx evict_ctx;

/* The rule of a method, with its parameters. */
typedef struct {
    evict_lists lists;
    int how;         /* COMBINE_*: of the heads that share a list */
    int64_t recent;  /* newest entries that are never dropped */
    bool by_count;   /* keep_rule */
    bool by_rank;    /* after an eviction keys are as far away as their rank in the list says */
    bool sums;       /* scores last from step to step; else each pruning has its own */
    bool each_chunk; /* prompts are pruned after each chunk, not at their end */
    bool once;       /* only the first prompt is pruned and decode steps drop nothing, */
    bool each_turn;  /* or every prompt is */
    /* Scores a layer's entries before a prompt is pruned; NULL: observe has done so. */
    void (*vote)(evict_ctx *, const attn_part *, int layer);
} evict_rule;

/* State; methods embed it first. */
struct evict_ctx {
    attn_ctx base;
    evict_rule rule;
    kv_store *store;
    size_t n_lists, n_regions, stride;
    kept_rows *kept;   /* [n_layers] */
    kv_rows *together; /* [n_layers] rows with one region a kv head, for as long as all are kept */
    buf range, seen;   /* of all layers */
    buf score;         /* f32 [n_lists][stride] where scores do not last */
    buf logits;        /* f32 [n_heads][stride] scores of a decode step, where it counts */
    buf slots;         /* i64 [chunk][n_lists] */
    kv_rows ranked;    /* by_rank: f32 rows of the layer at work, one region a list */
    buf k, v;          /* EVICT_EACH: rows of a forward, a copy for each query head */
    int64_t *host;     /* for uploads and downloads */
    bool listed;       /* something was evicted: rows are found through lists */
    bool scored;       /* this forward's attention leaves its scores in logits */
    bool due;          /* this forward ends with pruning */
    int64_t stored;    /* entries of a list before this forward; with windows at most */
    int64_t attended;  /* by the forward that just ran, likewise */
    int64_t turns;     /* prompts so far */
};

static inline evict_ctx *evict_of(attn_ctx *c)
{
    return (evict_ctx *)c;
}

/* How heads share what is kept, as a parameter (gqa_mode). per_q stores as many times the K/V bytes as there are
 * heads in a group. */
#define EVICT_GQA_PARAM(def)                                                                       \
    {                                                                                              \
        "gqa", GQA_NAMES,                                                                          \
            "how heads share a set of tokens: combinations of their attention weights; per_q: "    \
            "each head its own, with as many times the K/V bytes as there are heads in a group",   \
            def, 0, GQA_COUNT - 1                                                                  \
    }

/* Refuses what has no meaning for weights. */
status evict_check_gqa(const attn_spec *s, gqa_mode mode, err *e);
evict_lists evict_lists_of(gqa_mode mode);
int evict_combine_of(gqa_mode mode); /* COMBINE_* */

/* rule.each_chunk as a parameter. */
#define EVICT_PREFILL_PARAM                                                                        \
    {                                                                                              \
        "prefill_evict", "end chunk",                                                              \
            "when a prompt is evicted from: at its end, or after each chunk (bounded memory, "     \
            "other "                                                                               \
            "results)",                                                                            \
            0, 0, 1                                                                                \
    }

/* Fills a zeroed context. After a failure evict_free releases it. */
status evict_init(evict_ctx *c, const attn_ctx *base, const evict_rule *rule, err *e);
/* create of a method whose state is an evict_ctx alone. */
status evict_create(attn_ctx **out, const attn_ctx *base, const evict_rule *rule, err *e);
status evict_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                  const attn_limits *lim, const bool *layers, const evict_rule *rule, err *e);

/* What a layer keeps as a job of queries q at positions qpos with their lse. listed: through its lists,
 * as a vote must; c->listed in observe. */
attn_job evict_job(const evict_ctx *c, int layer, bool listed, size_t n_tok, buf q, buf lse,
                   buf qpos);
/* Scores [stride] of a list of all heads, of this rank's heads so far: adds up those of all ranks. Their mean would
 * choose the same. */
void evict_add_ranks(const evict_ctx *c, buf score);
/* Whether a prompt that ends with n more tokens will be pruned then. */
bool evict_prunes(const evict_ctx *c, int64_t n);
/* Whether something may ever be evicted. */
static inline bool evict_possible(const evict_ctx *c)
{
    return c->base.lim->n_tokens > c->base.spec->budget;
}

/* Hooks of attn_method. */
bool evict_dense(const attn_spec *s, const attn_shape *shape, int layer);
void evict_free(attn_ctx *c); /* and the context itself */
void evict_reset(attn_ctx *c);
bool evict_exact_prompt(const attn_ctx *c, int64_t n);
void evict_step_begin(attn_ctx *c, const attn_part *p);
void evict_append(attn_ctx *c, const attn_part *p, int layer, buf k_raw, buf k, buf v);
void evict_select(attn_ctx *c, const attn_part *p, int layer, buf q_raw, buf q, attn_sel *sel);
void evict_layer_end(attn_ctx *c, const attn_part *p, int layer);
void evict_step_end(attn_ctx *c, const attn_part *p);
const char *evict_rewind(attn_ctx *c, int64_t n);
status evict_state(attn_ctx *c, attn_state *v, err *e);
void evict_held(const attn_ctx *c, int64_t n_new, attn_bytes *out);
void evict_held_most(const attn_ctx *c, int64_t n_new, attn_bytes *out);
int64_t evict_attended(const attn_ctx *c, int layer);
int64_t evict_positions(const attn_ctx *c, int layer, int head, int64_t *out);

/* What is the same for every method that evicts. */
#define EVICT_HOOKS                                                                                \
    .dense = evict_dense, .reset = evict_reset, .exact_prompt = evict_exact_prompt,                \
    .append = evict_append, .select = evict_select, .layer_end = evict_layer_end,                  \
    .step_end = evict_step_end, .rewind = evict_rewind, .state = evict_state,                      \
    .attended = evict_attended,                                                                    \
    .positions = evict_positions

#endif
