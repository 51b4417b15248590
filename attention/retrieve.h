/* SPDX-License-Identifier: MIT */
/* The family of methods that keep everything and attend a part of it in each decode step (attn_retrieve).
 *
 * Prompts, and steps with at most `budget` tokens, are attended as by `full`, to the bit (methods.md 0.2.3). Slots are
 * positions; rows behind a layer's sliding window are no candidates (0.2.11). A method says which items there are, and
 * scores them. The family reads its options once and makes of them the parts of a step.
 *
 * A second level: a decode step first scores spans of tokens by the bounds of their keys (Quest's page bounds,
 * ops_quest.h), and the index itself only inside the best spans. Of three and more spans the first tokens' and the
 * newest are always two: they hold much attention, and nearly all of what would be lost.
 *
 * A sample: some of what a step does not attend, each token with the logarithm of the number that it stands for: a
 * measurement of the attention that was missed. methods.md 17.2. */
#ifndef ATTENTION_RETRIEVE_H
#define ATTENTION_RETRIEVE_H

#include "attention/bounds.h"
#include "attention/certify.h"
#include "kernels/ops_select.h"
#include "kernels/ops_tail.h"

#define RETRIEVE_GQA_PARAM                                                                                             \
    "gqa", GQA_NAMES,                                                                                                  \
        "how query heads share a selection; per_q: each its own, as Quest's code does (doc/methods.md 0.2.4)",         \
        GQA_VOTE, 0, GQA_COUNT - 1

#define RETRIEVE_SINK_PARAM "force_sink", NULL, "tokens from the start that are always attended", 0, 0, 1 << 20
#define RETRIEVE_RECENT_PARAM                                                                                          \
    "force_recent", NULL, "newest tokens that are always attended (the current one always is)", 0, 0, 1 << 20

/* The fraction p of the estimated attention that a list holds in at most the budget's items (mass_job).
 * doc/methods.md 17.1 */
#define RETRIEVE_P_PARAM                                                                                               \
    "p", attn_fraction,                                                                                                \
        "share of the estimated attention of what can be chosen that a list is to hold, in at most budget tokens; "    \
        "off: budget tokens",                                                                                          \
        0, 0, ATTN_FRACTION
#define RETRIEVE_MIN_PARAM "min", NULL, "with p or certify: tokens that a list chooses at least", 64, 0, 1 << 30
#define RETRIEVE_CALIBRATE_PARAM                                                                                       \
    "calibrate", NULL,                                                                                                 \
        "with p: candidates that are drawn in each step, whose exact scores tell by how much the estimates are "       \
        "spread too wide; 0: estimates are taken as they are",                                                         \
        0, 0, SLOPE_MOST

#define COARSE_PARAM                                                                                                   \
    "coarse", NULL, "tokens of a span whose bounds are scored first (64 to 256); 0: the whole index is scored", 0, 0,  \
        1 << 20
#define COARSE_KEEP_PARAM                                                                                              \
    "coarse_keep", NULL, "spans whose index is scored then hold this many times the budget", 8, 1, 1024

/* Parameter of methods whose slots are positions: 0, or the tokens of a sample. */
#define RETRIEVE_TAIL_PARAM                                                                                            \
    "tail", attn_or_sample,                                                                                            \
        "measure missed attention: sample N of the tokens that a step does not attend (not in layers with a sliding "  \
        "window)",                                                                                                     \
        0, 0, TAIL_SAMPLE_MAX
#define TAIL_SEED_PARAM "tail_seed", NULL, "tail=sample: of what is drawn", 42, 0, (int64_t)1 << 40

/* Items that a step's selection is about, in a layer that sees the slots [first, n). */
typedef struct {
    int64_t lo, hi; /* candidates */
    int64_t head;   /* items before it are forced, */
    int64_t tail;   /* and those from it on */
    int64_t k;      /* candidates to take at most */
    int64_t most;   /* slots that a list can ever hold, whatever n is */
    int64_t redo;   /* first position whose key the index reads after a rewind to n tokens */
} retrieve_range;

