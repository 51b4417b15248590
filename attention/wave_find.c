/* SPDX-License-Identifier: MIT */
/* The choice among clusters, and what a step then attends. */
#include "config.h"

#include <stddef.h>

#include "attention/wave.h"
#include "kernels/ops_quest.h"

/* Clusters of so many that are left to estimates. */
static int64_t estimated(const wave_search *f, int64_t clusters)
{
    return (clusters * f->est + 50) / 100;
}

#define AT(member) (at + offsetof(wave_search, member))

void wave_search_declare(attn_decl *d, size_t at, const wave_rule *r, const wave_search *f)
{
    size_t kv = (size_t)d->shape->n_kv_heads, heads = (size_t)d->shape->n_heads, num = sizeof(float);
    int64_t n = d->lim->n_tokens, clusters = wave_most(r, n), est = estimated(f, clusters);
    const struct {
        size_t at, item;
        int64_t n;
    } work[] = {
        {AT(score), (heads + kv) * num, clusters},
        {AT(key), kv * sizeof(uint32_t), clusters},
        {AT(bits), kv * sizeof(uint32_t), (int64_t)cluster_words(n)},
        {AT(idx), kv * sizeof(int32_t), min64(f->most, n)},
        {AT(ranges), kv * 2 * sizeof(int64_t), d->shape->n_layers},
        {AT(group), kv * sizeof(int32_t), est},
        {AT(groups), kv * 2 * sizeof(int64_t), 1},
        {AT(bias), heads * num, est},
    };
    for (size_t i = 0; i < sizeof work / sizeof *work; i++)
        decl_scratch(d, work[i].at, "selected clusters", work[i].item, work[i].n);
}

static cluster_choice choice_of(const wave_step *s, int layer)
{
    const attn_view *v = s->t->v;
    const wave_search *f = s->f;
    const cluster_index *x = &s->w->index[layer];
    size_t heads = (size_t)v->shape->n_heads, kv = x->mean.n_kv_heads;
    int64_t clusters = wave_clusters(&s->w->rule, s->w->at);
    return (cluster_choice){.x = x,
                            .score = buf_at(f->score, heads * x->mean.cap * sizeof(float)),
                            .stride = x->mean.cap,
                            .n = clusters,
                            .n_slots = s->t->p.first + (int64_t)s->t->p.n_tok,
                            .k = s->k,
                            .most = estimated(f, clusters),
                            .head = s->w->rule.sink,
                            .idx = f->idx,
                            .range = buf_at(f->ranges, (size_t)layer * kv * 2 * sizeof(int64_t)),
                            .idx_stride = (size_t)min64(f->most, v->lim->n_tokens),
                            .group = f->group,
                            .groups = f->groups,
                            .bias = f->bias,
                            .group_stride = (size_t)estimated(f, (int64_t)x->mean.cap),
                            .n_heads = heads,
                            .key = f->key,
                            .bits = f->bits,
                            .read = attn_index_read(v)};
}

static void set_segments(const wave_step *s, int layer, const cluster_choice *c)
{
    const kv_rows *rows = kv_store_rows(s->t->v->store, layer);
    attn_sel *sel = s->t->sel;
    sel->head = c->head;
    sel->tail = wave_end(&s->w->rule, s->w->at);
    sel->attended = c->n_slots - sel->tail; /* beside those that ops count */
    sel->n_seg = c->most > 0 ? 3 : 2;
    sel->seg[0] = (attn_seg){.rows = rows,
                             .range = c->range,
                             .idx = c->idx,
                             .n_lists = rows->n_kv_heads,
                             .idx_stride = c->idx_stride,
                             .n_max = (int64_t)c->idx_stride};
    sel->seg[1] = (attn_seg){.rows = rows, .n_lists = 1, .first = sel->tail, .n_max = sel->attended};
    sel->seg[2] = (attn_seg){.rows = &c->x->mean,
                             .range = c->groups,
                             .idx = c->group,
                             .n_lists = rows->n_kv_heads,
                             .idx_stride = c->group_stride,
                             .n_max = c->most,
                             .bias = c->bias,
                             .bias_stride = c->group_stride,
                             .pseudo = true};
}

static quest_index means_of(const kv_rows *m)
{
    return (quest_index){.bound = m->k,
                         .type = m->type,
                         .n_kv_heads = m->n_kv_heads,
                         .head_dim = m->head_dim,
                         .cap = m->cap,
                         .page = 1,
                         .how = QUEST_MEAN};
}

void wave_find(const wave_step *s, size_t n, int layer)
{
    const attn_view *v = s->t->v;
    quest_index means[ATTN_TOGETHER];
    score_job score[ATTN_TOGETHER];
    combine_job combine[ATTN_TOGETHER];
    cluster_choice choice[ATTN_TOGETHER];
    for (size_t i = 0; i < n; i++) {
        const cluster_choice *c = &choice[i];
        choice[i] = choice_of(&s[i], layer);
        means[i] = means_of(&c->x->mean);
        score[i] = (score_job){.index = &means[i],
                               .q = s[i].t->q,
                               .n_heads = c->n_heads,
                               .score = s[i].f->score,
                               .stride = c->stride,
                               .items = {c->n, 0, c->n},
                               .read = c->read};
        combine[i] = (combine_job){c->score, s[i].f->score, c->stride, c->n_heads,     c->x->mean.n_kv_heads,
                                   0,        c->n,          GQA_VOTE,  v->shape->scale};
    }
    v->be->ops->quest->score(v->be, score, n);
    v->be->ops->select->combine(v->be, combine, n);
    backend_mark(v->be, STAGE_SCORE);
    v->be->ops->cluster->choose(v->be, choice, n);
    backend_mark(v->be, STAGE_TOPK);
    for (size_t i = 0; i < n; i++) set_segments(&s[i], layer, &choice[i]);
}
