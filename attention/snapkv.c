/* SPDX-License-Identifier: MIT */
/* SnapKV: at the end of the first prompt its last queries vote for what is kept of it. methods.md section 4.
 *
 * The votes of the last `window` queries are summed per query head, combined over the group, pooled along
 * positions; the best budget - window positions stay, and the window. What is generated is added and never
 * evicted. The queries are collected over the prompt's chunks in a ring. */
#include "config.h"

#include <string.h>

#include "attention/evict.h"
#include "kernels/base/mem.h"

enum { P_WINDOW, P_KERNEL, P_POOL, P_GQA, P_TURNS };

static const attn_param params[] = {
    [P_WINDOW] = {"window", NULL,
                  "last queries of the prompt, which vote and stay; -1: min(32, budget / 2)", -1,
                  -1, 4096},
    [P_KERNEL] = {"kernel", NULL, "odd length of the pooling over positions", 7, 1, 4095},
    [P_POOL] = {"pool", "max avg", "how votes are pooled", 0, 0, 1},
    [P_GQA] = EVICT_GQA_PARAM(GQA_MEAN_S),
    [P_TURNS] = {"recompress_on_turn", NULL, "1: evict at the end of later prompts too", 0, 0, 1},
    {.key = NULL},
};

typedef struct {
    evict_ctx e;
    size_t window;
    buf *ring; /* [n_layers] f32 queries [window][n_heads][head_dim], lse [window][n_heads] */
    buf qpos;  /* i64 [window] positions of the ring's rows */
    buf heads; /* f32 [n_heads][stride] votes */
    buf votes; /* f32 [n_lists][stride] */
} snap_ctx;

static status snap_parse(attn_spec *s, err *e)
{
    int64_t *w = &s->value[P_WINDOW];
    if (s->value[P_KERNEL] % 2 == 0)
        return err_set(e, ST_USAGE, "--attn %s: kernel=%lld, expected an odd number", s->text,
                       (long long)s->value[P_KERNEL]);
    if (*w == 0) return err_set(e, ST_USAGE, "--attn %s: window=0, at least 1", s->text);
    if (*w < 0) *w = s->budget / 2 < 32 ? s->budget / 2 : 32;
    return ST_OK;
}

static status snap_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    (void)shape;
    TRY(evict_check_gqa(s, (gqa_mode)s->value[P_GQA], e));
    if (s->budget < 2)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least 2", s->text,
                       (long long)s->budget);
    if (s->value[P_WINDOW] >= s->budget)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least window + 1 = %lld",
                       s->text, (long long)s->budget, (long long)s->value[P_WINDOW] + 1);
    return ST_OK;
}

static size_t ring_rows_bytes(const snap_ctx *c, size_t dim)
{
    return c->window * (size_t)c->e.base.shape->n_heads * dim * sizeof(float);
}

static size_t qpos_bytes(const attn_spec *s)
{
    return (size_t)s->value[P_WINDOW] * sizeof(int64_t);
}

static size_t ring_bytes(const snap_ctx *c)
{
    return ring_rows_bytes(c, (size_t)c->e.base.shape->head_dim + 1);
}

static void snap_vote(evict_ctx *e, const attn_part *p, int layer);

static evict_rule rule_of(const attn_spec *s)
{
    gqa_mode gqa = (gqa_mode)s->value[P_GQA];
    return (evict_rule){.lists = evict_lists_of(gqa),
                        .how = evict_combine_of(gqa),
                        .recent = s->value[P_WINDOW],
                        .once = true,
                        .each_turn = s->value[P_TURNS] == 1,
                        .vote = snap_vote};
}

static size_t votes_bytes(const snap_ctx *c)
{
    return c->e.n_lists * c->e.stride * sizeof(float);
}

static size_t heads_bytes(const snap_ctx *c)
{
    return (size_t)c->e.base.shape->n_heads * c->e.stride * sizeof(float);
}

