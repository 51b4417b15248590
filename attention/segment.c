/* SPDX-License-Identifier: MIT */
/* Jobs for the ops that every method queues: attention over a segment, the choice of the best items. */
#include "config.h"

#include "attention/method.h"

attn_job attn_seg_job(const attn_view *v, const attn_seg *g)
{
    return (attn_job){.n_heads = (size_t)v->shape->n_heads,
                      .rows = *g->rows,
                      .range = g->range,
                      .first = g->first,
                      .idx = g->idx,
                      .n_lists = g->n_lists,
                      .idx_stride = g->idx_stride,
                      .n_max = g->n_max,
                      .qpos = g->qpos,
                      .masked = g->masked,
                      .kpos = g->kpos,
                      .at = g->at,
                      .band = g->band,
                      .scale = v->shape->scale,
                      .read = v->read,
                      .copied = g->copied,
                      .scores = g->scores,
                      .score_stride = g->score_stride,
                      .bias = g->bias,
                      .turn = g->turn,
                      .bias_stride = g->bias_stride,
                      .pseudo = g->pseudo};
}

void attn_count_lists(const attn_view *v, buf range, size_t n_lists, const bool *chose)
{
    v->be->ops->count_lists(v->be, buf_at(v->read, READ_ATTENDED * sizeof(uint64_t)), range, (size_t)v->shape->n_layers,
                            n_lists, chose);
}

void attn_choose(const attn_view *v, const choose_job *jobs, size_t n)
{
    backend_mark(v->be, STAGE_SCORE);
    v->be->ops->select->choose(v->be, jobs, n);
    backend_mark(v->be, STAGE_TOPK);
}
