/* SPDX-License-Identifier: MIT */
/* Full attention: keep and read everything. Also serves the dense layers of other methods. Contains the jobs that all
 * methods queue: attention over a segment, choice of the best items. */
#include "config.h"

#include "attention/method.h"

void full_append(const attn_task *t, size_t n, int layer)
{
    kv_write_job jobs[ATTN_MAX_TASKS];
    for (size_t i = 0; i < n; i++) {
        int64_t first = t[i].p.first;
        jobs[i] = kv_store_job(t[i].v->store, layer, (kv_target){.pos = first, .first = first, .n_lists = 1}, t[i].k,
                               t[i].val, t[i].p.n_tok);
    }
    t->v->be->ops->kv_write(t->v->be, jobs, n);
}

/* Selects all rows. A decode query sees all of them unless its layer has a window. */
void full_select(const attn_task *t, size_t n, int layer)
{
    for (; n > 0; n--, t++) {
        int64_t visible = t->p.first + (int64_t)t->p.n_tok;
        t->sel->n_seg = 1;
        t->sel->seg[0] = (attn_seg){.rows = kv_store_rows(t->v->store, layer),
                                    .n_lists = 1,
                                    .n_max = visible,
                                    .masked = attn_masked(t->v, &t->p, layer),
                                    .band = t->v->shape->window[layer]};
        t->sel->attended = attn_visible(t->v->shape, layer, visible);
    }
}

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
                      .rope = g->rope,
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

const attn_family attn_keeping = {.retrieves = true, .drafts = true};

const attn_method attn_full = {
    .name = "full",
    .summary = "keep and read everything (the reference)",
    .source = "Vaswani et al. 2017; doc/methods.md 1, deviations 1.7",
    .reuse = ATTN_REUSE_ANY,
};
