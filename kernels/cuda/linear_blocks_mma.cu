/* SPDX-License-Identifier: MIT */
/* Products of many rows of x with 8-bit and 4-bit weights on tensor cores. x is quantized to 8 bits as defined in
 * ops_weights.h. Sums over the 32 columns of a block are exact; blocks are added in ascending order in float32. A warp
 * multiplies one group of 16 rows of w, whose stored lines are the left operand of mma.m16n8k32, with all rows of x of
 * its thread block. A block of w is one instruction per 8 rows of x. The bits of a row of x do not depend on the other
 * rows, nor on their number above most_x.
 *
 * Limits by count: each mma needs 12 more instructions for its 4 results per thread (remove the bias, multiply by two
 * scales, add). These are 24 cycles of a scheduler's float32 units on sm_80 and 12 on sm_90, where the mma takes 8 and
 * 4. The kernel thus reaches at most a third of the int8 peak, which is two thirds of the bf16 peak. A tile of 128 x
 * 128 reads 8.6 KiB per block of columns for 2^19 products. Copy loops are not unrolled, so that 128 registers suffice
 * and two thread blocks fit on a multiprocessor. */
#include "config.h"

#include "kernels/cuda/blocks.cuh"

/* A tile: X rows of x times WARPS groups of w, STEP blocks of columns at a time, in two stages of shared memory. */
enum { X = 128, STEP = 2 };
static_assert(GEMM_ROWS == WARPS * QBLOCK_ROWS, "a warp has a group of w");
template <dtype TYPE> struct stage {
    enum {
        BLOCK_BYTES = QBLOCK_SCALES + QBLOCK_ROWS * QBLOCK_COLS / (TYPE == DT_Q8 ? 1 : 2),
        X_STRIDE = STEP * QBLOCK_COLS + 16, /* 16 bytes of padding put eight rows into different banks */
        W_AT = X * X_STRIDE,
        SCALE_AT = W_AT + WARPS * STEP * BLOCK_BYTES,
        BYTES = SCALE_AT + STEP * X * (int)sizeof(float)
    };
};

/* Starts copying blocks b, b + 1, ... of x and w; zeros past the ends. */
template <dtype TYPE>
static __device__ __forceinline__ void start_stage(unsigned char *to, const products &p, const product &j, size_t b)
{
    typedef stage<TYPE> s;
    constexpr int PER_ROW = STEP * QBLOCK_COLS / 16, PER_BLOCK = s::BLOCK_BYTES / 16, PER_GROUP = STEP * PER_BLOCK;
    size_t x0 = (size_t)blockIdx.y * X, group0 = (size_t)(blockIdx.x - j.first) * WARPS, blocks = p.cols / QBLOCK_COLS;
#pragma unroll 1
    for (int i = threadIdx.x; i < X * PER_ROW; i += 32 * WARPS) {
        size_t row = x0 + i / PER_ROW, c = b * QBLOCK_COLS + i % PER_ROW * 16;
        bool inside = row < p.n && c < p.cols;
        const int8_t *from = inside ? p.code + row * p.cols + c : p.code;
        copy16_async(to + i / PER_ROW * s::X_STRIDE + i % PER_ROW * 16, from, inside);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < WARPS * PER_GROUP; i += 32 * WARPS) {
        size_t group = group0 + i / PER_GROUP, at = b + i % PER_GROUP / PER_BLOCK;
        bool inside = group * QBLOCK_ROWS < j.rows && at < blocks;
        size_t from = inside ? (group * blocks + at) * s::BLOCK_BYTES + i % PER_BLOCK * 16 : 0;
        copy16_async(to + s::W_AT + i * 16, j.w + from, inside);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < STEP * X / 4; i += 32 * WARPS) {
        size_t at = b + i / (X / 4), row = x0 + i % (X / 4) * 4;
        bool inside = at < blocks && row < p.n; /* up to three scales past the last row; their sums are unused */
        copy16_async(to + s::SCALE_AT + i * 16, p.scale + (inside ? at * scales_padded(p.n) + row : 0), inside);
    }
}

