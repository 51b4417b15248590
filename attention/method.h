/* SPDX-License-Identifier: MIT */
/* What a row of the strategy table implements. Included by attention/ alone. */
#ifndef ATTENTION_METHOD_H
#define ATTENTION_METHOD_H

#include "attention/state.h"
#include "attention/strategy.h"

enum { ATTN_MAX_SEGS = 4 };

/* Families of ops that not every backend has (ops.h). */
enum {
    USES_CODES = 1,
    USES_EVICT = 2,
    USES_SELECT = 4,
    USES_QUEST = 8,
    USES_FIER = 16,
    USES_PARIS = 32,
    USES_BLOCK = 64,
    USES_TIER = 128,
    USES_GROUPS = 256, /* the ops by groups of select, quest and fier */
    USES_HOST = 512
};

/* Files below the rows of a sequence: tokens that never leave memory are the first `first` and the newest `newest`. In
 * decode steps others go when there are `flush` of them. */
typedef struct {
    tier *t;
    int64_t first, newest, flush;
} attn_tier;

/* State of one method for one sequence; methods embed it first in their own struct. */
typedef struct {
    const attn_spec *spec;
    const attn_shape *shape;
    const attn_limits *lim;
    const bool *layers; /* [n_layers]: the layers that this state serves; others hold nothing */
    const attn_tier *tier; /* of its stores; NULL: all rows stay in memory */
    const host_ops *host;  /* holds the rows of its stores; NULL: the device does */
    buf moved;             /* u64 [NEAR_KINDS] for them (ops_tier.h); p NULL: that is the same memory */
    backend *be;
    buf read;       /* u64 [READ_KINDS]: what ops count */
    int64_t length; /* host's count of tokens fed before this forward */
} attn_ctx;

/* For ops that count an index alone. */
static inline buf attn_index_read(const attn_ctx *c)
{
    return buf_at(c->read, READ_INDEX * sizeof(uint64_t));
}

/* The best of what the ops before it scored, by groups where g is not NULL. */
static inline void attn_choose_among(const attn_ctx *c, const choose_job *job, const item_groups *g)
{
    backend_mark(c->be, STAGE_SCORE);
    if (g) c->be->ops->select->choose_groups(c->be, job, g);
    else c->be->ops->select->choose(c->be, job);
    backend_mark(c->be, STAGE_TOPK);
}

static inline void attn_choose(const attn_ctx *c, const choose_job *job)
{
    attn_choose_among(c, job, NULL);
}

/* Scratch of such choices of at most n_lists lists of n_items items. */
static inline status attn_choose_reserve(const attn_ctx *c, size_t n_lists, int64_t n_items, err *e)
{
    const select_ops *o = c->be->ops->select;
    return o->reserve ? o->reserve(c->be, n_lists, n_items, e) : ST_OK;
}

/* Rows of one store that are attended together. */
typedef struct {
    const kv_rows *rows;
    bool copied; /* this and the next two: as in attn_job */
    buf range, idx;
    size_t n_lists, idx_stride;
    int64_t n_max;
    int64_t origin; /* position of slot 0: 0 where slots are positions */
    buf kpos, at; /* both p NULL: every row is visible to every query */
    int64_t band;
    buf scores; /* decode steps: as in attn_job; p NULL: not wanted */
    size_t score_stride;
    buf table, qpos; /* queries are rotated and masked at these positions; p NULL: the step's */
} attn_seg;

typedef struct {
    int n_seg;
    attn_seg seg[ATTN_MAX_SEGS];
    /* Retrieval: positions before head and from tail on are attended whatever their score; all are when
     * tail <= head. */
    int64_t head, tail;
} attn_sel;

/* The part of a forward that concerns one sequence. */
typedef struct {
    size_t n_tok;
    int64_t n_prompt;    /* tokens of the whole prompt; 0 in decode steps */
    int64_t prompt_done; /* those of it before this forward */
    unsigned flags;
    buf pos, table, freq;
    float mscale;
} attn_part;

