/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>

#include "kernels/half.h"
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

/* Key of a code row. */
static void code_row(float *out, const kv_rows *rows, size_t head, size_t r)
{
    const kv_codes *c = &rows->codes;
    size_t d = rows->head_dim, row_bytes = (d * (size_t)c->bits + 7) / 8, runs = (d + c->run - 1) / c->run;
    const unsigned char *code = c->k.p + (head * c->cap + r) * row_bytes;
    for (size_t i = 0; i < d; i++) {
        size_t bit = i * (size_t)c->bits;
        size_t pair =
            c->by_token ? (head * c->cap + r) * runs + i / c->run : (head * (c->cap / c->group) + r / c->group) * d + i;
        float x = (float)(code[bit / 8] >> bit % 8 & ((1 << c->bits) - 1));
        float a = ref_get(c->k_pair, DT_F16, 2 * pair), b = ref_get(c->k_pair, DT_F16, 2 * pair + 1);
        out[i] = c->zero_point ? b * (x - a) : a + x * b;
    }
}

void ref_k_row(float *out, const kv_rows *rows, size_t head, int64_t slot)
{
    size_t d = rows->head_dim;
    int64_t at = rows->codes.bits ? ((const int32_t *)(void *)rows->codes.k_at.p)[slot] : slot;
    if (at < 0) code_row(out, rows, head, (size_t)(-1 - at));
    else
        ref_floats(out, rows->k, rows->type, (head * rows->cap + (size_t)at) * d, d);
}

/* Bytes of a key as ref_k_row reads it; the pairs of a group count once a row of it. */
static size_t row_bytes(const kv_rows *rows, int64_t slot)
{
    const kv_codes *c = &rows->codes;
    size_t d = rows->head_dim;
    if (!c->bits || ((const int32_t *)(void *)c->k_at.p)[slot] >= 0) return d * dtype_size(rows->type);
    size_t pairs = c->by_token ? (d + c->run - 1) / c->run : d;
    return (d * (size_t)c->bits + 7) / 8 + 4 * pairs / (c->by_token ? 1 : c->group);
}

void ref_mean_heads(backend *be, buf out, buf q, size_t n_rows, size_t n_heads, size_t n_groups, size_t dim)
{
    (void)be;
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

void ref_exact(backend *be, buf score, size_t stride, buf q, size_t n_heads, const kv_rows *rows, buf n, int64_t n_max,
               buf read)
{
    (void)be;
    (void)n_max;
    const int64_t *range = (const int64_t *)(void *)n.p;
    size_t group = n_heads / rows->n_kv_heads, d = rows->head_dim;
    uint64_t bytes = 0;
    for (size_t kv = 0; kv < rows->n_kv_heads; kv++)
        for (int64_t i = range[1]; i < range[2]; i++) {
            float k[256];
            ref_k_row(k, rows, kv, i);
            bytes += row_bytes(rows, i);
            for (size_t h = kv * group; h < (kv + 1) * group; h++)
                ((float *)(void *)score.p)[h * stride + (size_t)i] =
                    ref_dot16((const float *)(void *)q.p + h * d, k, d);
        }
    if (read.p) *(uint64_t *)(void *)read.p += bytes;
}

static double logit(const float *x, float scale)
{
    return isnan(*x) ? -(double)INFINITY : (double)*x * (double)scale;
}

/* Log of the sum of exp of n logits. */
static double log_sum(const double *x, size_t n)
{
    double top = -(double)INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) top = fmax(top, x[i]);
    if (isinf(top)) return top;
    for (size_t i = 0; i < n; i++) sum += exp(x[i] - top);
    return top + log(sum);
}

/* Of one head over its candidates. */
static double head_lse(const float *x, int64_t lo, int64_t hi, float scale)
{
    double top = -(double)INFINITY, sum = 0;
    for (int64_t i = lo; i < hi; i++) top = fmax(top, logit(x + i, scale));
    if (isinf(top)) return top;
    for (int64_t i = lo; i < hi; i++) sum += exp(logit(x + i, scale) - top);
    return top + log(sum);
}

enum { GROUP_MAX = 1024 };

/* A head without a finite score has no vote. */
static void vote(float *out, const float *in, size_t stride, size_t group, const int64_t *n, float scale)
{
    double lse[GROUP_MAX], x[GROUP_MAX];
    for (size_t h = 0; h < group; h++) lse[h] = head_lse(in + h * stride, n[1], n[2], scale);
    for (int64_t i = n[1]; i < n[2]; i++) {
        size_t m = 0;
        for (size_t h = 0; h < group; h++)
            if (!isinf(lse[h])) x[m++] = logit(in + h * stride + i, scale) - lse[h];
        out[i] = (float)log_sum(x, m);
    }
}

