/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/tail.h"

#include <stddef.h>

#include "attention/tier.h"

#define AT(member) (at + offsetof(attn_tail, member))

static bool asked(const attn_spec *s)
{
    return attn_value(s, "tail", TAIL_OFF) != TAIL_OFF;
}

/* Tokens of a sample; 0: there is none. */
static int64_t sample_of(const attn_spec *s)
{
    return max64(attn_value(s, "tail", TAIL_OFF) - ATTN_SAMPLE, 0);
}

/* Positions of a sum. */
static int64_t block_of(const attn_spec *s)
{
    int64_t how = attn_value(s, "tail", TAIL_OFF);
    return how == TAIL_ALL ? TAIL_BLOCK : how;
}

/* Rows that stand for what a list leaves of n tokens. */
static int64_t rows_of_list(const attn_spec *s, int64_t n)
{
    return attn_value(s, "tail", TAIL_OFF) == TAIL_ALL ? 1 : tail_blocks(n, block_of(s));
}

/* Rows for each query head with a list of its own, else for each kv head. */
static size_t regions_of(const attn_shape *sh, size_t lists)
{
    return lists == (size_t)sh->n_heads ? lists : (size_t)sh->n_kv_heads;
}

static void declare_sample(attn_decl *d, size_t at, size_t lists, int64_t most)
{
    size_t heads = (size_t)d->shape->n_heads;
    decl_scratch(d, AT(idx), "samples", lists * sizeof(int32_t), most);
    decl_scratch(d, AT(range), "samples", 2 * sizeof(int64_t), (int64_t)lists);
    decl_scratch(d, AT(left), "samples", sizeof(int64_t), (int64_t)lists);
    decl_scratch(d, AT(bias), "samples", heads * sizeof(float), most);
    decl_scratch(d, AT(scores), "samples", heads * sizeof(float), most);
    decl_scratch(d, AT(missed), "samples", 2 * sizeof(float), (int64_t)heads);
}

void tail_declare(attn_decl *d, size_t at, size_t lists)
{
    const attn_shape *sh = d->shape;
    size_t row = (size_t)sh->head_dim * sizeof(float), regions = regions_of(sh, lists);
    if (!asked(d->spec)) return;
    if (sample_of(d->spec)) {
        declare_sample(d, at, lists, sample_of(d->spec));
        return;
    }
    int64_t block = block_of(d->spec), rows = rows_of_list(d->spec, d->lim->n_tokens);
    decl_regions(d, MEM_INDEX, AT(sum), "sums of rows", 2 * (size_t)sh->n_kv_heads, row,
                 tail_blocks(d->lim->n_tokens, block), tail_blocks(d->n, block));
    decl_bytes(d, MEM_HOST, AT(sums), "sums of rows", (size_t)sh->n_layers * sizeof(tail_sums));
    decl_scratch(d, AT(k), "mean rows", regions * row, rows);
    decl_scratch(d, AT(v), "mean rows", regions * row, rows);
    decl_scratch(d, AT(bias), "mean rows", (size_t)sh->n_heads * sizeof(float), rows);
}

void tail_reset(attn_tail *t, attn_view *v, size_t lists)
{
    const attn_shape *sh = v->shape;
    t->most = sample_of(v->spec);
    t->seed = (uint64_t)attn_value(v->spec, "tail_seed", 0);
    if (!asked(v->spec) || t->most) return;
    for (int l = 0; l < sh->n_layers; l++)
        t->sums[l] = (tail_sums){.sum = t->sum[l],
                                 .block = block_of(v->spec),
                                 .type = kv_in_blocks(&v->spec->kv) ? DT_F32 : v->spec->kv.type,
                                 .n_kv_heads = (size_t)sh->n_kv_heads,
                                 .head_dim = (size_t)sh->head_dim,
                                 .cap = (size_t)tail_blocks(v->lim->n_tokens, block_of(v->spec))};
    t->rows = (kv_rows){.k = t->k,
                        .v = t->v,
                        .type = DT_F32,
                        .n_kv_heads = regions_of(sh, lists),
                        .head_dim = (size_t)sh->head_dim,
                        .cap = (size_t)rows_of_list(v->spec, v->lim->n_tokens)};
}

/* Whether a layer has mean rows. */
static bool has_means(const attn_tail *t, const attn_view *v, int layer)
{
    return t->rows.n_kv_heads > 0 && v->shape->window[layer] == 0;
}

