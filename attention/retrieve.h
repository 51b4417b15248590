/* SPDX-License-Identifier: MIT */
/* The family of methods that keep everything and attend a selection in each decode step (attn_retrieve).
 *
 * Prompts, and steps with at most `budget` tokens, are attended as by `full`, to the bit (methods.md 0.2.3). Slots are
 * positions. Rows outside a layer's sliding window are not candidates (0.2.11). A method defines the items and scores
 * them. The family reads its options once and builds the parts of a step from them.
 *
 * Second level: a decode step first scores spans of tokens by the bounds of their keys (Quest's page bounds,
 * ops_quest.h), and scores the index only inside the best spans. If three or more spans are kept, the first and the
 * last are always among them, since they hold much of the attention.
 *
 * Sample: a segment with some unattended tokens, each with the logarithm of the number of tokens that it stands for. It
 * measures the missed attention. methods.md 17.2. */
#ifndef ATTENTION_RETRIEVE_H
#define ATTENTION_RETRIEVE_H

#include "attention/bounds.h"
#include "attention/certify.h"
#include "kernels/ops_select.h"
#include "kernels/ops_tail.h"

#define RETRIEVE_GQA_PARAM                                                                                             \
    "gqa", GQA_NAMES, "how query heads share a selection; per_q: one each, as in Quest's code (doc/methods.md 0.2.4)", \
        GQA_VOTE, 0, GQA_COUNT - 1

#define RETRIEVE_SINK_PARAM "force_sink", NULL, "first tokens, always attended", 0, 0, 1 << 20
#define RETRIEVE_RECENT_PARAM                                                                                          \
    "force_recent", NULL, "newest tokens, always attended (the current one always is)", 0, 0, 1 << 20

/* Fraction p of the estimated attention that a list holds, within the budget (mass_job). doc/methods.md 17.1 */
#define RETRIEVE_P_PARAM                                                                                               \
    "p", attn_fraction,                                                                                                \
        "fraction of the candidates' estimated attention to select, within the budget; off: budget tokens", 0, 0,      \
        ATTN_FRACTION
#define RETRIEVE_MIN_PARAM "min", NULL, "with p or certify: minimum number of tokens selected per list", 64, 0, 1 << 30
#define RETRIEVE_CALIBRATE_PARAM                                                                                       \
    "calibrate", NULL, "with p: candidates per step whose exact scores correct the spread of the estimates; 0: off",   \
        0, 0, SLOPE_MOST

#define COARSE_PARAM                                                                                                   \
    "coarse", NULL, "tokens per span, scored by bounds before the index (64 to 256); 0: score the whole index", 0, 0,  \
        1 << 20
#define COARSE_KEEP_PARAM                                                                                              \
    "coarse_keep", NULL, "tokens in the spans whose index is scored, in multiples of the budget", 8, 1, 1024

/* Parameter of methods whose slots are positions: tokens of a sample, or 0. */
#define RETRIEVE_TAIL_PARAM                                                                                            \
    "tail", attn_or_sample,                                                                                            \
        "measure missed attention from a sample of N unattended tokens (not in layers with a window)", 0, 0,           \
        TAIL_SAMPLE_MAX
#define TAIL_SEED_PARAM "tail_seed", NULL, "tail=sample: seed of the sample", 42, 0, (int64_t)1 << 40

/* Items of a step's selection in a layer that sees the slots [first, n). */
typedef struct {
    int64_t lo, hi; /* candidates */
    int64_t head;   /* items before it are forced */
    int64_t tail;   /* items from it on are forced */
    int64_t k;      /* most candidates to take */
    int64_t most;   /* most slots of a list, for any n */
    int64_t redo;   /* first position whose key the index reads again after a rewind to n tokens */
} retrieve_range;

/* Options of the family, read from a strategy's parameters. */
typedef struct {
    int64_t granule;      /* slots of an item */
    int64_t sink, recent; /* tokens that are always attended */
    gqa_mode gqa;
    float p;              /* fraction of the attention that a list holds; 0: lists take all of k */
    int64_t least;        /* p, certify: fewest tokens that a list selects */
    int64_t draws;        /* calibrate; 0: off */
    int64_t sample, seed; /* tail=sample, 0: off; seed of the sample and of calibrate's draws */
    float eps;            /* certify; 0: off */
    int64_t span, spans;  /* coarse: tokens per span, 0: off; number of spans whose index is scored */
} retrieve_options;

