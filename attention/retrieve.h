/* SPDX-License-Identifier: MIT */
/* The family of methods that keep everything and attend a part of it in each decode step (attn_retrieve).
 *
 * Prompts, and steps with at most `budget` tokens, are attended as by `full`, to the bit (methods.md 0.2.3). Slots are
 * positions; rows behind a layer's sliding window are no candidates (0.2.11). A method says which items there are, and
 * scores them; the family combines the query heads of a group, chooses, counts, and goes over a second level
 * (coarse.h). Parameters that the family knows by their keys: gqa, pool, p, min, certify, coarse,
 * coarse_keep, tail, of, calibrate. */
#ifndef ATTENTION_RETRIEVE_H
#define ATTENTION_RETRIEVE_H

#include "attention/budget.h"
#include "attention/certify.h"
#include "attention/coarse.h"
#include "attention/tail.h"

#define RETRIEVE_GQA_PARAM                                                                                             \
    {                                                                                                                  \
        "gqa", GQA_NAMES,                                                                                              \
            "how query heads share a selection; per_q: each its own, as Quest's code does (doc/methods.md 0.2.4)",     \
            GQA_VOTE, 0, GQA_COUNT - 1                                                                                 \
    }

#define RETRIEVE_SINK_PARAM                                                                                            \
    {                                                                                                                  \
        "force_sink", NULL, "tokens from the start that are always attended", 0, 0, 1 << 20                            \
    }
#define RETRIEVE_RECENT_PARAM                                                                                          \
    {                                                                                                                  \
        "force_recent", NULL, "newest tokens that are always attended (the current one always is)", 0, 0, 1 << 20      \
    }

/* How many of its budget's items a list takes: as many as hold the share p of the estimated attention (mass_job).
 * doc/methods.md 17.1 */
#define RETRIEVE_P_PARAM                                                                                               \
    {                                                                                                                  \
        "p", attn_fraction,                                                                                            \
            "share of the estimated attention of what can be chosen that a list is to hold, in at most budget "        \
            "tokens; off: budget tokens",                                                                              \
            0, 0, ATTN_FRACTION                                                                                        \
    }
#define RETRIEVE_MIN_PARAM                                                                                             \
    {                                                                                                                  \
        "min", NULL, "with p or certify: tokens that a list chooses at least", 64, 0, 1 << 30                          \
    }

/* What p speaks of, and what estimates are held against (mass_job.all, slope_job). */
typedef enum { SHARE_CANDIDATES, SHARE_ALL } share_of;
#define RETRIEVE_OF_PARAM                                                                                              \
    {                                                                                                                  \
        "of", "candidates all",                                                                                        \
            "with p: the share is of what can be chosen, or of everything, tokens that are always attended included",  \
            SHARE_CANDIDATES, 0, SHARE_ALL                                                                             \
    }
#define RETRIEVE_CALIBRATE_PARAM                                                                                       \
    {                                                                                                                  \
        "calibrate", NULL,                                                                                             \
            "with p: candidates that are drawn in each step, whose exact scores tell by how much the estimates are "   \
            "spread too wide; 0: estimates are taken as they are",                                                     \
            0, 0, SLOPE_MOST                                                                                           \
    }

/* Items that a step's selection is about, in a layer that sees the slots [first, n). */
typedef struct {
    int64_t lo, hi; /* candidates */
    int64_t head;   /* items before it are forced, */
    int64_t tail;   /* and those from it on */
    int64_t k;      /* candidates to take, unless a budget over layers says otherwise */
    int64_t most;   /* slots that a list can ever hold, whatever n is */
    int64_t redo;   /* first position whose key the index reads after a rewind to n tokens */
} retrieve_range;

/* What makes a method of its own. */
typedef struct retrieve_kind retrieve_kind;
struct retrieve_kind {
    const retrieve_kind *(*of)(const attn_spec *s); /* where parameters decide which kind it is; NULL: this one */
    const char *granule;                            /* key of the parameter that tells the slots of an item; NULL: 1 */
    /* Key of the parameter (mean max lse) that tells how the scores of an item's tokens become its own; NULL: the index
     * scores items. */
    const char *reduce;
    bool votes;  /* scores can give votes */
    bool stored; /* the index is the store's rows, exact or in codes: nothing is added to it */
    retrieve_range (*range)(const attn_spec *s, int64_t first, int64_t n);
    bool (*ready)(const attn_view *v); /* whether the index can score, else all is attended; NULL: always */
    size_t ops;                        /* offset in backend_ops of the index_ops that add to the index and score, */
    size_t index, index_size; /* and in the method's struct of a pointer to the indexes [n_layers], of so many bytes */
    /* In place of all these, where the choice follows from counts alone: the slots of a step that sees n tokens,
     * ascending, the current token last; their number, at most the budget. */
    int64_t (*slots)(const attn_view *v, int layer, int64_t n, int32_t *slot);
};

/* A range but for `most` and `redo`, from the parameters force_sink, force_recent and budget_mode. tail: items from it
 * on are forced as they are; budget: items of a step. */
retrieve_range retrieve_items(const attn_spec *s, int64_t first, int64_t n, int64_t tail, int64_t budget);

/* Methods that have state embed it first in their struct. */
typedef struct {
    const retrieve_kind *kind;
    int64_t granule, items; /* slots of an item; most items of a layer */
    size_t n_lists, idx_stride;
    gqa_mode gqa;
    attn_budget budget; /* pool=entropy */
    attn_tail tail;
    float p;               /* 0: lists take all of k */
    attn_certify certify;  /* of an index with bounds */
    coarse coarse;         /* rule.tokens 0: the whole index is scored */
    uint8_t pooled;        /* since the last reset: the budget's means hold decode steps */
    retrieve_range *range; /* [n_layers] of the step at hand */
    bool *chooses;         /* [n_layers] whether the step chooses */
    /* f32 [n_heads][places] raw scores, and [n_lists][places] combined ones behind them; a place for each item, or
     * for those of the spans that a second level keeps */
    buf score;
    size_t places;
    buf token_score; /* kind->reduce: f32 [n_heads][n_tokens] */
    buf mass;        /* p, certify: i64 [n_lists] of the layer at work */
    buf slope;       /* calibrate: f32 [n_lists] likewise */
    buf idx, ranges; /* i32 [n_lists][idx_stride] of the layer at work; i64 [n_layers][n_lists][2] */
    buf probe;       /* f32 [n_kv_heads][head_dim]: gqa=mean_q */
    int32_t *slots;  /* kind->slots: [n_layers][budget], as idx then is, */
    int64_t *counts; /* and their numbers */
} retrieve;

/* What the parameters that the family knows ask for; ST_USAGE. */
status retrieve_check(const attn_spec *s, err *e);

/* The family's share of a hook, for methods with one of their own. */
void retrieve_reset(attn_view *v);
void retrieve_begin(attn_view *v, const attn_part *p);
const char *retrieve_rewind(attn_view *v, int64_t n);
status retrieve_state(attn_view *v, attn_state *s, err *e);

static inline retrieve *retrieve_of(const attn_view *v)
{
    return v->own;
}

#endif
