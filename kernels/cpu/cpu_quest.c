/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/ops_quest.h"
#include "kernels/ref/ref.h"

/* Adds keys of one head to means. A page's mean is rounded only when complete, and at the end of the keys. */
static void add_means(const cpu_kernels *kn, const index_add_job *j, size_t h)
{
    const quest_index *x = j->index;
    size_t d = x->head_dim, row_bytes = d * dtype_size(x->type);
    float row[HEAD_DIM_MAX], half[HEAD_DIM_MAX], *sum = f32_at(x->sum, h * d);
    for (size_t i = 0; i < j->n; i++) {
        size_t p = (size_t)j->pos + i, before = p % x->page;
        kn->narrow(half, f32_at(j->k, 0) + (i * x->n_kv_heads + h) * d, x->type, d);
        kn->widen(row, half, x->type, d);
        for (size_t c = 0; c < d; c++) sum[c] = before == 0 ? row[c] : sum[c] + row[c];
        if (before + 1 < x->page && i + 1 < j->n) continue;
        for (size_t c = 0; c < d; c++) row[c] = sum[c] / (float)(before + 1);
        kn->narrow(x->bound.p + (h * x->cap + p / x->page) * row_bytes, row, x->type, d);
    }
}

/* Adds keys of one head to bounds. */
static void add_keys(const cpu_kernels *kn, const index_add_job *j, size_t h)
{
    const quest_index *x = j->index;
    size_t d = x->head_dim, es = dtype_size(x->type);
    float row[HEAD_DIM_MAX], half[HEAD_DIM_MAX];
    for (size_t i = 0; i < j->n; i++) {
        size_t p = (size_t)j->pos + i, page = h * x->cap + p / x->page;
        kn->narrow(half, f32_at(j->k, 0) + (i * x->n_kv_heads + h) * d, x->type, d);
        kn->widen(row, half, x->type, d);
        kn->quest_add(x->bound.p + page * 2 * d * es, row, d, x->type, p % x->page == 0);
    }
}

void cpu_quest_add(backend *be, const index_add_job *jobs, size_t n)
{
    const cpu_kernels *kn = cpu_of(be)->k;
    const quest_index *x = jobs->index;
    size_t heads = x->n_kv_heads;
#pragma omp parallel num_threads(cpu_team(be, n * jobs->n * heads * x->head_dim * 2))
    {
        size_t a, b;
        threads_split(n * heads, 1, &a, &b);
        for (size_t i = a; i < b; i++) (x->how == QUEST_MEAN ? add_means : add_keys)(kn, &jobs[i / heads], i % heads);
    }
}

static void score_pages(const cpu_kernels *k, const score_job *j, size_t part, size_t parts, size_t from, size_t to,
                        float *out)
{
    const quest_index *x = j->index;
    size_t d = x->head_dim, bytes = quest_bytes(x, 1), heads = j->n_heads / parts;
    const unsigned char *head = x->bound.p + part * x->n_kv_heads / parts * x->cap * bytes;
    (x->how == QUEST_MEAN ? k->dots : k->bounds)(out, j->stride, f32_at(j->q, 0) + part * heads * d, heads, d,
                                                 head + from * bytes, x->type, 0, to - from);
}

void cpu_quest_score(backend *be, const score_job *jobs, size_t n)
{
    const quest_index *x = jobs->index;
    size_t parts = score_parts(jobs, x->n_kv_heads);
    if (x->how == QUEST_MAXCH) { /* for comparison only; speed does not matter */
        ref_quest_score(be, jobs, n);
        return;
    }
    cpu_score_jobs(be, jobs, n, parts, 256, 16, jobs->n_heads * x->head_dim * 3, score_pages);
    for (size_t i = 0; i < n * parts; i++) {
        span_list l = ref_part_columns(&jobs[i / parts], i % parts, parts);
        if (l.end > l.first) add_bytes(jobs[i / parts].read, quest_bytes(x, l.end - l.first));
    }
}
