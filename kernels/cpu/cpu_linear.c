/* SPDX-License-Identifier: MIT */
/* linear: few rows, or exact: our kernels, all jobs in one parallel region; many rows: a vendor's
 * GEMM, on bf16 as stored where the CPU multiplies it, else on panels of w widened to float32. */
#include "config.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"

enum {
    VENDOR_FROM = 16,          /* rows of x */
    PANEL_BYTES = 4 * 1024 * 1024 /* of widened w: stays in L3 between widening and use */
};

/* Rows [from, to) of all jobs' outputs laid end to end. */
static void jobs_span(const cpu_kernels *k, const linear_job *jobs, size_t n_jobs, const float *x, size_t n,
                      size_t from, size_t to)
{
    size_t base = 0;
    for (size_t j = 0; j < n_jobs; j++) {
        size_t rows = jobs[j].w.rows, a = from > base ? from - base : 0, b = to > base ? to - base : 0;
        if (b > rows) b = rows;
        if (a < b) k->linear(cpu_f32(jobs[j].out), rows, x, n, &jobs[j].w, &jobs[j].bias, a, b);
        base += rows;
    }
}

static void linear_builtin(backend *be, const linear_job *jobs, size_t n_jobs, const float *x, size_t n)
{
    size_t rows = 0;
    for (size_t j = 0; j < n_jobs; j++) rows += jobs[j].w.rows;
#pragma omp parallel num_threads(cpu_team(be, rows * jobs[0].w.cols * n * 2))
    {
        size_t a, b;
        threads_split(rows, 8, &a, &b);
        jobs_span(cpu_of(be)->k, jobs, n_jobs, x, n, a, b);
    }
}

/* Widens `n` values with all threads. */
static void widen_parallel(backend *be, float *out, const unsigned char *in, dtype t, size_t n)
{
#pragma omp parallel num_threads(be->n_threads)
    {
        size_t a, b;
        threads_split(n, 64, &a, &b);
        cpu_of(be)->k->widen(out + a, in + a * dtype_size(t), t, b - a);
    }
}

static void narrow_parallel(backend *be, uint16_t *out, const float *in, size_t n)
{
#pragma omp parallel num_threads(be->n_threads)
    {
        size_t a, b;
        threads_split(n, 64, &a, &b);
        cpu_of(be)->k->narrow(out + a, in + a, DT_BF16, b - a);
    }
}

static void add_bias(backend *be, const linear_job *j, const float *bias, size_t n)
{
    size_t rows = j->w.rows;
#pragma omp parallel num_threads(be->n_threads)
    {
        size_t a, b;
        threads_split(n, 1, &a, &b);
        for (size_t i = a; i < b; i++) cpu_of(be)->k->add(cpu_f32(j->out) + i * rows, bias, rows);
    }
}

static void linear_f32(backend *be, const linear_job *j, const float *x, size_t n)
{
    cpu_ctx *c = cpu_of(be);
    size_t k = j->w.cols, m = j->w.rows, row_bytes = k * dtype_size(j->w.type);
    if (j->w.type == DT_F32 && (uintptr_t)j->w.p.p % sizeof(float) == 0) {
        gemm_f32(c->gemm, x, cpu_f32(j->w.p), cpu_f32(j->out), n, m, k, m, &be->fault);
        return;
    }
    size_t panel = PANEL_BYTES / (k * sizeof(float)) / 16 * 16;
    if (panel < 16) panel = 16;
    if (panel > m) panel = m;
    float *wide = cpu_scratch(be, &c->panel, panel * k, sizeof *wide, "panel of a widened weight");
    if (!wide) return;
    for (size_t r = 0; r < m; r += panel) {
        size_t rows = m - r < panel ? m - r : panel;
        widen_parallel(be, wide, j->w.p.p + r * row_bytes, j->w.type, rows * k);
        gemm_f32(c->gemm, x, wide, cpu_f32(j->out) + r, n, rows, k, m, &be->fault);
    }
}

static void linear_vendor(backend *be, const linear_job *jobs, size_t n_jobs, const float *x, size_t n)
{
    cpu_ctx *c = cpu_of(be);
    uint16_t *half = NULL; /* x in bf16, made once for all jobs that want it */
    size_t k = jobs[0].w.cols;
    for (size_t i = 0; i < n_jobs; i++) {
        const linear_job *j = &jobs[i];
        if (j->w.type == DT_BF16 && c->bf16_gemm) {
            if (!half) {
                half = cpu_scratch(be, &c->halves, n * k, sizeof *half, "bf16 activations");
                if (!half) return;
                narrow_parallel(be, half, x, n * k);
            }
            gemm_bf16(c->gemm, half, (const uint16_t *)(void *)j->w.p.p, cpu_f32(j->out), n, j->w.rows, k,
                      j->w.rows, &be->fault);
        } else {
            linear_f32(be, j, x, n);
        }
        if (!j->bias.p.p) continue;
        float *bias = cpu_scratch(be, &c->panel, j->w.rows, sizeof *bias, "bias");
        if (!bias) return;
        c->k->widen(bias, j->bias.p.p, j->bias.type, j->w.rows);
        add_bias(be, j, bias, n);
    }
}

void cpu_linear(backend *be, const linear_job *jobs, size_t n_jobs, buf x, size_t n, bool exact)
{
    if (n == 0 || n_jobs == 0) return;
    if (n < VENDOR_FROM || exact || !cpu_of(be)->gemm) linear_builtin(be, jobs, n_jobs, cpu_f32(x), n);
    else linear_vendor(be, jobs, n_jobs, cpu_f32(x), n);
}
