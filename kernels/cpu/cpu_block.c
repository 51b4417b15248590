/* SPDX-License-Identifier: MIT */
/* Probes and block scores: splits work over threads for the level's serial kernels. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/comm.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/ops_block.h"
#include "kernels/ref/ref.h"

enum { LINE_FLOATS = 16 }; /* threads take whole cache lines of channels */

void cpu_block_moments(backend *be, buf mean, buf m2, size_t before, buf x, size_t n, size_t dim)
{
#pragma omp parallel num_threads(cpu_team(be, n *dim * 4))
    {
        size_t a, b;
        threads_split(dim, LINE_FLOATS, &a, &b);
        cpu_of(be)->k->moments(f32_at(mean, 0), f32_at(m2, 0), before, f32_at(x, 0), n, dim, a, b);
    }
}

/* Returns the sum over the ranks, added in their order. */
static double sum_of_ranks(backend *be, double x)
{
    double all[COMM_RANKS_MAX], sum = 0;
    int ranks = backend_ranks(be);
    if (ranks == 1 || be->fault.code != ST_OK) return x;
    if (comm_all_gather(be->ranks, all, &x, sizeof x, &be->fault) != ST_OK) return x;
    for (int r = 0; r < ranks; r++) sum += all[r];
    return sum;
}

/* Writes 1 / (var + average of var / 100) of each channel; false if there is no variance. */
static bool invert_variance(backend *be, float *out, const float *m2, size_t count, size_t dim)
{
    double floor = 0, by = count > 1 ? 1 / (double)(count - 1) : 0;
    for (size_t c = 0; c < dim; c++) floor += (double)m2[c] * by;
    floor = sum_of_ranks(be, floor) / (100 * (double)dim * backend_ranks(be));
    if (!(floor > 0)) return false;
    for (size_t c = 0; c < dim; c++) out[c] = (float)(1 / ((double)m2[c] * by + floor));
    return true;
}

static void set_weights(backend *be, float *weights, const float *x, size_t n, size_t dim, const float *mean,
                        const float *inverse)
{
    float total = 0;
    if (inverse) {
#pragma omp parallel num_threads(cpu_team(be, n *dim * 4))
        {
            size_t a, b;
            threads_split(n, 1, &a, &b);
            for (size_t j = a; j < b; j++) weights[j] = cpu_of(be)->k->activation(x + j * dim, mean, inverse, dim);
        }
        cpu_over_ranks(be, weights, n, false);
        for (size_t j = 0; j < n; j++) total += weights[j];
    }
    bool uniform = !(total > 0) || isinf(total);
    for (size_t j = 0; j < n; j++) weights[j] = uniform ? 1 / (float)n : weights[j] / total;
}

void cpu_block_probe(backend *be, buf probe, buf weights, buf x, size_t n, size_t dim, buf mean, buf m2, size_t count)
{
    float *inverse = cpu_scratch(be, &cpu_of(be)->parts, dim, sizeof *inverse, "inverse variances");
    if (!inverse) return;
    if (!mean.p || !invert_variance(be, inverse, f32_at(m2, 0), count, dim)) inverse = NULL;
    set_weights(be, f32_at(weights, 0), f32_at(x, 0), n, dim, f32_at(mean, 0), inverse);
#pragma omp parallel num_threads(cpu_team(be, n *dim * 2))
    {
        size_t a, b;
        threads_split(dim, LINE_FLOATS, &a, &b);
        cpu_of(be)->k->mix(f32_at(probe, 0), f32_at(weights, 0), f32_at(x, 0), n, dim, a, b);
    }
}

/* Returns the mean over the parts of the cosines of probe and one representative. norm: squared norms of the probe's
 * parts; NULL: inner products instead. */
static float block_score(const cpu_kernels *k, const float *probe, const float *norm, const unsigned char *rep, dtype t,
                         size_t part, size_t parts)
{
    float sum = 0, r[2];
    for (size_t p = 0; p < parts; p++) {
        k->dot_norm(r, probe + p * part, rep + p * part * dtype_size(t), t, part);
        double norms = norm ? (double)r[1] * (double)norm[p] : 1;
        if (norms != 0) sum += (float)((double)r[0] / sqrt(norms));
    }
    return sum / (float)parts;
}

/* Computes cosines of probe and representatives over the heads of all ranks: sums the products and squared norms of the
 * blocks [lo, hi), followed by that of the probe. */
