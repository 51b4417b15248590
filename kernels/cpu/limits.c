/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/cpu/limits.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"

enum { PASSES = 32, GEMM_PASSES = 5, ROWS = 512, DIM = 2048, PAGE = 4096 };

struct cpu_meter {
    backend *be;
    unsigned char *buffer;
    size_t bytes, at;           /* size of the buffer; start of the next pass */
    unsigned char *x, *w, *out; /* matrices of the products */
};

/* Returns four times the last-level cache, at least 256 MB, so that no data of a pass is still cached when the buffer
 * wraps around. */
static size_t buffer_size(void)
{
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t bytes = 4 * (size_t)METER_READ;
    if (l3 > 0 && 4 * (size_t)l3 > bytes) bytes = 4 * (size_t)l3;
    return (bytes + METER_READ - 1) / METER_READ * METER_READ;
}

double cpu_meter_read(cpu_meter *m)
{
    const cpu_kernels *k = cpu_of(m->be)->k;
    const unsigned char *p = m->buffer + m->at;
    int64_t t0 = 0;
    float total = 0;
    volatile float sink; /* prevents the compiler from removing the loop */
    m->at = (m->at + METER_READ) % m->bytes;
#pragma omp parallel num_threads(m->be->n_threads) reduction(+ : total)
    {
        size_t a, b;
        threads_split(METER_READ, PAGE, &a, &b);
        /* Wakes sleeping threads before the clock starts. */
#pragma omp barrier
#pragma omp master
        t0 = clock_ns();
        if (a < b) total += k->read_sum(p + a, b - a);
    }
    int64_t t = clock_ns() - t0;
    sink = total;
    (void)sink;
    return (double)METER_READ / (double)t;
}

static status run_product(const cpu_meter *m, product_kind kind, err *e)
{
    gemm *g = cpu_of(m->be)->gemm;
    float *out = (float *)(void *)m->out;
    const void *x = m->x, *w = m->w;
    if (kind == PRODUCT_S8) return gemm_s8(g, x, w, (int32_t *)(void *)m->out, ROWS, DIM, DIM, e);
    if (kind == PRODUCT_BF16) return gemm_bf16(g, x, w, out, ROWS, DIM, DIM, DIM, e);
    if (g) return gemm_f32(g, x, w, out, ROWS, DIM, DIM, DIM, e);
    linear_job j = {.out = {m->out}, .w = {.p = {m->w}, .type = DT_F32, .rows = DIM, .cols = DIM}};
    cpu_linear(m->be, &j, 1, (buf){m->x}, ROWS, true);
    return ST_OK;
}

static bool has_product(const cpu_meter *m, product_kind kind)
{
    const cpu_ctx *c = cpu_of(m->be);
    if (kind == PRODUCT_F32) return true;
    return kind == PRODUCT_BF16 ? c->bf16_gemm : c->gemm && gemm_has_s8(c->gemm);
}

double cpu_meter_product(cpu_meter *m, product_kind kind)
{
    if (!has_product(m, kind)) return 0;
    int64_t t0 = clock_ns();
    if (run_product(m, kind, NULL) != ST_OK) return 0;
    return 2.0 * ROWS * DIM * DIM / (double)(clock_ns() - t0);
}

double cpu_meter_tiles(const cpu_meter *m)
{
    enum { TIMES = 128, SIDE = 16, TILES = 4 };
    const cpu_kernels *k = cpu_of(m->be)->k;
    if (!k->tile_products) return 0;
    k->tile_products((float *)(void *)m->out, m->x, m->w, 1); /* warm-up */
    int64_t t0 = clock_ns();
    k->tile_products((float *)(void *)m->out, m->x, m->w, TIMES);
    int64_t t = clock_ns() - t0;
    return 2.0 * TIMES * TILES * SIDE * SIDE * 2 * SIDE / (double)(t > 0 ? t : 1);
}

