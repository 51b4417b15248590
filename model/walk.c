/* SPDX-License-Identifier: MIT */
/* Blocks of a model and the list of its weights. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "model/block.h"

/* ---- blocks ---- */

/* Returns the bytes of a block's weights. */
static size_t size_of(const block_kind *k, const model_config *c)
{
    return k->size + k->expert_size * (size_t)c->n_experts;
}

static size_t room_of(const block_kind *k, const model_config *c)
{
    return (size_of(k, c) + 15) / 16 * 16;
}

/* Returns the kind of block i (0 or 1) of a layer; NULL: the layer lacks it. */
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
        if (kind_at(c, i / 2, i % 2)) bytes += room_of(kind_at(c, i / 2, i % 2), c);
    TRY(mem_alloc((void **)out, bytes, 1, "blocks", e));
    weights = (unsigned char *)*out + (2 * (size_t)c->n_layers * sizeof(block) + 15) / 16 * 16;
    *n = 0;
    for (int i = 0; i < 2 * c->n_layers; i++) {
        const block_kind *k = kind_at(c, i / 2, i % 2);
        if (!k) continue;
        (*out)[(*n)++] = (block){k, weights, i / 2, k->keeps_kv ? (int)kv++ : -1, k->declare ? (int)state++ : -1};
        weights += room_of(k, c);
    }
    return ST_OK;
}

status blocks_copy(block **out, const block *from, size_t n, const model_config *c, err *e)
{
    TRY(blocks_create(out, &n, c, e));
    for (size_t i = 0; i < n; i++) memcpy((*out)[i].w, from[i].w, size_of(from[i].kind, c));
    return ST_OK;
}

/* ---- one weight ---- */

static void put_name(char out[WEIGHT_NAME], const walk *k, const char *name)
{
    if (k->layer >= 0) snprintf(out, WEIGHT_NAME, "model.layers.%d.%s", k->layer, name);
    else snprintf(out, WEIGHT_NAME, "%s", name);
}

status walk_weight(walk *k, weight_spec w, const char *name)
{
    TRY(MEM_ROOM(&k->list, &k->room, k->n + 1, k->e));
    put_name(w.name, k, name);
    w.layer = k->layer;
    if (!w.all_rows) w.all_rows = w.rows;
    if (!w.all_cols) w.all_cols = w.cols;
    if (!w.read_rows) w.read_rows = w.rows;
    k->list[k->n++] = w;
    return ST_OK;
}

void walk_whole(walk *k, const char *name, size_t rows)
{
    k->whole = name;
    k->whole_rows = rows * k->ranks;
    k->whole_next = 0;
}

/* Gives a weight of `rows` rows in the files its place in the tensor of walk_whole, if there is one. */
static void put_in_whole(walk *k, weight_spec *w, size_t rows)
{
    if (!k->whole) return;
    put_name(w->whole, k, k->whole);
    w->whole_rows = k->whole_rows;
    w->whole_first = k->whole_next;
    k->whole_next += rows;
}

status walk_rows(walk *k, weight *slot, const char *name, size_t rows, size_t cols)
{
    weight_spec w = {.rows = rows, .cols = cols, .slot = slot};
    w.all_rows = rows * k->ranks;
    w.first_row = rows * k->rank;
    put_in_whole(k, &w, w.all_rows);
    return walk_weight(k, w, name);
}

status walk_more_rows(walk *k, weight *slot, const char *name, size_t rows, size_t cols)
{
    TRY(walk_rows(k, slot, name, rows, cols));
    k->list[k->n - 1].together = true;
    return ST_OK;
}

status walk_cols(walk *k, weight *slot, const char *name, size_t rows, size_t cols)
{
    weight_spec w = {.rows = rows, .cols = cols, .slot = slot};
    w.all_cols = cols * k->ranks;
    w.first_col = cols * k->rank;
    return walk_weight(k, w, name);
}

status walk_norm(walk *k, weight *slot, const char *name, size_t n)
{
    return walk_weight(k, (weight_spec){.rows = 1, .cols = n, .vector = true, .norm = true, .slot = slot}, name);
}

status walk_block_norm(walk *k, const model_config *c, weight *slot, const char *name)
{
    weight_spec w = {.rows = 1, .cols = (size_t)c->hidden, .vector = true, .norm = true, .slot = slot};
    w.offset = c->family->centered ? 1 : 0;
    return walk_weight(k, w, name);
}

status walk_constant(walk *k, weight *slot, const char *name, size_t n, float value)
{
    weight_spec w = {.rows = 1, .cols = n, .vector = true, .norm = true, .constant = true, .slot = slot};
    w.offset = value;
    return walk_weight(k, w, name);
}

status walk_bias(walk *k, bool wanted, weight *slot, const char *name, size_t n)
{
    weight_spec w = {.rows = 1, .cols = n, .vector = true, .slot = slot};
    w.all_cols = n * k->ranks;
    w.first_col = n * k->rank;
    put_in_whole(k, &w, w.all_cols);
    return wanted ? walk_weight(k, w, name) : ST_OK;
}

status walk_sum_bias(walk *k, bool wanted, weight *slot, const char *name, size_t n)
{
    const weight_spec w = {.rows = 1, .cols = n, .vector = true, .slot = slot};
    return wanted && k->rank == 0 ? walk_weight(k, w, name) : ST_OK;
}

/* ---- all weights ---- */

static status walk_model(walk *k, model *m)
{
    const model_config *c = &m->config;
    size_t h = (size_t)c->hidden, vocab = (size_t)c->vocab;
    TRY(walk_weight(k, (weight_spec){.rows = vocab, .cols = h, .slot = &m->embed, .read_rows = 1}, EMBED_NAME));
    if (c->family->embed_norm) TRY(walk_constant(k, &m->embed_norm, "model.embed_norm.weight", h, 1));
    for (const block *b = m->blocks; b < m->blocks + m->n_blocks; b++) {
        k->layer = b->layer;
        TRY(b->kind->weights(k, c, b->w));
    }
    k->layer = -1;
    TRY(walk_norm(k, &m->norm, "model.norm.weight", h));
    weight_spec head = {.rows = head_rows(c, k->ranks), .cols = h, .slot = &m->lm_head, .all_rows = vocab};
    head.first_row = head_first(c, k->rank, k->ranks);
    return walk_weight(k, head, HEAD_NAME);
}

status model_list_weights(model *m, size_t rank, size_t ranks, err *e)
{
    walk k = {.layer = -1, .rank = rank, .ranks = ranks, .e = e};
    status st = walk_model(&k, m);
    m->weights = k.list;
    m->n_weights = k.n;
    return st;
}

status config_count(model_config *c, err *e)
{
    model m = {.config = *c};
    TRY(blocks_create(&m.blocks, &m.n_blocks, c, e));
    status st = model_list_weights(&m, 0, 1, e);
    c->n_params = c->n_active = 0;
    c->n_kv = 0;
    for (const weight_spec *w = m.weights; st == ST_OK && w < weights_end(&m); w++)
        if (!w->constant) c->n_params += (int64_t)w->rows * (int64_t)w->cols;
    for (const weight_spec *w = m.weights; st == ST_OK && w < weights_end(&m); w++)
        if (!w->constant) c->n_active += (int64_t)((double)w->rows * (double)w->cols * weight_share(w, c));
    for (const block *b = m.blocks; b < m.blocks + m.n_blocks; b++)
        if (b->kv >= 0) c->kv_window[c->n_kv++] = c->window[b->layer];
    mem_free(m.weights);
    mem_free(m.blocks);
    return st;
}