static void reduce(float *out, const float *in, size_t stride, size_t group, const int64_t *n, gqa_mode mode)
{
    for (int64_t i = n[1]; i < n[2]; i++) {
        float x = mode == GQA_MAX_S && isnan(in[i]) ? -INFINITY : in[i];
        for (size_t h = 1; h < group; h++) {
            float y = in[h * stride + (size_t)i];
            x = mode != GQA_MAX_S ? x + y : y > x ? y : x;
        }
        out[i] = mode == GQA_MEAN_S || mode == GQA_LAYER_MEAN ? x / (float)group : x;
    }
}

void ref_combine(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_lists, buf n, int64_t n_max,
                 gqa_mode mode, float scale)
{
    (void)n_max;
    size_t group = n_heads / n_lists;
    if (group > GROUP_MAX) {
        err_set(&be->fault, ST_UNSUPPORTED, "selection: %zu query heads share a list, at most %d", group,
                (int)GROUP_MAX);
        return;
    }
    for (size_t l = 0; l < n_lists; l++) {
        float *o = (float *)(void *)out.p + l * stride;
        const float *x = (const float *)(void *)in.p + l * group * stride;
        if (group > 1 && (mode == GQA_VOTE || mode == GQA_LAYER_VOTE))
            vote(o, x, stride, group, (const int64_t *)(void *)n.p, scale);
        else reduce(o, x, stride, group, (const int64_t *)(void *)n.p, mode);
    }
}

static bool before(const float *s, int64_t a, int64_t b)
{
    float x = isnan(s[a]) ? -INFINITY : s[a], y = isnan(s[b]) ? -INFINITY : s[b];
    return x > y || (x == y && a < b);
}

/* Whether item i is among the first k of the candidates [lo, hi). */
static bool is_chosen(const float *s, int64_t i, int64_t lo, int64_t hi, int64_t k)
{
    int64_t rank = 0;
    for (int64_t j = lo; j < hi; j++) rank += before(s, j, i);
    return rank < k;
}

group_list ref_group_list(const item_groups *g, size_t list, int64_t lo, int64_t hi)
{
    group_list l = {.group = (const int32_t *)(const void *)g->group.p + list * g->stride,
                    .per = g->per,
                    .n = ((const int64_t *)(const void *)g->range.p)[2 * list + 1]};
    l.end = l.n * l.per;
    if (l.n == 0) return l;
    if (lo > l.group[0] * l.per) l.first = lo - l.group[0] * l.per;
    int64_t last = (l.group[l.n - 1] + 1) * l.per;
    if (last > hi) l.end -= last - hi;
    return l;
}

void ref_group_blanks(float *score, size_t stride, size_t n_heads, const group_list *l)
{
    for (size_t h = 0; h < n_heads; h++) {
        for (int64_t p = 0; p < l->first; p++) score[h * stride + (size_t)p] = -INFINITY;
        for (int64_t p = l->end; p < l->n * l->per; p++) score[h * stride + (size_t)p] = -INFINITY;
    }
}

/* Whether a candidate is chosen; g NULL: scores are by items. */
static bool takes(const choose_job *j, const item_groups *g, size_t list, int64_t item, int64_t lo, int64_t hi, int64_t k)
{
    const float *s = (const float *)(void *)j->score.p + list * j->stride;
    if (!g) return is_chosen(s, item, lo, hi, k);
    group_list l = ref_group_list(g, list, lo, hi);
    for (int64_t p = l.first; p < l.end; p++)
        if (group_item(&l, p) == item) return is_chosen(s, p, l.first, l.end, k);
    return false;
}

void ref_choose_groups(backend *be, const choose_job *j, const item_groups *g)
{
    (void)be;
    const int64_t *n = (const int64_t *)(void *)j->n.p, *k = (const int64_t *)(void *)j->k.p;
    int64_t tail = *(const int64_t *)(void *)j->tail.p, first = j->first.p ? *(const int64_t *)(void *)j->first.p : 0;
    int64_t lo = n[1] > j->head ? n[1] : j->head, hi = n[2] < tail ? n[2] : tail;
    for (size_t l = 0; l < j->n_lists; l++) {
        int32_t *out = (int32_t *)(void *)j->idx.p + l * (size_t)j->idx_stride;
        int64_t *range = (int64_t *)(void *)j->range.p + 2 * l, count = 0;
        for (int64_t i = 0; i * j->granule < n[0]; i++) {
            bool forced = i < j->head || i >= tail, candidate = i >= lo && i < hi;
            if (!forced && !(candidate && takes(j, g, l, i, lo, hi, k[j->n_k == 1 ? 0 : l]))) continue;
            for (int64_t t = i * j->granule; t < (i + 1) * j->granule && t < n[0]; t++)
                if (t >= first) out[count++] = (int32_t)t;
        }
        range[0] = 0;
        range[1] = count;
    }
}

void ref_choose(backend *be, const choose_job *j)
{
    ref_choose_groups(be, j, NULL);
}

const select_ops ref_select = {ref_mean_heads, ref_exact, ref_combine, ref_choose, NULL, ref_choose_groups};