static status snap_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                        const attn_limits *lim, const bool *layers, err *e)
{
    evict_rule rule = rule_of(s);
    size_t heads = (size_t)shape->n_heads, bytes;
    TRY(evict_plan(out, s, shape, lim, layers, &rule, e));
    TRY(size_add(&out->scratch, out->scratch, qpos_bytes(s), "last queries", e));
    for (int l = 0; l < shape->n_layers; l++) {
        if (!layers[l]) continue;
        TRY(size_mul(&bytes, (size_t)s->value[P_WINDOW],
                     heads * ((size_t)shape->head_dim + 1) * sizeof(float), "last queries", e));
        TRY(size_add(&out->scratch, out->scratch, bytes, "last queries", e));
    }
    heads += gqa_lists((gqa_mode)s->value[P_GQA], heads, (size_t)shape->n_kv_heads);
    TRY(size_mul(&bytes, (size_t)lim->n_tokens, heads * sizeof(float), "votes", e));
    return size_add(&out->scratch, out->scratch, bytes, "votes", e);
}

static void snap_free(attn_ctx *base)
{
    snap_ctx *c = (snap_ctx *)base;
    const backend_ops *o = base->be->ops;
    for (int l = 0; c->ring && l < base->shape->n_layers; l++)
        if (c->ring[l].p) o->free(base->be, c->ring[l], ring_bytes(c));
    if (c->qpos.p) o->free(base->be, c->qpos, qpos_bytes(base->spec));
    if (c->heads.p) o->free(base->be, c->heads, heads_bytes(c));
    if (c->votes.p) o->free(base->be, c->votes, votes_bytes(c));
    mem_free(c->ring);
    evict_free(base);
}

static status snap_buffers(snap_ctx *c, err *e)
{
    backend *be = c->e.base.be;
    const backend_ops *o = be->ops;
    TRY(MEM_NEW(&c->ring, (size_t)c->e.base.shape->n_layers, e));
    for (int l = 0; l < c->e.base.shape->n_layers; l++)
        if (c->e.base.layers[l]) TRY(o->alloc(be, &c->ring[l], ring_bytes(c), "last queries", e));
    TRY(o->alloc(be, &c->qpos, qpos_bytes(c->e.base.spec), "last queries", e));
    TRY(o->alloc(be, &c->heads, heads_bytes(c), "votes", e));
    return o->alloc(be, &c->votes, votes_bytes(c), "votes", e);
}

static status snap_create(attn_ctx **out, const attn_ctx *base, err *e)
{
    snap_ctx *c;
    evict_rule rule = rule_of(base->spec);
    *out = NULL;
    TRY(MEM_NEW(&c, 1, e));
    c->window = (size_t)base->spec->value[P_WINDOW];
    status st = evict_init(&c->e, base, &rule, e);
    if (st == ST_OK) st = snap_buffers(c, e);
    if (st != ST_OK) snap_free(&c->e.base);
    else *out = &c->e.base;
    return st;
}

/* Voting queries of a prompt. */
static size_t voters(const snap_ctx *c, const attn_part *p)
{
    return (size_t)p->n_prompt < c->window ? (size_t)p->n_prompt : c->window;
}

/* Token i of a prompt has row i mod window of the ring. */
static void snap_step_begin(attn_ctx *base, const attn_part *p)
{
    snap_ctx *c = (snap_ctx *)base;
    evict_step_begin(base, p);
    if (!c->e.due) return;
    size_t n = voters(c, p);
    for (size_t i = 0; i < n; i++)
        c->e.host[((size_t)p->n_prompt - n + i) % c->window] =
            base->length + (int64_t)p->n_tok - (int64_t)(n - i);
    base->be->ops->upload(base->be, c->qpos, c->e.host, c->window * sizeof(int64_t));
}

static bool snap_observes(const attn_ctx *base, const attn_part *p, int layer)
{
    const snap_ctx *c = (const snap_ctx *)base;
    (void)layer;
    return (p->flags & ATTN_PROMPT) && evict_prunes(&c->e, p->n_prompt - p->prompt_done) &&
           p->prompt_done + (int64_t)p->n_tok > p->n_prompt - (int64_t)voters(c, p);
}

