/* SPDX-License-Identifier: MIT */
/* Quest: pages by the largest product that any key inside their bounds could have. methods.md section 6. */
#include "config.h"

#include "attention/bounds.h"
#include "attention/retrieve.h"

enum { P_PAGE, P_MIN_PAGES, P_SCORE, P_FORCE, P_GQA, P_MODE, P_POOL, P_COARSE, P_COARSE_KEEP };
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
    [P_COARSE] = COARSE_PARAM,
    [P_COARSE_KEEP] = COARSE_KEEP_PARAM,
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
    if (s->value[P_COARSE] % s->value[P_PAGE] != 0)
        return err_set(e, ST_USAGE, "%s: coarse %lld, expected whole pages of %lld tokens", s->text,
                       (long long)s->value[P_COARSE], (long long)s->value[P_PAGE]);
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
    return bounds_bytes(out, s, shape, s->value[P_PAGE], n, e);
}

static coarse_rule quest_coarse(const attn_spec *s)
{
    coarse_rule r = coarse_rule_of(s->value[P_COARSE], s->value[P_COARSE_KEEP], s->budget, s->value[P_PAGE]);
    r.max_channel = s->value[P_SCORE] == SCORE_MAXCH;
    return r;
}

static status quest_open(retrieve *r, err *e)
{
    return bounds_open(&((quest_ctx *)r)->index, &r->base, r->granule, "quest: page bounds", e);
}

static void quest_close(retrieve *r)
{
    bounds_close(((quest_ctx *)r)->index, &r->base);
}

static void quest_add(retrieve *r, int layer, buf pos, buf k, size_t n)
{
    r->base.be->ops->quest->add(r->base.be, &((quest_ctx *)r)->index[layer], pos, k, n);
}

static int64_t quest_redo_from(const attn_spec *s, int64_t n)
{
    return bounds_redo_from(s->value[P_PAGE], n);
}

static status quest_state(retrieve *r, attn_state *v, int layer, err *e)
{
    return bounds_state(((quest_ctx *)r)->index, &r->base, v, "page bounds", layer, e);
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

static void quest_score_groups(retrieve *r, int layer, buf score, size_t stride, buf q, size_t n_heads, buf n,
                               const item_groups *g)
{
    r->base.be->ops->quest->score_groups(r->base.be, score, stride, q, n_heads, &((quest_ctx *)r)->index[layer], n, g,
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
    .coarse = quest_coarse,
    .score_groups = quest_score_groups,
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
    .alone = retrieve_alone,
    .plan = quest_plan,
    .create = quest_create,
    RETRIEVE_HOOKS,
};
