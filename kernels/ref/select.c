/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>

#include "kernels/half.h"
#include "kernels/ops_tail.h"
#include "kernels/ref/ref.h"

float ref_sum16(const float p[16])
{
    float q[4];
    for (int i = 0; i < 4; i++) q[i] = (p[4 * i] + p[4 * i + 2]) + (p[4 * i + 1] + p[4 * i + 3]);
    return (q[0] + q[1]) + (q[2] + q[3]);
}

float ref_dot16(const float *a, const float *b, size_t n)
{
    float part[16] = {0};
    for (size_t c = 0; c < n; c++) part[c % 16] += a[c] * b[c];
    return ref_sum16(part);
}

void ref_k_row(float *out, const kv_rows *rows, size_t head, int64_t slot)
{
    ref_row(rows, false, head, (size_t)slot, out);
}

void ref_select_mean_heads(backend *be, buf out, buf q, size_t n_rows, size_t n_heads, size_t n_groups, size_t dim)
{
    size_t group = n_heads / n_groups;
    const float *in = (const float *)(void *)q.p;
    float *o = (float *)(void *)out.p;
    for (size_t r = 0; r < n_rows * n_groups; r++)
        for (size_t c = 0; c < dim; c++) {
            float sum = 0;
            for (size_t h = 0; h < group; h++) sum += in[(r * group + h) * dim + c];
            o[r * dim + c] = sum / (float)group;
        }
}

static double logit(const float *x, float scale)
{
    return isnan(*x) ? -(double)INFINITY : (double)*x * (double)scale;
}

/* Returns the log of the sum of exp of n logits. */
static double log_sum(const double *x, size_t n)
{
    double top = -(double)INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) top = fmax(top, x[i]);
    if (isinf(top)) return top;
    for (size_t i = 0; i < n; i++) sum += exp(x[i] - top);
    return top + log(sum);
}

/* Returns the log-sum-exp of one head over its candidates. */
static double head_lse(const float *x, int64_t lo, int64_t hi, float scale)
{
    double top = -(double)INFINITY, sum = 0;
    for (int64_t i = lo; i < hi; i++) top = fmax(top, logit(x + i, scale));
    if (isinf(top)) return top;
    for (int64_t i = lo; i < hi; i++) sum += exp(logit(x + i, scale) - top);
    return top + log(sum);
}

enum { GROUP_MAX = 1024 };

/* Computes votes. A head without a finite score has no vote. */
static void vote(const combine_job *j, float *out, const float *in, size_t group)
{
    double lse[GROUP_MAX], x[GROUP_MAX];
    for (size_t h = 0; h < group; h++) lse[h] = head_lse(in + h * j->stride, j->lo, j->hi, j->scale);
    for (int64_t i = j->lo; i < j->hi; i++) {
        size_t m = 0;
        for (size_t h = 0; h < group; h++)
            if (!isinf(lse[h])) x[m++] = logit(in + h * j->stride + i, j->scale) - lse[h];
        out[i] = (float)log_sum(x, m);
    }
}

static void reduce(const combine_job *j, float *out, const float *in, size_t group)
{
    for (int64_t i = j->lo; i < j->hi; i++) {
        float x = j->mode == GQA_MAX_S && isnan(in[i]) ? -INFINITY : in[i];
        for (size_t h = 1; h < group; h++) {
            float y = in[h * j->stride + (size_t)i];
            x = j->mode != GQA_MAX_S ? x + y : y > x ? y : x;
        }
        out[i] = j->mode == GQA_MEAN_S || j->mode == GQA_LAYER_MEAN ? x / (float)group : x;
    }
}

void ref_select_combine(backend *be, const combine_job *jobs, size_t n)
{
    for (const combine_job *j = jobs; j < jobs + n; j++) {
        size_t group = j->n_heads / j->n_lists;
        if (group > GROUP_MAX) {
            err_set(&be->fault, ST_UNSUPPORTED, "selection: %zu query heads share a list: must be at most %d", group,
                    (int)GROUP_MAX);
            return;
        }
        for (size_t l = 0; l < j->n_lists; l++) {
            float *out = (float *)(void *)j->out.p + l * j->stride;
            const float *in = (const float *)(void *)j->in.p + l * group * j->stride;
            if (group > 1 && (j->mode == GQA_VOTE || j->mode == GQA_LAYER_VOTE)) vote(j, out, in, group);
            else reduce(j, out, in, group);
        }
    }
}