meter_usage cpu_meter_usage(const cpu_meter *m)
{
    meter_usage u = {0};
    struct rusage r;
    int64_t cpu = 0;
    /* Each thread reads its own clock: the kernel updates the process total only at ticks. */
#pragma omp parallel for schedule(static, 1) num_threads(m->be->n_threads) reduction(+ : cpu)
    for (int i = 0; i < m->be->n_threads; i++) cpu += clock_thread_ns();
    u.cpu_ns = cpu;
    if (getrusage(RUSAGE_SELF, &r) == 0) u.switches = r.ru_nivcsw;
    u.wall_ns = clock_ns();
    return u;
}

/* ---- measurements ---- */

double limits_middle(double *x, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k > 0 && x[k] < x[k - 1]; k--) {
            double y = x[k];
            x[k] = x[k - 1];
            x[k - 1] = y;
        }
    return x[n / 2];
}

void cpu_meter_limits(cpu_meter *m, kernel_limits *out)
{
    const cpu_ctx *c = cpu_of(m->be);
    double speed[PASSES + 1];
    *out = (kernel_limits){0};
    for (int i = 0; i <= PASSES; i++) speed[i] = cpu_meter_read(m);
    out->read_gbs = limits_middle(speed, PASSES + 1);
    out->read_low = speed[0];
    out->read_high = speed[PASSES];
    for (int kind = 0; kind < PRODUCT_KINDS; kind++) {
        cpu_meter_product(m, (product_kind)kind); /* warm-up */
        for (int i = 0; i < GEMM_PASSES; i++) speed[i] = cpu_meter_product(m, (product_kind)kind);
        out->gemm_gops[kind] = limits_middle(speed, GEMM_PASSES);
    }
    snprintf(out->gemm_name, sizeof out->gemm_name, "%s", c->gemm ? gemm_name(c->gemm) : "built-in kernels");
    out->buffer_bytes = m->bytes;
}

void limits_noise(unsigned char *p, size_t bytes)
{
    rng r = {1};
    for (size_t i = 0; i < bytes; i += 2) {
        uint64_t x = rng_next(&r);
        p[i] = (unsigned char)x;
        p[i + 1] = (unsigned char)(0x3c | (x >> 8 & 0x80));
    }
}

status cpu_meter_create(cpu_meter **out, backend *be, err *e)
{
    cpu_meter *m;
    const size_t x = (size_t)ROWS * DIM, w = (size_t)DIM * DIM;
    *out = NULL;
    if (strcmp(be->name, "cpu") != 0)
        return err_set(e, ST_UNSUPPORTED, "%s: only the cpu backend can be measured", be->name);
    TRY(MEM_NEW(&m, 1, e));
    *m = (cpu_meter){.be = be, .bytes = buffer_size()};
    status st = mem_map_anon((void **)&m->buffer, m->bytes, "buffer of the memory benchmark", e);
    if (st == ST_OK) st = mem_alloc((void **)&m->x, x, 4, "benchmark matrix", e);
    if (st == ST_OK) st = mem_alloc((void **)&m->w, w, 4, "benchmark matrix", e);
    if (st == ST_OK) st = mem_alloc((void **)&m->out, x, 4, "benchmark matrix", e);
    if (st != ST_OK) {
        cpu_meter_free(m);
        return st;
    }
    limits_noise(m->x, 4 * x);
    limits_noise(m->w, 4 * w);
#pragma omp parallel num_threads(be->n_threads)
    {
        size_t a, b;
        threads_split(m->bytes, PAGE, &a, &b);
        memset(m->buffer + a, 1, b - a);
    }
    *out = m;
    return ST_OK;
}

void cpu_meter_free(cpu_meter *m)
{
    if (!m) return;
    if (m->buffer) mem_unmap(m->buffer, m->bytes);
    mem_free(m->x);
    mem_free(m->w);
    mem_free(m->out);
    mem_free(m);
}
