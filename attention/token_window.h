/* SPDX-License-Identifier: MIT */
/* How a window of TokenSelect chooses its tokens. doc/methods.md 12.4.
 *
 * Keys are stored raw. Votes are softmaxes of exact scores of the window's mean query, turned to the distance `local`
 * of every key. With `reuse` a layer holds the votes and the query of its last selection: where the next query is
 * alike, the choice is made of these votes again, which gives the same tokens, and no key is read for it. */
#ifndef ATTENTION_TOKEN_WINDOW_H
#define ATTENTION_TOKEN_WINDOW_H

#include "attention/gathered.h"

enum { TOKEN_REUSE_MOST = 16 }; /* times in a row that a selection is taken again */

/* What a strategy asks for. */
typedef struct {
    int64_t sink, local, window, k;
    bool by_position;
    int64_t pool, reuse; /* reuse: percent of cosine, 0: never */
} token_rule;

typedef struct {
    token_rule rule;
    gathered_rows rows;
    buf queries, weights, probe; /* f32 of a window: queries at the distance, their weights, their mean */
    buf score, votes, pooled;    /* f32 [n_heads][tokens]; [tokens] each */
    buf idx, range;              /* i32 tokens of the layer at work; i64 [2] */
    buf *held_probe, *held;      /* reuse: token_cache.probe, and f32 [tokens] votes */
    buf *state;                  /* token_cache.state */
} token_select;

/* Tokens that a step attends at most. */
static inline int64_t token_attended(const token_rule *r)
{
    return r->sink + r->local + r->k;
}

void token_declare(attn_decl *d, const token_rule *r);
/* Hooks, or shares in them. */
void token_reset(attn_view *v, const token_rule *r);
void token_begin(attn_view *v, const attn_part *p);
void token_choose(const attn_turn *t, size_t n, int layer);

#endif
