/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/tail.h"

#include <stddef.h>

#define AT(member) (at + offsetof(attn_tail, member))

void tail_declare(attn_decl *d, size_t at, size_t lists, int64_t most)
{
    size_t heads = (size_t)d->shape->n_heads;
    if (most == 0) return;
    decl_scratch(d, AT(idx), "samples", lists * sizeof(int32_t), most);
    decl_scratch(d, AT(range), "samples", 2 * sizeof(int64_t), (int64_t)lists);
    decl_scratch(d, AT(left), "samples", sizeof(int64_t), (int64_t)lists);
    decl_scratch(d, AT(bias), "samples", heads * sizeof(float), most);
    decl_scratch(d, AT(scores), "samples", heads * sizeof(float), most);
    decl_scratch(d, AT(missed), "samples", 2 * sizeof(float), (int64_t)heads);
}

void tail_reset(attn_tail *t, int64_t most, int64_t seed)
{
    t->most = most;
    t->seed = (uint64_t)seed;
}

/* A sample of what the segments of a step leave: the one with lists, or the first, and the others. */
static tail_sample_job sample_of(const attn_tail *x, const attn_turn *t, int layer)
{
    const attn_sel *sel = t->sel;
    int lists = 0, n = 0;
    for (int s = 0; s < sel->n_seg; s++)
        if (sel->seg[s].range.p) lists = s;
    tail_sample_job j = {.of = attn_seg_job(t->v, &sel->seg[lists]),
                         .n = t->p.first + (int64_t)t->p.n_tok,
                         .rows = (size_t)x->most,
                         .bias = x->bias,
                         .seed = x->seed,
                         .layer = layer,
                         .idx = x->idx,
                         .range = x->range,
                         .left = x->left};
    j.of.n_tok = 1;
    for (int s = 0; s < sel->n_seg; s++)
        if (s != lists) j.more[n++] = (slot_range){sel->seg[s].first, sel->seg[s].n_max};
    return j;
}

void tail_select(attn_tail *const *t, const attn_turn *const *turns, size_t n, int layer)
{
    tail_sample_job jobs[ATTN_TOGETHER];
    const attn_view *v = turns[0]->v;
    if (t[0]->most == 0 || v->shape->window[layer] > 0) return;
    for (size_t i = 0; i < n; i++) {
        const attn_tail *x = t[i];
        attn_sel *sel = turns[i]->sel;
        jobs[i] = sample_of(x, turns[i], layer);
        sel->seg[sel->n_seg] = (attn_seg){.rows = sel->seg[0].rows,
                                          .range = x->range,
                                          .idx = x->idx,
                                          .n_lists = jobs[i].of.n_lists,
                                          .idx_stride = jobs[i].rows,
                                          .n_max = x->most,
                                          .scores = x->scores,
                                          .score_stride = jobs[i].rows,
                                          .bias = x->bias,
                                          .bias_stride = jobs[i].rows,
                                          .left = x->left,
                                          .missed = x->missed};
        sel->n_seg++;
    }
    v->be->ops->tail->sample(v->be, jobs, n);
}
