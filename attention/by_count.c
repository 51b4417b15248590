/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/by_count.h"

#include <stddef.h>

typedef struct {
    buf idx;         /* i32 [n_layers][budget] selected slots */
    int32_t *slots;  /* host copy of idx */
    int64_t *counts; /* [n_layers] selected slots per layer */
} by_count;

static void count_declare(attn_decl *d)
{
    size_t n = (size_t)d->shape->n_layers, bytes = n * (size_t)d->spec->budget * sizeof(int32_t);
    decl_bytes(d, MEM_SCRATCH, offsetof(by_count, idx), "selected slots", bytes);
    decl_bytes(d, MEM_HOST, offsetof(by_count, slots), "selected slots", bytes);
    decl_bytes(d, MEM_HOST, offsetof(by_count, counts), "selected slots", n * sizeof(int64_t));
}

/* True if a step selects in a layer that sees `seen` tokens. */
static bool chooses(const attn_view *v, const attn_part *p, int64_t seen)
{
    return !(p->flags & ATTN_PROMPT) && (seen > v->spec->budget || v->spec->forced);
}

static void count_begin(attn_view *v, const attn_part *p)
{
    by_count *c = v->own;
    const by_count_kind *kind = v->method->kind;
    int64_t n = v->length + (int64_t)p->n_tok, budget = v->spec->budget;
    for (int l = 0; l < v->shape->n_layers; l++)
        if (v->layers[l] && chooses(v, p, attn_visible(v->shape, l, n)))
            c->counts[l] = kind->slots(v, l, n, c->slots + l * budget);
    if (!(p->flags & ATTN_PROMPT))
        v->be->ops->upload(v->be, c->idx, c->slots, (size_t)(v->shape->n_layers * budget) * sizeof(int32_t));
}

static void count_select(const attn_task *t, size_t n, int layer)
{
    full_select(t, n, layer);
    for (; n > 0; n--, t++) {
        const by_count *c = t->v->own;
        int64_t seen = t->p.first + (int64_t)t->p.n_tok;
        if (!chooses(t->v, &t->p, attn_visible(t->v->shape, layer, seen))) continue;
        t->sel->attended = c->counts[layer];
        t->sel->tail = seen - 1;
        t->sel->seg[0] = (attn_seg){.rows = kv_store_rows(t->v->store, layer),
                                    .idx = buf_at(c->idx, (size_t)(layer * t->v->spec->budget) * sizeof(int32_t)),
                                    .n_lists = 1,
                                    .n_max = c->counts[layer]};
    }
}

static const char *count_rewind(attn_view *v, int64_t n)
{
    return n == v->length || kv_store_rewind(v->store, n) ? NULL : KV_NO_REWIND;
}

const attn_family attn_by_count = {
    .size = sizeof(by_count),
    .retrieves = true,
    .drafts = true,
    .hooks = {.declare = count_declare, .begin = count_begin, .select = count_select, .rewind = count_rewind},
};
