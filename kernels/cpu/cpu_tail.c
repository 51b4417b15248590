/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"

enum { HALVES = 2 /* K, V */ };

/* n rows of a half of a head, the first of position p, join its sums. */
static void join(const tail_sums *s, size_t head, size_t half, int64_t p, const float *rows, size_t n)
{
    size_t d = s->head_dim;
    for (size_t i = 0; i < n; i++, p++, rows += d) {
        float *sum = f32_at(s->sum, ((head * HALVES + half) * s->cap + (size_t)(p / s->block)) * d);
        if (p % s->block == 0) memset(sum, 0, d * sizeof *sum);
        for (size_t c = 0; c < d; c++) sum[c] += rows[c];
    }
}

void cpu_tail_add(backend *be, const tail_add_job *jobs, size_t n)
{
    const cpu_kernels *kn = cpu_of(be)->k;
    const tail_sums *s = jobs->to;
    size_t units = s->n_kv_heads * HALVES, d = s->head_dim;
    if (!cpu_dim_fits(be, d)) return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_team(be, n * jobs->n * units * d * 2))
    for (size_t i = 0; i < n * units; i++) {
        const tail_add_job *j = &jobs[i / units];
        size_t head = i % units / HALVES, half = i % HALVES;
        float row[HEAD_DIM_MAX], narrow[HEAD_DIM_MAX];
        for (size_t t = 0; t < j->n; t++) {
            kn->narrow(narrow, f32_at(half ? j->v : j->k, (t * s->n_kv_heads + head) * d), s->type, d);
            kn->widen(row, narrow, s->type, d);
            join(j->to, head, half, j->first + (int64_t)t, row, 1);
        }
    }
}

void cpu_tail_redo(backend *be, const tail_sums *s, const kv_rows *rows, int64_t n)
{
    const cpu_kernels *kn = cpu_of(be)->k;
    int64_t first = n / s->block * s->block;
    if (!cpu_dim_fits(be, s->head_dim)) return;
#pragma omp parallel for num_threads(cpu_team(be, (size_t)(n - first) * s->n_kv_heads * s->head_dim))
    for (size_t i = 0; i < s->n_kv_heads * HALVES; i++) {
        row_source source = cpu_rows(rows, i % HALVES, i / HALVES);
        float x[TAIL_PARTS * HEAD_DIM_MAX];
        for (int64_t p = first, m; p < n; p += m) {
            m = n - p < TAIL_PARTS ? n - p : TAIL_PARTS;
            kn->rows(x, s->head_dim, &source, NULL, p, (size_t)m);
            join(s, i / HALVES, i % HALVES, p, x, (size_t)m);
        }
    }
}

/* part: the rows of a list join its sums. */
static void add_list(const cpu_kernels *kn, float *part, const row_source *source, const attn_list *l)
{
    size_t d = source->head_dim;
    float x[TAIL_PARTS * HEAD_DIM_MAX];
    for (int64_t i = 0; i < l->n; i += TAIL_PARTS) {
        size_t n = l->n - i < TAIL_PARTS ? (size_t)(l->n - i) : TAIL_PARTS;
        kn->rows(x, d, source, l->idx, l->first + i, n);
        for (size_t c = 0; c < n * d; c++) part[c] += x[c];
    }
}

/* out: the attended rows of a query head, added up. */
static void sum_lists(const cpu_kernels *kn, float *out, const tail_rest_job *j, bool value, size_t head)
{
    const kv_rows *rows = &j->of.rows;
    row_source source = cpu_rows(rows, value, head / (j->of.n_heads / rows->n_kv_heads));
    size_t d = rows->head_dim;
    float part[TAIL_PARTS * HEAD_DIM_MAX];
    memset(part, 0, TAIL_PARTS * d * sizeof *part);
    for (int i = 0; i <= TAIL_RANGES; i++) {
        attn_list l = ref_tail_list(j, head, i);
        add_list(kn, part, &source, &l);
    }
    memcpy(out, part, d * sizeof *out);
    for (size_t p = 1; p < TAIL_PARTS; p++)
        for (size_t c = 0; c < d; c++) out[c] += part[p * d + c];
}

