/* SPDX-License-Identifier: MIT */
/* oneDNN 2.6, C API. f32 uses dnnl_sgemm, which needs no preparation. bf16 uses matmul primitives, which take
 * milliseconds to create and are cached by shape. */
#include "config.h"

#include "kernels/cpu/gemm.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

#include "kernels/base/mem.h"
#include "kernels/cpu/threads.h"

enum { CACHE_MAX = 64 }; /* shapes of one model x the few chunk lengths in use */

typedef struct {
    size_t n, m, k, out_stride;
    int team; /* threads that the primitive splits its work over, fixed at creation */
    dnnl_primitive_t primitive;
    dnnl_memory_t x, w, out; /* handles are set at each call */
} bf16_product;

struct gemm {
    int n_threads;
    bool has_bf16, has_s8;
    char name[48];
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bf16_product cache[CACHE_MAX];
    size_t n_cached, oldest;
};

#define DNNL(call, e)                                                                                                  \
    do {                                                                                                               \
        dnnl_status_t s_ = (call);                                                                                     \
        if (s_ != dnnl_success)                                                                                        \
            return err_set((e), s_ == dnnl_out_of_memory ? ST_NOMEM : ST_DEVICE, "oneDNN: status %d from %s", (int)s_, \
                           #call);                                                                                     \
    } while (0)

/* False for AVX-512 without the bf16 extension, which emulates the products, slower than f32. */
static bool cpu_multiplies_bf16(void)
{
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return isa == dnnl_cpu_isa_avx512_core_bf16 || isa == dnnl_cpu_isa_avx512_core_amx;
}

/* False without VNNI: products of bytes take several instructions each. */
static bool cpu_multiplies_s8(void)
{
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return cpu_multiplies_bf16() || isa == dnnl_cpu_isa_avx512_core_vnni || isa == dnnl_cpu_isa_avx2_vnni;
}

static status open_engine(gemm *g, err *e)
{
    DNNL(dnnl_engine_create(&g->engine, dnnl_cpu, 0), e);
    DNNL(dnnl_stream_create(&g->stream, g->engine, dnnl_stream_default_flags), e);
    return ST_OK;
}

status gemm_create(gemm **out, int n_threads, err *e)
{
    gemm *g;
    *out = NULL;
    TRY(MEM_NEW(&g, 1, e));
    g->n_threads = n_threads;
    const dnnl_version_t *v = dnnl_version();
    snprintf(g->name, sizeof g->name, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    g->has_bf16 = cpu_multiplies_bf16();
    g->has_s8 = cpu_multiplies_s8();
    status st = open_engine(g, e);
    if (st != ST_OK) {
        gemm_destroy(g);
        return st;
    }
    *out = g;
    return ST_OK;
}

static void product_clear(bf16_product *p)
{
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    if (p->x) dnnl_memory_destroy(p->x);
    if (p->w) dnnl_memory_destroy(p->w);
    if (p->out) dnnl_memory_destroy(p->out);
    *p = (bf16_product){0};
}

void gemm_destroy(gemm *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n_cached; i++) product_clear(&g->cache[i]);
    if (g->stream) dnnl_stream_destroy(g->stream);
    if (g->engine) dnnl_engine_destroy(g->engine);
    mem_free(g);
}

const char *gemm_name(const gemm *g)
{
    return g->name;
}

bool gemm_has_bf16(const gemm *g)
{
    return g->has_bf16;
}

bool gemm_has_s8(const gemm *g)
{
    return g->has_s8;
}

status gemm_f32(gemm *g, const float *x, const float *w, float *out, size_t n, size_t m, size_t k, size_t out_stride,
                err *e)
{
    thread_loan loan;
    threads_lend(&loan, g->n_threads);
    dnnl_status_t s = dnnl_sgemm('N', 'T', (dnnl_dim_t)n, (dnnl_dim_t)m, (dnnl_dim_t)k, 1, x, (dnnl_dim_t)k, w,
                                 (dnnl_dim_t)k, 0, out, (dnnl_dim_t)out_stride);
    threads_return(&loan);
    if (s != dnnl_success) return err_set(e, ST_DEVICE, "oneDNN: status %d from sgemm", (int)s);
    return ST_OK;
}

static status matrix(dnnl_memory_desc_t *d, size_t rows, size_t cols, dnnl_data_type_t type, size_t row_stride,
                     size_t col_stride, err *e)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};
    const dnnl_dims_t strides = {(dnnl_dim_t)row_stride, (dnnl_dim_t)col_stride};
    DNNL(dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides), e);
    return ST_OK;
}

