/* SPDX-License-Identifier: MIT */
/* Selection of a token with a complete sort, and sums in its order. */
#include "config.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/base/mem.h"
#include "kernels/draw.h"
#include "kernels/gumbel.h"
#include "kernels/ref/ref.h"

typedef struct {
    float x;
    int32_t id;
    double mass;
} item;

static int in_order(const void *pa, const void *pb)
{
    const item *a = pa, *b = pb;
    return a->x != b->x ? (a->x < b->x) - (a->x > b->x) : a->id - b->id;
}

/* Returns the first item up to which the mass exceeds `mass`, or the last one. */
static const item *find(const item *it, size_t n, double mass, double *up_to)
{
    size_t i = 0;
    *up_to = it[0].mass;
    while (*up_to <= mass && i + 1 < n) *up_to += it[++i].mass;
    return &it[i];
}

static int32_t largest(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i]))) best = i;
    return (int32_t)best;
}

/* Returns the item with the largest sum of value and noise up to `last`, among those that min-p leaves. */
static int32_t noisiest(const draw_rule *r, const item *it, const item *last)
{
    double most = 0;
    int32_t id = -1;
    for (const item *i = it; i <= last && i->mass >= r->min_p; i++) {
        double score = (double)i->x / (double)r->temp + gumbel_noise(gumbel_bits(r->seed, r->pos, (uint32_t)i->id));
        if (id >= 0 && (score < most || (score == most && i->id > id))) continue;
        most = score;
        id = i->id;
    }
    return id;
}

static int32_t choose(const draw_rule *r, item *it, const float *x, size_t n, float fraction)
{
    size_t keep = draw_keep(r, n);
    double all = 0, most = 0, kept, up_to;
    const item *last = &it[keep - 1];
    for (size_t i = 0; i < n; i++)
        it[i] = (item){isnan(x[i]) ? -FLT_MAX : fminf(fmaxf(x[i], -FLT_MAX), FLT_MAX), (int32_t)i, 0};
    qsort(it, n, sizeof *it, in_order);
    for (size_t i = 0; i < keep; i++) {
        it[i].mass = exp(((double)it[i].x - (double)it[0].x) / (double)r->temp);
        all += it[i].mass;
        if (it[i].mass >= r->min_p) most = all;
    }
    kept = r->min_p > 0 ? most : all;
    if (r->top_p < 1) {
        last = find(it, keep, nextafter(r->top_p * all, 0), &up_to);
        kept = fmin(kept, up_to);
    }
    if (r->how == DRAW_GUMBEL) return noisiest(r, it, last);
    return find(it, keep, fmin((double)fraction * kept, all * (1 - 1e-9)), &up_to)->id;
}

void ref_draw(backend *be, buf ids, buf x, size_t n, size_t vocab, const draw_rule *rule, buf fraction)
{
    item *it;
    if (MEM_NEW(&it, vocab, &be->fault) != ST_OK) return;
    for (size_t i = 0; i < n; i++) {
        const float *row = (const float *)(const void *)x.p + i * vocab;
        float at = ref_get(fraction, DT_F32, i);
        ((int32_t *)(void *)ids.p)[n + i] = draw_finite(row, vocab);
        ((int32_t *)(void *)ids.p)[i] = rule[i].temp == 0 ? largest(row, vocab) : choose(&rule[i], it, row, vocab, at);
    }
    mem_free(it);
}
