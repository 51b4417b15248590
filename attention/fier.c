/* SPDX-License-Identifier: MIT */
/* FIER: all tokens ranked by one-bit keys. methods.md section 7. */
#include "config.h"

#include "attention/retrieve.h"
#include "kernels/base/mem.h"
#include "kernels/ops_fier.h"

enum { P_G, P_OPEN, P_LEVELS, P_SCORE, P_SINK, P_RECENT, P_GQA, P_MODE, P_POOL, P_COARSE, P_COARSE_KEEP };

static const attn_param params[] = {
    [P_G] = {"g", NULL, "tokens of a group of one channel that shares two levels", 32, 1, 1 << 16},
    [P_OPEN] = {"open", "requant exact window keep",
                "tokens of the newest, incomplete group: levels anew at each token, scored by "
                "their keys, levels "
                "of the newest g tokens, or always attended",
                FIER_REQUANT, 0, 3},
    [P_LEVELS] =
        {"levels", "range mad two_mean",
         "minimum and maximum (the paper); mean and mean deviation; means of the two classes",
         FIER_RANGE, 0, 2},
    [P_SCORE] = {"score", "float int8",
                 "numbers that the bits weigh: float32, or queries in 8 and levels in 7 bits: "
                 "faster, nearly the same ranks",
                 FIER_FLOAT, 0, 1},
    [P_SINK] = {"force_sink", NULL, "tokens from the start that are always attended", 0, 0,
                1 << 20},
    [P_RECENT] = {"force_recent", NULL,
                  "newest tokens that are always attended (the current one always is)", 0, 0,
                  1 << 20},
    [P_GQA] = RETRIEVE_GQA_PARAM,
    [P_MODE] = ATTN_MODE_PARAM(BUDGET_TOTAL),
    [P_POOL] = ATTN_POOL_PARAM(POOL_FIXED),
    [P_COARSE] = COARSE_PARAM,
    [P_COARSE_KEEP] = COARSE_KEEP_PARAM,
    {.key = NULL},
};

typedef struct {
    retrieve r;
    fier_index *index; /* [n_layers] */
} fier_ctx;

/* Most forced tokens at the end: the current one, the recent ones, or an open group. */
static int64_t most_recent(const attn_spec *s)
{
    int64_t recent = s->value[P_RECENT] > 1 ? s->value[P_RECENT] : 1;
    bool keep = s->value[P_OPEN] == FIER_KEEP;
    return keep && s->value[P_G] > recent ? s->value[P_G] : recent;
}

static bool extra(const attn_spec *s)
{
    return s->value[P_MODE] == BUDGET_EXTRA;
}

static status fier_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    (void)shape;
    int64_t least = s->value[P_SINK] + most_recent(s);
    if (!extra(s) && s->budget < least)
        return err_set(
            e, ST_USAGE,
            "%s: budget %lld is too small, at least %lld (forced tokens and the current one)",
            s->text, (long long)s->budget, (long long)least);
    return ST_OK;
}

static void fier_always(const attn_spec *s, int64_t *first, int64_t *newest)
{
    *first = s->value[P_SINK];
    *newest = most_recent(s);
}

static int64_t fier_pool(const attn_spec *s)
{
    return s->value[P_POOL];
}

static int64_t fier_granule(const attn_spec *s)
{
    (void)s;
    return 1;
}

static int64_t fier_most(const attn_spec *s)
{
    return attn_budget_most(s->value[P_POOL], s->budget) +
           (extra(s) ? s->value[P_SINK] + most_recent(s) : 0);
}

static retrieve_range fier_range(const attn_spec *s, int64_t first, int64_t n)
{
    int64_t g = s->value[P_G], recent = s->value[P_RECENT] > 1 ? s->value[P_RECENT] : 1,
            tail = n - recent;
    if (s->value[P_OPEN] == FIER_KEEP && n / g * g < tail) tail = n / g * g;
    if (tail < first) tail = first;
    int64_t sinks = s->value[P_SINK] < tail ? s->value[P_SINK] : tail,
            lo = sinks > first ? sinks : first;
    int64_t forced = n - tail + (sinks > first ? sinks - first : 0);
    return (retrieve_range){.lo = lo,
                            .hi = tail,
                            .head = sinks,
                            .tail = tail,
                            .k = s->budget - (extra(s) ? 0 : forced)};
}

/* Bytes of the parts of a layer's index with room for n tokens. */
typedef struct {
    size_t bits, levels, ring;
} part_bytes;

static part_bytes parts_of(const attn_spec *s, const attn_shape *shape, int64_t n)
{
    size_t d = (size_t)shape->head_dim, kv = (size_t)shape->n_kv_heads, g = (size_t)s->value[P_G],
           m = (size_t)n;
    size_t row = kv * d * dtype_size(s->kv.type);
    return (part_bytes){.bits = kv * fier_words(d) * ((m + 31) / 32) * 32 * sizeof(uint32_t),
                        .levels = (m + g - 1) / g * 2 * row,
                        .ring = m > 0 ? g * row : 0};
}

static status fier_bytes(size_t *out, const attn_spec *s, const attn_shape *shape, int64_t n,
                         err *e)
{
    part_bytes p = parts_of(s, shape, n);
    TRY(size_add(out, p.bits, p.levels, "KV plan", e));
    return size_add(out, *out, p.ring, "KV plan", e);
}

