/* SPDX-License-Identifier: MIT */
/* Measures what each strategy read in a step and how much of full attention it missed. */
#include "config.h"

#include <string.h>

#include "lens/lens_impl.h"

static void set_bit(uint8_t *bits, int64_t i)
{
    bits[i / 8] |= (uint8_t)(1 << (i % 8));
}

/* ---- before a step ---- */

void lens_before(lens *l)
{
    size_t heads = (size_t)l->shape->n_layers * (size_t)l->shape->n_kv_heads;
    l->n = session_length(l->s[0]) + 1;
    for (size_t i = 0; i < l->o.n; i++) {
        lens_run *r = &l->run[i];
        memset(r->bits, 0, (size_t)l->shape->n_layers * l->row);
        memset(r->reads, 0, l->n_bins * sizeof *r->reads);
        memset(r->missed_at, 0, (size_t)l->cap * sizeof *r->missed_at);
        memset(r->missed_by, 0, heads * sizeof *r->missed_by);
        r->attended = r->missed = 0;
        r->heads = 0;
    }
}

/* ---- a layer ---- */

/* Computes full attention of the layer for sequence 0, `full`. */
static void take_full(lens *l, const attn_seen *seen)
{
    const attn_shape *sh = l->shape;
    size_t q = (size_t)sh->n_heads * (size_t)sh->head_dim * sizeof *l->q;
    size_t k = (size_t)sh->n_kv_heads * (size_t)l->cap * (size_t)sh->head_dim * sizeof *l->k;
    int64_t window = sh->window[seen->layer];
    attn_seq_keys(session_attn(l->s[0]), seen->layer, l->keys, l->cap, l->n);
    l->be->ops->download(l->be, l->q, seen->q, q);
    l->be->ops->download(l->be, l->k, l->keys, k);
    l->rows.n = l->n;
    l->query.first = window > 0 && window < l->n ? l->n - window : 0;
    exact_fill(&l->query);
}

/* Marks the positions that a query head of strategy i reads in the current layer. */
static void mark_read(lens *l, size_t i, int head)
{
    int64_t head_end, tail;
    int64_t n = attn_last_selection(decoder_attn_work(l->o.dec), 1 + i, head, l->selected, &head_end, &tail);
    memset(l->mark, 0, (size_t)l->cap);
    for (int64_t k = 0; k < n; k++) l->mark[l->selected[k]] = 1;
}

static void judge_head(lens *l, lens_run *r, int layer, int head)
{
    int group = l->shape->n_heads / l->shape->n_kv_heads;
    const double *share = l->query.share + head * l->cap;
    double missed = 0;
    for (int64_t p = 0; p < l->n; p++) {
        if (l->mark[p]) {
            r->attended++;
            if (p < (int64_t)l->o.n_ids) r->reads[(size_t)p / l->bin]++;
            set_bit(r->bits + (size_t)layer * l->row, p);
        } else {
            missed += share[p];
            r->missed_at[p] += share[p];
        }
    }
    r->missed += missed;
    r->missed_by[layer * l->shape->n_kv_heads + head / group] += missed / group;
    r->heads++;
}

void lens_watch(void *ctx, const attn_seen *seen)
{
    lens *l = ctx;
    if (seen->layer < 0 || seen->layer >= l->shape->n_layers) return;
    take_full(l, seen);
    for (size_t i = 0; i < l->o.n; i++) {
        lens_run *r = &l->run[i];
        if (r->dense[seen->layer]) {
            memset(r->bits + (size_t)seen->layer * l->row, 0xff, l->row);
            continue;
        }
        for (int h = 0; h < l->shape->n_heads; h++) {
            mark_read(l, i, h);
            judge_head(l, r, seen->layer, h);
        }
    }
}
