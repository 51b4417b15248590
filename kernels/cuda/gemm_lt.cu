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
    X(cublasLtMatrixLayoutDestroy)

struct cuda_gemm {
    void *library, *workspace;
    cudaStream_t stream;
    cublasLtHandle_t handle;
    char name[32];
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

cuda_gemm *cuda_gemm_create(int, cudaStream_t s)
{
    cuda_gemm *g;
    if (mem_alloc((void **)&g, 1, sizeof *g, "cublasLt", NULL) != ST_OK) return NULL;
    g->stream = s;
    if (find_calls(g) && g->cublasLtCreate_p(&g->handle) == CUBLAS_STATUS_SUCCESS &&
        cudaMalloc(&g->workspace, WORKSPACE) == cudaSuccess) {
        size_t v = g->cublasLtGetVersion_p();
        snprintf(g->name, sizeof g->name, "cublasLt %zu.%zu", v / 10000, v / 100 % 100);
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

static cudaDataType_t type_of(dtype t)
{
    return t == DT_F16 ? CUDA_R_16F : t == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* The library's descriptors for one product; NULL until created. */
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

/* Creates the descriptors. The library is column-major: out [rows, n] = w^T x with w [cols, rows] and x [cols, n]. */
static int describe(cuda_gemm *g, descriptions *d, dtype type, size_t n, size_t rows, size_t cols)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    size_t workspace = WORKSPACE;
    LT(cublasLtMatmulDescCreate_p(&d->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(cublasLtMatmulDescSetAttribute_p(d->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    LT(cublasLtMatrixLayoutCreate_p(&d->w, type_of(type), cols, rows, (int64_t)cols));
    LT(cublasLtMatrixLayoutCreate_p(&d->x, type_of(type), cols, n, (int64_t)cols));
    LT(cublasLtMatrixLayoutCreate_p(&d->out, CUDA_R_32F, rows, n, (int64_t)rows));
    LT(cublasLtMatmulPreferenceCreate_p(&d->wish));
    LT(cublasLtMatmulPreferenceSetAttribute_p(d->wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                              sizeof workspace));
    return 0;
}

/* Returns the largest power of two up to 256 that divides an address. */
static uint32_t alignment(const void *p)
{
    uint32_t a = 256;
    while ((uintptr_t)p % a) a /= 2;
    return a;
}

static int multiply(cuda_gemm *g, const descriptions *d, float *out, bool add, const void *x, const void *w)
{
    float one = 1, beta = add;
    uint32_t at_w = alignment(w), at_x = alignment(x), at_out = alignment(out);
    cublasLtMatmulHeuristicResult_t found;
    int n_found = 0;
    LT(cublasLtMatmulPreferenceSetAttribute_p(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &at_w, sizeof at_w));
    LT(cublasLtMatmulPreferenceSetAttribute_p(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &at_x, sizeof at_x));
    LT(cublasLtMatmulPreferenceSetAttribute_p(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &at_out,
                                              sizeof at_out));
    LT(cublasLtMatmulPreferenceSetAttribute_p(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &at_out,
                                              sizeof at_out));
    LT(cublasLtMatmulAlgoGetHeuristic_p(g->handle, d->op, d->w, d->x, d->out, d->out, d->wish, 1, &found, &n_found));
    if (n_found == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    LT(cublasLtMatmul_p(g->handle, d->op, &one, w, d->w, x, d->x, &beta, out, d->out, out, d->out, &found.algo,
                        g->workspace, WORKSPACE, g->stream));
    return 0;
}

int cuda_gemm_run(cuda_gemm *g, float *out, bool add, const void *x, const void *w, dtype type, size_t n, size_t rows,
                  size_t cols)
{
    descriptions d = {};
    int rc = describe(g, &d, type, n, rows, cols);
    if (rc == 0) rc = multiply(g, &d, out, add, x, w);
    forget(g, &d);
    return cuda_gemm_result(rc);
}
