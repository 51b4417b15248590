/* SPDX-License-Identifier: MIT */
/* Build without a GEMM library: cpu_linear.c uses the built-in GEMM. */
#include "config.h"

#include "kernels/cpu/gemm.h"

status gemm_create(gemm **out, int n_threads, err *e)
{
    (void)n_threads;
    (void)e;
    *out = NULL;
    return ST_OK;
}

void gemm_destroy(gemm *g)
{
    (void)g;
}

const char *gemm_name(const gemm *g)
{
    (void)g;
    return "built-in GEMM";
}

bool gemm_has_bf16(const gemm *g)
{
    (void)g;
    return false;
}

bool gemm_has_s8(const gemm *g)
{
    (void)g;
    return false;
}

static status none(err *e)
{
    return err_set(e, ST_UNSUPPORTED, "built without a GEMM library");
}

status gemm_f32(gemm *g, const float *x, const float *w, float *out, size_t n, size_t m, size_t k, size_t out_stride,
                err *e)
{
    (void)g, (void)x, (void)w, (void)out, (void)n, (void)m, (void)k, (void)out_stride;
    return none(e);
}

status gemm_bf16(gemm *g, const uint16_t *x, const uint16_t *w, float *out, size_t n, size_t m, size_t k,
                 size_t out_stride, err *e)
{
    (void)g, (void)x, (void)w, (void)out, (void)n, (void)m, (void)k, (void)out_stride;
    return none(e);
}

status gemm_s8(gemm *g, const int8_t *x, const int8_t *w, int32_t *out, size_t n, size_t m, size_t k, err *e)
{
    (void)g, (void)x, (void)w, (void)out, (void)n, (void)m, (void)k;
    return none(e);
}