/* One half of the row of the query heads [h, h + share); with K its biases. */
static void rest_of(const cpu_kernels *kn, const tail_rest_job *j, size_t h, size_t share, size_t half)
{
    size_t head = h / (j->of.n_heads / j->sums->n_kv_heads), at = h / share * j->sums->head_dim;
    int64_t m = ref_tail_left(j, h);
    float attended[HEAD_DIM_MAX];
    sum_lists(kn, attended, j, half, h);
    ref_tail_row(f32_at(half ? j->v : j->k, at), j, head, half, attended, m);
    for (size_t i = h; i < h + share && !half; i++) *f32_at(j->bias, i) = ref_tail_bias(m);
}

/* Rows of a list's range join those of their blocks in out [rows][d], and are counted in `taken` [rows]. */
static void add_to_blocks(const cpu_kernels *kn, float *out, uint32_t *taken, const row_source *source,
                          const attn_list *l, int64_t block)
{
    size_t d = source->head_dim;
    float x[TAIL_PARTS * HEAD_DIM_MAX];
    for (int64_t i = 0; i < l->n; i += TAIL_PARTS) {
        size_t n = l->n - i < TAIL_PARTS ? (size_t)(l->n - i) : TAIL_PARTS;
        kn->rows(x, d, source, l->idx, l->first + i, n);
        for (size_t r = 0; r < n; r++) {
            size_t b = list_slot(l, i + (int64_t)r) / (size_t)block;
            for (size_t c = 0; c < d; c++) out[b * d + c] += x[r * d + c];
            taken[b]++;
        }
    }
}

/* The same of rows of blocks. taken: [rows] of this thread. */
static void rest_of_blocks(const cpu_kernels *kn, const tail_rest_job *j, size_t h, size_t share, size_t half,
                           uint32_t *taken)
{
    const kv_rows *rows = &j->of.rows;
    size_t d = rows->head_dim, n = (size_t)tail_blocks(j->n, j->sums->block), at = h / share * j->rows * d;
    row_source source = cpu_rows(rows, half, h / (j->of.n_heads / rows->n_kv_heads));
    float *out = f32_at(half ? j->v : j->k, at);
    memset(out, 0, n * d * sizeof *out);
    memset(taken, 0, n * sizeof *taken);
    for (int i = 0; i <= TAIL_RANGES; i++) {
        attn_list l = ref_tail_list(j, h, i);
        add_to_blocks(kn, out, taken, &source, &l, j->sums->block);
    }
    for (size_t b = 0; b < n; b++) {
        int64_t left = j->n - (int64_t)b * j->sums->block;
        int64_t m = (left < j->sums->block ? left : j->sums->block) - (int64_t)taken[b];
        ref_tail_block(out + b * d, j, h / (j->of.n_heads / j->sums->n_kv_heads), half, (int64_t)b, m);
        for (size_t i = h; i < h + share && !half; i++) *f32_at(j->bias, i * j->rows + b) = ref_tail_bias(m);
    }
}

void cpu_tail_rest(backend *be, const tail_rest_job *jobs, size_t n)
{
    const cpu_kernels *kn = cpu_of(be)->k;
    size_t share = tail_share(jobs), units = jobs->of.n_heads / share * HALVES, d = jobs->sums->head_dim;
    if (!cpu_dim_fits(be, d)) return;
    uint32_t *taken = cpu_scratch(be, &cpu_of(be)->parts, (size_t)be->n_threads * jobs->rows, sizeof *taken, "counts");
    if (!taken) return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_team(be, n *units *(size_t)jobs->of.n_max *d))
    for (size_t i = 0; i < n * units; i++) {
        const tail_rest_job *j = &jobs[i / units];
        size_t h = i % units / HALVES * share, half = i % HALVES;
        if (j->rows > 1) rest_of_blocks(kn, j, h, share, half, taken + (size_t)threads_id() * jobs->rows);
        else rest_of(kn, j, h, share, half);
    }
    for (const tail_rest_job *j = jobs; j < jobs + n; j++) {
        if (!cpu_count_read(be, &j->of, true)) return;
        for (int i = 0; i < TAIL_RANGES; i++) {
            attn_job more = tail_range_job(j, i);
            if (!cpu_count_read(be, &more, true)) return;
        }
        if (j->of.read.p) add_bytes(buf_at(j->of.read, READ_INDEX * sizeof(uint64_t)), tail_bytes(j->sums, j->n));
    }
}
