/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/ref/ref.h"

static void add_keys(const index_add_job *j)
{
    const pq_index *x = j->index;
    size_t dim = x->head_dim / x->parts, words = pq_words(x);
    for (size_t i = 0; i < x->n_kv_heads * x->parts; i++) {
        size_t head = i / x->parts, part = i % x->parts;
        buf centroid = buf_at(x->centroid, i * words * dim * dtype_size(DT_F16));
        for (size_t t = 0; t < j->n; t++) {
            float row[256];
            ref_round_row(row, j->k, t * x->n_kv_heads + head, x->head_dim, x->type);
            x->code.p[(head * x->cap + (size_t)j->pos + t) * x->parts + part] =
                (unsigned char)ref_kmeans_nearest(row + part * dim, dim, centroid, DT_F16, words, KMEANS_L2);
        }
    }
}

void ref_pq_add(backend *be, const index_add_job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((const pq_index *)jobs[i].index)->trained > 0) add_keys(&jobs[i]);
}

void ref_pq_redo(backend *be, const void *x, const kv_rows *rows, int64_t n)
{
}

/* Computes the products with all centroids of a kv head: [parts][words]. */
static void products(const pq_index *x, size_t head, const float *q, float *table)
{
    size_t dim = x->head_dim / x->parts, words = pq_words(x);
    float c[256];
    for (size_t i = 0; i < x->parts * words; i++) {
        ref_floats(c, x->centroid, DT_F16, (head * x->parts * words + i) * dim, dim);
        table[i] = ref_dot16(q + i / words * dim, c, dim);
    }
}

static void score_tokens(const score_job *j)
{
    const pq_index *x = j->index;
    float table[PQ_PARTS << PQ_BITS];
    size_t words = pq_words(x);
    for (size_t h = 0; h < j->n_heads; h++) {
        size_t head = h / (j->n_heads / x->n_kv_heads);
        products(x, head, f32_at(j->q, h * x->head_dim), table);
        for (int64_t t = j->items.lo; t < j->items.hi; t++) {
            const unsigned char *code = x->code.p + (head * x->cap + (size_t)t) * x->parts;
            float sum = table[code[0] & (words - 1)];
            for (size_t p = 1; p < x->parts; p++) sum += table[p * words + (code[p] & (words - 1))];
            *f32_at(j->score, h * j->stride + (size_t)t) = sum;
        }
    }
    add_bytes(j->read, pq_bytes(x, j->items.hi - j->items.lo));
}

void ref_pq_score(backend *be, const score_job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++) score_tokens(&jobs[i]);
}
