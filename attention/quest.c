/* SPDX-License-Identifier: MIT */
/* Quest: ranks pages by the largest product that a key within their bounds can have. doc/methods.md 6. */
#include "config.h"

#include <stddef.h>

#include "attention/bits.h"
#include "attention/retrieve.h"

enum {
    P_PAGE,
    P_MIN_PAGES,
    P_SCORE,
    P_G,
    P_FORCE,
    P_GQA,
    P_FRACTION,
    P_MIN,
    P_COARSE,
    P_COARSE_KEEP,
    P_SINK,
    P_RECENT,
    P_TAIL,
    P_TAIL_SEED
};
enum { SCORE_EST = QUEST_MEAN + 1 }; /* after the values of quest_how */
enum { FORCE_LAST, FORCE_NONE };

static const attn_param params[] = {
    [P_PAGE] = {"page", NULL, "tokens per page", 16, 1, 1 << 20},
    [P_MIN_PAGES] = {"min_pages", NULL, "minimum number of pages attended, even beyond the budget", 3, 1, 1 << 20},
    [P_SCORE] = {"score", "sum maxch mean est",
                 "sum (paper) or max of channel bounds, mean key (half the bytes, loses single tokens), FIER's mean",
                 QUEST_SUM, 0, SCORE_EST},
    [P_G] = {"g", NULL, "score=est: tokens per group that share two levels, a multiple or a divisor of page", 32, 1,
             1 << 16},
    [P_FORCE] = {"force", "last none",
                 "attend the last page always (as the kernels) or by score (as the paper; may miss the current token)",
                 FORCE_LAST, 0, 1},
    [P_GQA] = {RETRIEVE_GQA_PARAM},
    [P_FRACTION] = {RETRIEVE_P_PARAM},
    [P_MIN] = {RETRIEVE_MIN_PARAM},
    [P_COARSE] = {COARSE_PARAM},
    [P_COARSE_KEEP] = {COARSE_KEEP_PARAM},
    [P_SINK] = {"force_sink", NULL, "first tokens whose pages are always attended", 0, 0, 1 << 20},
    [P_RECENT] = {"force_recent", NULL, "newest tokens whose pages are always attended", 0, 0, 1 << 20},
    [P_TAIL] = {RETRIEVE_TAIL_PARAM},
    [P_TAIL_SEED] = {TAIL_SEED_PARAM},
    {.key = NULL},
};

typedef struct {
    retrieve r;
    page_bounds bounds;
    key_bits bits; /* score=est: instead of bounds */
} quest_ctx;

/* Returns the number of pages with tokens in [first, n). */
static int64_t pages_of(const attn_spec *s, int64_t first, int64_t n)
{
    int64_t page = s->value[P_PAGE];
    return (n + page - 1) / page - first / page;
}

/* Returns the pages of a step, including forced pages. */
static int64_t page_budget(const attn_spec *s)
{
    return max64(s->budget / s->value[P_PAGE], s->value[P_MIN_PAGES]);
}

static retrieve_range quest_range(const attn_spec *s, const retrieve_options *o, int64_t first, int64_t n)
{
    int64_t page = s->value[P_PAGE], pages = pages_of(s, 0, n), budget = page_budget(s);
    retrieve_range r = retrieve_items(o, first, n, s->value[P_FORCE] == FORCE_LAST ? pages - 1 : pages, budget);
    r.most = (budget + r.head + s->value[P_RECENT] / page + 2) * page;
    int64_t group = s->value[P_SCORE] == SCORE_EST ? s->value[P_G] : page;
    r.redo = n / group * group;
    return r;
}

static status check_score(const attn_spec *s, err *e)
{
    int64_t page = s->value[P_PAGE], g = s->value[P_G], span = s->value[P_COARSE];
    bool est = s->value[P_SCORE] == SCORE_EST;
    if (span % page)
        return err_set(e, ST_USAGE, "%s: coarse %lld, expected a multiple of page = %lld", s->text, (long long)span,
                       (long long)page);
    if (est && span)
        return err_set(e, ST_USAGE, "%s: coarse %lld: score=est scores all tokens; use coarse=0", s->text,
                       (long long)span);
    if (est && g % page && page % g)
        return err_set(e, ST_USAGE, "%s: g %lld, expected a multiple or a divisor of page %lld", s->text, (long long)g,
                       (long long)page);
    return ST_OK;
}

static status quest_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    (void)shape;
    int64_t page = s->value[P_PAGE], recent = s->value[P_RECENT];
    int64_t forced = pages_of(s, 0, s->value[P_SINK]) + (recent > 0 ? pages_of(s, page - 1, page - 1 + recent) : 0);
    int64_t pages = max64(forced, 1);
    if (s->budget < page || page_budget(s) < pages)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least %s = %lld", s->text, (long long)s->budget,
                       forced ? "the pages of forced tokens" : "one page", (long long)(pages * page));
    TRY(retrieve_check(s, e));
    return check_score(s, e);
}

static void quest_declare(attn_decl *d)
{
    int64_t how = d->spec->value[P_SCORE];
    if (how == SCORE_EST) bits_declare(d, offsetof(quest_ctx, bits), d->spec->value[P_G]);
    else bounds_declare(d, offsetof(quest_ctx, bounds), "page bounds", d->spec->value[P_PAGE], (quest_how)how);
}

static void quest_reset(attn_view *v)
{
    quest_ctx *c = v->own;
    int64_t how = attn_get(v, P_SCORE);
    retrieve_reset(v);
    if (how == SCORE_EST) bits_reset(&c->bits, v, attn_get(v, P_G));
    else bounds_reset(&c->bounds, v, attn_get(v, P_PAGE), (quest_how)how);
    for (int l = 0; l < v->shape->n_layers && c->r.o.span && how == QUEST_MAXCH; l++)
        c->r.span.bounds.index[l].how = QUEST_MAXCH;
}

static const retrieve_kind by_tokens = {.granule = "page",
                                        .by_tokens = true,
                                        .range = quest_range,
                                        .ops = offsetof(backend_ops, fier),
                                        .index = offsetof(quest_ctx, bits.index),
                                        .index_size = sizeof(fier_index)};

static const retrieve_kind *quest_kind(const attn_spec *s)
{
    return s->value[P_SCORE] == SCORE_EST ? &by_tokens : s->method->kind;
}

const attn_method attn_quest = {
    .name = "quest",
    .summary = "Quest: pages of tokens by bounds of their keys",
    .source =
        "Tang et al. 2024 (arXiv 2406.10774), Alg. 1; quest kernels decode_page.cuh; doc/methods.md 6, deviations 6.7",
    .params = params,
    .family = &attn_retrieve,
    .kind = &(const retrieve_kind){.of = quest_kind,
                                   .granule = "page",
                                   .range = quest_range,
                                   .ops = offsetof(backend_ops, quest),
                                   .index = offsetof(quest_ctx, bounds.index),
                                   .index_size = sizeof(quest_index)},
    .size = sizeof(quest_ctx),
    .uses = USES(quest) | USES(fier),
    .has_budget = true,
    .def_budget = 256,
    .def_skip = 2,
    .reuse = ATTN_REUSE_ANY,
    .reuse_budget = "coarse",
    .check = quest_check,
    .hooks = {.declare = quest_declare, .reset = quest_reset},
};
