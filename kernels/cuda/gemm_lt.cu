/* SPDX-License-Identifier: MIT */
/* Products with many rows by cublasLt. The library is opened only after a device was found: linking it would cost every
 * program start 67 ms and 220 MB. */
#include "config.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>

#include "kernels/base/mem.h"
#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/library.h"

/* The calls below are unchanged since the oldest supported version. */
enum { WORKSPACE = 32 << 20, OLDEST = 11 };

#define LT_CALLS(X)                                                                                                    \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtGetVersion)                                                                                              \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatrixLayoutSetAttribute)

struct cuda_gemm {
    void *library, *workspace;
    cudaStream_t stream;
    cublasLtHandle_t handle;
    bool batches; /* computes several products per call */
    char name[48];
#define LT_MEMBER(f) decltype(&f) f##_p;
    LT_CALLS(LT_MEMBER)
};

static bool find_calls(cuda_gemm *g)
{
    g->library = cuda_library("libcublasLt", CUBLAS_VER_MAJOR, OLDEST, CUBLAS_VER_MAJOR + 2);
    if (!g->library) return false;
#define LT_FIND(f)                                                                                                     \
    *(void **)&g->f##_p = dlsym(g->library, #f);                                                                       \
    if (!g->f##_p) return false;
    LT_CALLS(LT_FIND)
    return true;
}

static cudaDataType_t type_of(dtype t)
{
    return t == DT_F16 ? CUDA_R_16F : t == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* The library's descriptors for one call; NULL until created. */
typedef struct {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t w, x, out;
    cublasLtMatmulPreference_t wish;
} descriptions;

static void forget(cuda_gemm *g, descriptions *d)
{
    if (d->wish) g->cublasLtMatmulPreferenceDestroy_p(d->wish);
    if (d->out) g->cublasLtMatrixLayoutDestroy_p(d->out);
    if (d->x) g->cublasLtMatrixLayoutDestroy_p(d->x);
    if (d->w) g->cublasLtMatrixLayoutDestroy_p(d->w);
    if (d->op) g->cublasLtMatmulDescDestroy_p(d->op);
}

#define LT(call)                                                                                                       \
    if (int lt_rc = (int)g->call) return lt_rc

/* Makes a layout that of `count` matrices, each `stride` elements after the previous one. */
static int repeat(cuda_gemm *g, cublasLtMatrixLayout_t layout, size_t count, size_t stride)
{
    int32_t n = (int32_t)count;
    int64_t by = (int64_t)stride;
    LT(cublasLtMatrixLayoutSetAttribute_p(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n));
    LT(cublasLtMatrixLayoutSetAttribute_p(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &by, sizeof by));
    return 0;
}

/* Returns the largest power of two up to 256 that divides an address and a distance in bytes. */
static uint32_t alignment(const void *p, size_t stride)
{
    uint32_t a = 256;
    while (((uintptr_t)p | stride) % a) a /= 2;
    return a;
}

static int describe_memory(cuda_gemm *g, cublasLtMatmulPreference_t wish, const cuda_product *p)
{
    size_t workspace = WORKSPACE;
    uint32_t at_w = alignment(p->w, p->count > 1 ? p->rows * p->cols * dtype_size(p->type) : 0);
    uint32_t at_x = alignment(p->x, 0), at_out = alignment(p->out, p->out_stride * sizeof(float));
    LT(cublasLtMatmulPreferenceSetAttribute_p(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                              sizeof workspace));
    LT(cublasLtMatmulPreferenceSetAttribute_p(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &at_w, sizeof at_w));
    LT(cublasLtMatmulPreferenceSetAttribute_p(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &at_x, sizeof at_x));
    LT(cublasLtMatmulPreferenceSetAttribute_p(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &at_out,
                                              sizeof at_out));
    LT(cublasLtMatmulPreferenceSetAttribute_p(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &at_out,
                                              sizeof at_out));
    return 0;
}

/* Creates the descriptors. The library is column-major: out [rows, n] = w^T x with w [cols, rows] and x [cols, n]. All
 * products of a call read x, whose stride is therefore 0. */
static int describe(cuda_gemm *g, descriptions *d, const cuda_product *p)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    LT(cublasLtMatmulDescCreate_p(&d->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(cublasLtMatmulDescSetAttribute_p(d->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    LT(cublasLtMatrixLayoutCreate_p(&d->w, type_of(p->type), p->cols, p->rows, (int64_t)p->cols));
    LT(cublasLtMatrixLayoutCreate_p(&d->x, type_of(p->type), p->cols, p->n, (int64_t)p->cols));
    LT(cublasLtMatrixLayoutCreate_p(&d->out, CUDA_R_32F, p->rows, p->n, (int64_t)p->rows));
    if (p->count > 1) {
        if (int rc = repeat(g, d->w, p->count, p->rows * p->cols)) return rc;
        if (int rc = repeat(g, d->x, p->count, 0)) return rc;
        if (int rc = repeat(g, d->out, p->count, p->out_stride)) return rc;
    }
    LT(cublasLtMatmulPreferenceCreate_p(&d->wish));
    return describe_memory(g, d->wish, p);
}

/* Finds the library's kernel for a call. */
static int find_kernel(cuda_gemm *g, const descriptions *d, cublasLtMatmulHeuristicResult_t *found)
{
    int n_found = 0;
    LT(cublasLtMatmulAlgoGetHeuristic_p(g->handle, d->op, d->w, d->x, d->out, d->out, d->wish, 1, found, &n_found));
    return n_found ? 0 : CUBLAS_STATUS_NOT_SUPPORTED;
}

static int multiply(cuda_gemm *g, const descriptions *d, const cuda_product *p)
{
    float one = 1, beta = p->add;
    cublasLtMatmulHeuristicResult_t found;
    if (int rc = find_kernel(g, d, &found)) return rc;
    LT(cublasLtMatmul_p(g->handle, d->op, &one, p->w, d->w, p->x, d->x, &beta, p->out, d->out, p->out, d->out,
                        &found.algo, g->workspace, WORKSPACE, g->stream));
    return 0;
}

int cuda_gemm_run(cuda_gemm *g, const cuda_product *p)
{
    descriptions d = {};
    if (p->count > 1 && !g->batches) return CUDA_GEMM_REFUSED;
    int rc = describe(g, &d, p);
    if (rc == 0) rc = multiply(g, &d, p);
    forget(g, &d);
    return cuda_gemm_result(rc);
}

/* ---- opening ---- */

/* True if the library has a kernel for k and v of an 8B shape in one call. */
static bool finds_batches(cuda_gemm *g)
{
    enum { N = 512, ROWS = 1024, COLS = 4096 };
    const cuda_product p = {NULL, NULL, NULL, DT_BF16, N, ROWS, COLS, 2, N * ROWS, false};
    cublasLtMatmulHeuristicResult_t unused;
    descriptions d = {};
    bool found = describe(g, &d, &p) == 0 && find_kernel(g, &d, &unused) == 0;
    forget(g, &d);
    return found;
}

cuda_gemm *cuda_gemm_create(int, cudaStream_t s)
{
    cuda_gemm *g;
    if (mem_alloc((void **)&g, 1, sizeof *g, "cublasLt", NULL) != ST_OK) return NULL;
    g->stream = s;
    if (find_calls(g) && g->cublasLtCreate_p(&g->handle) == CUBLAS_STATUS_SUCCESS &&
        cudaMalloc(&g->workspace, WORKSPACE) == cudaSuccess) {
        size_t v = g->cublasLtGetVersion_p();
        g->batches = finds_batches(g);
        snprintf(g->name, sizeof g->name, "cublasLt %zu.%zu%s", v / 10000, v / 100 % 100,
                 g->batches ? "" : " without batches");
        return g;
    }
    cudaGetLastError(); /* otherwise the next launch would return this error */
    cuda_gemm_destroy(g);
    return NULL;
}

void cuda_gemm_destroy(cuda_gemm *g)
{
    if (!g) return;
    cudaFree(g->workspace);
    if (g->handle) g->cublasLtDestroy_p(g->handle);
    mem_free(g);
}

const char *cuda_gemm_name(const cuda_gemm *g)
{
    return g->name;
}
