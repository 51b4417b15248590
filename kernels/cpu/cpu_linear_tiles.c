/* SPDX-License-Identifier: MIT */
/* linear by tiles: x packed once, then all jobs, in one parallel region. */
#include "config.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"
#include "kernels/ops_weights.h"

typedef struct {
    const cpu_kernels *k;
    const linear_job *jobs;
    size_t n_jobs, n, cols, parts;
    float *packed;
} product;

size_t cpu_tile_parts(const cpu_kernels *k, dtype t)
{
    if (!k->linear_tiles || t == DT_F32) return 0;
    return t == DT_F16 ? 2 : 1;
}

static size_t strips_of(size_t rows)
{
    return (rows + LINEAR_STRIP - 1) / LINEAR_STRIP;
}

/* Computes outputs [r0, r1) of a job. */
static void job_span(const product *p, const linear_job *j, float *work, size_t r0, size_t r1)
{
    for (size_t i = 0; i < p->n; i += LINEAR_SLICE)
        p->k->linear_tiles(&(tile_linear){.out = f32_at(j->out, 0) + i * j->w.rows,
                                          .out_stride = j->w.rows,
                                          .x = p->packed + i / LINEAR_STRIP * tile_strip_floats(p->cols, p->parts),
                                          .n = p->n - i < LINEAR_SLICE ? p->n - i : LINEAR_SLICE,
                                          .parts = p->parts,
                                          .w = j->w,
                                          .bias = j->bias,
                                          .work = work},
                           r0, r1);
}

/* Computes this thread's strips of the concatenated outputs of all jobs. */
static void jobs_span(const product *p, float *work)
{
    size_t from, to, all = 0, base = 0, r0, r1;
    for (size_t j = 0; j < p->n_jobs; j++) all += strips_of(p->jobs[j].w.rows);
    threads_split(all, 1, &from, &to);
    for (const linear_job *j = p->jobs; j < p->jobs + p->n_jobs; j++)
        if (cpu_job_rows(&r0, &r1, &base, j->w.rows, LINEAR_STRIP, from, to)) job_span(p, j, work, r0, r1);
}

void cpu_linear_tiles(backend *be, const linear_job *jobs, size_t n_jobs, const float *x, size_t n)
{
    cpu_ctx *c = cpu_of(be);
    product p = {c->k, jobs, n_jobs, n, jobs->w.cols, cpu_tile_parts(c->k, jobs->w.type), NULL};
    p.packed =
        cpu_scratch(be, &c->halves, strips_of(n) * tile_strip_floats(p.cols, p.parts), sizeof *x, "bf16 activations");
    float *work = cpu_scratch(be, &c->panel, (size_t)be->n_threads * TILE_LINEAR_FLOATS, sizeof *work, "packed panels");
    if (!p.packed || !work) return;
#pragma omp parallel num_threads(be->n_threads)
    {
        size_t a, b;
        threads_split(strips_of(n), 1, &a, &b);
        p.k->pack_tiles(p.packed, x, n, p.cols, p.parts, a, b);
#pragma omp barrier
        jobs_span(&p, work + (size_t)threads_id() * TILE_LINEAR_FLOATS);
    }
}