void tail_add(attn_tail *const *t, const attn_turn *turns, size_t n, int layer)
{
    tail_add_job jobs[ATTN_TOGETHER];
    if (!has_means(t[0], turns->v, layer)) return;
    for (size_t i = 0; i < n; i++)
        jobs[i] = (tail_add_job){&t[i]->sums[layer], turns[i].p.first, turns[i].k, turns[i].val, turns[i].p.n_tok};
    turns->v->be->ops->tail->add(turns->v->be, jobs, n);
}

/* What the segments of a step leave: the one with lists, or the first, and the others. */
static tail_rest_job rest_of(const attn_tail *x, const attn_turn *t, int layer)
{
    const attn_sel *sel = t->sel;
    int lists = 0, n = 0;
    for (int s = 0; s < sel->n_seg; s++)
        if (sel->seg[s].range.p) lists = s;
    tail_rest_job j = {.sums = x->most ? NULL : &x->sums[layer],
                       .of = attn_seg_job(t->v, &sel->seg[lists]),
                       .n = t->p.first + (int64_t)t->p.n_tok,
                       .rows = x->most ? (size_t)x->most : x->rows.cap,
                       .k = x->k,
                       .v = x->v,
                       .bias = x->bias};
    j.of.n_tok = 1;
    for (int s = 0; s < sel->n_seg; s++)
        if (s != lists) j.more[n++] = (slot_range){sel->seg[s].first, sel->seg[s].n_max};
    return j;
}

/* A sample of what the lists leave of each of n steps, with the logarithms of the numbers that it stands for. */
static void select_sample(attn_tail *const *t, const attn_turn *const *turns, size_t n, int layer)
{
    tail_sample_job jobs[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) {
        const attn_tail *x = t[i];
        attn_sel *sel = turns[i]->sel;
        jobs[i] = (tail_sample_job){.rest = rest_of(x, turns[i], layer),
                                    .seed = x->seed,
                                    .layer = layer,
                                    .idx = x->idx,
                                    .range = x->range,
                                    .left = x->left};
        sel->seg[sel->n_seg] = (attn_seg){.rows = sel->seg[0].rows,
                                          .range = x->range,
                                          .idx = x->idx,
                                          .n_lists = jobs[i].rest.of.n_lists,
                                          .idx_stride = jobs[i].rest.rows,
                                          .n_max = x->most,
                                          .scores = x->scores,
                                          .score_stride = jobs[i].rest.rows,
                                          .bias = x->bias,
                                          .bias_stride = jobs[i].rest.rows,
                                          .left = x->left,
                                          .missed = x->missed};
        sel->n_seg++;
    }
    turns[0]->v->be->ops->tail->sample(turns[0]->v->be, jobs, n);
}

static void select_means(attn_tail *const *t, const attn_turn *const *turns, size_t n, int layer)
{
    tail_rest_job jobs[ATTN_TOGETHER];
    attn_job lists[ATTN_TOGETHER];
    backend *be = turns[0]->v->be;
    for (size_t i = 0; i < n; i++) {
        const attn_tail *x = t[i];
        attn_sel *sel = turns[i]->sel;
        jobs[i] = rest_of(x, turns[i], layer);
        lists[i] = jobs[i].of;
        sel->seg[sel->n_seg++] = (attn_seg){.rows = &x->rows,
                                            .n_lists = x->rows.n_kv_heads,
                                            .n_max = rows_of_list(turns[i]->v->spec, jobs[i].n),
                                            .bias = x->bias,
                                            .bias_stride = x->rows.cap,
                                            .pseudo = true};
    }
    row_tier_before_read(be, lists, n, true);
    be->ops->tail->rest(be, jobs, n);
}

void tail_select(attn_tail *const *t, const attn_turn *const *turns, size_t n, int layer)
{
    const attn_view *v = turns[0]->v;
    if (has_means(t[0], v, layer)) select_means(t, turns, n, layer);
    else if (t[0]->most && v->shape->window[layer] == 0) select_sample(t, turns, n, layer);
}

int64_t tail_redo_from(const attn_tail *t, int64_t n)
{
    return t->rows.n_kv_heads ? n / t->sums->block * t->sums->block : n;
}

void tail_rewind(const attn_tail *t, attn_view *v, int64_t n)
{
    for (int l = 0; l < v->shape->n_layers; l++) {
        if (!v->layers[l] || !has_means(t, v, l)) continue;
        const kv_rows rows = kv_rows_together(kv_store_rows(v->store, l), (size_t)v->shape->n_kv_heads);
        kv_need(v->be, &rows, tail_redo_from(t, n), n);
        v->be->ops->tail->redo(v->be, &t->sums[l], &rows, n);
    }
}
