/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "lens/recall_score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int kv_head_of(const attn_shape *s, int head)
{
    return head / (s->n_heads / s->n_kv_heads);
}

static const float *row_of(const float *rows, const exact_rows *r, int kv_head, int64_t i)
{
    return rows + ((int64_t)kv_head * r->cap + i) * r->shape->head_dim;
}

static double dot(const float *a, const float *b, int n)
{
    float part[8] = {0}, sum = 0;
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) part[k] += a[i + k] * b[i + k];
    for (; i < n; i++) sum += a[i] * b[i];
    for (int k = 0; k < 8; k++) sum += part[k];
    return (double)sum;
}

/* Writes the softmax of s[0..n) to p. */
static void softmax(double *p, const double *s, int64_t n)
{
    double top = -(double)INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) top = fmax(top, s[i]);
    for (int64_t i = 0; i < n; i++) sum += p[i] = exp(s[i] - top);
    for (int64_t i = 0; i < n; i++) p[i] /= sum;
}

void exact_fill(exact_query *x)
{
    const exact_rows *r = x->rows;
    const attn_shape *sh = r->shape;
    for (int h = 0; h < sh->n_heads; h++) {
        double *s = x->score + h * r->cap, *p = x->share + h * r->cap;
        for (int64_t i = 0; i < r->n; i++)
            s[i] = i < x->first ? -(double)INFINITY
                                : (double)sh->scale *
                                      dot(x->q + h * sh->head_dim, row_of(r->k, r, kv_head_of(sh, h), i), sh->head_dim);
        softmax(p, s, r->n);
    }
}

/* ---- recall ---- */

