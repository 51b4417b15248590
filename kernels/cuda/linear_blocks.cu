/* SPDX-License-Identifier: MIT */
/* Weights of 8 and 4 bits in blocks (ops_weights.h): products, and how they are made. */
#include "config.h"

#include "kernels/cuda/blocks.cuh"

enum { WARPS = 8, BLOCK = 32 * WARPS, WORDS = QBLOCK_COLS / 4 };

/* ---- x in blocks ---- */

/* A warp has one block of a row: 8 bits and a scale (ops_weights.h), or with code NULL the numbers themselves, padded.
 * scale: of block b of row r at r * by_row + b * by_block. */
static __global__ void round_blocks_k(int8_t *code, float *scale, float *padded, const float *x, size_t cols,
                                      size_t blocks, size_t by_row, size_t by_block, size_t all)
{
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, c = i % blocks * QBLOCK_COLS + threadIdx.x % 32;
    if (i >= all) return;
    float v = c < cols ? x[i / blocks * cols + c] : 0;
    size_t at = i * QBLOCK_COLS + threadIdx.x % 32;
    if (!code) {
        padded[at] = v;
        return;
    }
    bool finite = __all_sync(ALL_LANES, fabsf(v) < INFINITY);
    float most = warp_max(fabsf(v)), inverse = finite && most >= 0x1p-100f ? __fdiv_rn(127, most) : 0;
    code[at] = (int8_t)(inverse > 0 ? (int)rintf(__fmul_rn(v, inverse)) : 0);
    if (threadIdx.x % 32 == 0)
        scale[i / blocks * by_row + i % blocks * by_block] = !finite ? NAN : inverse > 0 ? __fdiv_rn(most, 127) : 0;
}

/* ---- products ---- */

/* Four weights, as bytes, times four columns of x from column c of block b of row m. */
template <bool EXACT>
static __device__ __forceinline__ float dot4(const block_product &p, size_t m, size_t b, int c, int w)
{
    size_t at = (m * p.blocks + b) * QBLOCK_COLS + c;
    if (!EXACT) return (float)__dp4a(w, *reinterpret_cast<const int *>(p.code + at), 0);
    float4 v = load_f4(p.x + at);
    return (float)(int8_t)w * v.x + (float)(int8_t)(w >> 8) * v.y + (float)(int8_t)(w >> 16) * v.z +
           (float)(int8_t)(w >> 24) * v.w;
}

/* Adds what 16 bytes of codes, rows 4 quarter .. + 4 of one line, give with M rows of x. */
template <dtype TYPE, bool EXACT, int M>
static __device__ __forceinline__ void add_line(float sum[4][M], const block_product &p, const unsigned char *block,
                                                size_t x0, size_t b, int line, int quarter)
{
    uint4 codes = *reinterpret_cast<const uint4 *>(block + QBLOCK_SCALES + QBLOCK_LINE * line + 16 * quarter);
    uint2 d = *reinterpret_cast<const uint2 *>(block + 8 * quarter);
    const unsigned word[4] = {codes.x, codes.y, codes.z, codes.w}, half[2] = {d.x, d.y};
#pragma unroll
    for (int m = 0; m < M; m++) {
        size_t row = x0 + m < p.n ? x0 + m : x0;
        float by = EXACT ? 1 : p.scale[row * p.blocks + b];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float w = __half2float(__ushort_as_half((unsigned short)(half[r / 2] >> 16 * (r % 2)))), dot;
            if (TYPE == DT_Q8) dot = dot4<EXACT>(p, row, b, 4 * line, (int)(word[r] ^ 0x80808080u));
            else
                dot = dot4<EXACT>(p, row, b, 4 * line, signed_nibbles(word[r])) +
                      dot4<EXACT>(p, row, b, 4 * line + QBLOCK_COLS / 2, signed_nibbles(word[r] >> 4));
            sum[r][m] += w * by * dot;
        }
    }
}

/* A block of threads has a group of 16 rows; its warps take the matrix's blocks in turn, Q4 two at a time. Lanes, then
 * warps are added in a fixed order. */
