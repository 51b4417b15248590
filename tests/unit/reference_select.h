/* SPDX-License-Identifier: MIT */
/* Scores of items, their combinations and the choice among them, against fixtures (reference.h). */
#ifndef TESTS_UNIT_REFERENCE_SELECT_H
#define TESTS_UNIT_REFERENCE_SELECT_H

#include "kernels/ops_select.h"
#include "tests/unit/reference.h"

static const double TOL = 1e-5;

/* ---- ops on jobs with one job; n: slots, first candidate, end of the candidates ---- */

static UNUSED_OK item_range items(const int64_t n[3])
{
    return (item_range){n[0], n[1], n[2]};
}

static UNUSED_OK score_job score_of_items(const void *index, float *score, size_t stride, const float *q,
                                          size_t n_heads, const int64_t n[3], uint64_t *read)
{
    return (score_job){.index = index,
                       .q = at(q),
                       .n_heads = n_heads,
                       .score = at(score),
                       .stride = stride,
                       .items = items(n),
                       .read = at(read)};
}

static UNUSED_OK void combine(backend *be, float *out, const float *in, size_t stride, size_t n_heads, size_t n_lists,
                              const int64_t n[3], gqa_mode mode, float scale)
{
    combine_job j = {at(out), at(in), stride, n_heads, n_lists, n[1], n[2], mode, scale};
    be->ops->select->combine(be, &j, 1);
}

/* ---- combinations and choices ---- */

static UNUSED_OK gqa_mode mode_of(const char *name)
{
    static const char *const names[] = {"per_q", "mean_q",     "mean_s",     "sum_s",       "max_s",
                                        "vote",  "layer_mean", "layer_vote", "layer_concat"};
    for (int m = 0; m < GQA_COUNT; m++)
        if (strcmp(names[m], name) == 0) return (gqa_mode)m;
    return GQA_COUNT;
}

/* Scores of the items as seen by the lists of a mode. */
typedef struct {
    float *raw, *score;
    size_t n_lists, stride;
} scored;

typedef void scorer(backend *be, const void *ctx, float *score, size_t stride, float *q, size_t n_heads);

static UNUSED_OK scored score_items(backend *be, gqa_mode mode, float *q, size_t heads, size_t kv_heads, size_t dim,
                                    int64_t n_slots, int64_t lo, int64_t hi, size_t n_items, scorer *f, const void *ctx)
{
    scored s = {.n_lists = gqa_lists(mode, heads, kv_heads), .stride = n_items + 3};
    s.raw = hold(4 * heads * s.stride);
    s.score = hold(4 * s.n_lists * s.stride);
    size_t rows = heads;
    if (mode == GQA_MEAN_Q) {
        float *mean = hold(4 * kv_heads * dim);
        be->ops->select->mean_heads(be, at(mean), at(q), 1, heads, kv_heads, dim);
        q = mean, rows = kv_heads;
    }
    f(be, ctx, s.raw, s.stride, q, rows);
    combine(be, s.score, s.raw, s.stride, rows, s.n_lists, (int64_t[]){n_slots, lo, hi}, mode,
            (float)(1 / sqrt((double)dim)));
    return s;
}

/* Takes k of [lo, hi) by score, and all of [0, lo) and [tail, items): lists of slots against the fixture's items. */
static UNUSED_OK bool choice_is(backend *be, const scored *s, int64_t n_slots, int64_t granule, int64_t lo, int64_t hi,
                                int64_t tail, int64_t k, const st_tensor *want)
{
    size_t stride = (size_t)n_slots + 1, width = want->shape[1];
    int32_t *idx = hold(4 * s->n_lists * stride), *items = copy_of(want), *slots = hold(4 * stride);
    int64_t *range = hold(16 * s->n_lists);
    choose_job j = {.score = at(s->score),
                    .items = {n_slots, lo, hi},
                    .k = k,
                    .tail = tail,
                    .n_lists = s->n_lists,
                    .stride = s->stride,
                    .granule = granule,
                    .head = lo,
                    .most = (n_slots + granule - 1) / granule,
                    .idx_stride = (int64_t)stride,
                    .idx = at(idx),
                    .range = at(range)};
    be->ops->select->choose(be, &j, 1);
    bool good = want->shape[0] == s->n_lists;
    for (size_t l = 0; good && l < s->n_lists; l++) {
        size_t n = 0;
        for (size_t i = 0; i < width && items[l * width + i] >= 0; i++)
            for (int64_t at_slot = items[l * width + i] * granule, c = 0; c < granule && at_slot + c < n_slots; c++)
                slots[n++] = (int32_t)(at_slot + c);
        good = range[2 * l] == 0 && (size_t)range[2 * l + 1] == n && memcmp(idx + l * stride, slots, 4 * n) == 0;
    }
    return good;
}

/* Scores of the candidates, from lo on, against a fixture [n_lists, n]. */
static UNUSED_OK bool scores_are(const scored *s, int64_t lo, const st_tensor *want)
{
    size_t n = want->shape[1];
    float *w = floats_of(want);
    bool good = want->shape[0] == s->n_lists;
    for (size_t l = 0; good && l < s->n_lists; l++) good = near(s->score + l * s->stride + lo, w + l * n, n, TOL);
    return good;
}

#endif
