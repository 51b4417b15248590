/* SPDX-License-Identifier: MIT */
/* The question in the probe of memory blocks: behind the first prompt window that ends beyond question and band, z is
 * for each query head the mean of the question's queries, at the fixed distance, whose tokens have the largest band
 * mass. Later windows of the prompt add its cosines to their scores. Source: ActQKV 5.1 and its code;
 * doc/methods.md 9.3.
 *
 * For methods of the family attn_blocks, as a member of their struct, with a parameter QUESTION_PARAM. Use: the hooks'
 * shares in hooks of the same names; question_window and question_weigh in choose. A weight of 0: none of them does
 * anything. Nothing has to be saved but the buffers: a session is saved between prompts, and a prompt starts anew. */
#ifndef ATTENTION_QUESTION_H
#define ATTENTION_QUESTION_H

#include "attention/blocks.h"

#define QUESTION_PARAM                                                                                                 \
    {                                                                                                                  \
        "question", NULL,                                                                                              \
            "weight of the question in the scores of prompt windows behind it, where an evaluation says where it "     \
            "stands (published: 4)",                                                                                   \
            0, 0, 1000                                                                                                 \
    }

typedef struct {
    int64_t weight; /* `by` in reset */
    int64_t made;   /* first position of the window before which z was made; INT64_MAX: not yet in this prompt */
    buf *queries;   /* f32 [n_heads][cap][head_dim]: the question's, by position */
    buf *z;         /* f32 [n_heads][head_dim] */
    buf score;      /* scratch: cosines with z */
} block_question;

void question_declare(attn_decl *d, size_t at, int64_t by);
void question_reset(block_question *q, int64_t by);
void question_begin(block_question *q, const attn_part *p);
/* Before a window is scored, in each window: keeps queries of the question, or makes z. */
void question_window(block_question *q, const attn_view *v, const attn_part *p, int layer);
/* Adds weight * cos(z, representative) to the scores of the blocks n in a window of a prompt, once there is a z. parts:
 * as for block_ops.score. */
void question_weigh(const block_question *q, const attn_view *v, const attn_part *p, int layer, item_range n,
                    size_t parts);

#endif