/* Rows of the ring: the queries, or their lse (dim 0). */
static buf ring_at(const snap_ctx *c, int layer, size_t row, size_t dim)
{
    size_t heads = (size_t)c->e.base.shape->n_heads * sizeof(float);
    buf lse = buf_at(c->ring[layer], ring_rows_bytes(c, (size_t)c->e.base.shape->head_dim));
    return dim ? buf_at(c->ring[layer], row * heads * dim) : buf_at(lse, row * heads);
}

/* Keeps the voting queries of this chunk. */
static void snap_observe(attn_ctx *base, const attn_part *p, int layer, buf q, buf lse)
{
    snap_ctx *c = (snap_ctx *)base;
    const backend_ops *o = base->be->ops;
    size_t done = (size_t)p->prompt_done, first = (size_t)p->n_prompt - voters(c, p);
    size_t dim = (size_t)base->shape->head_dim,
           heads = (size_t)base->shape->n_heads * sizeof(float);
    for (size_t i = first > done ? first : done, n; i < done + p->n_tok; i += n) {
        size_t row = i % c->window, left = done + p->n_tok - i;
        n = left < c->window - row ? left : c->window - row;
        o->copy(base->be, ring_at(c, layer, row, dim), buf_at(q, (i - done) * heads * dim),
                n * heads * dim);
        o->copy(base->be, ring_at(c, layer, row, 0), buf_at(lse, (i - done) * heads), n * heads);
    }
}

static void snap_vote(evict_ctx *e, const attn_part *p, int layer)
{
    snap_ctx *c = (snap_ctx *)e;
    const kept_rows *l = &e->kept[layer];
    backend *be = e->base.be;
    const evict_ops *o = be->ops->evict;
    size_t n = voters(c, p), heads = (size_t)e->base.shape->n_heads, run, done = 0;
    for (; done < n; done += run) {
        size_t row = ((size_t)p->n_prompt - n + done) % c->window;
        run = n - done < c->window - row ? n - done : c->window - row;
        attn_job j =
            evict_job(e, layer, true, run, ring_at(c, layer, row, (size_t)e->base.shape->head_dim),
                      ring_at(c, layer, row, 0), buf_at(c->qpos, row * sizeof(int64_t)));
        o->colsum(be, &j, heads, COMBINE_SUM, done > 0, c->heads, l->stride);
    }
    e->rule.recent = (int64_t)n;
    o->combine(be, c->votes, c->heads, l->stride, heads, l->n_lists, (size_t)e->attended,
               e->rule.how);
    evict_add_ranks(e, c->votes);
    o->pool(be, l, c->votes, (int64_t)n, attn_get(&e->base, P_KERNEL),
            attn_get(&e->base, P_POOL) == 0);
}

static void add_scratch(const attn_ctx *base, attn_bytes *out)
{
    const snap_ctx *c = (const snap_ctx *)base;
    for (int l = 0; l < base->shape->n_layers; l++)
        if (base->layers[l]) out->scratch += ring_bytes(c);
    out->scratch += qpos_bytes(base->spec) + heads_bytes(c) + votes_bytes(c);
}

static void snap_held(const attn_ctx *base, int64_t n_new, attn_bytes *out)
{
    evict_held(base, n_new, out);
    add_scratch(base, out);
}

static void snap_held_most(const attn_ctx *base, int64_t n_new, attn_bytes *out)
{
    evict_held_most(base, n_new, out);
    add_scratch(base, out);
}

const attn_method attn_snapkv = {
    .name = "snapkv",
    .summary = "SnapKV: the prompt's last queries vote once for what is kept of it",
    .source = "Li et al. 2024 (arXiv 2404.14469); SnapKV snapkv_utils.py; methods.md section 4",
    .params = params,
    .uses = USES_EVICT,
    .has_budget = true,
    .def_budget = 256,
    .parse = snap_parse,
    .check = snap_check,
    .plan = snap_plan,
    .create = snap_create,
    .free = snap_free,
    .step_begin = snap_step_begin,
    .observes = snap_observes,
    .observe = snap_observe,
    .held = snap_held,
    .held_most = snap_held_most,
    EVICT_HOOKS,
};