template <dtype TYPE, bool EXACT, int M> static __global__ void __launch_bounds__(BLOCK) gemv_blocks_k(block_product p)
{
    SHARED(float, part, [WARPS][QBLOCK_ROWS][M]);
    constexpr int LANES = TYPE == DT_Q8 ? 32 : 16, AT_ONCE = 32 / LANES;
    constexpr size_t BYTES = QBLOCK_SCALES + (size_t)QBLOCK_ROWS * QBLOCK_COLS / (TYPE == DT_Q8 ? 1 : 2);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane % LANES / 4, quarter = lane % 4;
    size_t x0 = (size_t)blockIdx.y * M;
    const unsigned char *group = p.w + blockIdx.x * p.blocks * BYTES;
    float sum[4][M] = {};
#pragma unroll 2
    for (size_t b = (size_t)warp * AT_ONCE + lane / LANES; b < p.blocks; b += WARPS * AT_ONCE)
        add_line<TYPE, EXACT, M>(sum, p, group + b * BYTES, x0, b, line, quarter);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int mine = fold_sums<M, 8>(sum[r], lane / 4, 4);
        if (lane / 4 % (8 / M) == 0) part[warp][4 * quarter + r][mine] = sum[r][0];
    }
    __syncthreads();
    int r = threadIdx.x % QBLOCK_ROWS, m = threadIdx.x / QBLOCK_ROWS;
    size_t row = blockIdx.x * (size_t)QBLOCK_ROWS + r;
    if (m >= M || row >= p.rows || x0 + m >= p.n) return;
    float s = p.bias ? element(p.bias, p.bias_type, row) : 0;
    for (int w = 0; w < WARPS; w++) s += part[w][r][m];
    p.out[(x0 + m) * p.rows + row] = s;
}

template <dtype TYPE, bool EXACT> static cudaError_t gemv_blocks(backend *be, const block_product *p)
{
    cudaError_t rc = cudaSuccess;
    by_rows(p->n, [&](auto m) {
        constexpr int M = decltype(m)::value;
        rc = launch(gemv_blocks_k<TYPE, EXACT, M>, dim3((unsigned)qblock_groups(p->rows), cuda_blocks(p->n, M)),
                    dim3(BLOCK), 0, cuda_stream(be), *p);
    });
    return rc;
}

void cuda_linear_qblocks(backend *be, const linear_job *j, const float *x, size_t n, bool exact)
{
    bool many = n > MOST_X && !exact;
    size_t blocks = qblock_count(j->w.cols), all = n * blocks, padded = many ? scales_padded(n) : n;
    size_t room = exact ? all * QBLOCK_COLS : all * WORDS + padded * blocks;
    float *at = (float *)cuda_room(be, &cuda_of(be)->rounded, room, sizeof(float), "rounded activations");
    if (!at) return;
    int8_t *code = exact ? NULL : (int8_t *)at;
    float *scale = at + all * WORDS;
    cudaError_t rc = launch(round_blocks_k, dim3(cuda_blocks(all, WARPS)), dim3(BLOCK), 0, cuda_stream(be), code, scale,
                            at, x, j->w.cols, blocks, many ? 1 : blocks, many ? padded : 1, all);
    if (!cuda_check(be, rc, "linear: rounding [%zu, %zu]", n, j->w.cols)) return;
    block_product p = {ptr<float>(j->out), j->w.p.p, j->bias.p.p, j->bias.type, code, scale, at, n, j->w.rows, blocks};
    if (many) rc = gemm_blocks(be, j->w.type, &p);
    else if (j->w.type == DT_Q8) rc = exact ? gemv_blocks<DT_Q8, true>(be, &p) : gemv_blocks<DT_Q8, false>(be, &p);
    else rc = exact ? gemv_blocks<DT_Q4, true>(be, &p) : gemv_blocks<DT_Q4, false>(be, &p);
    cuda_check(be, rc, "linear [%zu, %zu] x [%zu, %zu] of %s", n, j->w.cols, j->w.rows, j->w.cols,
               dtype_name(j->w.type));
}

/* ---- weights to blocks: ref/quant.c, operation by operation ---- */

static __device__ __forceinline__ uint16_t scale_of(float d)
{
    uint16_t h = __half_as_ushort(__float2half_rn(d));
    return (h & 0x7fff) > QBLOCK_LARGEST ? (uint16_t)((h & 0x8000) | QBLOCK_LARGEST) : h;
}

