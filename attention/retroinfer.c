/* SPDX-License-Identifier: MIT */
/* RetroInfer: all rows are kept, and old tokens lie in clusters of similar keys. A step attends the first and the
 * newest tokens and those of the best clusters, and estimates the next clusters by their means. doc/methods.md 7c. */
#include "config.h"

#include <stddef.h>

#include "attention/wave.h"

enum { P_SINK, P_LOCAL, P_SIZE, P_SEGMENT, P_UPDATE, P_ITERS, P_EST };

static const attn_param params[] = {
    [P_SINK] = {"sink", NULL, "first tokens, always attended", 4, 0, 1 << 20},
    [P_LOCAL] = {"local", NULL, "newest tokens, always attended", 64, 1, 1 << 20},
    [P_SIZE] = {"size", NULL, "tokens of a cluster, on average", 16, 2, 1024},
    [P_SEGMENT] = {"segment", NULL, "tokens of a prompt whose centroids are trained together", 8192, 16, 1 << 30},
    [P_UPDATE] = {"update", NULL,
                  "new tokens that are attended until they make clusters of their own, a multiple of size; 0: half of "
                  "what the budget leaves beside sinks and newest tokens, at most 1024",
                  0, 0, 1 << 20},
    [P_ITERS] = {"iters", NULL, "iterations of k-means", 9, 0, 1000},
    [P_EST] = {"est", NULL, "percent of the clusters that are estimated by their means", 23, 0, 100},
    {.key = NULL},
};

typedef struct {
    wave w;
    wave_search find;
} retro;

/* ---- numbers ---- */

static wave_rule rule_of(const attn_spec *s)
{
    const int64_t *v = s->value;
    int64_t half = min64((s->budget - v[P_SINK] - v[P_LOCAL]) / 2, 1024);
    int64_t update = v[P_UPDATE] ? v[P_UPDATE] : max64(half / v[P_SIZE], 1) * v[P_SIZE];
    return (wave_rule){v[P_SINK], v[P_LOCAL], v[P_SIZE], v[P_SEGMENT], update, v[P_ITERS]};
}

/* Tokens that clusters may hold in a step that attends the `newest` ones. */
static int64_t room(const attn_spec *s, int64_t newest)
{
    return s->budget - s->value[P_SINK] - newest;
}

static wave_search search_of(const attn_spec *s)
{
    int64_t most = s->value[P_SINK] + room(s, s->value[P_LOCAL]);
    return (wave_search){.est = s->value[P_EST], .most = most};
}

static status retro_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    wave_rule r = rule_of(s);
    int64_t least = r.sink + r.local + r.update + 1;
    (void)shape;
    if (r.update % r.size)
        return err_set(e, ST_USAGE, "%s: update %lld, expected a multiple of size = %lld", s->text, (long long)r.update,
                       (long long)r.size);
    if (s->budget < least)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least sink + local + update + 1 = %lld", s->text,
                       (long long)s->budget, (long long)least);
    return ST_OK;
}

static void retro_regions(const attn_spec *s, attn_regions *r)
{
    wave_rule w = rule_of(s);
    *r = (attn_regions){.first = w.sink, .newest = w.local + w.update, .covers = INT64_MAX};
}

/* ---- a forward ---- */

static void retro_declare(attn_decl *d)
{
    const wave_rule r = rule_of(d->spec);
    const wave_search f = search_of(d->spec);
    wave_declare(d, offsetof(retro, w), &r);
    wave_search_declare(d, offsetof(retro, find), &r, &f);
}

static void retro_reset(attn_view *v)
{
    retro *r = v->own;
    const wave_rule rule = rule_of(v->spec);
    const wave_search f = search_of(v->spec);
    wave_open(v, &r->w, &rule);
    r->find.est = f.est;
    r->find.most = f.most;
}

static bool chooses(const attn_view *v, const attn_part *p)
{
    const wave *w = &((const retro *)v->own)->w;
    bool all = v->length + (int64_t)p->n_tok <= v->spec->budget && !v->spec->forced;
    return !(p->flags & ATTN_PROMPT) && !all && wave_clusters(&w->rule, w->at) > 0;
}

static void retro_select(const attn_turn *t, size_t n, int layer)
{
    wave_step best[ATTN_TOGETHER];
    size_t n_best = 0;
    full_select(t, n, layer);
    for (; n > 0; n--, t++) {
        const retro *r = t->v->own;
        int64_t end = wave_end(&r->w.rule, r->w.at), newest = t->p.first + (int64_t)t->p.n_tok - end;
        if (chooses(t->v, &t->p)) best[n_best++] = (wave_step){t, &r->w, &r->find, room(t->v->spec, newest)};
    }
    if (n_best > 0) wave_find(best, n_best, layer);
}

static void retro_layer_end(attn_view *v, const attn_part *p, int layer)
{
    const retro *r = v->own;
    wave_grow(v, &r->w, layer, wave_after(v, &r->w, p));
}

static void retro_end(attn_view *v, const attn_part *p)
{
    retro *r = v->own;
    if (chooses(v, p))
        v->be->ops->count_lists(v->be, buf_at(v->read, READ_ATTENDED * sizeof(uint64_t)), r->find.ranges,
                                (size_t)v->shape->n_layers, (size_t)v->shape->n_kv_heads, v->layers);
    r->w.at = wave_after(v, &r->w, p);
}

/* ---- between forwards ---- */

static const char *retro_rewind(attn_view *v, int64_t n)
{
    retro *r = v->own;
    if (!kv_store_rewind(v->store, n)) return KV_NO_REWIND;
    wave_cut(&r->w, n);
    return NULL;
}

static status retro_state(attn_view *v, attn_state *s, err *e)
{
    retro *r = v->own;
    TRY(wave_walk(v, &r->w, s, e));
    return kv_store_state(v->store, s, v->length, v->length, e);
}

static const attn_family everything_is_kept = {.retrieves = true};

const attn_method attn_retroinfer = {
    .name = "retroinfer",
    .summary = "RetroInfer: the best clusters of tokens, and means of the next ones",
    .source = "RetroInfer (arXiv 2505.02922); RetrievalAttention, cache_hub/retroinfer_cache.py; doc/methods.md 7c, "
              "deviations 7c.7",
    .params = params,
    .family = &everything_is_kept,
    .size = sizeof(retro),
    .uses = USES_SELECT | USES_QUEST | USES_KMEANS | USES_CLUSTER,
    .gqa = "vote",
    .has_budget = true,
    .def_budget = 512,
    .reuse = ATTN_REUSE_ANY,
    .check = retro_check,
    .regions = retro_regions,
    .hooks = {.declare = retro_declare,
              .reset = retro_reset,
              .select = retro_select,
              .layer_end = retro_layer_end,
              .end = retro_end,
              .rewind = retro_rewind,
              .state = retro_state},
};