/* Returns the mean of the scores x [n] of an item's tokens. */
static float mean_of(const float *x, int64_t n)
{
    float part[16] = {0};
    for (int64_t i = 0; i < n; i++) part[i % 16] += x[i];
    return ref_sum16(part) / (float)n;
}

float ref_reduce_item(const page_reduce_job *j, size_t head, int64_t item)
{
    int64_t from = item * j->granule, to = from + j->granule < j->items.n_slots ? from + j->granule : j->items.n_slots;
    const float *x = f32_at(j->in, head * j->in_stride + (size_t)from);
    return mean_of(x, to - from);
}

void ref_select_page_reduce(backend *be, const page_reduce_job *jobs, size_t n)
{
    for (const page_reduce_job *j = jobs; j < jobs + n; j++)
        for (size_t h = 0; h < j->n_heads; h++)
            for (int64_t i = j->items.lo; i < j->items.hi; i++)
                f32_at(j->out, h * j->stride)[i] = ref_reduce_item(j, h, i);
}

static bool before(const float *s, int64_t a, int64_t b)
{
    float x = isnan(s[a]) ? -INFINITY : s[a], y = isnan(s[b]) ? -INFINITY : s[b];
    return x > y || (x == y && a < b);
}

/* True if item i is among the first k of the candidates [lo, hi). */
static bool is_chosen(const float *s, int64_t i, int64_t lo, int64_t hi, int64_t k)
{
    int64_t rank = 0;
    for (int64_t j = lo; j < hi; j++) rank += before(s, j, i);
    return rank < k;
}

/* Returns the candidate that follows `last` in order; -1: the first one. */
static int64_t next_best(const float *s, const span_list *l, int64_t last)
{
    int64_t best = -1;
    for (int64_t p = l->first; p < l->end; p++)
        if ((last < 0 || before(s, last, p)) && (best < 0 || before(s, p, best))) best = p;
    return best;
}

float ref_mass_scale(const mass_job *j, size_t list)
{
    return j->slope.p ? j->scale * *f32_at(j->slope, list) : j->scale;
}

static int64_t mass_of(const mass_job *j, size_t list)
{
    const float *s = f32_at(j->score, list * j->stride);
    span_list l = {.first = j->items.lo, .end = j->items.hi};
    if (j->spans) l = ref_span_list(j->spans, list, j->items.lo, j->items.hi);
    float scale = ref_mass_scale(j, list);
    double all = head_lse(s, l.first, l.end, scale), sum = 0;
    int64_t n = l.end > l.first ? l.end - l.first : 0, most = j->most < n ? j->most : n, m = 0;
    if (j->p >= 1 || isinf(all)) return most;
    for (int64_t p = -1; m < most && (m < j->least || sum < (double)j->p); m++) {
        p = next_best(s, &l, p);
        sum += exp(logit(s + p, scale) - all);
    }
    return m;
}

void ref_select_mass(backend *be, const mass_job *jobs, size_t n)
{
    for (const mass_job *j = jobs; j < jobs + n; j++)
        for (size_t l = 0; l < j->n_lists; l++) ((int64_t *)(void *)j->k.p)[l] = mass_of(j, l);
}

/* ---- slopes ---- */

/* Adds covariance and variance over the draws of one head about its means. */
static void add_slope(const slope_job *j, size_t list, size_t head, double *cov, double *var)
{
    size_t d = j->rows.head_dim, group = j->n_heads / j->rows.n_kv_heads, n = 0;
    int64_t m = j->items.hi - j->items.lo, b = m < (int64_t)j->count ? m : (int64_t)j->count;
    const float *q = f32_at(j->q, head * d);
    double x[SLOPE_MOST], y[SLOPE_MOST], mean_x = 0, mean_y = 0;
    float row[256];
    for (int64_t i = 0; i < b; i++) {
        int64_t lo = i * m / b, size = (i + 1) * m / b - lo;
        int64_t t = j->items.lo + lo + tail_draw(j->seed, j->items.n_slots - 1, j->layer, list, (size_t)i, size);
        double exact = 0;
        ref_k_row(row, &j->rows, head / group, t);
        for (size_t c = 0; c < d; c++) exact += (double)q[c] * (double)row[c];
        x[n] = (double)*f32_at(j->score, head * j->stride + (size_t)t);
        y[n] = exact;
        if (!isfinite(x[n]) || !isfinite(exact)) continue;
        mean_x += x[n];
        mean_y += y[n++];
    }
    mean_x /= n ? (double)n : 1;
    mean_y /= n ? (double)n : 1;
    for (size_t i = 0; i < n; i++) {
        *cov += (x[i] - mean_x) * (y[i] - mean_y);
        *var += (x[i] - mean_x) * (x[i] - mean_x);
    }
}

