/* SPDX-License-Identifier: MIT */
/* Products with weight matrices. Few rows of x: our own kernel, bound by the bytes of the weights. Many: the vendor's
 * library; without it, where it refuses, or with `exact`, the same kernel over again for each MOST_X rows. */
#include "config.h"

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/ops_weights.h"

enum {
    MOST_JOBS = 4, /* products of one launch */
    WARPS = 8,     /* of a block; each has rows of w of its own */
    ROWS = 2,      /* of a warp */
    BLOCK = 32 * WARPS
};

/* ---- few rows ---- */

typedef struct {
    float *out;
    const void *w, *bias;
    size_t rows;
    dtype bias_type;
    unsigned first; /* block */
} product;

typedef struct {
    product job[MOST_JOBS];
    int n_jobs;
    const float *x;
    size_t n, cols;
} products;

/* N elements of a row as floats: 16 bytes, or one where rows do not start at a multiple of 16 bytes. */
template <class T, int N> static __device__ __forceinline__ void load_weights(float w[N], const T *p)
{
    if constexpr (N == 1) w[0] = to_f32(p[0]);
    else unpack(w, load16(p), (const T *)0);
}

template <int N> static __device__ __forceinline__ void load_x(float v[N], const float *p)
{
    if constexpr (N == 1) v[0] = p[0];
    else
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float4 f = load_f4(p + i);
            v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
        }
}

/* A warp multiplies ROWS rows of w by M rows of x. Lane l sums columns (32 i + l) N .. + N of each i, ascending, then
 * the lanes are added: an order that the number of rows of x does not change. */
template <class T, int N, int M> static __global__ void __launch_bounds__(BLOCK) gemv_k(products p)
{
    int job = 0, lane = threadIdx.x % 32;
    while (job + 1 < p.n_jobs && blockIdx.x >= p.job[job + 1].first) job++;
    const product &j = p.job[job];
    size_t row0 = ((blockIdx.x - j.first) * (size_t)WARPS + threadIdx.x / 32) * ROWS, x0 = (size_t)blockIdx.y * M;
    if (row0 >= j.rows) return;
    const T *row[ROWS];
    const float *x[M];
    float sum[M * ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) row[r] = (const T *)j.w + (row0 + r < j.rows ? row0 + r : row0) * p.cols;
#pragma unroll
    for (int m = 0; m < M; m++) x[m] = p.x + (x0 + m < p.n ? x0 + m : x0) * p.cols;
#pragma unroll(M < 4 ? 4 : 2)
    for (size_t c = (size_t)lane * N; c < p.cols; c += 32 * N) {
        float w[ROWS][N];
#pragma unroll
        for (int r = 0; r < ROWS; r++) load_weights<T, N>(w[r], row[r] + c);
#pragma unroll
        for (int m = 0; m < M; m++) {
            float v[N];
            load_x<N>(v, x[m] + c);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int i = 0; i < N; i++) sum[m * ROWS + r] = fmaf(w[r][i], v[i], sum[m * ROWS + r]);
        }
    }
    int mine = fold_sums<M * ROWS, 32>(sum, lane);
    size_t m = x0 + mine / ROWS, r = row0 + mine % ROWS;
    if (lane % (32 / (M * ROWS)) == 0 && m < p.n && r < j.rows)
        j.out[m * j.rows + r] = sum[0] + (j.bias ? element(j.bias, j.bias_type, r) : 0);
}

template <class T, int N> static cudaError_t gemv(backend *be, const products *p, unsigned blocks)
{
    cudaError_t rc = cudaSuccess;
    by_rows(p->n, [&](auto m) {
        constexpr int M = decltype(m)::value;
        rc = launch(gemv_k<T, N, M>, dim3(blocks, cuda_blocks(p->n, M)), dim3(BLOCK), 0, cuda_stream(be), *p);
    });
    return rc;
}

/* Up to MOST_JOBS products whose weights have one type. */
static void multiply_few(backend *be, const linear_job *jobs, size_t n_jobs, const float *x, size_t n)
{
    products p = {};
    unsigned blocks = 0;
    dtype t = jobs[0].w.type;
    bool wide = jobs[0].w.cols * dtype_size(t) % 16 == 0;
    for (size_t i = 0; i < n_jobs; i++) {
        const linear_job *j = &jobs[i];
        p.job[i] = {ptr<float>(j->out), j->w.p.p, j->bias.p.p, j->w.rows, j->bias.type, blocks};
        blocks += cuda_blocks(j->w.rows, WARPS * ROWS);
        wide = wide && (uintptr_t)j->w.p.p % 16 == 0 && (uintptr_t)x % 16 == 0;
    }
    p.n_jobs = (int)n_jobs;
    p.x = x;
    p.n = n;
    p.cols = jobs[0].w.cols;
    by_type(t, [&](auto e) {
        typedef decltype(e) T;
        cudaError_t rc = wide ? gemv<T, pack<T>::N>(be, &p, blocks) : gemv<T, 1>(be, &p, blocks);
        cuda_check(be, rc, "linear [%zu, %zu] x [%zu, %zu]", n, p.cols, jobs[0].w.rows, p.cols);
    });
}

