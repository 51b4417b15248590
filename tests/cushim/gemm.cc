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

static void multiply(const cuda_product *p, size_t job)
{
    float *out = p->out + job * p->out_stride;
    for (size_t i = 0; i < p->n; i++)
        for (size_t r = 0; r < p->rows; r++) {
            float sum = 0;
            for (size_t c = 0; c < p->cols; c++)
                sum += get(p->x, p->type, i * p->cols + c) * get(p->w, p->type, (job * p->rows + r) * p->cols + c);
            out[i * p->rows + r] = p->add ? out[i * p->rows + r] + sum : sum;
        }
}

static void multiply_all(const cuda_product *p)
{
    for (size_t i = 0; i < p->count; i++) multiply(p, i);
}

int cuda_gemm_run(cuda_gemm *, const cuda_product *p)
{
    const cuda_product all = *p;
    if (int rc = shim_next_call()) return rc;
    if (how == SHIM_GEMM_REFUSES || (how == SHIM_GEMM_SINGLE && p->count > 1)) return cuda_gemm_result(15);
    if (how == SHIM_GEMM_INVALID) return cuda_gemm_result(7);
    shim_counts_product();
    return shim_submit((const void *)multiply_all, [=] { multiply_all(&all); });
}