/* Loads the codes of a block as the left operand: words i / 2 for columns below and above 16, i % 2 for rows. */
template <dtype TYPE> static __device__ __forceinline__ void load_codes(unsigned a[4], const unsigned char *block)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const unsigned *w = reinterpret_cast<const unsigned *>(block + QBLOCK_SCALES) + QBLOCK_ROWS * t + g;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned low = w[8 * i];
        if (TYPE == DT_Q8) {
            a[i] = low ^ 0x80808080u;
            a[i + 2] = w[4 * QBLOCK_ROWS + 8 * i] ^ 0x80808080u;
        } else {
            a[i] = (unsigned)signed_nibbles(low);
            a[i + 2] = (unsigned)signed_nibbles(low >> 4);
        }
    }
}

/* Adds the product of a block of the warp's group and the same columns of all rows of x. */
static __device__ __forceinline__ void add_block(float sum[X / 8][4], const unsigned a[4], const float d[2],
                                                 const unsigned char *x, int stride, const float *scale)
{
    const int lane = threadIdx.x % 32;
    x += (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 16;
#pragma unroll
    for (int n = 0; n < X / 16; n++) {
        unsigned b[4];
        load_matrices(b, x + 16 * n * stride);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int dot[4];
            float2 by = *reinterpret_cast<const float2 *>(scale + 16 * n + 8 * h + lane % 4 * 2);
            mma_bytes(dot, a, b + 2 * h, FLOAT_BIAS);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &s = sum[2 * n + h][i];
                s = fmaf(d[i / 2] * (i % 2 ? by.y : by.x), biased_float(dot[i]), s);
            }
        }
    }
}

static __device__ __forceinline__ void put_sums(const float sum[X / 8][4], const products &p, const product &j,
                                                size_t group)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        size_t row = group * QBLOCK_ROWS + g + 8 * h;
        if (row >= j.rows) continue;
        float bias = j.bias ? element(j.bias, j.bias_type, row) : 0;
#pragma unroll
        for (int n = 0; n < X / 4; n++) {
            size_t m = (size_t)blockIdx.y * X + n / 2 * 8 + 2 * t + n % 2;
            float *out = &j.out[m * j.rows + row], s = bias + sum[n / 2][2 * h + n % 2];
            if (m < p.n) *out = p.add ? *out + s : s;
        }
    }
}

template <dtype TYPE> static __global__ void __launch_bounds__(32 * WARPS, 2) gemm_blocks_k(products p)
{
    typedef stage<TYPE> s;
    SHARED_DYN(unsigned char, room);
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    const product &j = p.job[job_of<1>(p)];
    const size_t blocks = p.cols / QBLOCK_COLS;
    float sum[X / 8][4] = {};
    unsigned char *now = room, *next = room + s::BYTES;
    start_stage<TYPE>(now, p, j, 0);
    copies_end_group();
    for (size_t b = 0; b < blocks; b += STEP) {
        if (b + STEP < blocks) start_stage<TYPE>(next, p, j, b + STEP);
        copies_end_group();
        copies_wait<1>();
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < STEP; i++) {
            const unsigned char *block = now + s::W_AT + (warp * STEP + i) * s::BLOCK_BYTES;
            const __half *scale = reinterpret_cast<const __half *>(block);
            const float d[2] = {to_f32(scale[g]), to_f32(scale[g + 8])};
            unsigned a[4];
            load_codes<TYPE>(a, block);
            const float *by = reinterpret_cast<const float *>(now + s::SCALE_AT) + i * X;
            add_block(sum, a, d, now + i * QBLOCK_COLS, s::X_STRIDE, by);
        }
        __syncthreads();
        unsigned char *done = now;
        now = next, next = done;
    }
    put_sums(sum, p, j, (size_t)(blockIdx.x - j.first) * WARPS + warp);
}

template <dtype TYPE> static cudaError_t run(backend *be, const products *p, unsigned blocks)
{
    return launch(gemm_blocks_k<TYPE>, dim3(blocks, cuda_blocks(p->n, X)), dim3(BLOCK), 2 * stage<TYPE>::BYTES,
                  cuda_stream(be), *p);
}

cudaError_t gemm_blocks(backend *be, dtype type, const products *p, unsigned blocks)
{
    return type == DT_Q8 ? run<DT_Q8>(be, p, blocks) : run<DT_Q4>(be, p, blocks);
}