/* ---- many rows, by the library ---- */

/* A row of x in 16 bits. f16 does not hold all that x may be: the row is scaled by a power of two then. */
template <class T> static __global__ void round_k(T *out, float *scale, const float *x, size_t cols)
{
    SHARED(float, part, [WARPS]);
    const float *in = x + blockIdx.x * cols;
    float most = 0, s = 1;
    if (scale) {
        for (size_t c = threadIdx.x; c < cols; c += BLOCK) most = fmaxf(most, fabsf(in[c]));
        most = block_max(most, part);
        while (most * s > 32768 && s > 0) s *= 0.5f;
        if (threadIdx.x == 0) scale[blockIdx.x] = 1 / s;
    }
    for (size_t c = threadIdx.x; c < cols; c += BLOCK) put_f32(&out[blockIdx.x * cols + c], in[c] * s);
}

static __global__ void finish_k(float *out, const float *scale, const void *bias, dtype bias_type, size_t rows,
                                size_t all)
{
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < all) out[i] = out[i] * (scale ? scale[i / rows] : 1) + (bias ? element(bias, bias_type, i % rows) : 0);
}

/* x as the library is to read it; *scale is NULL where there is none. */
static const void *round_x(backend *be, dtype t, const float *x, size_t n, size_t cols, float **scale)
{
    *scale = NULL;
    if (t == DT_F32) return x;
    size_t halves = (n * cols + 1) / 2; /* in floats */
    float *room = (float *)cuda_room(be, &cuda_of(be)->rounded, halves + n, sizeof(float), "rounded activations");
    if (!room) return NULL;
    if (t == DT_F16) *scale = room + halves;
    cudaError_t rc = t == DT_F16 ? launch(round_k<__half>, dim3((unsigned)n), dim3(BLOCK), 0, cuda_stream(be),
                                          (__half *)room, *scale, x, cols)
                                 : launch(round_k<__nv_bfloat16>, dim3((unsigned)n), dim3(BLOCK), 0, cuda_stream(be),
                                          (__nv_bfloat16 *)room, *scale, x, cols);
    return cuda_check(be, rc, "linear: rounding [%zu, %zu]", n, cols) ? room : NULL;
}

static void multiply_many(backend *be, const linear_job *jobs, size_t n_jobs, const float *x, size_t n)
{
    float *scale;
    size_t cols = jobs[0].w.cols;
    const void *in = round_x(be, jobs[0].w.type, x, n, cols, &scale);
    for (size_t i = 0; in && i < n_jobs; i++) {
        const linear_job *j = &jobs[i];
        size_t all = n * j->w.rows;
        int rc = cuda_gemm_run(cuda_of(be)->gemm, ptr<float>(j->out), in, j->w.p.p, j->w.type, n, j->w.rows, cols);
        if (rc == CUDA_GEMM_REFUSED) {
            multiply_few(be, j, 1, x, n);
            continue;
        }
        if (rc != 0) {
            err_set(&be->fault, ST_DEVICE, "%s: linear [%zu, %zu] x [%zu, %zu]: cublasLt error %d", be->name, n, cols,
                    j->w.rows, cols, rc);
            return;
        }
        if (!scale && !j->bias.p.p) continue;
        cudaError_t launched =
            launch(finish_k, dim3(cuda_blocks(all, BLOCK)), dim3(BLOCK), 0, cuda_stream(be), ptr<float>(j->out), scale,
                   (const void *)j->bias.p.p, j->bias.type, j->w.rows, all);
        cuda_check(be, launched, "linear: bias [%zu, %zu]", n, j->w.rows);
    }
}

void cuda_linear(backend *be, const linear_job *jobs, size_t n_jobs, buf x, size_t n, bool exact)
{
    bool many = n > MOST_X && !exact && cuda_of(be)->gemm;
    if (n == 0 || !cuda_begin(be, "linear")) return;
    for (size_t i = 0; i < n_jobs;) {
        dtype t = jobs[i].w.type;
        size_t k = 1;
        if (dtype_in_qblocks(t)) {
            cuda_linear_qblocks(be, &jobs[i], ptr<float>(x), n, exact);
        } else {
            while (i + k < n_jobs && k < MOST_JOBS && jobs[i + k].w.type == t) k++;
            if (many) multiply_many(be, jobs + i, k, ptr<float>(x), n);
            else multiply_few(be, jobs + i, k, ptr<float>(x), n);
        }
        i += k;
    }
}