/* Options of the family, from a strategy's parameters. */
typedef struct {
    int64_t granule;      /* slots of an item */
    int64_t sink, recent; /* tokens that are always attended */
    gqa_mode gqa;
    float p;              /* fraction of the attention that a list holds; 0: lists take all of k */
    int64_t least;        /* p, certify: tokens that a list chooses at least */
    int64_t draws;        /* calibrate; 0: off */
    int64_t sample, seed; /* tail=sample; 0: off. Of these and of calibrate's draws */
    float eps;            /* certify; 0: off */
    int64_t span, spans;  /* coarse: tokens of a span, 0: the whole index is scored; spans whose index is scored */
} retrieve_options;

/* What makes a method of its own. */
typedef struct retrieve_kind retrieve_kind;
struct retrieve_kind {
    const retrieve_kind *(*of)(const attn_spec *s); /* where parameters decide which kind it is; NULL: this one */
    const char *granule;                            /* key of the parameter that tells the slots of an item; NULL: 1 */
    bool by_tokens; /* the index scores tokens; an item has their mean. Else the index scores items */
    bool votes;     /* scores can give votes */
    bool stored;    /* the index is the store's rows, exact or in codes: nothing is added to it */
    retrieve_range (*range)(const attn_spec *s, const retrieve_options *o, int64_t first, int64_t n);
    bool (*ready)(const attn_view *v); /* whether the index can score, else all is attended; NULL: always */
    size_t ops;                        /* offset in backend_ops of the index_ops that add to the index and score, */
    size_t index, index_size; /* and in the method's struct of a pointer to the indexes [n_layers], of so many bytes */
};

/* Checks the options; ST_USAGE. */
status retrieve_check(const attn_spec *s, err *e);

/* A range whose lists hold as many slots as the budget has items, over an index that a rewind leaves as it is. tail:
 * items from it on are forced as they are; budget: items of a step. */
retrieve_range retrieve_items(const retrieve_options *o, int64_t first, int64_t n, int64_t tail, int64_t budget);

/* The second level. */
typedef struct {
    page_bounds bounds;
    int64_t per, most; /* items of a span; spans of a layer */
    buf score;         /* f32 [n_heads][most], and combined ones [n_lists][most] behind them */
    item_spans kept;   /* of the layer at work */
} span_level;

/* One choice of a step in a layer: the scores of items and the lists that are chosen by them. */
typedef struct {
    const attn_turn *t;
    int layer;
    buf q;
    size_t n_heads;     /* of q */
    buf raw;            /* f32 [n_heads][list.stride] scores of these */
    item_range scored;  /* items that are scored */
    item_range columns; /* columns of their scores in which the candidates lie */
    choose_job list;    /* scores of the lists, f32 [n_lists][stride]; candidates, spans, and the lists themselves */
} selection;

/* A part of a step: works on the selections of n steps. */
typedef void (*retrieve_part)(selection *s, size_t n);

/* Methods that have state embed it first in their struct. */
typedef struct {
    const retrieve_kind *kind;
    const index_ops *ops;
    retrieve_options o;
    /* Parts of a step in their order; NULL: none. */
    retrieve_part spans;   /* a second level */
    retrieve_part rank;    /* raw scores of the items */
    retrieve_part bound;   /* bounds of these scores */
    retrieve_part slope;   /* factors of the scale */
    retrieve_part combine; /* scores of lists; NULL: the raw ones */
    retrieve_part count;   /* items of each list; NULL: the range's k */
    bool combined;         /* scores of lists are not the raw ones */
    float scale;           /* of scores of lists, which then are logits */
    int64_t items;         /* most items of a layer */
    size_t n_lists, idx_stride;
    struct {
        buf idx, range, left, bias, scores, missed; /* of the layer at work: ops_tail.h */
    } sample;
    attn_certify certify;
    span_level span;
    retrieve_range *range; /* [n_layers] of the step at hand */
    bool *chooses;         /* [n_layers] whether the step chooses */
    /* f32 [n_heads][places] raw scores, and [n_lists][places] combined ones behind them; a place for each item, or
     * for those of the spans that a second level keeps */
    buf score;
    size_t places;
    buf token_score; /* kind->by_tokens: f32 [n_heads][n_tokens] */
    buf mass;        /* p, certify: i64 [n_lists] of the layer at work */
    buf slopes;      /* calibrate: f32 [n_lists] likewise */
    buf idx, ranges; /* i32 [n_lists][idx_stride] of the layer at work; i64 [n_layers][n_lists][2] */
    buf probe;       /* f32 [n_kv_heads][head_dim]: gqa=mean_q */
} retrieve;

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
