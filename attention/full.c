/* SPDX-License-Identifier: MIT */
/* Full attention: keep and read everything. Also serves the dense layers of other methods. */
#include "config.h"

#include "attention/method.h"

void full_append(const attn_turn *t, size_t n, int layer)
{
    kv_write_job jobs[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) {
        int64_t first = t[i].p.first;
        jobs[i] = kv_store_job(t[i].v->store, layer, (kv_target){.pos = first, .first = first, .n_lists = 1}, t[i].k,
                               t[i].val, t[i].p.n_tok);
    }
    t->v->be->ops->kv_write(t->v->be, jobs, n);
}

/* A decode query sees all rows unless its layer has a window. */
void full_select(const attn_turn *t, size_t n, int layer)
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

const attn_method attn_full = {
    .name = "full",
    .summary = "keep and read everything (the reference)",
    .source = "Vaswani et al. 2017; doc/methods.md 1, deviations 1.7",
    .reuse = ATTN_REUSE_ANY,
};
