/* SPDX-License-Identifier: MIT */
/* The blocks of a model and a walk over its weights. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "model/block.h"

/* ---- blocks ---- */

static size_t room_of(const block_kind *k)
{
    return (k->size + 15) / 16 * 16;
}

/* Returns the kind of the i-th block of a layer, of 2; NULL: a layer without it. */
static const block_kind *kind_at(const model_config *c, int layer, int i)
{
    return (i ? c->family->ffn : c->family->mixer)(c, layer);
}

status blocks_create(block **out, size_t *n, const model_config *c, err *e)
{
    size_t bytes = 2 * (size_t)c->n_layers * sizeof(block), kv = 0, state = 0;
    unsigned char *weights;
    bytes = (bytes + 15) / 16 * 16;
    for (int i = 0; i < 2 * c->n_layers; i++)
        if (kind_at(c, i / 2, i % 2)) bytes += room_of(kind_at(c, i / 2, i % 2));
    TRY(mem_alloc((void **)out, bytes, 1, "blocks", e));
    weights = (unsigned char *)*out + (2 * (size_t)c->n_layers * sizeof(block) + 15) / 16 * 16;
    *n = 0;
    for (int i = 0; i < 2 * c->n_layers; i++) {
        const block_kind *k = kind_at(c, i / 2, i % 2);
        if (!k) continue;
        (*out)[(*n)++] = (block){k, weights, i / 2, k->keeps_kv ? (int)kv++ : -1, k->declare ? (int)state++ : -1};
        weights += room_of(k);
    }
    return ST_OK;
}

status blocks_copy(block **out, const block *from, size_t n, const model_config *c, err *e)
{
    TRY(blocks_create(out, &n, c, e));
    for (size_t i = 0; i < n; i++) memcpy((*out)[i].w, from[i].w, from[i].kind->size);
    return ST_OK;
}

/* ---- one weight ---- */

status walk_weight(const walk *k, weight_spec w, const char *name)
{
    char full[96];
    if (k->layer >= 0) snprintf(full, sizeof full, "model.layers.%d.%s", k->layer, name);
    else snprintf(full, sizeof full, "%s", name);
    w.name = full;
    w.layer = k->layer;
    if (!w.all_rows) w.all_rows = w.rows;
    if (!w.all_cols) w.all_cols = w.cols;
    if (!w.read_rows) w.read_rows = w.rows;
    return k->visit(k->ctx, &w, k->e);
}

status walk_rows(const walk *k, weight *slot, const char *name, size_t rows, size_t cols)
{
    weight_spec w = {.rows = rows, .cols = cols, .slot = slot};
    w.all_rows = rows * k->ranks;
    w.first_row = rows * k->rank;
    return walk_weight(k, w, name);
}

status walk_cols(const walk *k, weight *slot, const char *name, size_t rows, size_t cols)
{
    weight_spec w = {.rows = rows, .cols = cols, .slot = slot};
    w.all_cols = cols * k->ranks;
    w.first_col = cols * k->rank;
    return walk_weight(k, w, name);
}

status walk_norm(const walk *k, weight *slot, const char *name, size_t n)
{
    return walk_weight(k, (weight_spec){.rows = 1, .cols = n, .vector = true, .norm = true, .slot = slot}, name);
}

status walk_bias(const walk *k, bool wanted, weight *slot, const char *name, size_t n)
{
    weight_spec w = {.rows = 1, .cols = n, .vector = true, .slot = slot};
    w.all_cols = n * k->ranks;
    w.first_col = n * k->rank;
    return wanted ? walk_weight(k, w, name) : ST_OK;
}

status walk_sum_bias(const walk *k, bool wanted, weight *slot, const char *name, size_t n)
{
    const weight_spec w = {.rows = 1, .cols = n, .vector = true, .slot = slot};
    return wanted && k->rank == 0 ? walk_weight(k, w, name) : ST_OK;
}

/* ---- all weights ---- */

/* Visits the weights in the order of the computation; a shared output matrix is the embedding. */
static status each_weight(walk *k, model *m, bool shared)
{
    const model_config *c = &m->config;
    TRY(walk_weight(
        k,
        (weight_spec){
            .rows = (size_t)c->vocab, .cols = (size_t)c->hidden, .slot = &m->embed, .read_rows = shared ? 0 : 1},
        EMBED_NAME));
    for (const block *b = m->blocks; b < m->blocks + m->n_blocks; b++) {
        k->layer = b->layer;
        TRY(b->kind->weights(k, c, b->w));
    }
    k->layer = -1;
    TRY(walk_norm(k, &m->norm, "model.norm.weight", (size_t)c->hidden));
    if (shared) return ST_OK;
    return walk_weight(k,
                       (weight_spec){.rows = head_rows(c, k->ranks),
                                     .cols = (size_t)c->hidden,
                                     .slot = &m->lm_head,
                                     .all_rows = (size_t)c->vocab,
                                     .first_row = head_first(c, k->rank, k->ranks)},
                       HEAD_NAME);
}

status model_each_weight(const model *m, weight_visitor visitor, void *ctx, err *e)
{
    walk k = {.visit = visitor,
              .ctx = ctx,
              .layer = -1,
              .rank = (size_t)backend_rank(m->be),
              .ranks = (size_t)backend_ranks(m->be),
              .e = e};
    /* The model is const for visitors that only read; the slots belong to it all the same. */
    return each_weight(&k, (model *)(uintptr_t)m, m->config.tied && !dtype_in_qblocks(m->lm_head.type));
}

static status add_params(void *ctx, const weight_spec *w, err *e)
{
    (void)e;
    *(int64_t *)ctx += (int64_t)w->rows * (int64_t)w->cols;
    return ST_OK;
}

status config_count(model_config *c, err *e)
{
    model m = {.config = *c};
    walk k = {.visit = add_params, .ctx = &c->n_params, .layer = -1, .ranks = 1, .e = e};
    TRY(blocks_create(&m.blocks, &m.n_blocks, c, e));
    c->n_params = 0;
    c->n_kv = 0;
    for (const block *b = m.blocks; b < m.blocks + m.n_blocks; b++)
        if (b->kv >= 0) c->kv_window[c->n_kv++] = c->window[b->layer];
    status st = each_weight(&k, &m, c->tied);
    mem_free(m.blocks);
    return st;
}
