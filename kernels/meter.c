/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/meter.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

/* A pass queues several copies or products, so that the final wait is a small part of the time. */
enum { COPIES = 4, PRODUCTS = 4, LEAST_DIM = 256, MOST_DIM = 8192, LEAST_COPY = 1 << 20, MOST_COPY = 1 << 30 };
enum { PASSES = 9, PIECE = 16 << 20 };

struct meter {
    backend *be;
    cpu_meter *cpu; /* NULL: a device, for which the other fields are used */
    size_t bytes, dim;
    buf from, to, x, w, out; /* [bytes] twice; [dim, dim] f32, w of any type; [PRODUCTS][dim, dim] f32 */
};

static size_t matrix(size_t dim)
{
    return dim * dim * sizeof(float);
}

static double now_ns(meter *m)
{
    m->be->ops->sync(m->be);
    return (double)clock_ns();
}

/* Returns the nanoseconds of a pass. */
static double copy_ns(meter *m)
{
    double t0 = now_ns(m);
    for (int i = 0; i < COPIES; i++) m->be->ops->copy(m->be, m->to, m->from, m->bytes);
    return now_ns(m) - t0;
}

static double product_ns(meter *m, dtype type)
{
    linear_job j[PRODUCTS];
    for (size_t i = 0; i < PRODUCTS; i++)
        j[i] = (linear_job){.out = buf_at(m->out, i * matrix(m->dim)),
                            .w = {.p = m->w, .type = type, .rows = m->dim, .cols = m->dim}};
    double t0 = now_ns(m);
    m->be->ops->linear(m->be, j, PRODUCTS, m->x, m->dim, false);
    return now_ns(m) - t0;
}

/* ---- memory ---- */

static status upload_noise(meter *m, buf b, size_t bytes, err *e)
{
    unsigned char *noise;
    size_t piece = bytes < PIECE ? bytes : PIECE;
    TRY(mem_alloc((void **)&noise, piece, 1, "random numbers", e));
    limits_noise(noise, piece);
    for (size_t at = 0; at < bytes; at += piece)
        m->be->ops->upload(m->be, buf_at(b, at), noise, bytes - at < piece ? bytes - at : piece);
    mem_free(noise);
    return backend_fault(m->be, e);
}

static void drop(meter *m, buf *b, size_t bytes)
{
    if (b->p) m->be->ops->free(m->be, *b, bytes);
    b->p = NULL;
}

static void drop_copies(meter *m)
{
    drop(m, &m->from, m->bytes);
    drop(m, &m->to, m->bytes);
}

static void drop_matrices(meter *m)
{
    drop(m, &m->x, matrix(m->dim));
    drop(m, &m->w, matrix(m->dim));
    drop(m, &m->out, PRODUCTS * matrix(m->dim));
}

static status take(meter *m, buf *b, size_t bytes, bool noise, err *e)
{
    TRY(m->be->ops->alloc(m->be, b, bytes, "memory of the benchmark", e));
    return noise ? upload_noise(m, *b, bytes, e) : ST_OK;
}

static status take_copies(meter *m, size_t bytes, err *e)
{
    drop_copies(m);
    m->bytes = bytes;
    TRY(take(m, &m->from, bytes, true, e));
    return take(m, &m->to, bytes, false, e);
}

static status take_matrices(meter *m, size_t dim, err *e)
{
    drop_matrices(m);
    m->dim = dim;
    TRY(take(m, &m->x, matrix(dim), true, e));
    TRY(take(m, &m->w, matrix(dim), true, e));
    return take(m, &m->out, PRODUCTS * matrix(dim), false, e);
}

/* True if the size should be doubled: the second pass, without warm-up costs, was short, and enough memory is free. */
static bool grows(const meter *m, double ns, size_t size, size_t most, size_t next_bytes)
{
    size_t free_bytes = m->be->ops->available(m->be);
    return ns < METER_PASS_NS && size < most && next_bytes <= free_bytes / 8;
}

static status find_sizes(meter *m, err *e)
{
    double ns;
    size_t dim = LEAST_DIM, bytes = LEAST_COPY;
    do {
        TRY(take_copies(m, bytes, e));
        copy_ns(m);
        ns = copy_ns(m);
        bytes *= 2;
    } while (grows(m, ns, m->bytes, MOST_COPY, 2 * bytes));
    do {
        TRY(take_matrices(m, dim, e));
        product_ns(m, DT_BF16);
        ns = product_ns(m, DT_BF16);
        dim *= 2;
    } while (grows(m, ns, m->dim, MOST_DIM, (2 + PRODUCTS) * matrix(dim)));
    return backend_fault(m->be, e);
}

status meter_create(meter **out, backend *be, err *e)
{
    meter *m;
    *out = NULL;
    TRY(MEM_NEW(&m, 1, e));
    m->be = be;
    status st = strcmp(be->name, "cpu") == 0 ? cpu_meter_create(&m->cpu, be, e) : find_sizes(m, e);
    if (st == ST_OK) *out = m;
    else meter_free(m);
    return st;
}

void meter_free(meter *m)
{
    if (!m) return;
    cpu_meter_free(m->cpu);
    drop_copies(m);
    drop_matrices(m);
    mem_free(m);
}

/* ---- readings ---- */

double meter_read(meter *m)
{
    return m->cpu ? cpu_meter_read(m->cpu) : 2.0 * COPIES * (double)m->bytes / copy_ns(m);
}

double meter_product(meter *m, product_kind kind)
{
    if (m->cpu) return cpu_meter_product(m->cpu, kind);
    if (kind == PRODUCT_S8) return 0;
    double n = (double)m->dim;
    return 2.0 * PRODUCTS * n * n * n / product_ns(m, kind == PRODUCT_F32 ? DT_F32 : DT_BF16);
}

double meter_tiles(const meter *m)
{
    return m->cpu ? cpu_meter_tiles(m->cpu) : 0;
}

meter_usage meter_spent(const meter *m)
{
    return m->cpu ? cpu_meter_usage(m->cpu) : (meter_usage){0};
}

void meter_limits(meter *m, kernel_limits *out)
{
    double x[PASSES];
    if (m->cpu) {
        cpu_meter_limits(m->cpu, out);
        return;
    }
    *out = (kernel_limits){.copied = true, .buffer_bytes = 2 * m->bytes};
    for (int i = 0; i < PASSES; i++) x[i] = meter_read(m);
    out->read_gbs = limits_middle(x, PASSES);
    out->read_low = x[0];
    out->read_high = x[PASSES - 1];
    for (product_kind kind = PRODUCT_F32; kind < PRODUCT_S8; kind++) {
        meter_product(m, kind); /* warm-up */
        for (int i = 0; i < PASSES; i++) x[i] = meter_product(m, kind);
        out->gemm_gops[kind] = limits_middle(x, PASSES);
    }
    snprintf(out->gemm_name, sizeof out->gemm_name, "%s", m->be->about);
}
