/* SPDX-License-Identifier: MIT */
/* Quest: pages by the largest product that any key inside their bounds could have. methods.md section 6. */
#include "config.h"

#include "attention/retrieve.h"
#include "kernels/base/mem.h"
#include "kernels/ops_quest.h"

enum { P_PAGE, P_MIN_PAGES, P_SCORE, P_FORCE, P_GQA, P_MODE, P_POOL };
enum { SCORE_SUM, SCORE_MAXCH };
enum { FORCE_LAST, FORCE_NONE };

static const attn_param params[] = {
    [P_PAGE] = {"page", NULL, "tokens of a page", 16, 1, 1 << 20},
    [P_MIN_PAGES] = {"min_pages", NULL, "pages attended at least, even beyond the budget", 3, 1,
                     1 << 20},
    [P_SCORE] =
        {"score", "sum maxch",
         "page score: sum over the channels of the largest product (the paper), or its largest "
         "channel (what FIER's text says)",
         SCORE_SUM, 0, 1},
    [P_FORCE] = {"force", "last none",
                 "always attend the last page (the kernels' rule), or leave it to its score (the "
                 "evaluation "
                 "code's: the current token may be missed)",
                 FORCE_LAST, 0, 1},
    [P_GQA] = RETRIEVE_GQA_PARAM,
    [P_MODE] = ATTN_MODE_PARAM(BUDGET_TOTAL),
    [P_POOL] = ATTN_POOL_PARAM(POOL_FIXED),
    {.key = NULL},
};

typedef struct {
    retrieve r;
    quest_index *index; /* [n_layers] */
} quest_ctx;

static status quest_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    (void)shape;
    if (s->budget < s->value[P_PAGE])
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least one page = %lld",
                       s->text, (long long)s->budget, (long long)s->value[P_PAGE]);
    return ST_OK;
}

static int64_t quest_pool(const attn_spec *s)
{
    return s->value[P_POOL];
}

static int64_t quest_granule(const attn_spec *s)
{
    return s->value[P_PAGE];
}

/* Pages of a step, the last one included unless it comes on top. */
static int64_t page_budget(const attn_spec *s)
{
    int64_t pages = s->budget / s->value[P_PAGE];
    return pages > s->value[P_MIN_PAGES] ? pages : s->value[P_MIN_PAGES];
}

static int64_t quest_most(const attn_spec *s)
{
    return (attn_budget_most(s->value[P_POOL], page_budget(s)) + 1) * s->value[P_PAGE];
}

static retrieve_range quest_range(const attn_spec *s, int64_t first, int64_t n)
{
    int64_t page = s->value[P_PAGE], pages = (n + page - 1) / page;
    bool last = s->value[P_FORCE] == FORCE_LAST, extra = s->value[P_MODE] == BUDGET_EXTRA;
    int64_t end = last ? pages - 1 : pages;
    return (retrieve_range){
        .lo = first / page, .hi = end, .tail = end, .k = page_budget(s) - (last && !extra ? 1 : 0)};
}

static status quest_bytes(size_t *out, const attn_spec *s, const attn_shape *shape, int64_t n,
                          err *e)
{
    size_t pages = (size_t)((n + s->value[P_PAGE] - 1) / s->value[P_PAGE]);
    return size_mul(out, pages,
                    2 * (size_t)(shape->n_kv_heads * shape->head_dim) * dtype_size(s->kv.type),
                    "KV plan", e);
}

