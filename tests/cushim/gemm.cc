/* SPDX-License-Identifier: MIT */
/* Stand-in for cublasLt: the order of a plain kernel and f32 sums, on inputs rounded as for the library. */
#include "kernels/cuda/cuda.cuh"

struct cuda_gemm {
    int unused;
};

static cuda_gemm one;
static int how;

void shim_gemm(int what)
{
    how = what;
}

cuda_gemm *cuda_gemm_create(int, cudaStream_t)
{
    return how == SHIM_GEMM_MISSING ? NULL : &one;
}

void cuda_gemm_destroy(cuda_gemm *g)
{
    if (g) shim_library_closes();
}

const char *cuda_gemm_name(const cuda_gemm *)
{
    return "plain GEMM";
}

static float get(const void *p, dtype t, size_t i)
{
    if (t == DT_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static void multiply(float *out, bool add, const void *x, const void *w, dtype type, size_t n, size_t rows, size_t cols)
{
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < rows; r++) {
            float sum = 0;
            for (size_t c = 0; c < cols; c++) sum += get(x, type, i * cols + c) * get(w, type, r * cols + c);
            out[i * rows + r] = add ? out[i * rows + r] + sum : sum;
        }
}

int cuda_gemm_run(cuda_gemm *, float *out, bool add, const void *x, const void *w, dtype type, size_t n, size_t rows,
                  size_t cols)
{
    if (int rc = shim_next_call()) return rc;
    if (how == SHIM_GEMM_REFUSES) return cuda_gemm_result(15);
    if (how == SHIM_GEMM_INVALID) return cuda_gemm_result(7);
    return shim_submit((const void *)multiply, [=] { multiply(out, add, x, w, type, n, rows, cols); });
}