/* Properties of a method: attn_method.kind. */
typedef struct retrieve_kind retrieve_kind;
struct retrieve_kind {
    const retrieve_kind *(*of)(const attn_spec *s); /* kind for the parameters; NULL: this one */
    const char *granule;                            /* key of the parameter with the slots per item; NULL: 1 */
    bool by_tokens; /* the index scores tokens, and an item has their mean; otherwise it scores items */
    bool votes;     /* the op `score` can write votes */
    bool stored;    /* the index is the store's rows; nothing is added to it */
    retrieve_range (*range)(const attn_spec *s, const retrieve_options *o, int64_t first, int64_t n);
    bool (*ready)(const attn_view *v); /* true if the index can score, else all is attended; NULL: always */
    size_t ops;                        /* offset of the index_ops in backend_ops */
    size_t index, index_size; /* offset of the pointer to the indexes [n_layers] in the method's struct; bytes of one */
};

/* Checks the options; ST_USAGE. */
status retrieve_check(const attn_spec *s, err *e);

/* Returns a range with `budget` items per step. Items from `tail` on are forced, in addition to the options' sink and
 * recent tokens. `most` and `redo` hold for one slot per item and an index that a rewind does not change. */
retrieve_range retrieve_items(const retrieve_options *o, int64_t first, int64_t n, int64_t tail, int64_t budget);

/* Second level. */
typedef struct {
    page_bounds bounds;
    int64_t per, most; /* items of a span; spans of a layer */
    buf score;         /* f32 [n_heads][most] raw scores, then [n_lists][most] combined scores */
    item_spans kept;   /* spans of the current layer */
} span_level;

/* Selection of one step in a layer: scores of items, and the lists that they determine. */
typedef struct {
    const attn_task *t;
    int layer;
    buf q;
    size_t n_heads;     /* heads of q */
    buf raw;            /* f32 [n_heads][list.stride] their scores */
    item_range scored;  /* items that are scored */
    item_range columns; /* columns of the scores that hold the candidates */
    choose_job list;    /* scores f32 [n_lists][stride], candidates, spans, and the resulting lists */
} selection;

/* Part of a step: processes the selections of n sequences. */
typedef void (*retrieve_part)(selection *s, size_t n);

/* State of the family; a method with its own struct embeds it first. */
typedef struct {
    const retrieve_kind *kind;
    const index_ops *ops;
    retrieve_options o;
    /* Parts of a step, in order; NULL: none. */
    retrieve_part spans;   /* second level */
    retrieve_part rank;    /* raw scores of the items */
    retrieve_part bound;   /* error bounds of the raw scores */
    retrieve_part slope;   /* slopes of exact scores over estimates */
    retrieve_part combine; /* scores of lists; NULL: the raw scores, or rank writes them */
    retrieve_part count;   /* items per list; NULL: the range's k */
    bool combined;         /* scores of lists differ from the raw scores */
    float scale;           /* factor that makes logits of scores of lists */
    int64_t items;         /* most items of a layer */
    size_t n_lists, idx_stride;
    struct {
        buf idx, range, left, bias, scores, missed; /* buffers of the current layer: ops_tail.h */
    } sample;
    attn_certify certify;
    span_level span;
    retrieve_range *range; /* [n_layers] ranges of the current step */
    bool *chooses;         /* [n_layers] true if the step selects */
    /* f32 [n_heads][n_columns] raw scores, then [n_lists][n_columns] combined scores. A column is an item; with a
     * second level only items of the kept spans have one. */
    buf score;
    size_t n_columns;
    buf token_score; /* kind->by_tokens: f32 [n_heads][n_tokens] */
    buf mass;        /* p, certify: i64 [n_lists] items per list, of the current layer */
    buf slopes;      /* calibrate: f32 [n_lists], of the current layer */
    buf idx, ranges; /* i32 [n_lists][idx_stride] slots of the current layer; i64 [n_layers][n_lists][2] */
    buf probe;       /* gqa=mean_q: f32 [n_kv_heads][head_dim] */
} retrieve;

/* The family's hooks, for methods with their own. */
void retrieve_reset(attn_view *v);
void retrieve_begin(attn_view *v, const attn_part *p);
const char *retrieve_rewind(attn_view *v, int64_t n);
status retrieve_state(attn_view *v, attn_state *s, err *e);

static inline retrieve *retrieve_of(const attn_view *v)
{
    return v->own;
}

#endif