void ref_select_slope(backend *be, const slope_job *jobs, size_t n)
{
    for (const slope_job *j = jobs; j < jobs + n; j++) {
        size_t group = j->n_heads / j->n_lists;
        for (size_t l = 0; l < j->n_lists; l++) {
            double cov = 0, var = 0;
            for (size_t h = l * group; h < (l + 1) * group; h++) add_slope(j, l, h, &cov, &var);
            *f32_at(j->slope, l) = (float)slope_within(cov, var);
        }
        if (j->read.p) add_bytes(j->read, slope_bytes(j));
    }
}

span_list ref_span_list(const item_spans *g, size_t list, int64_t lo, int64_t hi)
{
    span_list l = {.group = (const int32_t *)(const void *)g->span.p + list * g->stride,
                   .per = g->per,
                   .n = ((const int64_t *)(const void *)g->range.p)[2 * list + 1]};
    l.end = l.n * l.per;
    if (l.n == 0) return l;
    if (lo > l.group[0] * l.per) l.first = lo - l.group[0] * l.per;
    int64_t last = (l.group[l.n - 1] + 1) * l.per;
    if (last > hi) l.end -= last - hi;
    return l;
}

span_list ref_part_columns(const score_job *j, size_t i, size_t parts)
{
    if (j->spans) return ref_span_list(j->spans, i * j->spans->n_lists / parts, j->items.lo, j->items.hi);
    return (span_list){.first = j->items.lo, .end = j->items.hi};
}

void ref_span_blanks(float *score, size_t stride, size_t n_heads, const span_list *l)
{
    for (size_t h = 0; h < n_heads && l->group; h++) {
        for (int64_t p = 0; p < l->first; p++) score[h * stride + (size_t)p] = -INFINITY;
        for (int64_t p = l->end; p < l->n * l->per; p++) score[h * stride + (size_t)p] = -INFINITY;
    }
}

/* True if a candidate is selected. */
static bool takes(const choose_job *j, size_t list, int64_t item, int64_t lo, int64_t hi, int64_t k)
{
    const float *s = (const float *)(void *)j->score.p + list * j->stride;
    if (!j->spans) return is_chosen(s, item, lo, hi, k);
    span_list l = ref_span_list(j->spans, list, lo, hi);
    for (int64_t p = l.first; p < l.end; p++)
        if (span_item(&l, p) == item) return is_chosen(s, p, l.first, l.end, k);
    return false;
}

static void choose_list(const choose_job *j, size_t list)
{
    int64_t k = j->budget.p ? ((const int64_t *)(void *)j->budget.p)[j->each ? list : 0] : j->k, n = j->items.n_slots,
            count = 0;
    int64_t lo = j->items.lo > j->head ? j->items.lo : j->head, hi = j->items.hi < j->tail ? j->items.hi : j->tail;
    int32_t *out = (int32_t *)(void *)j->idx.p + list * (size_t)j->idx_stride;
    int64_t *range = (int64_t *)(void *)j->range.p + 2 * list;
    for (int64_t i = 0; i * j->granule < n; i++) {
        bool forced = i < j->head || i >= j->tail, candidate = i >= lo && i < hi;
        if (!forced && !(candidate && takes(j, list, i, lo, hi, k))) continue;
        for (int64_t t = i * j->granule; t < (i + 1) * j->granule && t < n; t++)
            if (t >= j->first) out[count++] = (int32_t)t;
    }
    range[0] = 0;
    range[1] = count;
}

void ref_select_choose(backend *be, const choose_job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t l = 0; l < jobs[i].n_lists; l++) choose_list(&jobs[i], l);
}