static status quest_open(retrieve *r, err *e)
{
    quest_ctx *c = (quest_ctx *)r;
    const attn_ctx *b = &r->base;
    const attn_shape *sh = b->shape;
    size_t bytes;
    TRY(MEM_NEW(&c->index, (size_t)sh->n_layers, e));
    TRY(quest_bytes(&bytes, b->spec, sh, b->lim->n_tokens, e));
    for (int l = 0; l < sh->n_layers; l++) {
        c->index[l] = (quest_index){.type = b->spec->kv.type,
                                    .n_kv_heads = (size_t)sh->n_kv_heads,
                                    .head_dim = (size_t)sh->head_dim,
                                    .cap = (size_t)r->items,
                                    .page = (size_t)r->granule};
        if (b->layers[l])
            TRY(b->be->ops->alloc(b->be, &c->index[l].bound, bytes, "quest: page bounds", e));
    }
    return ST_OK;
}

static void quest_close(retrieve *r)
{
    quest_ctx *c = (quest_ctx *)r;
    const attn_ctx *b = &r->base;
    size_t bytes;
    if (!c->index || quest_bytes(&bytes, b->spec, b->shape, b->lim->n_tokens, NULL) != ST_OK)
        bytes = 0;
    for (int l = 0; c->index && l < b->shape->n_layers; l++)
        if (c->index[l].bound.p) b->be->ops->free(b->be, c->index[l].bound, bytes);
    mem_free(c->index);
}

static void quest_add(retrieve *r, int layer, buf pos, buf k, size_t n)
{
    r->base.be->ops->quest->add(r->base.be, &((quest_ctx *)r)->index[layer], pos, k, n);
}

static int64_t quest_redo_from(const attn_spec *s, int64_t n)
{
    return n / s->value[P_PAGE] * s->value[P_PAGE];
}

static status quest_state(retrieve *r, attn_state *v, int layer, err *e)
{
    const quest_index *x = &((quest_ctx *)r)->index[layer];
    size_t page = 2 * x->head_dim * dtype_size(x->type), pages = ((size_t)r->base.length + x->page - 1) / x->page;
    const state_part part = {0, x->n_kv_heads, x->cap * page, pages * page};
    return v->rows(v, "page bounds", layer, x->bound, x->n_kv_heads * x->cap * page, &part, 1, e);
}

static void quest_redo(retrieve *r, int layer, const kv_rows *rows, int64_t n)
{
    r->base.be->ops->quest->redo(r->base.be, &((quest_ctx *)r)->index[layer], rows, n);
}

static void quest_score(retrieve *r, int layer, buf score, size_t stride, buf q, size_t n_heads,
                        buf n, int64_t n_max)
{
    r->base.be->ops->quest->score(
        r->base.be, score, stride, q, n_heads, &((quest_ctx *)r)->index[layer], n, n_max,
        attn_get(&r->base, P_SCORE) == SCORE_MAXCH, attn_index_read(&r->base));
}

static const retrieve_kind kind = {
    .size = sizeof(quest_ctx),
    .pool = quest_pool,
    .granule = quest_granule,
    .most = quest_most,
    .range = quest_range,
    .bytes = quest_bytes,
    .open = quest_open,
    .close = quest_close,
    .add = quest_add,
    .redo_from = quest_redo_from,
    .redo = quest_redo,
    .state = quest_state,
    .score = quest_score,
};

static status quest_plan(attn_bytes *out, const attn_spec *s, const attn_shape *shape,
                         const attn_limits *lim, const bool *layers, err *e)
{
    return retrieve_plan(out, &kind, s, shape, lim, layers, e);
}

static status quest_create(attn_ctx **out, const attn_ctx *base, err *e)
{
    return retrieve_create(out, &kind, base, e);
}

const attn_method attn_quest = {
    .name = "quest",
    .summary = "Quest: pages of tokens by bounds of their keys",
    .source = "Tang et al. 2024 (arXiv 2406.10774), Alg. 1; quest kernels decode_page.cuh; "
              "methods.md section 6",
    .params = params,
    .uses = USES_SELECT | USES_QUEST,
    .retrieves = true,
    .has_budget = true,
    .def_budget = 256,
    .def_skip = 2,
    .check = quest_check,
    .plan = quest_plan,
    .create = quest_create,
    RETRIEVE_HOOKS,
};