static status product_build(gemm *g, bf16_product *p, err *e)
{
    dnnl_memory_desc_t x, w, out;
    TRY(matrix(&x, p->n, p->k, dnnl_bf16, p->k, 1, e));
    TRY(matrix(&w, p->k, p->m, dnnl_bf16, 1, p->k, e)); /* the file's own [m, k], read as its transpose */
    TRY(matrix(&out, p->n, p->m, dnnl_f32, p->out_stride, 1, e));
    dnnl_matmul_desc_t md;
    DNNL(dnnl_matmul_desc_init(&md, &x, &w, NULL, &out), e);
    dnnl_primitive_desc_t pd;
    DNNL(dnnl_primitive_desc_create(&pd, &md, NULL, g->engine, NULL), e);
    dnnl_status_t s = dnnl_primitive_create(&p->primitive, pd);
    dnnl_primitive_desc_destroy(pd);
    DNNL(s, e);
    DNNL(dnnl_memory_create(&p->x, &x, g->engine, DNNL_MEMORY_NONE), e);
    DNNL(dnnl_memory_create(&p->w, &w, g->engine, DNNL_MEMORY_NONE), e);
    DNNL(dnnl_memory_create(&p->out, &out, g->engine, DNNL_MEMORY_NONE), e);
    return ST_OK;
}

/* Returns the product of this shape from the cache, or a new one in place of the oldest. */
static status product_find(gemm *g, bf16_product **out, const bf16_product *shape, err *e)
{
    for (size_t i = 0; i < g->n_cached; i++) {
        bf16_product *p = &g->cache[i];
        if (p->n == shape->n && p->m == shape->m && p->k == shape->k && p->out_stride == shape->out_stride &&
            p->team == shape->team) {
            *out = p;
            return ST_OK;
        }
    }
    bf16_product *p = &g->cache[g->n_cached < CACHE_MAX ? g->n_cached++ : g->oldest++ % CACHE_MAX];
    product_clear(p);
    *p = *shape;
    status st = product_build(g, p, e);
    if (st != ST_OK) product_clear(p); /* an empty shape matches no call */
    *out = p;
    return st;
}

static status product_run(gemm *g, bf16_product *p, const uint16_t *x, const uint16_t *w, float *out, err *e)
{
    DNNL(dnnl_memory_set_data_handle(p->x, (void *)(uintptr_t)x), e);
    DNNL(dnnl_memory_set_data_handle(p->w, (void *)(uintptr_t)w), e);
    DNNL(dnnl_memory_set_data_handle(p->out, out), e);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->w}, {DNNL_ARG_DST, p->out}};
    DNNL(dnnl_primitive_execute(p->primitive, g->stream, 3, args), e);
    DNNL(dnnl_stream_wait(g->stream), e);
    return ST_OK;
}

status gemm_bf16(gemm *g, const uint16_t *x, const uint16_t *w, float *out, size_t n, size_t m, size_t k,
                 size_t out_stride, err *e)
{
    if (!g->has_bf16) return err_set(e, ST_UNSUPPORTED, "oneDNN: this CPU does not support bf16 products");
    thread_loan loan;
    const bf16_product shape = {
        .n = n, .m = m, .k = k, .out_stride = out_stride, .team = threads_lend(&loan, g->n_threads)};
    bf16_product *p;
    status st = product_find(g, &p, &shape, e);
    if (st == ST_OK) st = product_run(g, p, x, w, out, e);
    threads_return(&loan);
    return st;
}

status gemm_s8(gemm *g, const int8_t *x, const int8_t *w, int32_t *out, size_t n, size_t m, size_t k, err *e)
{
    const int32_t zero = 0;
    thread_loan loan;
    threads_lend(&loan, g->n_threads);
    dnnl_status_t s = dnnl_gemm_s8s8s32('N', 'T', 'F', (dnnl_dim_t)n, (dnnl_dim_t)m, (dnnl_dim_t)k, 1, x, (dnnl_dim_t)k,
                                        0, w, (dnnl_dim_t)k, 0, 0, out, (dnnl_dim_t)m, &zero);
    threads_return(&loan);
    if (s != dnnl_success) return err_set(e, ST_UNSUPPORTED, "oneDNN: status %d from gemm_s8s8s32", (int)s);
    return ST_OK;
}