static status fier_open_index(retrieve *r, err *e)
{
    fier_ctx *c = (fier_ctx *)r;
    const attn_ctx *b = &r->base;
    const backend_ops *o = b->be->ops;
    part_bytes p = parts_of(b->spec, b->shape, b->lim->n_tokens);
    TRY(MEM_NEW(&c->index, (size_t)b->shape->n_layers, e));
    for (int l = 0; l < b->shape->n_layers; l++) {
        fier_index *x = &c->index[l];
        *x = (fier_index){.type = b->spec->kv.type,
                          .n_kv_heads = (size_t)b->shape->n_kv_heads,
                          .head_dim = (size_t)b->shape->head_dim,
                          .cap = (size_t)b->lim->n_tokens,
                          .group = (size_t)attn_get(b, P_G),
                          .how = (fier_levels)attn_get(b, P_LEVELS),
                          .open = (fier_open)attn_get(b, P_OPEN),
                          .products = (fier_products)attn_get(b, P_SCORE)};
        if (!b->layers[l]) continue;
        TRY(o->alloc(b->be, &x->bits, p.bits, "fier: bits", e));
        TRY(o->alloc(b->be, &x->levels, p.levels, "fier: levels", e));
        TRY(o->alloc(b->be, &x->ring, p.ring, "fier: newest keys", e));
    }
    return ST_OK;
}

static void fier_close(retrieve *r)
{
    fier_ctx *c = (fier_ctx *)r;
    const attn_ctx *b = &r->base;
    part_bytes p = parts_of(b->spec, b->shape, b->lim->n_tokens);
    for (int l = 0; c->index && l < b->shape->n_layers; l++) {
        const fier_index *x = &c->index[l];
        if (x->bits.p) b->be->ops->free(b->be, x->bits, p.bits);
        if (x->levels.p) b->be->ops->free(b->be, x->levels, p.levels);
        if (x->ring.p) b->be->ops->free(b->be, x->ring, p.ring);
    }
    mem_free(c->index);
}

static void fier_add(retrieve *r, int layer, buf pos, buf k, size_t n)
{
    r->base.be->ops->fier->add(r->base.be, &((fier_ctx *)r)->index[layer], pos, k, n);
}

static int64_t fier_redo_from(const attn_spec *s, int64_t n)
{
    int64_t g = s->value[P_G];
    if (s->value[P_OPEN] != FIER_WINDOW) return n / g * g;
    return n > g ? n - g : 0;
}

static status fier_state(retrieve *r, attn_state *v, int layer, err *e)
{
    const fier_index *x = &((fier_ctx *)r)->index[layer];
    const attn_ctx *b = &r->base;
    size_t kv = x->n_kv_heads;
    part_bytes all = parts_of(b->spec, b->shape, b->lim->n_tokens), now = parts_of(b->spec, b->shape, b->length);
    TRY(v->rows(v, "bits", layer, x->bits, all.bits, &(state_part){0, kv, all.bits / kv, now.bits / kv}, 1, e));
    TRY(v->rows(v, "levels", layer, x->levels, all.levels, &(state_part){0, kv, all.levels / kv, now.levels / kv}, 1,
                e));
    return v->rows(v, "newest keys", layer, x->ring, all.ring, &(state_part){0, 1, all.ring, all.ring}, 1, e);
}

static void fier_redo(retrieve *r, int layer, const kv_rows *rows, int64_t n)
{
    r->base.be->ops->fier->redo(r->base.be, &((fier_ctx *)r)->index[layer], rows, n);
}

static void fier_score(retrieve *r, int layer, buf score, size_t stride, buf q, size_t n_heads,
                       buf n, int64_t n_max)
{
    r->base.be->ops->fier->score(r->base.be, score, stride, q, n_heads,
                                 &((fier_ctx *)r)->index[layer], n, n_max,
                                 attn_index_read(&r->base));
}

static void fier_vote(retrieve *r, int layer, buf out, buf score, size_t stride, buf q,
                      size_t n_heads, buf n, int64_t n_max)
{
    r->base.be->ops->fier->vote(r->base.be, out, score, stride, q, n_heads,
                                &((fier_ctx *)r)->index[layer], n, n_max, r->base.shape->scale,
                                attn_index_read(&r->base));
}

static coarse_rule fier_coarse(const attn_spec *s)
{
    return coarse_rule_of(s->value[P_COARSE], s->value[P_COARSE_KEEP], s->budget, 1);
}

static void fier_score_groups(retrieve *r, int layer, buf score, size_t stride, buf q, size_t n_heads, buf n,
                              const item_groups *g)
{
    r->base.be->ops->fier->score_groups(r->base.be, score, stride, q, n_heads, &((fier_ctx *)r)->index[layer], n, g,
                                        attn_index_read(&r->base));
}

static const retrieve_kind kind = {
    .size = sizeof(fier_ctx),
    .pool = fier_pool,
    .granule = fier_granule,
    .most = fier_most,
    .range = fier_range,
    .bytes = fier_bytes,
    .open = fier_open_index,
    .close = fier_close,
    .add = fier_add,
    .redo_from = fier_redo_from,
    .redo = fier_redo,
    .state = fier_state,
    .score = fier_score,
    .vote = fier_vote,
    .coarse = fier_coarse,
    .score_groups = fier_score_groups,
};

static status fier_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                        const attn_limits *lim, const bool *layers, err *e)
{
    return retrieve_plan(out, &kind, s, shape, lim, layers, e);
}

static status fier_create(attn_ctx **out, const attn_ctx *base, err *e)
{
    return retrieve_create(out, &kind, base, e);
}

const attn_method attn_fier = {
    .name = "fier",
    .summary = "FIER: tokens by one-bit keys",
    .source = "FIER v2 (EMNLP 2025), section 3.3 and Alg. 1; no public code; methods.md section 7",
    .params = params,
    .uses = USES_SELECT | USES_FIER,
    .retrieves = true,
    .always = fier_always,
    .has_budget = true,
    .def_budget = 256,
    .def_skip = 2,
    .check = fier_check,
    .alone = retrieve_alone,
    .plan = fier_plan,
    .create = fier_create,
    RETRIEVE_HOOKS,
};
