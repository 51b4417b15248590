/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"

/* Assigns a prompt's keys as one k-means job over the keys as stored, as rows of f32. */
static void add_keys(backend *be, const index_add_job *j, float *rows)
{
    const pq_index *x = j->index;
    const cpu_kernels *k = cpu_of(be)->k;
    size_t d = x->head_dim;
#pragma omp parallel for num_threads(cpu_team(be, j->n * x->n_kv_heads * d * 2))
    for (size_t i = 0; i < j->n * x->n_kv_heads; i++) {
        size_t t = i / x->n_kv_heads, head = i % x->n_kv_heads;
        float half[HEAD_DIM_MAX];
        k->narrow(half, f32_at(j->k, i * d), x->type, d);
        k->widen(rows + (head * j->n + t) * d, half, x->type, d);
    }
    kv_rows keys = {
        .k = {(unsigned char *)rows}, .type = DT_F32, .n_kv_heads = x->n_kv_heads, .head_dim = d, .cap = j->n};
    kmeans_job job = {.rows = &keys,
                      .n = j->n,
                      .parts = x->parts,
                      .count = pq_words(x),
                      .cap = pq_words(x),
                      .metric = KMEANS_L2,
                      .centroid = x->centroid,
                      .type = DT_F16,
                      .code = buf_at(x->code, (size_t)j->pos * x->parts),
                      .code_cap = x->cap};
    cpu_kmeans_assign(be, &job, 1);
}

void cpu_pq_add(backend *be, const index_add_job *jobs, size_t n)
{
    for (; n > 0; n--, jobs++) {
        const pq_index *x = jobs->index;
        if (x->trained == 0) continue;
        if (!cpu_dim_fits(be, x->head_dim)) return;
        float *rows =
            cpu_scratch(be, &cpu_of(be)->tasks, jobs->n * x->n_kv_heads * x->head_dim, sizeof *rows, "new keys");
        if (rows) add_keys(be, jobs, rows);
    }
}

/* Scores tokens [from, to) of one kv head. Tables are computed for each piece: they cost as much as the products of a
 * few tokens. */
static void score_of_part(const cpu_kernels *k, const score_job *j, size_t part, size_t parts, size_t from, size_t to,
                          float *out)
{
    const pq_index *x = j->index;
    size_t words = pq_words(x), dim = x->head_dim / x->parts, heads = j->n_heads / parts, m = x->parts;
    const unsigned char *code = x->code.p + part * x->cap * m;
    float table[PQ_PARTS << PQ_BITS];
    for (size_t h = 0; h < heads; h++, out += j->stride) {
        const float *q = f32_at(j->q, (part * heads + h) * x->head_dim);
        for (size_t p = 0; p < m; p++)
            k->dots(table + p * words, words, q + p * dim, 1, dim,
                    x->centroid.p + (part * m + p) * words * dim * sizeof(uint16_t), DT_F16, 0, words);
        k->pq_score(out, code + from * m, to - from, m, table, words);
    }
}

void cpu_pq_score(backend *be, const score_job *jobs, size_t n)
{
    const pq_index *x = jobs->index;
    cpu_score_jobs(be, jobs, n, x->n_kv_heads, 2048, 8, jobs->n_heads * x->parts, score_of_part);
    for (size_t i = 0; i < n; i++)
        add_bytes(jobs[i].read, pq_bytes(jobs[i].index, jobs[i].items.hi - jobs[i].items.lo));
}
