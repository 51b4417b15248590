/* SPDX-License-Identifier: MIT */
/* Memory of a layer group. One list of buffers serves plans, allocation, counts, saving and release. */
#include "config.h"

#include <string.h>

#include "attention/sequence_impl.h"
#include "kernels/base/mem.h"

/* ---- declaring ---- */

void decl_bytes(attn_decl *d, mem_kind kind, size_t at, const char *name, size_t bytes)
{
    state_add(&d->buffers,
              (mem_decl){.name = name, .kind = kind, .at = at, .regions = 1, .item = bytes, .cap = 1, .used = 1});
}

void decl_scratch(attn_decl *d, size_t at, const char *name, size_t item, int64_t n)
{
    state_add(&d->buffers,
              (mem_decl){.name = name, .kind = MEM_SCRATCH, .at = at, .regions = 1, .item = item, .cap = n});
}

void decl_layers(attn_decl *d, mem_kind kind, size_t at, const char *name, size_t bytes)
{
    decl_regions(d, kind, at, name, 1, bytes, 1, 1);
}

void decl_regions(attn_decl *d, mem_kind kind, size_t at, const char *name, size_t regions, size_t item, int64_t cap,
                  int64_t used)
{
    state_add(&d->buffers, (mem_decl){name, kind, true, at, regions, item, cap, used, false});
}

void group_declare(attn_decl *d, const attn_method *m, const attn_spec *s, const attn_shape *shape,
                   const attn_limits *lim, int64_t n, int64_t entries)
{
    *d = (attn_decl){.spec = s, .shape = shape, .lim = lim, .n = n, .entries = entries};
    d->slots = lim->n_tokens;
    d->heads = (size_t)shape->n_kv_heads;
    d->lists = 1;
    if (m->family && m->family->hooks.declare) m->family->hooks.declare(d);
    if (m->hooks.declare) m->hooks.declare(d);
}

/* Checks that the chunk is a multiple of the window, since windows start at the start of a forward. */
static status check_chunk(const attn_decl *d, err *e)
{
    const attn_limits *lim = d->lim;
    if (d->window == 0 || lim->n_tokens <= lim->chunk || lim->chunk % d->window == 0) return ST_OK;
    return err_set(e, ST_USAGE, "%s: --chunk %lld, expected a multiple of window = %lld", d->spec->text,
                   (long long)lim->chunk, (long long)d->window);
}

/* Returns the sum to which a buffer adds. */
static size_t *sum_of(attn_bytes *b, const mem_decl *m)
{
    return m->kind == MEM_ROWS ? &b->kv : m->kind == MEM_INDEX || m->kind == MEM_STATE ? &b->index : &b->scratch;
}

status group_plan(attn_bytes *out, const attn_decl *d, int64_t n_layers, err *e)
{
    size_t bytes, maps = kv_map_bytes(&d->spec->kv, d->lim->n_tokens, d->lim->chunk);
    TRY(check_chunk(d, e));
    TRY(kv_plan_bytes(&bytes, &d->spec->kv, d->shape, d->lim, d->heads, d->slots, e));
    TRY(size_mul(&bytes, bytes, (size_t)n_layers, "KV plan", e));
    TRY(size_add(&out->kv, out->kv, bytes, "KV plan", e));
    TRY(size_add(&out->scratch, out->scratch, maps, "KV plan", e));
    for (int i = 0; i < d->buffers.n_mem; i++) {
        const mem_decl *m = &d->buffers.mem[i];
        size_t *sum = sum_of(out, m);
        TRY(state_bytes(&bytes, m, e));
        TRY(size_mul(&bytes, bytes, m->each_layer ? (size_t)n_layers : 1, m->name, e));
        if (m->kind != MEM_HOST) TRY(size_add(sum, *sum, bytes, m->name, e));
    }
    return ST_OK;
}

/* ---- creation and release ---- */

