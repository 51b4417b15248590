/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>

#include "kernels/ops_block.h"
#include "kernels/ref/ref.h"

static double *f64_at(buf b, size_t i)
{
    return (double *)(void *)b.p + i;
}

/* ---- the probe ---- */

void ref_block_moments(backend *be, buf mean, buf m2, size_t before, buf x, size_t n, size_t dim)
{
    for (size_t c = 0; c < dim; c++) {
        double m = before ? (double)*f32_at(mean, c) : 0, s = before ? (double)*f32_at(m2, c) : 0;
        for (size_t i = 0; i < n; i++) {
            double d = (double)*f32_at(x, i * dim + c) - m;
            m += d / (double)(before + i + 1);
            s += d * ((double)*f32_at(x, i * dim + c) - m);
        }
        ref_put(mean, DT_F32, c, (float)m);
        ref_put(m2, DT_F32, c, (float)s);
    }
}

/* Writes |phi_j|_1 of each row to weights; returns their sum. */
static double activations(buf weights, buf x, size_t n, size_t dim, buf mean, buf m2, size_t count)
{
    double floor = 0, total = 0;
    if (count < 2) return 0;
    for (size_t c = 0; c < dim; c++) floor += (double)*f32_at(m2, c) / (double)(count - 1);
    floor /= 100 * (double)dim;
    if (!(floor > 0)) return 0;
    for (size_t j = 0; j < n; j++) {
        double sum = 0;
        for (size_t c = 0; c < dim; c++) {
            double d = (double)*f32_at(x, j * dim + c) - (double)*f32_at(mean, c);
            sum += d * d / ((double)*f32_at(m2, c) / (double)(count - 1) + floor);
        }
        ref_put(weights, DT_F32, j, (float)sum);
        total += sum;
    }
    return total;
}

void ref_block_probe(backend *be, buf probe, buf weights, buf x, size_t n, size_t dim, buf mean, buf m2, size_t count)
{
    double total = mean.p ? activations(weights, x, n, dim, mean, m2, count) : 0;
    bool uniform = !(total > 0) || isinf(total);
    for (size_t j = 0; j < n; j++)
        ref_put(weights, DT_F32, j, (float)(uniform ? 1 / (double)n : (double)*f32_at(weights, j) / total));
    for (size_t c = 0; c < dim; c++) {
        double sum = 0;
        for (size_t j = 0; j < n; j++) sum += (double)*f32_at(weights, j) * (double)*f32_at(x, j * dim + c);
        ref_put(probe, DT_F32, c, (float)sum);
    }
}

/* Returns the inner product or the cosine. */
static double likeness(const block_index *i, buf a, size_t at_a, size_t at_b, size_t n)
{
    double dot = 0, aa = 0, bb = 0;
    for (size_t c = 0; c < n; c++) {
        double x = (double)*f32_at(a, at_a + c), y = (double)ref_get(i->rep, i->type, at_b + c);
        dot += x * y;
        aa += x * x;
        bb += y * y;
    }
    if (i->product) return dot;
    return aa * bb == 0 ? 0 : dot / sqrt(aa * bb);
}

void ref_block_score(backend *be, buf score, buf probe, const block_index *x, size_t parts, item_range n, buf read)
{
    if (parts == 0) parts = 1;
    size_t dim = x->n_heads * x->head_dim, part = dim / parts;
    for (size_t b = (size_t)n.lo; b < (size_t)n.hi; b++) {
        double sum = 0;
        for (size_t p = 0; p < parts; p++) sum += likeness(x, probe, p * part, b * dim + p * part, part);
        ref_put(score, DT_F32, b, (float)(sum / (double)parts));
    }
    add_bytes(read, (uint64_t)(n.hi - n.lo) * dim * dtype_size(x->type));
}

void ref_block_weigh(backend *be, buf score, buf other, item_range n, float by)
{
    for (size_t b = (size_t)n.lo; b < (size_t)n.hi; b++)
        ref_put(score, DT_F32, b, *f32_at(score, b) + by * *f32_at(other, b));
}

