/* SPDX-License-Identifier: MIT */
/* Weights in blocks (ops_weights.h): code shared by products of few and of many rows of x. */
#ifndef KERNELS_CUDA_BLOCKS_CUH
#define KERNELS_CUDA_BLOCKS_CUH

#include "kernels/cuda/product.cuh"
#include "kernels/ops_weights.h"

/* Returns four 4-bit codes, one per byte, minus 8. */
static __device__ __forceinline__ int signed_nibbles(unsigned v)
{
    return (int)((((v & 0x0f0f0f0fu) | 0x80808080u) - 0x08080808u) ^ 0x80808080u);
}

/* Bits of 1.5 * 2^23. Adding an integer below 2^22 to these bits adds it to the float. */
#define FLOAT_BIAS 0x4b400000

static __device__ __forceinline__ float biased_float(int sum)
{
    return __uint_as_float((unsigned)sum) - 0x1.8p23f;
}

/* Returns n rounded up to whole tiles. For many rows of x the scales are stored as [blocks][scales_padded(n)], not as
 * [n][blocks]. */
static __host__ __device__ __forceinline__ size_t scales_padded(size_t n)
{
    return (n + 127) / 128 * 128;
}

/* Rows of w per thread block of gemm_blocks. */
enum { GEMM_ROWS = 128 };
/* Multiplies many rows of x, quantized to 8 bits: all jobs in one launch, in `blocks` thread blocks of GEMM_ROWS rows.
 */
cudaError_t gemm_blocks(backend *be, dtype type, const products *p, unsigned blocks);

#endif
