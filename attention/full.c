/* SPDX-License-Identifier: MIT */
/* Full attention: keep and read everything. Also serves the dense layers of other methods. */
#include "config.h"

#include "attention/full.h"
#include "attention/store.h"
#include "kernels/base/mem.h"

typedef struct {
    attn_ctx base;
    kv_store *store;
    buf state; /* i64: first slot 0, rows visible in this forward */
} full_ctx;

enum { STATE_BYTES = 2 * sizeof(int64_t) };

status full_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                 const attn_limits *lim, const bool *layers, err *e)
{
    for (int l = 0; l < shape->n_layers; l++) {
        size_t bytes;
        if (!layers[l]) continue;
        TRY(kv_plan_bytes(&bytes, &s->kv, shape, (size_t)shape->n_kv_heads, lim->n_tokens, e));
        TRY(size_add(&out->kv, out->kv, bytes, "KV plan", e));
    }
    return ST_OK;
}

void full_free(attn_ctx *c)
{
    full_ctx *f = (full_ctx *)c;
    kv_store_free(f->store);
    if (f->state.p) c->be->ops->free(c->be, f->state, STATE_BYTES);
    mem_free(f);
}

static void set_rows(full_ctx *f, int64_t n)
{
    int64_t state[2] = {0, n};
    f->base.be->ops->upload(f->base.be, f->state, state, sizeof state);
}

status full_create(attn_ctx **out, const attn_ctx *base, err *e)
{
    full_ctx *f;
    int64_t *cap = NULL;
    const attn_shape *sh = base->shape;
    *out = NULL;
    TRY(MEM_NEW(&f, 1, e));
    f->base = *base;
    status st = MEM_NEW(&cap, (size_t)sh->n_layers, e);
    if (st != ST_OK) goto done;
    for (int l = 0; l < sh->n_layers; l++) cap[l] = base->layers[l] ? base->lim->n_tokens : 0;
    TRY_GOTO(kv_store_create(&f->store, base, (size_t)sh->n_kv_heads, cap, e));
    TRY_GOTO(base->be->ops->alloc(base->be, &f->state, STATE_BYTES, "KV state", e));
    set_rows(f, 0);
    *out = &f->base;
done:
    mem_free(cap);
    if (st != ST_OK) full_free(&f->base);
    return st;
}

void full_reset(attn_ctx *c)
{
    full_ctx *f = (full_ctx *)c;
    kv_store_reset(f->store);
    set_rows(f, 0);
}

bool full_exact_prompt(const attn_ctx *c, int64_t n)
{
    (void)n;
    return kv_store_exact(((const full_ctx *)c)->store);
}

void full_step_begin(attn_ctx *c, const attn_part *p)
{
    full_ctx *f = (full_ctx *)c;
    kv_store_begin(f->store, c, p);
    c->be->ops->i64_add(c->be, buf_at(f->state, sizeof(int64_t)), 1, (int64_t)p->n_tok);
}

void full_append(attn_ctx *c, const attn_part *p, int layer, buf k_raw, buf k, buf v)
{
    (void)k_raw;
    kv_store_put(((full_ctx *)c)->store, p, layer, p->pos, 1, k, v);
}

/* Slot = position, so the first element of the state serves as position of slot 0. A decode query
 * sees all rows unless its layer has a window. */
void full_select(attn_ctx *c, const attn_part *p, int layer, buf q_raw, buf q, attn_sel *sel)
{
    (void)q_raw;
    (void)q;
    full_ctx *f = (full_ctx *)c;
    int64_t window = c->shape->window[layer];
    bool mask = (p->flags & ATTN_PROMPT) || window > 0;
    sel->n_seg = 1;
    sel->seg[0] = (attn_seg){
        .rows = kv_store_rows(f->store, layer),
        .range = f->state,
        .n_lists = 1,
        .n_max = c->length + (int64_t)p->n_tok,
        .kpos = mask ? f->state : (buf){NULL},
        .band = window,
    };
}

void full_layer_end(attn_ctx *c, const attn_part *p, int layer)
{
    (void)p;
    kv_store_layer_end(((full_ctx *)c)->store, layer);
}

void full_step_end(attn_ctx *c, const attn_part *p)
{
    (void)p;
    kv_store_end(((full_ctx *)c)->store);
}

const char *full_rewind(attn_ctx *c, int64_t n)
{
    full_ctx *f = (full_ctx *)c;
    if (!kv_store_rewind(f->store, n)) return KV_NO_REWIND;
    set_rows(f, n);
    return NULL;
}

status full_state(attn_ctx *c, attn_state *s, err *e)
{
    full_ctx *f = (full_ctx *)c;
    if (s->load) set_rows(f, c->length);
    return kv_store_state(f->store, s, c->length, c->length, e);
}

void full_held(const attn_ctx *c, int64_t n_new, attn_bytes *out)
{
    for (int l = 0; l < c->shape->n_layers; l++)
        if (c->layers[l])
            out->kv += kv_store_bytes(((const full_ctx *)c)->store, c->length + n_new);
}

int64_t full_attended(const attn_ctx *c, int layer)
{
    int64_t window = c->shape->window[layer];
    return window > 0 && window < c->length ? window : c->length;
}

int64_t full_positions(const attn_ctx *c, int layer, int kv_head, int64_t *out)
{
    (void)kv_head;
    int64_t n = c->layers[layer] ? c->length : 0;
    for (int64_t i = 0; out && i < n; i++) out[i] = i;
    return n;
}

static const attn_param no_params[] = {{.key = NULL}};

const attn_method attn_full = {
    .name = "full",
    .summary = "keep and read everything (the reference)",
    .source = "Vaswani et al. 2017; methods.md section 1",
    .params = no_params,
    FULL_HOOKS,
};
