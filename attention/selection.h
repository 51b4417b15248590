/* SPDX-License-Identifier: MIT */
/* One choice of a step in a layer: the scores of items and the lists that are chosen by them. Jobs of the ops are
 * filled from it. */
#ifndef ATTENTION_SELECTION_H
#define ATTENTION_SELECTION_H

#include "attention/method.h"
#include "kernels/ops_select.h"

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

/* The first token that the layer sees, of those of the step. */
static inline int64_t selection_first(const selection *s)
{
    int64_t n = s->list.items.n_slots;
    return n - attn_visible(s->t->v->shape, s->layer, n);
}

static inline score_job selection_score(const selection *s, const void *index)
{
    return (score_job){.index = index,
                       .q = s->q,
                       .n_heads = s->n_heads,
                       .score = s->raw,
                       .stride = s->list.stride,
                       .items = s->scored,
                       .spans = s->list.spans,
                       .scale = s->t->v->shape->scale,
                       .read = attn_index_read(s->t->v)};
}

/* Combines raw scores into the list's. */
static inline combine_job selection_combine(const selection *s, gqa_mode mode)
{
    const choose_job *l = &s->list;
    return (combine_job){l->score,      s->raw,        l->stride, s->n_heads,           l->n_lists,
                         s->columns.lo, s->columns.hi, mode,      s->t->v->shape->scale};
}

/* Counts the items that hold the share p, into the list's budget. */
static inline mass_job selection_mass(const choose_job *l, float scale, float p, int64_t least)
{
    return (mass_job){.score = l->score,
                      .n_lists = l->n_lists,
                      .stride = l->stride,
                      .items = l->items,
                      .spans = l->spans,
                      .scale = scale,
                      .p = p,
                      .least = least,
                      .most = max64(l->k, 0),
                      .k = l->budget};
}

/* What is attended of the rows. */
static inline attn_seg selection_segment(const choose_job *l, const kv_rows *rows, int64_t most)
{
    return (attn_seg){.rows = rows,
                      .range = l->range,
                      .idx = l->idx,
                      .n_lists = l->n_lists,
                      .idx_stride = (size_t)l->idx_stride,
                      .n_max = most};
}

#endif
