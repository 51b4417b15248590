/* SPDX-License-Identifier: MIT */
/* Norms, rotation, activation, tables and KV rows: splits work over threads for the level's serial kernels. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/ops_weights.h"

void cpu_embed(backend *be, buf out, weight table, buf ids, size_t n)
{
    const int32_t *id = (const int32_t *)(void *)ids.p;
    size_t row = dtype_in_qblocks(table.type) ? 0 : table.cols * dtype_size(table.type);
#pragma omp parallel num_threads(cpu_team(be, n *table.cols))
    {
        size_t a, b;
        threads_split(n, 1, &a, &b);
        for (size_t i = a; i < b; i++) {
            float *to = f32_at(out, 0) + i * table.cols;
            if (dtype_in_qblocks(table.type)) qblock_row(to, table.p.p, table.type, table.cols, (size_t)id[i]);
            else cpu_of(be)->k->widen(to, table.p.p + (size_t)id[i] * row, table.type, table.cols);
        }
    }
}

void cpu_rmsnorm(backend *be, buf out, buf x, weight w, size_t n, float eps)
{
#pragma omp parallel num_threads(cpu_team(be, n *w.cols * 2))
    {
        size_t a, b;
        threads_split(n, 1, &a, &b);
        if (a < b)
            cpu_of(be)->k->rmsnorm(f32_at(out, 0) + a * w.cols, f32_at(x, 0) + a * w.cols, w.p.p, w.type, b - a, w.cols,
                                   eps);
    }
}

void cpu_swiglu(backend *be, buf out, buf gate, buf up, size_t n)
{
#pragma omp parallel num_threads(cpu_team(be, n * 8))
    {
        size_t a, b;
        threads_split(n, 64, &a, &b);
        cpu_of(be)->k->swiglu(f32_at(out, 0) + a, f32_at(gate, 0) + a, f32_at(up, 0) + a, b - a);
    }
}

void cpu_gate(backend *be, buf x, buf gate, size_t n)
{
#pragma omp parallel num_threads(cpu_team(be, n * 8))
    {
        size_t a, b;
        threads_split(n, 64, &a, &b);
        cpu_of(be)->k->gate(f32_at(x, 0) + a, f32_at(gate, 0) + a, b - a);
    }
}

void cpu_softcap(backend *be, buf x, size_t n, float by, float cap)
{
#pragma omp parallel num_threads(cpu_team(be, n * 16))
    {
        size_t a, b;
        threads_split(n, 64, &a, &b);
        for (float *p = f32_at(x, 0) + a; p < f32_at(x, 0) + b; p++) *p = cap * tanhf(*p * by);
    }
}

void cpu_sum_rows(backend *be, buf out, buf x, buf at, buf by, size_t n, size_t terms, size_t cols)
{
#pragma omp parallel num_threads(cpu_team(be, n *terms *cols * 2))
    {
        size_t a, b;
        threads_split(n, 1, &a, &b);
        if (a < b)
            ref_sum_rows(be, buf_at(out, a * cols * sizeof(float)), x, buf_at(at, a * terms * sizeof(int32_t)),
                         buf_at(by, a * terms * sizeof(float)), b - a, terms, cols);
    }
}

void cpu_add(backend *be, buf x, buf y, size_t n)
{
#pragma omp parallel num_threads(cpu_team(be, n))
    {
        size_t a, b;
        threads_split(n, 64, &a, &b);
        cpu_of(be)->k->add(f32_at(x, 0) + a, f32_at(y, 0) + a, b - a);
    }
}

/* The C library's sincos reduces any double exactly, even p * f above 10^6. */
void cpu_rope_table(backend *be, buf out, buf pos, size_t n, buf freq, size_t half, float mscale)
{
    (void)be; /* unused without OpenMP */
#pragma omp parallel num_threads(cpu_team(be, n *half * 64))
    {
        size_t a, b;
        threads_split(n, 1, &a, &b);
        for (size_t i = a; i < b; i++)
            for (size_t c = 0; c < half; c++) {
                float *o = f32_at(out, 0) + 2 * (i * half + c);
                double s, co;
                sincos((double)i64_at(pos, 0)[i] * (double)f32_at(freq, 0)[c], &s, &co);
                o[0] = (float)(co * (double)mscale);
                o[1] = (float)(s * (double)mscale);
            }
    }
}

void cpu_rope(backend *be, buf out, buf x, buf table, size_t n, size_t heads, size_t dim, size_t half)
{
#pragma omp parallel num_threads(cpu_team(be, n *heads *half * 4))
    {
        size_t a, b;
        threads_split(n * heads, 1, &a, &b);
        cpu_of(be)->k->rope(f32_at(out, 0), f32_at(x, 0), f32_at(table, 0), heads, dim, half, a, b);
    }
}

static void write_head(const cpu_kernels *kn, const kv_write_job *j, size_t h)
{
    const kv_rows *rows = j->rows;
    size_t d = rows->head_dim, heads = rows->n_kv_heads, row = kv_row_bytes(rows->type, d);
    for (size_t i = 0; i < j->n; i++) {
        size_t slot =
            j->slots.p ? (size_t)i64_at(j->slots, 0)[j->n_lists == 1 ? i : i * heads + h] : (size_t)j->first + i;
        size_t to = (h * rows->cap + slot) * row, from = (i * heads + h) * d;
        kn->put_row(rows->k.p + to, f32_at(j->k, from), rows->type, rows->rotated & KV_ROTATED_K, d);
        if (j->v.p) kn->put_row(rows->v.p + to, f32_at(j->v, from), rows->type, rows->rotated & KV_ROTATED_V, d);
    }
}

/* A thread has whole heads of sequences and writes their tokens in order, so the last write to a repeated slot wins. */
void cpu_kv_write(backend *be, const kv_write_job *jobs, size_t n_jobs)
{
    size_t heads = jobs->rows->n_kv_heads;
#pragma omp parallel num_threads(cpu_team(be, n_jobs * jobs->n * heads * jobs->rows->head_dim * 2))
    {
        size_t a, b;
        threads_split(n_jobs * heads, 1, &a, &b);
        for (size_t i = a; i < b; i++) write_head(cpu_of(be)->k, &jobs[i / heads], i % heads);
    }
}

void cpu_attn_merge(backend *be, buf out, buf lse, buf parts, buf lses, size_t n_parts, size_t n_rows, size_t dim)
{
#pragma omp parallel num_threads(cpu_team(be, n_parts *n_rows *dim * 2))
    {
        size_t a, b;
        threads_split(n_rows, 1, &a, &b);
        for (size_t r = a; r < b; r++)
            cpu_of(be)->k->merge(f32_at(out, 0) + r * dim, lse.p ? f32_at(lse, 0) + r : NULL,
                                 f32_at(parts, 0) + r * dim, f32_at(lses, 0) + r, NULL, n_parts, n_rows * dim, n_rows,
                                 dim);
    }
}
