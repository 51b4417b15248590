/* SPDX-License-Identifier: MIT */
/* OpenBLAS built with OpenMP, which shares our thread pool. */
#include "config.h"

#include "kernels/cpu/gemm.h"

#include <cblas.h>
#include <limits.h>
#include <stdio.h>

#include "kernels/base/mem.h"
#include "kernels/cpu/threads.h"

struct gemm {
    int n_threads;
    char name[48];
};

status gemm_create(gemm **out, int n_threads, err *e)
{
    TRY(MEM_NEW(out, 1, e));
    (*out)->n_threads = n_threads;
    /* openblas_get_config() starts with "OpenBLAS 0.3.21 ..." */
    char version[32] = "";
    if (sscanf(openblas_get_config(), "OpenBLAS %31s", version) != 1) version[0] = '\0';
    snprintf((*out)->name, sizeof(*out)->name, "OpenBLAS%s%s", version[0] ? " " : "", version);
    return ST_OK;
}

void gemm_destroy(gemm *g)
{
    mem_free(g);
}

const char *gemm_name(const gemm *g)
{
    return g->name;
}

bool gemm_has_bf16(const gemm *g)
{
    (void)g;
    return false; /* sbgemm exists only in some builds */
}

bool gemm_has_s8(const gemm *g)
{
    (void)g;
    return false;
}

status gemm_f32(gemm *g, const float *x, const float *w, float *out, size_t n, size_t m, size_t k, size_t out_stride,
                err *e)
{
    if (n > INT_MAX || m > INT_MAX || k > INT_MAX || out_stride > INT_MAX)
        return err_set(e, ST_UNSUPPORTED, "OpenBLAS: a product of %zu x %zu x %zu is too large", n, m, k);
    thread_loan loan;
    openblas_set_num_threads(threads_lend(&loan, g->n_threads));
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)n, (int)m, (int)k, 1, x, (int)k, w, (int)k, 0, out,
                (int)out_stride);
    threads_return(&loan);
    return ST_OK;
}

status gemm_bf16(gemm *g, const uint16_t *x, const uint16_t *w, float *out, size_t n, size_t m, size_t k,
                 size_t out_stride, err *e)
{
    (void)g, (void)x, (void)w, (void)out, (void)n, (void)m, (void)k, (void)out_stride;
    return err_set(e, ST_UNSUPPORTED, "OpenBLAS: bf16 products are not supported");
}

status gemm_s8(gemm *g, const int8_t *x, const int8_t *w, int32_t *out, size_t n, size_t m, size_t k, err *e)
{
    (void)g, (void)x, (void)w, (void)out, (void)n, (void)m, (void)k;
    return err_set(e, ST_UNSUPPORTED, "OpenBLAS: int8 products are not supported");
}