/* Adds one head's scores of positions [lo, hi) to out, combined according to gqa. */
static void combine(double *out, const double *s, int64_t lo, int64_t hi, gqa_mode gqa, bool first)
{
    double top = -(double)INFINITY, sum = 0;
    bool vote = gqa == GQA_VOTE || gqa == GQA_LAYER_VOTE;
    for (int64_t i = lo; i < hi && vote; i++) top = fmax(top, s[i]);
    for (int64_t i = lo; i < hi && vote; i++) sum += exp(s[i] - top);
    for (int64_t i = lo; i < hi; i++) {
        double x = vote ? exp(s[i] - top) / sum : s[i];
        if (first) out[i] = x;
        else out[i] = gqa == GQA_MAX_S ? fmax(out[i], x) : out[i] + x;
    }
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

double exact_recall(const exact_query *x, int head, const exact_choice *c, double *work)
{
    const exact_rows *r = x->rows;
    double *score = work, *sorted = work + r->cap;
    int64_t lo = c->head_end > x->first ? c->head_end : x->first, hi = c->tail, k = 0, found = 0;
    size_t heads = (size_t)r->shape->n_heads, lists = gqa_lists(c->gqa, heads, (size_t)r->shape->n_kv_heads);
    int group = (int)(heads / lists), from = head / group * group;
    if (hi <= lo) return 1;
    for (int64_t i = 0; i < c->n; i++) k += c->pos[i] >= lo && c->pos[i] < hi;
    if (k == 0 || k >= hi - lo) return 1;
    for (int h = from; h < from + group; h++) combine(score, x->score + h * r->cap, lo, hi, c->gqa, h == from);
    memcpy(sorted, score + lo, (size_t)(hi - lo) * sizeof *sorted);
    qsort(sorted, (size_t)(hi - lo), sizeof *sorted, descending);
    /* Positions that tie with the last selected score are interchangeable. */
    double least = sorted[k - 1];
    int64_t above = 0, equal = 0;
    for (int64_t i = lo; i < hi; i++) above += score[i] > least;
    for (int64_t i = 0; i < c->n; i++) {
        if (c->pos[i] < lo || c->pos[i] >= hi) continue;
        found += score[c->pos[i]] > least;
        equal += score[c->pos[i]] == least;
    }
    if (equal > k - above) equal = k - above;
    return (double)(found + equal) / (double)k;
}

double exact_mass(const exact_query *x, int head, const exact_choice *c)
{
    const double *p = x->share + head * x->rows->cap;
    double sum = 0;
    for (int64_t i = 0; i < c->n; i++) sum += p[c->pos[i]];
    return sum;
}

/* Returns the 97.5 % quantile of Student's distribution (Abramowitz and Stegun, 26.7.5). */
static double student(double degrees)
{
    double z = 1.959964, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
    return z + (z3 + z) / (4 * degrees) + (5 * z5 + 16 * z3 + 3 * z) / (96 * degrees * degrees) +
           (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * degrees * degrees * degrees);
}

bool exact_covers(double tau, double sigma, int64_t n, double missed)
{
    const double nothing = 1e-6;
    double x = fmin(fmax(missed, nothing), 1 - nothing), y = fmin(fmax(tau, nothing), 1 - nothing);
    double off = student(2.0 / 3 * (double)(n - 1)) * sigma;
    return fabs(log(x / (1 - x)) - log(y / (1 - y))) <= off + 1e-3;
}

double exact_distance(const exact_query *x, int head, const exact_choice *c, const bool *kept, const float *held)
{
    const exact_rows *r = x->rows;
    const attn_shape *sh = r->shape;
    const double *p = x->share + head * r->cap, *s = x->score + head * r->cap;
    double top = -(double)INFINITY, sum = 0, distance = 0, left = 0;
    /* Three passes over the scores: maximum, sum of exponentials, distance. */
    for (int pass = 0; pass < 3; pass++)
        for (int64_t k = 0; k < c->n; k++) {
            int64_t i = c->pos[k];
            if (i < x->first || (kept && !kept[i])) continue;
            double y = s[i];
            if (held)
                y = (double)sh->scale *
                    dot(x->q + head * sh->head_dim, row_of(held, r, kv_head_of(sh, head), i), sh->head_dim);
            if (pass == 0) top = fmax(top, y);
            else if (pass == 1) sum += exp(y - top);
            else {
                distance += fabs(p[i] - exp(y - top) / sum);
                left += p[i];
            }
        }
    return distance + fmax(0, 1 - left);
}

double exact_covered(const exact_query *x, int head, const exact_choice *c, const bool *kept, int64_t *n)
{
    const double *p = x->share + head * x->rows->cap;
    double sum = 0;
    *n = 0;
    for (int64_t k = 0; k < c->n; k++) {
        int64_t i = c->pos[k];
        if (i < 2 || i < x->first || (kept && !kept[i])) continue;
        sum += p[i];
        ++*n;
    }
    return sum;
}

/* Adds share * v for position i. */
static void add_value(double *out, const exact_query *x, int head, int64_t i, double share)
{
    const exact_rows *r = x->rows;
    const float *v = row_of(r->v, r, kv_head_of(r->shape, head), i);
    for (int c = 0; c < r->shape->head_dim; c++) out[c] += share * (double)v[c];
}

static exact_diff diff_of(const exact_query *x, int head, const double *out)
{
    double exact[256] = {0}, d2 = 0, n2 = 0, d1 = 0, n1 = 0;
    for (int64_t i = x->first; i < x->rows->n; i++) add_value(exact, x, head, i, x->share[head * x->rows->cap + i]);
    for (int c = 0; c < x->rows->shape->head_dim; c++) {
        double d = out[c] - exact[c];
        d2 += d * d;
        n2 += exact[c] * exact[c];
        d1 += fabs(d);
        n1 += fabs(exact[c]);
    }
    return n2 > 0 ? (exact_diff){sqrt(d2 / n2), d1 / n1} : (exact_diff){0, 0};
}

exact_diff exact_error(const exact_query *x, int head, const float *out)
{
    double o[256];
    for (int c = 0; c < x->rows->shape->head_dim; c++) o[c] = (double)out[c];
    return diff_of(x, head, o);
}

exact_diff exact_without(const exact_query *x, int head, const exact_choice *c, const bool *kept)
{
    const double *s = x->score + head * x->rows->cap;
    double out[256] = {0}, top = -(double)INFINITY, sum = 0;
    for (int64_t i = 0; i < c->n; i++)
        if (kept[c->pos[i]]) top = fmax(top, s[c->pos[i]]);
    for (int64_t i = 0; i < c->n; i++)
        if (kept[c->pos[i]]) sum += exp(s[c->pos[i]] - top);
    for (int64_t i = 0; i < c->n; i++)
        if (kept[c->pos[i]]) add_value(out, x, head, c->pos[i], exp(s[c->pos[i]] - top) / sum);
    return diff_of(x, head, out);
}
