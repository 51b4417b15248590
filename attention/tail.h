/* SPDX-License-Identifier: MIT */
/* What a step does not attend, as one more row of each list, or of each group of tokens of a list: its mean key and
 * value, with the logarithm of their number as bias. From running sums of all rows less those that the lists hold.
 * Or a sample of these tokens, each with the logarithm of the number that it stands for. methods.md 17.2. */
#ifndef ATTENTION_TAIL_H
#define ATTENTION_TAIL_H

#include "attention/method.h"
#include "kernels/ops_tail.h"

typedef enum { TAIL_OFF, TAIL_ALL } tail_how;
/* TAIL_ALL and below, or tokens of a group, or ATTN_SAMPLE and the tokens of a sample. */
#define ATTN_TAIL_PARAM                                                                                                \
    {                                                                                                                  \
        "tail", "off all",                                                                                             \
            "what a step does not attend: left out, or one row of each list, the mean of all of it (not in layers "    \
            "with a sliding window)",                                                                                  \
            TAIL_OFF, 0, TAIL_ALL                                                                                      \
    }
/* For methods whose slots are positions. */
#define RETRIEVE_TAIL_PARAM                                                                                            \
    {                                                                                                                  \
        "tail", attn_or_sample,                                                                                        \
            "what a step does not attend: left out, or one row of each list, the mean of all of it, or a row for "     \
            "each group of so many tokens, or so many of these tokens, drawn anew in each step (not in layers with a " \
            "sliding window)",                                                                                         \
            TAIL_OFF, 0, 4096                                                                                          \
    }
#define TAIL_SEED_PARAM                                                                                                \
    {                                                                                                                  \
        "tail_seed", NULL, "tail=sample: of what is drawn", 42, 0, (int64_t)1 << 40                                    \
    }

typedef struct {
    buf *sum;                             /* [n_layers] */
    tail_sums *sums;                      /* [n_layers] */
    buf k, v, bias;                       /* of the layer at work */
    kv_rows rows;                         /* k and v: cap rows for each list; n_kv_heads 0: there are no mean rows */
    buf idx, range, left, scores, missed; /* of a sample: ops_tail.h */
    int64_t most;                         /* its tokens; 0: there is none */
    uint64_t seed;
} attn_tail;

/* Both do nothing without the parameter `tail`. at: offset of the attn_tail in the method's struct; lists: of a
 * selection. */
void tail_declare(attn_decl *d, size_t at, size_t lists);
void tail_reset(attn_tail *t, attn_view *v, size_t lists);
/* The tails of n sequences that are alike add their new rows. */
void tail_add(attn_tail *const *t, const attn_turn *turns, size_t n, int layer);
/* Adds to the selections of n steps the segment of what these leave. They have one to three segments of the same rows,
 * of which at most one has lists; rows of the others are never away (attn_method.regions). */
void tail_select(attn_tail *const *t, const attn_turn *const *turns, size_t n, int layer);
/* The first position whose rows a rewind to n tokens reads; what a method says where one of them is in codes. */
#define TAIL_NO_REWIND "rows that sums need again are quantized"
int64_t tail_redo_from(const attn_tail *t, int64_t n);
/* After the store's, while nothing is dropped and slots are positions. */
void tail_rewind(const attn_tail *t, attn_view *v, int64_t n);

#endif