/* Returns the buffer's field in the method's struct. */
static buf *buffer_of(const attn_view *v, const mem_decl *m, int layer)
{
    void *at = (char *)v->own + m->at;
    if (!m->each_layer) return at;
    buf *list;
    memcpy(&list, at, sizeof list);
    return list ? &list[layer] : NULL;
}

static status open_list(attn_view *v, const mem_decl *m, err *e)
{
    buf *list;
    TRY(MEM_NEW(&list, (size_t)v->shape->n_layers, e));
    memcpy((char *)v->own + m->at, &list, sizeof list);
    return ST_OK;
}

static status open_mem(attn_view *v, const mem_decl *m, err *e)
{
    size_t bytes;
    void *host;
    TRY(state_bytes(&bytes, m, e));
    if (m->kind == MEM_HOST) {
        TRY(mem_alloc(&host, bytes, 1, m->name, e));
        memcpy((char *)v->own + m->at, &host, sizeof host);
        return ST_OK;
    }
    if (!m->each_layer) return v->be->ops->alloc(v->be, buffer_of(v, m, 0), bytes, m->name, e);
    TRY(open_list(v, m, e));
    for (int l = 0; l < v->shape->n_layers; l++)
        if (v->layers[l]) TRY(v->be->ops->alloc(v->be, buffer_of(v, m, l), bytes, m->name, e));
    return ST_OK;
}

static void close_mem(attn_view *v, const mem_decl *m)
{
    size_t bytes;
    void *host;
    if (state_bytes(&bytes, m, NULL) != ST_OK) return;
    for (int l = 0; l < (m->each_layer ? v->shape->n_layers : 1) && m->kind != MEM_HOST; l++) {
        buf *b = buffer_of(v, m, l);
        if (b && b->p) v->be->ops->free(v->be, *b, bytes);
    }
    if (!m->each_layer && m->kind != MEM_HOST) return;
    memcpy(&host, (char *)v->own + m->at, sizeof host);
    mem_free(host);
}

static size_t own_size(const attn_method *m)
{
    return m->size ? m->size : m->family && m->family->size ? m->family->size : 1;
}

status group_open(layer_group *group, row_tier *where, err *e)
{
    attn_view *v = &group->v;
    const attn_decl *d = &group->d;
    const select_ops *so = v->be->ops->select;
    const kv_store_options store = {.be = v->be,
                                    .spec = v->spec,
                                    .shape = v->shape,
                                    .lim = v->lim,
                                    .layers = v->layers,
                                    .n_heads = d->heads,
                                    .slots = d->slots,
                                    .tier = where};
    v->window = d->window;
    TRY(check_chunk(d, e));
    TRY(mem_alloc(&v->own, own_size(v->method), 1, "strategy", e));
    for (int i = 0; i < d->buffers.n_mem; i++) TRY(open_mem(v, &d->buffers.mem[i], e));
    if (!v->draft_view) TRY(kv_store_create(&v->store, &store, e));
    if (HOOK(v, kept)) TRY(MEM_NEW(&group->positions, (size_t)(d->slots + v->lim->chunk), e));
    if (d->choose_lists) TRY(so->reserve(v->be, d->choose_lists, d->choose_items, e));
    if (HOOK(v, reset)) HOOK(v, reset)(v);
    return ST_OK;
}

void group_free(layer_group *group)
{
    if (!group) return;
    attn_view *v = &group->v;
    for (int i = 0; i < group->d.buffers.n_mem && v->own; i++) close_mem(v, &group->d.buffers.mem[i]);
    if (!v->draft_view) kv_store_free(v->store);
    mem_free(group->positions);
    mem_free(v->own);
    mem_free(group);
}

/* ---- counts ---- */

/* True if the lists of a layer may differ in length or bytes. */
static bool lists_differ(const attn_view *v, int layer)
{
    return v->listed && (kv_store_by_position(v->store) || v->shape->window[layer] > 0);
}