struct attn_method {
    const char *name, *summary, *source; /* source: paper and reference code */
    const attn_param *params;            /* ends with key NULL */
    bool retrieves; /* keeps everything, slots are positions, chooses in each step */
    /* Rows may lie in files: slots are positions, nothing is dropped, and what reads rows says so before (store.h). */
    bool pages;
    /* First and newest tokens that every step attends, so that they stay in memory; NULL: none. */
    void (*always)(const attn_spec *s, int64_t *first, int64_t *newest);
    bool has_budget;
    int64_t def_budget;
    int def_skip; /* leading dense layers */
    unsigned uses; /* families of ops that it calls, whatever its parameters */
    /* After the parameters were read: rows that are a store set s->kv; may be NULL. */
    status (*parse)(attn_spec *s, err *e);
    status (*check)(const attn_spec *s, const attn_shape *shape, err *e);
    /* What its parameters need of all heads of a layer that ranks, which have some of them, do not exchange; NULL, or
     * returns NULL: nothing. What adds up over the ranks is exchanged. */
    const char *(*alone)(const attn_spec *s);
    /* Whether a layer with a sliding window is served by `full` because the budget covers all that
     * the window shows (methods.md 0.2.11); NULL: never. */
    bool (*dense)(const attn_spec *s, const attn_shape *shape, int layer);
    /* Bytes that the layers with layers[l] hold at their peak. */
    status (*plan)(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                   const attn_limits *lim, const bool *layers, err *e);
    status (*create)(attn_ctx **out, const attn_ctx *base, err *e);
    void (*free)(attn_ctx *c);
    void (*reset)(attn_ctx *c);
    /* Whether a prompt of n more tokens is attended exactly as by `full` (shared prefill). */
    bool (*exact_prompt)(const attn_ctx *c, int64_t n);
    /* Tokens of a prompt window: append, select, attention and observe then run window by window inside a
     * layer; chunks are multiples of it. NULL: the whole forward is one window. */
    int64_t (*window)(const attn_ctx *c);
    /* Host work and counters at the start of a forward; base->length is its first position. Uploads are
     * allowed in step_begin and step_end: they lie outside a captured step. */
    void (*step_begin)(attn_ctx *c, const attn_part *p);
    /* Stores n_tok rows: k is rotated at the step's positions, k_raw is not. */
    void (*append)(attn_ctx *c, const attn_part *p, int layer, buf k_raw, buf k, buf v);
    /* q is rotated at the step's positions, q_raw is not. */
    void (*select)(attn_ctx *c, const attn_part *p, int layer, buf q_raw, buf q, attn_sel *sel);
    /* Whether observe is to be called after the attention of this layer; NULL: never. */
    bool (*observes)(const attn_ctx *c, const attn_part *p, int layer);
    /* lse f32 [n_tok][n_heads] of everything that the queries attended. */
    void (*observe)(attn_ctx *c, const attn_part *p, int layer, buf q, buf lse);
    void (*layer_end)(attn_ctx *c, const attn_part *p, int layer); /* evict; may be NULL */
    void (*step_end)(attn_ctx *c, const attn_part *p); /* counters; length is updated after it */
    /* Drops the tokens from n on; NULL, or why that is impossible (for the error). */
    const char *(*rewind)(attn_ctx *c, int64_t n);
    /* Everything that lasts from step to step; loading, the context is as created and base->length is set already. */
    status (*state)(attn_ctx *c, attn_state *s, err *e);
    /* Bytes of all its layers now, while a forward of n_new tokens is not yet ended (0: none is). */
    void (*held)(const attn_ctx *c, int64_t n_new, attn_bytes *out);
    /* At least as much, from what the host knows: held then waits for no download. NULL: held does not anyway. */
    void (*held_most)(const attn_ctx *c, int64_t n_new, attn_bytes *out);
    /* Tokens that the decode step that was just queued attends; 0 where ops count them (READ_ATTENDED). */
    int64_t (*attended)(const attn_ctx *c, int layer);
    /* Stored positions, ascending, for kv head h (query head h where each keeps its own). */
    int64_t (*positions)(const attn_ctx *c, int layer, int head, int64_t *out);
};

extern const attn_method attn_full, attn_streaming, attn_h2o, attn_snapkv, attn_tova, attn_quest;
extern const attn_method attn_fier, attn_pariskv, attn_actqkv, attn_kivi, attn_logquant;

/* Value of a parameter of the spec by its index in method->params. */
static inline int64_t attn_get(const attn_ctx *c, int i)
{
    return c->spec->value[i];
}

#endif
