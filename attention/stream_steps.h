/* SPDX-License-Identifier: MIT */
/* The rows of StreamingLLM: where they lie, what a forward appends, attends and moves. doc/methods.md section 2.
 *
 * Slots: [0, s) sinks | [s, s+r+1) a ring of the newest | from s+r+1 on: rows of a prompt under way.
 * While nothing was evicted (LINEAR) slot = position and there is one segment, as in full
 * attention. Afterwards (RING) position p has slot s + (p - base) mod (r+1), so that appending
 * overwrites exactly the row that was evicted after the step before. All keys stay rotated at their
 * absolute positions; re-indexing rotates the query once more for the sinks, at its slot in the
 * cache (the equivalent form of point 5).
 *
 * A prompt after an eviction, or a banded one, is staged: its rows follow the ring until it ends.
 *
 * Over a store by position a slot is a position (c->fixed): the sets are the same, the ring is the range of the
 * newest, the rows of a prompt follow it, and nothing is copied. So it is for drafts over another strategy's rows,
 * which are never told of a prompt.
 *
 * What leaves the ring may be demoted (demote.h), in the order of positions. Where it goes in groups of g, the ring has
 * r + g slots, and holds what waits too. */
#ifndef ATTENTION_STREAM_STEPS_H
#define ATTENTION_STREAM_STEPS_H

#include "attention/demote.h"

enum { PREFILL_AUTO, PREFILL_FULL, PREFILL_BANDED };

typedef struct {
    int64_t s, r, slots;        /* sinks, newest tokens, slots of the ring */
    bool reindex;               /* positions are those in the cache */
    int64_t prefill;            /* how prompts are attended */
    bool fixed;                 /* the store goes by position */
    bool ring;                  /* evicted at least once */
    bool banded;                /* the current prompt is banded */
    bool staging;               /* rows of the current prompt lie after the ring */
    int64_t ring_base;          /* position of the ring's first slot */
    int64_t stage_pos, evicted; /* first staged position; tokens evicted before the current prompt */
    int64_t lo, hi;             /* positions in the ring before this prompt chunk */
    int64_t n_move, move_lo;    /* rows that layer_end moves into the ring: the position of the first, */
    int64_t move_from;          /* and its slot */
    buf qpos, table;
    int64_t *host; /* [chunk] for uploads */
    demoted low;
    int32_t *leaving;  /* [low.cap] slots of what this forward demotes: */
    int64_t n_leaving; /* as many */
} stream_ctx;

/* Tokens that have left the ring of n, of r newest ones in groups. */
static inline int64_t stream_left(int64_t n, int64_t budget, int64_t group)
{
    return max64(n - budget, 0) / group * group;
}

/* Returns how many of n tokens were dropped: the first ones after the sinks. */
int64_t stream_gone(const stream_ctx *c, int64_t n);
/* Keeps view->stored up, for `length` tokens. */
void stream_count(attn_view *v, int64_t length);
int64_t stream_kept(const attn_view *v, int layer, size_t list, int64_t *out);
int64_t stream_demoted(const attn_view *v, int layer, size_t list, int64_t *out);
bool stream_exact_prompt(const attn_view *v, int64_t n);

void stream_begin(attn_view *v, const attn_part *p);
void stream_append(const attn_turn *t, size_t n, int layer);
void stream_select(const attn_turn *t, size_t n, int layer);
void stream_layer_end(attn_view *v, const attn_part *p, int layer);
void stream_end(attn_view *v, const attn_part *p);

#endif