/* Returns the bytes of a layer's rows that are in its lists, plus the n_new tokens of the current forward. */
static size_t listed_bytes(const layer_group *group, int layer, int64_t n_new, int64_t *entries)
{
    const attn_view *v = &group->v;
    size_t bytes = 0, regions = group->d.heads / group->d.lists;
    int64_t *pos = group->positions;
    for (size_t i = 0; i < group->d.lists; i++) {
        int64_t n = HOOK(v, kept)(v, layer, i, pos);
        while (n_new > 0 && n > 0 && pos[n - 1] >= v->length) n--;
        for (int64_t k = 0; k < n_new; k++) pos[n++] = v->length + k;
        bytes += regions * kv_store_bytes_of(v->store, pos, n);
        *entries += n;
    }
    return bytes;
}

/* Returns the bytes of one layer's rows; adds the entries of its lists to *entries. */
static size_t layer_bytes(const layer_group *group, int layer, int64_t n_new, bool most, int64_t *entries)
{
    const attn_view *v = &group->v;
    int64_t n = v->length + n_new;
    if (!HOOK(v, kept)) return kv_store_bytes(v->store, n);
    if (lists_differ(v, layer) && !most) return listed_bytes(group, layer, n_new, entries);
    *entries += (int64_t)group->d.lists * (v->stored + n_new);
    if (lists_differ(v, layer)) return group->d.heads * kv_store_bytes_most(v->store, n, v->stored + n_new);
    return kv_store_bytes(v->store, v->stored + n_new);
}

attn_bytes group_held(const layer_group *group, int64_t n_new, bool most)
{
    const attn_view *v = &group->v;
    int64_t entries = 0, n_layers = 0;
    attn_bytes out = {.scratch = kv_map_bytes(&v->spec->kv, v->lim->n_tokens, v->lim->chunk)};
    attn_decl d;
    for (int l = 0; l < v->shape->n_layers; l++) {
        if (!v->layers[l]) continue;
        if (!v->draft_view) out.kv += layer_bytes(group, l, n_new, most, &entries);
        n_layers++;
    }
    entries /= n_layers * (int64_t)group->d.lists; /* the mean, since windows can make them differ */
    group_declare(&d, v->method, v->spec, v->shape, v->lim, v->length + n_new, entries);
    for (int i = 0; i < d.buffers.n_mem; i++) {
        const mem_decl *m = &d.buffers.mem[i];
        size_t *sum = sum_of(&out, m);
        size_t bytes = m->regions * m->item * (size_t)(sum == &out.scratch ? m->cap : m->used);
        if (m->kind != MEM_HOST) *sum += m->each_layer ? bytes * (size_t)n_layers : bytes;
    }
    return out;
}

/* ---- saving and loading ---- */

static status walk_mem(attn_view *v, attn_state *s, const mem_decl *m, int layer, err *e)
{
    return state_visit(s, m, layer, *buffer_of(v, m, m->each_layer ? layer : 0), e);
}

status attn_walk(attn_view *v, attn_state *s, err *e)
{
    attn_decl d;
    group_declare(&d, v->method, v->spec, v->shape, v->lim, v->length, v->stored);
    for (int i = 0; i < d.buffers.n_mem; i++) {
        const mem_decl *m = &d.buffers.mem[i];
        if (m->kind == MEM_SCRATCH || m->kind == MEM_HOST) continue;
        if (!m->each_layer) TRY(walk_mem(v, s, m, -1, e));
        for (int l = 0; l < v->shape->n_layers && m->each_layer; l++)
            if (v->layers[l]) TRY(walk_mem(v, s, m, l, e));
    }
    return ST_OK;
}

status group_state(layer_group *group, attn_state *s, err *e)
{
    attn_view *v = &group->v;
    if (HOOK(v, state)) return HOOK(v, state)(v, s, e);
    TRY(attn_walk(v, s, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}
