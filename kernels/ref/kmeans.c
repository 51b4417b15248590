/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

float ref_kmeans_bias(const float *c, size_t dim, kmeans_metric metric)
{
    float sum = 0;
    for (size_t j = 0; j < dim && metric == KMEANS_L2; j++) sum += c[j] * c[j];
    return -0.5f * sum;
}

size_t ref_kmeans_nearest(const float *x, size_t dim, buf centroid, dtype t, size_t n, kmeans_metric metric)
{
    float most = -FLT_MAX;
    size_t best = 0;
    for (size_t i = 0; i < n; i++) {
        float c[256];
        ref_floats(c, centroid, t, i * dim, dim);
        float sum = ref_kmeans_bias(c, dim, metric);
        for (size_t j = 0; j < dim; j++) sum += x[j] * c[j];
        if (sum > FLT_MAX) sum = FLT_MAX;
        if (!(sum > most)) continue;
        most = sum;
        best = i;
    }
    return best;
}

bool ref_kmeans_means(float *centroid, const double *sum, const double *count, size_t n, size_t dim,
                      kmeans_metric metric)
{
    bool moved = false;
    for (size_t i = 0; i < n; i++) {
        const double *s = sum + i * dim;
        double by = metric == KMEANS_L2 ? count[i] : 0;
        for (size_t j = 0; j < dim && metric == KMEANS_DOT; j++) by += s[j] * s[j];
        if (metric == KMEANS_DOT) by = sqrt(by);
        if (!(by > 0)) continue;
        for (size_t j = 0; j < dim; j++) {
            float x = (float)(s[j] / by), *c = &centroid[i * dim + j];
            moved |= memcmp(c, &x, sizeof x) != 0;
            *c = x;
        }
    }
    return moved;
}

void ref_kmeans_mean(backend *be, buf out, const kv_rows *rows, int64_t first, size_t n)
{
    size_t d = rows->head_dim;
    float row[256];
    for (size_t head = 0; head < rows->n_kv_heads; head++) {
        double sum[256] = {0};
        for (int64_t t = first; t < first + (int64_t)n; t++) {
            ref_k_row(row, rows, head, t);
            for (size_t c = 0; c < d; c++) sum[c] += (double)row[c];
        }
        for (size_t c = 0; c < d; c++) *f32_at(out, head * d + c) = (float)(sum[c] / (double)n);
    }
}

/* One sub-space of one head. */
typedef struct {
    const kmeans_job *j;
    size_t head, part, dim;
} unit;

static void row_of(float *out, const unit *u, int64_t slot)
{
    const kmeans_job *j = u->j;
    size_t d = j->rows->head_dim, at = u->part * u->dim;
    float row[256];
    ref_k_row(row, j->rows, u->head, slot);
    for (size_t c = 0; c < u->dim; c++)
        out[c] = j->less.p ? row[at + c] - *f32_at(j->less, u->head * d + at + c) : row[at + c];
}

/* Runs one iteration. code [n]: work space for the keys' centroids. False if no centroid moved. */
static bool step(const unit *u, float *centroid, int32_t *code)
{
    const kmeans_job *j = u->j;
    float x[256];
    bool moved = false;
    for (size_t r = 0; r < j->n; r++) {
        row_of(x, u, j->first + (int64_t)r);
        code[r] = (int32_t)ref_kmeans_nearest(x, u->dim, (buf){(unsigned char *)centroid}, DT_F32, j->count, j->metric);
    }
    for (size_t i = 0; i < j->count; i++) {
        double sum[256] = {0}, count = 0;
        for (size_t r = 0; r < j->n; r++) {
            if (code[r] != (int32_t)i) continue;
            row_of(x, u, j->first + (int64_t)r);
            for (size_t c = 0; c < u->dim; c++) sum[c] += (double)x[c];
            count++;
        }
        moved |= ref_kmeans_means(centroid + i * u->dim, sum, &count, 1, u->dim, j->metric);
    }
    return moved;
}

static size_t units(const kmeans_job *j)
{
    return j->rows->n_kv_heads * j->parts;
}

static unit unit_of(const kmeans_job *j, size_t i)
{
    return (unit){j, i / j->parts, i % j->parts, j->rows->head_dim / j->parts};
}

void ref_kmeans_train(backend *be, const kmeans_job *jobs, size_t n)
{
    for (; n > 0; n--, jobs++) {
        size_t dim = jobs->rows->head_dim / jobs->parts;
        for (size_t i = 0; i < units(jobs); i++) {
            unit u = unit_of(jobs, i);
            float *centroid = f32_at(jobs->centroid, i * jobs->cap * dim);
            for (size_t c = 0; c < jobs->count; c++) row_of(centroid + c * dim, &u, kmeans_slot(&jobs->start, c));
            for (int t = 0; t < jobs->iters && step(&u, centroid, i32_at(jobs->work, i * jobs->n)); t++) continue;
        }
    }
}

static void assign(const unit *u, size_t row, buf centroid)
{
    const kmeans_job *j = u->j;
    size_t at = (u->head * j->code_cap + row) * j->parts + u->part;
    float x[256];
    row_of(x, u, j->first + (int64_t)row);
    size_t best = ref_kmeans_nearest(x, u->dim, centroid, j->type, j->count, j->metric);
    if (j->wide) ((int32_t *)(void *)j->code.p)[at] = (int32_t)best;
    else j->code.p[at] = (unsigned char)best;
}

void ref_kmeans_assign(backend *be, const kmeans_job *jobs, size_t n)
{
    for (; n > 0; n--, jobs++)
        for (size_t i = 0; i < units(jobs); i++) {
            unit u = unit_of(jobs, i);
            buf centroid = buf_at(jobs->centroid, i * jobs->cap * u.dim * dtype_size(jobs->type));
            for (size_t row = 0; row < jobs->n; row++) assign(&u, row, centroid);
        }
}