static __device__ __forceinline__ float scale_value(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

static __device__ void round_all(float code[QBLOCK_COLS], const float w[QBLOCK_COLS], float d, float lo, float hi)
{
    float inverse = d < 0 || d > 0 ? __fdiv_rn(1, d) : 0;
    for (int c = 0; c < QBLOCK_COLS; c++) code[c] = rintf(fminf(fmaxf(__fmul_rn(w[c], inverse), lo), hi));
}

static __device__ float error_of(const float code[QBLOCK_COLS], const float w[QBLOCK_COLS], float d)
{
    float s[8] = {};
    for (int c = 0; c < QBLOCK_COLS; c++) {
        float x = __fsub_rn(w[c], __fmul_rn(d, code[c]));
        s[c % 8] = __fadd_rn(s[c % 8], __fmul_rn(x, x));
    }
    return __fadd_rn(__fadd_rn(__fadd_rn(s[0], s[4]), __fadd_rn(s[2], s[6])),
                     __fadd_rn(__fadd_rn(s[1], s[5]), __fadd_rn(s[3], s[7])));
}

static __device__ uint16_t best_q4(float code[QBLOCK_COLS], const float w[QBLOCK_COLS], float largest)
{
    const float ends[QBLOCK_TRIES] = {8, 7.5f, 7, 8.5f, 9};
    uint16_t best = 0;
    float least = 0, extreme = largest;
    for (int c = 0; c < QBLOCK_COLS; c++) extreme = w[c] <= -largest ? -largest : extreme;
    for (int i = 0; i < QBLOCK_TRIES; i++) {
        float tried[QBLOCK_COLS];
        uint16_t h = scale_of(__fdiv_rn(-extreme, ends[i]));
        round_all(tried, w, scale_value(h), -8, 7);
        float error = error_of(tried, w, scale_value(h));
        if (i > 0 && !(error < least)) continue;
        least = error;
        best = h;
        for (int c = 0; c < QBLOCK_COLS; c++) code[c] = tried[c];
    }
    return best;
}

static __device__ uint16_t best_q8(float code[QBLOCK_COLS], const float w[QBLOCK_COLS], float largest)
{
    uint16_t h = scale_of(__fdiv_rn(largest, 127));
    if (h < QBLOCK_LARGEST && largest > __fmul_rn(127.5f, scale_value(h))) h++;
    round_all(code, w, scale_value(h), -127, 127);
    return h;
}

/* A thread has one block of one row. */
static __global__ void quantize_k(unsigned char *out, const void *w, dtype from, size_t rows, size_t cols, bool q8,
                                  size_t all)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, blocks = (cols + QBLOCK_COLS - 1) / QBLOCK_COLS;
    size_t r = i % QBLOCK_ROWS, b = i / QBLOCK_ROWS % blocks, group = i / QBLOCK_ROWS / blocks,
           row = group * QBLOCK_ROWS + r;
    if (i >= all) return;
    float v[QBLOCK_COLS], code[QBLOCK_COLS] = {}, largest = 0;
    bool finite = true;
    for (int c = 0; c < QBLOCK_COLS; c++) {
        bool inside = row < rows && b * QBLOCK_COLS + c < cols;
        v[c] = inside ? element(w, from, row * cols + b * QBLOCK_COLS + c) : 0;
        finite = finite && fabsf(v[c]) < INFINITY;
        largest = fmaxf(largest, fabsf(v[c]));
    }
    uint16_t d = !finite ? (uint16_t)QBLOCK_NAN : q8 ? best_q8(code, v, largest) : best_q4(code, v, largest);
    size_t bytes = QBLOCK_SCALES + (size_t)QBLOCK_ROWS * QBLOCK_COLS / (q8 ? 1 : 2);
    unsigned char *block = out + (group * blocks + b) * bytes;
    *reinterpret_cast<uint16_t *>(block + 2 * r) = d;
    for (int c = 0; c < QBLOCK_COLS / (q8 ? 1 : 2); c++) {
        unsigned u = (unsigned)((int)code[c] + (q8 ? 128 : 8));
        if (!q8) u |= (unsigned)((int)code[c + QBLOCK_COLS / 2] + 8) << 4;
        block[QBLOCK_SCALES + QBLOCK_LINE * (c / 4) + 4 * r + c % 4] = (unsigned char)u;
    }
}

void cuda_quantize(backend *be, buf out, dtype type, weight w)
{
    size_t all = qblock_groups(w.rows) * QBLOCK_ROWS * qblock_count(w.cols);
    if (all == 0 || !cuda_begin(be, "quantize")) return;
    cudaError_t rc = launch(quantize_k, dim3(cuda_blocks(all, 128)), dim3(128), 0, cuda_stream(be), out.p,
                            (const void *)w.p.p, w.type, w.rows, w.cols, type == DT_Q8, all);
    cuda_check(be, rc, "quantize [%zu, %zu] to %s", w.rows, w.cols, dtype_name(type));
}
