/* SPDX-License-Identifier: MIT */
/* Norms and gates, for the kernels of these ops and for kernels that include them: the same bits. */
#ifndef KERNELS_CUDA_NORM_CUH
#define KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/dev.cuh"

enum {
    NORM_THREADS = 256,
    NORM_WARPS = NORM_THREADS / 32
}; /* threads that share a row; fewer if it has fewer columns */

/* Writes the sums of squares of R rows of x (those below n) to part [warp][M]. A thread takes every NORM_THREADS-th
 * group of four columns. */
template <bool WIDE, int R, int M>
static __device__ __forceinline__ void square_sums(float *part, const float *x, size_t n, size_t cols)
{
    float sum[R] = {};
#pragma unroll(4 / R)
    for (size_t c = 4 * threadIdx.x; c < cols; c += 4 * NORM_THREADS) {
        float4 v[R];
#pragma unroll
        for (int m = 0; m < R; m++) {
            const float *from = x + m * cols + c;
            if ((size_t)m >= n) v[m] = make_float4(0, 0, 0, 0);
            else if (WIDE) v[m] = load_f4(from);
            else
                v[m] = make_float4(from[0], c + 1 < cols ? from[1] : 0, c + 2 < cols ? from[2] : 0,
                                   c + 3 < cols ? from[3] : 0);
        }
#pragma unroll
        for (int m = 0; m < R; m++)
            sum[m] = fmaf(v[m].w, v[m].w, fmaf(v[m].z, v[m].z, fmaf(v[m].y, v[m].y, fmaf(v[m].x, v[m].x, sum[m]))));
    }
#pragma unroll
    for (int m = 0; m < R; m++) {
        sum[m] = warp_sum(sum[m]);
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32 * M + m] = sum[m];
    }
}

/* Writes scale[m], m < n <= M, the factor by which rmsnorm multiplies row m of x. part: NORM_WARPS x M floats of shared
 * memory, unused before. WIDE: rows of x are whole float4s. Ends with a barrier. */
template <bool WIDE, int M>
static __device__ __forceinline__ void norm_scales(float *scale, float *part, const float *x, size_t n, size_t cols,
                                                   float eps)
{
    constexpr int ROWS = M < 4 ? M : 4; /* at once */
    if (n == 1) square_sums<WIDE, 1, M>(part, x, 1, cols);
    else
        for (size_t m = 0; m < n && m < M; m += ROWS) square_sums<WIDE, ROWS, M>(part + m, x + m * cols, n - m, cols);
    __syncthreads();
    if (threadIdx.x < n && threadIdx.x < M) {
        float all = 0;
        for (unsigned w = 0; w < blockDim.x / 32; w++) all += part[w * M + threadIdx.x];
        scale[threadIdx.x] = 1 / sqrtf(all / (float)cols + eps);
    }
    __syncthreads();
}

/* Writes the scale of one row, of any alignment. */
static __device__ __forceinline__ void norm_scale(float *scale, float *part, const float *x, size_t cols, float eps)
{
    if (cols % 4 == 0 && (uintptr_t)x % sizeof(float4) == 0) norm_scales<true, 1>(scale, part, x, 1, cols, eps);
    else norm_scales<false, 1>(scale, part, x, 1, cols, eps);
}

static __device__ __forceinline__ float normed(float x, float scale, float w)
{
    return __fmul_rn(__fmul_rn(x, scale), w);
}

static __device__ __forceinline__ float swiglu_of(float gate, float up)
{
    return __fmul_rn(gate / (1 + expf(-gate)), up);
}

/* The same for f16 products whose factor is not yet applied. The sums with 0 have the bits of `finish_k` (linear.cu).
 */
static __device__ __forceinline__ float swiglu_scaled(float gate, float up, float by)
{
    return swiglu_of(gate * by + 0.0f, up * by + 0.0f);
}

#endif