/* ---- blocks ---- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void ref_block_fold(backend *be, const band_mass *m, buf sum, size_t stride, int64_t first, int64_t n, int64_t fresh)
{
    int64_t old_n = fresh - first < n ? fresh - first : n;
    add_bytes(m->read, (uint64_t)larger(old_n, 0) * m->n_heads * sizeof(float));
    for (size_t h = 0; h < m->n_heads; h++) {
        size_t col = (size_t)first % m->ring;
        for (int64_t i = 0; i < n; i++, col = col + 1 < m->ring ? col + 1 : 0) {
            size_t to = h * m->ring + col;
            float old = first + i >= fresh ? 0 : *f32_at(m->mass, to);
            ref_put(m->mass, DT_F32, to, old + (sum.p ? *f32_at(sum, h * stride + (size_t)i) : 0));
        }
    }
}

/* Averages the keys of the best tokens of the block whose first token has position p0 and row r0. */
static void form_head(const block_index *x, const kv_rows *keys, const band_mass *m, size_t block, size_t head,
                      size_t p0, size_t r0)
{
    size_t d = x->head_dim, kv_head = head / (x->n_heads / x->n_kv_heads);
    double sum[256] = {0};
    float last = 0; /* mass and index of the previous token taken */
    size_t last_i = 0;
    for (size_t r = 0; r < x->reps; r++) {
        float top = 0;
        size_t best = x->size;
        for (size_t i = 0; i < x->size; i++) {
            float a = m ? *f32_at(m->mass, head * m->ring + (p0 + i) % m->ring) : 0;
            if (!(a == a)) a = -INFINITY;
            if (r > 0 && (a > last || (a == last && i <= last_i))) continue; /* already taken */
            if (best < x->size && !(a > top)) continue;
            top = a;
            best = i;
        }
        last = top;
        last_i = best;
        for (size_t c = 0; c < d; c++) sum[c] += (double)*f32_at(keys->k, (kv_head * keys->cap + r0 + best) * d + c);
    }
    for (size_t c = 0; c < d; c++)
        ref_put(x->rep, x->type, (block * x->n_heads + head) * d + c, (float)(sum[c] / (double)x->reps));
}

void ref_block_form(backend *be, const block_index *x, const kv_rows *keys, const band_mass *m, int64_t block,
                    int64_t n, int64_t pos)
{
    if (m) add_bytes(m->read, (uint64_t)n * x->size * m->n_heads * sizeof(float));
    for (size_t b = 0; b < (size_t)n; b++)
        for (size_t h = 0; h < x->n_heads; h++)
            form_head(x, keys, m, (size_t)block + b, h, (size_t)pos + b * x->size, b * x->size);
}

/* Appends positions [from, to) to idx. */
static int64_t add_run(int32_t *idx, int64_t n, int64_t from, int64_t to)
{
    for (int64_t p = from; p < to; p++) idx[n++] = (int32_t)p;
    return n;
}

void ref_block_list(backend *be, const far_list *l)
{
    const int32_t *block = i32_at(l->block, 0);
    int32_t *idx = i32_at(l->idx, 0);
    int64_t n = add_run(idx, 0, l->from, l->sinks), chosen = l->chosen.p ? *i64_at(l->chosen, 1) : 0;
    for (int64_t i = 0; i < chosen; i++) {
        int64_t first = l->sinks + block[*i64_at(l->chosen, 0) + i] * l->size;
        n = add_run(idx, n, larger(first, l->from), first + l->size);
    }
    n = add_run(idx, n, larger(l->pending, l->from), l->end);
    *i64_at(l->range, 0) = 0;
    *i64_at(l->range, 1) = n;
    add_bytes(l->count, (uint64_t)n);
}

/* ---- budgets ---- */

/* Entropy of softmax(score[i]) over [lo, hi): log Z - sum p (s - max); NaN counts as -inf. */
static double entropy(const float *score, int64_t lo, int64_t hi)
{
    float most = -INFINITY;
    double z = 0, sum = 0;
    for (int64_t i = lo; i < hi; i++)
        if (score[i] > most) most = score[i];
    if (isinf(most)) return 0;
    for (int64_t i = lo; i < hi; i++) {
        double s = (double)score[i] - (double)most;
        if (!(s > -60)) continue; /* too small to affect the sum in double; exp of -700 is slow */
        double w = exp(s);
        z += w;
        sum += w * s;
    }
    return log(z) - sum / z;
}

/* Returns the fraction of the remaining items for `layer`; layers ascend. */
static double fraction_of(const entropy_pool *p, size_t layer, double theta)
{
    double later = 0, left = (double)(p->n_layers - layer);
    int64_t count = *i64_at(p->count, 0);
    for (size_t j = layer + 1; j < p->n_layers && count > 0; j++) later += *f64_at(p->sum, j) / (double)count;
    return count > 0 && theta + later > 0 ? theta / (theta + later) : 1 / left;
}

void ref_block_take(backend *be, const entropy_pool *p, size_t layer, buf score, item_range n, buf k)
{
    int64_t *pool = i64_at(p->pool, 0), reserve = p->least * (int64_t)(p->n_layers - layer - 1);
    float theta = (float)entropy(f32_at(score, 0), n.lo, n.hi);
    ref_put(p->theta, DT_F32, layer, theta);
    int64_t b = (int64_t)floor(fraction_of(p, layer, (double)theta) * (double)*pool + 0.5);
    if (b < p->least) b = p->least;
    if (b > p->most) b = p->most;
    if (b > *pool - reserve) b = *pool - reserve;
    if (b > n.hi - n.lo) b = n.hi - n.lo;
    if (b < 0) b = 0;
    *i64_at(k, 0) = b;
    *pool -= b;
}

void ref_block_close_pool(backend *be, const entropy_pool *p)
{
    for (size_t l = 0; l < p->n_layers; l++) *f64_at(p->sum, l) += (double)*f32_at(p->theta, l);
    ++*i64_at(p->count, 0);
}
