/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>

#include "kernels/ref/ref.h"

/* Returns the number of entries of an ascending list with a slot of at most p. */
static int64_t entries_until(const attn_list *l, int64_t p)
{
    int64_t lo = 0, hi = l->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if ((int64_t)list_slot(l, mid) <= p) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Returns token number `rank`, counted from 0, of the n tokens without those in a list. */
static int64_t left_at(const attn_list *l, int64_t n, int64_t rank)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (mid + 1 - entries_until(l, mid) > rank) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

/* Draws the sample of one list, which belongs to `group` query heads from `head` on. */
static void sample_list(const tail_sample_job *j, size_t list, size_t head, size_t group)
{
    const attn_list l = ref_list_of(&j->of, head);
    int64_t m = j->n - l.n, most = (int64_t)j->rows, b = m < most ? m : most;
    for (int64_t i = 0; i < b; i++) {
        int64_t lo = i * m / b, size = (i + 1) * m / b - lo;
        int64_t rank = lo + tail_draw(j->seed, j->n - 1, j->layer, list, (size_t)i, size);
        *i32_at(j->idx, list * j->rows + (size_t)i) = (int32_t)left_at(&l, j->n, rank);
        for (size_t h = head; h < head + group; h++)
            *f32_at(j->bias, h * j->rows + (size_t)i) = (float)log((double)size);
    }
    *i64_at(j->range, 2 * list) = 0;
    *i64_at(j->range, 2 * list + 1) = b;
    *i64_at(j->left, list) = m;
}

void ref_tail_sample(backend *be, const tail_sample_job *jobs, size_t n)
{
    for (const tail_sample_job *j = jobs; j < jobs + n; j++) {
        size_t group = j->of.n_heads / j->of.n_lists;
        for (size_t l = 0; l < j->of.n_lists; l++) sample_list(j, l, l * group, group);
    }
}

/* Computes tau and sigma of a query head whose sample has b of m tokens. */
static void missed_of(const tail_missed_job *j, size_t head, int64_t b, int64_t m)
{
    float *out = f32_at(j->out, 2 * head);
    const float *score = f32_at(j->of.scores, head * j->of.score_stride);
    double top = -(double)INFINITY, all = 0, tau = 0, squares = 0, before = 0;
    out[0] = out[1] = 0;
    for (size_t p = 0; p < j->n_parts; p++) top = fmax(top, (double)*f32_at(j->parts, p * j->stride + head));
    for (size_t p = 0; p < j->n_parts; p++) all += exp((double)*f32_at(j->parts, p * j->stride + head) - top);
    if (b == 0 || !(all > 0)) return;
    for (int64_t i = 0; i < b; i++) {
        double y = exp((double)score[i] - top) / all;
        tau += y;
        squares += i ? (y - before) * (y - before) : 0;
        before = y;
    }
    double var = b < m ? (1 - (double)b / (double)m) * (double)b / (2 * (double)(b - 1)) * squares : 0;
    tau = fmin(tau, 1);
    out[0] = (float)tau;
    out[1] = tau > 0 ? (float)(sqrt(var) / tau) : 0;
}

void ref_tail_missed(backend *be, const tail_missed_job *jobs, size_t n)
{
    for (const tail_missed_job *j = jobs; j < jobs + n; j++)
        for (size_t l = 0, group = j->of.n_heads / j->of.n_lists; l < j->of.n_lists; l++) {
            double sum = 0, off = 0;
            for (size_t h = l * group; h < (l + 1) * group; h++) {
                missed_of(j, h, *i64_at(j->of.range, 2 * l + 1), *i64_at(j->left, l));
                double tau = (double)*f32_at(j->out, 2 * h);
                sum += tau;
                off += tau * (1 - tau) * (double)*f32_at(j->out, 2 * h + 1);
            }
            if (!j->of.read.p) continue;
            uint64_t *read = (uint64_t *)(void *)j->of.read.p;
            read[READ_MISSED] += (uint64_t)(sum * READ_ONE + 0.5);
            read[READ_MISSED_VAR] += (uint64_t)(off * off * READ_ONE + 0.5);
            read[READ_MEASURED] += group;
        }
}
