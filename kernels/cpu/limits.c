/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/cpu/limits.h"

#include <string.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"

enum { PASSES = 12, GEMM_RUNS = 6, ROWS = 512, DIM = 2048, PAGE = 4096 };

/* Four times the last-level cache, at least 256 MB: nothing of a pass is left for the next one. */
static size_t buffer_size(void)
{
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t bytes = (size_t)256 << 20;
    if (l3 > 0 && 4 * (size_t)l3 > bytes) bytes = 4 * (size_t)l3;
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* The best of several passes: a pass that was interrupted says nothing about the memory. */
static status measure_read(backend *be, kernel_limits *out, err *e)
{
    unsigned char *p;
    size_t bytes = buffer_size();
    TRY(mem_map_anon((void **)&p, bytes, "buffer of the memory benchmark", e));
    int64_t best = INT64_MAX;
    volatile float sink = 0; /* the sum must be wanted, or the loop disappears */
    for (int pass = 0; pass < PASSES; pass++) {
        int64_t t0 = clock_ns();
        float total = 0;
#pragma omp parallel num_threads(be->n_threads) reduction(+ : total)
        {
            size_t a, b;
            threads_split(bytes, PAGE, &a, &b);
            if (pass == 0) memset(p + a, 1, b - a); /* each thread touches its own part first */
            else if (a < b) total += cpu_of(be)->k->read_sum(p + a, b - a);
        }
        int64_t t = clock_ns() - t0;
        sink = total;
        if (pass > 0 && t < best) best = t;
    }
    (void)sink;
    out->buffer_bytes = bytes;
    out->read_gbs = (double)bytes / (double)best;
    mem_unmap(p, bytes);
    return ST_OK;
}

typedef struct {
    unsigned char *x, *w, *out;
} matrices;

typedef enum { PRODUCT_F32, PRODUCT_BF16, PRODUCT_S8 } product;

static status run_product(backend *be, product kind, const matrices *m, err *e)
{
    gemm *g = cpu_of(be)->gemm;
    float *out = (float *)(void *)m->out;
    const void *x = m->x, *w = m->w;
    if (kind == PRODUCT_S8) return gemm_s8(g, x, w, (int32_t *)(void *)m->out, ROWS, DIM, DIM, e);
    if (kind == PRODUCT_BF16) return gemm_bf16(g, x, w, out, ROWS, DIM, DIM, DIM, e);
    if (g) return gemm_f32(g, x, w, out, ROWS, DIM, DIM, DIM, e);
    linear_job j = {.out = {m->out}, .w = {{m->w}, DT_F32, DIM, DIM}};
    cpu_linear(be, &j, 1, (buf){m->x}, ROWS, true);
    return ST_OK;
}

/* 10^9 operations/s, best of several runs; 0 where the product does not exist here. */
static double measure_product(backend *be, product kind, const matrices *m)
{
    int64_t best = INT64_MAX;
    for (int i = 0; i < GEMM_RUNS; i++) {
        int64_t t0 = clock_ns();
        if (run_product(be, kind, m, NULL) != ST_OK) return 0;
        int64_t t = clock_ns() - t0;
        if (t < best) best = t;
    }
    return 2.0 * ROWS * DIM * DIM / (double)best;
}

status cpu_measure_limits(backend *be, kernel_limits *out, err *e)
{
    if (strcmp(be->name, "cpu") != 0) return err_set(e, ST_UNSUPPORTED, "%s: only the cpu backend is measured", be->name);
    cpu_ctx *c = cpu_of(be);
    matrices m = {0};
    status st = ST_OK;
    *out = (kernel_limits){0};
    TRY(measure_read(be, out, e));
    TRY_GOTO(mem_alloc((void **)&m.x, (size_t)ROWS * DIM, 4, "benchmark matrix", e));
    TRY_GOTO(mem_alloc((void **)&m.w, (size_t)DIM * DIM, 4, "benchmark matrix", e));
    TRY_GOTO(mem_alloc((void **)&m.out, (size_t)ROWS * DIM, 4, "benchmark matrix", e));
    out->gemm_f32_gflops = measure_product(be, PRODUCT_F32, &m);
    if (c->bf16_gemm) out->gemm_bf16_gflops = measure_product(be, PRODUCT_BF16, &m);
    if (c->gemm) out->gemm_int8_gops = measure_product(be, PRODUCT_S8, &m);
done:
    mem_free(m.x);
    mem_free(m.w);
    mem_free(m.out);
    return st;
}