static void score_all_heads(backend *be, float *score, const float *probe, const block_index *x, size_t lo, size_t hi)
{
    const cpu_kernels *k = cpu_of(be)->k;
    size_t dim = x->n_heads * x->head_dim, n = hi - lo;
    float *dot = cpu_scratch(be, &cpu_of(be)->parts, 2 * n + 1, sizeof *dot, "scores of blocks"), *norm, r[2];
    if (!dot) return;
    norm = dot + n;
    for (size_t i = 0; i < n; i++) {
        k->dot_norm(r, probe, x->rep.p + (lo + i) * dim * dtype_size(x->type), x->type, dim);
        dot[i] = r[0];
        norm[i] = r[1];
    }
    k->dot_norm(r, probe, (const unsigned char *)probe, DT_F32, dim);
    norm[n] = r[1];
    cpu_over_ranks(be, dot, 2 * n + 1, false);
    for (size_t i = 0; i < n; i++) {
        double norms = (double)norm[i] * (double)norm[n];
        score[lo + i] = norms == 0 ? 0 : (float)((double)dot[i] / sqrt(norms));
    }
}

void cpu_block_score(backend *be, buf score, buf probe, const block_index *x, size_t parts, item_range n, buf read)
{
    const cpu_kernels *k = cpu_of(be)->k;
    int64_t lo = n.lo, hi = n.hi;
    bool whole = parts == 0;
    if (whole) parts = 1;
    size_t dim = x->n_heads * x->head_dim, part = dim / parts, row = dim * dtype_size(x->type);
    size_t count = hi > lo ? (size_t)(hi - lo) : 0;
    float *norm = cpu_scratch(be, &cpu_of(be)->parts, parts, sizeof *norm, "norms of the probe"), r[2];
    if (!norm) return;
    add_bytes(read, (uint64_t)count * row);
    if (whole && !x->product && backend_ranks(be) > 1) {
        score_all_heads(be, f32_at(score, 0), f32_at(probe, 0), x, (size_t)lo, (size_t)lo + count);
        return;
    }
    for (size_t p = 0; p < parts; p++) {
        k->dot_norm(r, f32_at(probe, 0) + p * part, f32_at(probe, 0) + p * part, DT_F32, part);
        norm[p] = r[1];
    }
#pragma omp parallel num_threads(cpu_team(be, count *dim * 4))
    {
        size_t a, b;
        threads_split(count, 1, &a, &b);
        for (size_t i = (size_t)lo + a; i < (size_t)lo + b; i++)
            f32_at(score, 0)[i] =
                block_score(k, f32_at(probe, 0), x->product ? NULL : norm, x->rep.p + i * row, x->type, part, parts);
    }
    cpu_over_ranks(be, f32_at(score, 0) + lo, count, !whole);
}

/* Stores sums (NULL: zeros) in columns [col, col + n) of a row of the ring, or adds them to the old values. */
static void fold_run(const cpu_kernels *k, float *row, const float *sum, size_t n, bool anew)
{
    if (anew) memset(row, 0, n * sizeof *row);
    if (sum) k->add(row, sum, n);
}

void cpu_block_fold(backend *be, const band_mass *m, buf sum, size_t stride, int64_t first, int64_t n_all,
                    int64_t fresh)
{
    const cpu_kernels *k = cpu_of(be)->k;
    int64_t seen = fresh - first;
    size_t n = (size_t)n_all, old = seen <= 0 ? 0 : seen < n_all ? (size_t)seen : n;
#pragma omp parallel num_threads(cpu_team(be, n * m->n_heads))
    {
        size_t a, b;
        threads_split(m->n_heads, 1, &a, &b);
        for (size_t h = a; h < b; h++) {
            float *row = f32_at(m->mass, 0) + h * m->ring;
            size_t col = (size_t)first % m->ring;
            for (size_t i = 0, to; i < n; i = to, col = 0) {
                const float *s = sum.p ? f32_at(sum, 0) + h * stride + i : NULL;
                size_t kept = i < old ? old - i : 0;
                to = i + (m->ring - col < n - i ? m->ring - col : n - i);
                if (kept > to - i) kept = to - i;
                fold_run(k, row + col, s, kept, false);
                fold_run(k, row + col + kept, s ? s + kept : NULL, to - i - kept, true);
            }
        }
    }
    if (m->read.p) *(uint64_t *)(void *)m->read.p += old * m->n_heads * sizeof(float);
}
