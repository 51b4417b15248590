/* SPDX-License-Identifier: MIT */
/* Weights of 8 and 4 bits in blocks (ops_weights.h): products and quantization. */
#include "config.h"

#include "kernels/cuda/blocks.cuh"
#include "kernels/cuda/product.cuh"

enum {
    WORDS = QBLOCK_COLS / 4,
    MOST_OWN = 8192 /* elements of x that a thread block quantizes itself: about 1 us by count, less than a launch */
};

/* ---- x in blocks ---- */

/* Rows of x, with a norm if norm is not NULL, as a gate of up if up is not NULL. Scales are stored as
 * [blocks][padded]. */
typedef struct {
    const float *x, *up;
    size_t cols, blocks, padded;
    const void *norm;
    dtype norm_type;
    float eps;
} x_rows;

/* Quantizes 32 columns of a row, one per lane, to 8 bits and a scale (ops_weights.h). */
static __device__ __forceinline__ int8_t code_of(float v, float *scale)
{
    bool finite = __all_sync(ALL_LANES, fabsf(v) < INFINITY);
    float most = warp_max(fabsf(v)), inverse = finite && most >= 0x1p-100f ? __fdiv_rn(127, most) : 0;
    *scale = !finite ? NAN : inverse > 0 ? __fdiv_rn(most, 127) : 0;
    return (int8_t)(inverse > 0 ? (int)rintf(__fmul_rn(v, inverse)) : 0);
}

/* Quantizes a row with several thread blocks, one block of columns per warp: 8 bits and a scale (ops_weights.h). With
 * code NULL it writes the padded floats instead. */
static __global__ void __launch_bounds__(BLOCK) round_blocks_k(int8_t *code, float *scale, float *padded, x_rows x)
{
    grid_wait();
    SHARED(float, part, [WARPS]);
    SHARED(float, by, [1]);
    const size_t of_row = (x.blocks + WARPS - 1) / WARPS, row = blockIdx.x / of_row;
    const size_t b = blockIdx.x % of_row * WARPS + threadIdx.x / 32, c = b * QBLOCK_COLS + threadIdx.x % 32;
    const float *in = x.x + row * x.cols;
    if (x.norm) norm_scale(by, part, in, x.cols, x.eps);
    if (b >= x.blocks) return;
    float v = c < x.cols ? in[c] : 0;
    size_t at = row * x.blocks * QBLOCK_COLS + c;
    if (x.norm && c < x.cols) v = normed(v, by[0], element(x.norm, x.norm_type, c));
    if (x.up && c < x.cols) v = swiglu_of(v, x.up[row * x.cols + c]);
    if (!code) {
        padded[at] = v;
        return;
    }
    float s;
    code[at] = code_of(v, &s);
    if (threadIdx.x % 32 == 0) scale[b * x.padded + row] = s;
}

/* Quantizes all rows of x with one thread block into shared memory: code [n][cols], scale [blocks][MOST_X]. The row
 * after the last has scales of 0. part: WARPS x MOST_X floats, unused before. Ends with a barrier. */
static __device__ __forceinline__ void round_here(int8_t *code, float *scale, float *part, const products &p)
{
    SHARED(float, by, [MOST_X]);
    const int lane = threadIdx.x % 32, cols = (int)p.cols, n = (int)p.n;
    if (p.norm) norm_scales<true, MOST_X>(by, part, p.x, p.n, p.cols, p.eps);
    for (int m = 0; m < n; m++)
#pragma unroll 4
        for (int c = threadIdx.x; c < cols; c += BLOCK) {
            float s, v = p.x[m * cols + c];
            if (p.norm) v = normed(v, by[m], element(p.norm, p.norm_type, c));
            code[m * cols + c] = code_of(v, &s);
            float *to = scale + c / QBLOCK_COLS * MOST_X + m;
            if (lane == 0) *to = s;
            else if (lane == 1 && m + 1 == n && n < MOST_X) to[1] = 0;
        }
    __syncthreads();
}

/* ---- products with x in 8 bits ---- */

/* A lane's part of a block of w, as the left operand on tensor cores: rows 2 g and 2 g + 1 of its group, with g = lane
 * / 4 and t = lane % 4, of line t (8 bits: also line t + 4), and their scales. */
template <dtype TYPE> struct w_block {
    uint2 line[TYPE == DT_Q8 ? 2 : 1] = {};
    unsigned scales = 0;

    __device__ __forceinline__ void load(const unsigned char *block, int g, int t, bool inside)
    {
        const unsigned char *at = block + QBLOCK_SCALES + QBLOCK_LINE * t + 8 * g;
        load_stream(line[0], at, inside);
        if constexpr (TYPE == DT_Q8) load_stream(line[1], at + 4 * QBLOCK_LINE, inside);
        load_stream(scales, block + 4 * g, inside);
    }
    __device__ __forceinline__ void left(unsigned a[4]) const
    {
        if constexpr (TYPE == DT_Q8) {
            a[0] = line[0].x ^ 0x80808080u, a[1] = line[0].y ^ 0x80808080u;
            a[2] = line[1].x ^ 0x80808080u, a[3] = line[1].y ^ 0x80808080u;
        } else {
            a[0] = (unsigned)signed_nibbles(line[0].x), a[1] = (unsigned)signed_nibbles(line[0].y);
            a[2] = (unsigned)signed_nibbles(line[0].x >> 4), a[3] = (unsigned)signed_nibbles(line[0].y >> 4);
        }
    }
};

/* The same columns of M rows of x: for every 8 rows, the codes of row g and the scales of rows 2 t and 2 t + 1. */
template <int M> struct x_block {
    unsigned right[M / 8][2] = {};
    float2 by[M / 8] = {};

    /* n: number of rows; x and scale start at row g and at row 2 t. */
    __device__ __forceinline__ void load(const int8_t *x, size_t cols, const float *scale, int n, int g, int t,
                                         bool inside)
    {
#pragma unroll
        for (int h = 0; h < M / 8; h++) {
            const unsigned *code = reinterpret_cast<const unsigned *>(x + 8 * h * cols);
            if (inside && 8 * h + g < n) right[h][0] = code[0], right[h][1] = code[QBLOCK_COLS / 2 / sizeof *code];
            if (inside && 8 * h + 2 * t < n) by[h] = *reinterpret_cast<const float2 *>(scale + 8 * h);
        }
    }
};

/* Adds the product of a block of w and the same columns of x. */
template <dtype TYPE, int M>
static __device__ __forceinline__ void add_block(float (*sum)[4], const w_block<TYPE> &w, const x_block<M> &x)
{
    unsigned a[4];
    w.left(a);
#pragma unroll
    for (int h = 0; h < M / 8; h++) {
        int dot[4];
        mma_bytes(dot, a, x.right[h], FLOAT_BIAS);
        const float d[2] = {__half2float(__ushort_as_half((unsigned short)(w.scales & 0xffff))),
                            __half2float(__ushort_as_half((unsigned short)(w.scales >> 16)))};
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[h][i] = fmaf(d[i / 2] * (i % 2 ? x.by[h].y : x.by[h].x), biased_float(dot[i]), sum[h][i]);
    }
}

/* Blocks of w in flight per warp: as many as fit into the registers in addition to the sums and x. */
template <int JOBS, int M, bool DEEP>
constexpr int Q8_LOADS = DEEP                   ? 12
                         : M == 16 && JOBS == 1 ? 8
                         : M == 32              ? (JOBS == 2 ? 4 : 5)
                                                : 6;
template <int JOBS, int M, bool DEEP> constexpr int Q4_LOADS = DEEP ? 16 : M == 32 && JOBS == 2 ? 6 : 10;

/* A thread block has a group of 16 rows of each of JOBS matrices. Its warps take the matrix's blocks in turn with AHEAD
 * loads in flight: each use starts the next load. x is 0 past the last block. Each warp adds in ascending order, then
 * the warps are added. DEEP: for launches that leave registers unused. OWN: x is quantized here. */
template <dtype TYPE, int JOBS, int M, bool DEEP, bool OWN>
static __global__ void __launch_bounds__(BLOCK, DEEP || M > MOST_X ? 2 : 3) gemv_blocks_k(products p)
{
    SHARED(float, part, [WARPS][JOBS * TILE][M]);
    constexpr int AHEAD = (TYPE == DT_Q8 ? Q8_LOADS<JOBS, M, DEEP> : Q4_LOADS<JOBS, M, DEEP>) / JOBS;
    constexpr size_t BYTES = QBLOCK_SCALES + (size_t)QBLOCK_ROWS * QBLOCK_COLS / (TYPE == DT_Q8 ? 1 : 2);
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, job = job_of<JOBS>(p);
    const int n = (int)p.n, blocks = (int)(p.cols / QBLOCK_COLS);
    const size_t group = blockIdx.x - p.job[job].first;
    SHARED_DYN(float, own); /* scales and codes */
    const int8_t *x = OWN ? (const int8_t *)(own + blocks * M) : p.code;
    const float *scale = (OWN ? own : p.scale) + warp * M + 2 * t;
    const unsigned char *w[JOBS];
    w_block<TYPE> held[AHEAD][JOBS];
    float sum[JOBS][M / 8][4] = {};
#pragma unroll
    for (int j = 0; j < JOBS; j++) {
        w[j] = p.job[JOBS == 2 ? j : job].w + (group * blocks + warp) * BYTES;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) held[a][j].load(w[j] + a * WARPS * BYTES, g, t, warp + a * WARPS < blocks);
    }
    grid_wait(); /* weights are constant */
    if constexpr (OWN) round_here((int8_t *)x, own, part[0][0], p);
    x += (g < n ? g : 0) * p.cols + warp * QBLOCK_COLS + 4 * t;
    for (int b = warp; b - warp < blocks; b += AHEAD * WARPS) {
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const bool inside = b + a * WARPS < blocks, next = b + (a + AHEAD) * WARPS < blocks;
            x_block<M> v;
            v.load(x + a * WARPS * QBLOCK_COLS, p.cols, scale + a * WARPS * M, n, g, t, inside);
#pragma unroll
            for (int j = 0; j < JOBS; j++) {
                add_block<TYPE, M>(sum[j], held[a][j], v);
                held[a][j].load(w[j] + (a + AHEAD) * WARPS * BYTES, g, t, next);
            }
        }
        x += AHEAD * WARPS * QBLOCK_COLS;
        scale += AHEAD * WARPS * M;
#pragma unroll
        for (int j = 0; j < JOBS; j++) w[j] += AHEAD * WARPS * BYTES;
    }
#pragma unroll
    for (int j = 0; j < JOBS; j++)
#pragma unroll
        for (int h = 0; h < M / 8; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) part[warp][TILE * j + 2 * g + i / 2][8 * h + 2 * t + i % 2] = sum[j][h][i];
    __syncthreads();
    finish<JOBS, M>(p, job, part, group * TILE, 0);
}

/* ---- exact products ---- */

/* Multiplies four weights, as bytes, with four columns of x. */
static __device__ __forceinline__ float dot4(const float *x, int w)
{
    float4 v = load_f4(x);
    return (float)(int8_t)w * v.x + (float)(int8_t)(w >> 8) * v.y + (float)(int8_t)(w >> 16) * v.z +
           (float)(int8_t)(w >> 24) * v.w;
}

/* The same tiles with x in float32, row row0 + blockIdx.y of x. A lane has rows 4 quarter .. + 4 of one line. */
template <dtype TYPE> static __global__ void __launch_bounds__(BLOCK) gemv_exact_k(products p, size_t row0)
{
    SHARED(float, part, [WARPS][TILE][1]);
    constexpr int LANES = TYPE == DT_Q8 ? 32 : 16, AT_ONCE = 32 / LANES;
    constexpr size_t BYTES = QBLOCK_SCALES + (size_t)QBLOCK_ROWS * QBLOCK_COLS / (TYPE == DT_Q8 ? 1 : 2);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane % LANES / 4, quarter = lane % 4;
    const int job = job_of<1>(p);
    const size_t tile = blockIdx.x - p.job[job].first, blocks = p.cols / QBLOCK_COLS, row = row0 + blockIdx.y;
    const unsigned char *w = p.job[job].w + tile * blocks * BYTES;
    float sum[4] = {};
    for (size_t b = (size_t)warp * AT_ONCE + lane / LANES; b < blocks; b += WARPS * AT_ONCE) {
        const unsigned char *block = w + b * BYTES;
        const float *x = p.x + row * p.cols + b * QBLOCK_COLS + 4 * line;
        uint4 codes = load16(block + QBLOCK_SCALES + QBLOCK_LINE * line + 16 * quarter);
        uint2 d = *reinterpret_cast<const uint2 *>(block + 8 * quarter);
        const unsigned word[4] = {codes.x, codes.y, codes.z, codes.w}, half[2] = {d.x, d.y};
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float by = __half2float(__ushort_as_half((unsigned short)(half[r / 2] >> 16 * (r % 2))));
            float dot = TYPE == DT_Q8 ? dot4(x, (int)(word[r] ^ 0x80808080u))
                                      : dot4(x, signed_nibbles(word[r])) +
                                            dot4(x + QBLOCK_COLS / 2, signed_nibbles(word[r] >> 4));
            sum[r] += by * dot;
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        for (int m = 4; m < 32; m *= 2) sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], m);
        if (lane < 4) part[warp][4 * quarter + r][0] = sum[r];
    }
    __syncthreads();
    finish<1, 1>(p, job, part, tile * TILE, row);
}

template <dtype TYPE, int JOBS, bool DEEP> static auto by_own(bool own)
{
    return own ? gemv_blocks_k<TYPE, JOBS, MOST_X, DEEP, true> : gemv_blocks_k<TYPE, JOBS, MOST_X, DEEP, false>;
}

template <dtype TYPE, int M> static auto by_rows(bool gated)
{
    return gated ? gemv_blocks_k<TYPE, 2, M, false, false> : gemv_blocks_k<TYPE, 1, M, false, false>;
}

/* The height of a grid is limited to 65,535. */
template <dtype TYPE> static cudaError_t exact(backend *be, const products *p, unsigned blocks)
{
    enum { MOST_ROWS = 32768 };
    cudaError_t rc = cudaSuccess;
    for (size_t row = 0; row < p->n && rc == cudaSuccess; row += MOST_ROWS) {
        dim3 grid(blocks, (unsigned)min(p->n - row, (size_t)MOST_ROWS));
        rc = launch(gemv_exact_k<TYPE>, grid, dim3(BLOCK), 0, cuda_stream(be), *p, row);
    }
    return rc;
}

template <dtype TYPE> static cudaError_t few(backend *be, const products *p, unsigned blocks, const projection *c)
{
    if (c->exact) return exact<TYPE>(be, p, blocks);
    bool own = !p->code;
    auto run = p->n > 2 * MOST_X  ? by_rows<TYPE, 4 * MOST_X>(c->gated)
               : p->n > MOST_X    ? by_rows<TYPE, 2 * MOST_X>(c->gated)
               : c->gated         ? by_own<TYPE, 2, false>(own)
               : deep(be, blocks) ? by_own<TYPE, 1, true>(own)
                                  : by_own<TYPE, 1, false>(own);
    size_t room = own ? p->n * p->cols + p->cols / QBLOCK_COLS * MOST_X * sizeof(float) : 0;
    return launch_dependent(be, run, dim3(blocks), dim3(BLOCK), room, *p);
}

/* ---- calls ---- */

/* Quantizes all rows of x to 8 bits with scales per block, padded as these kernels or gemm_blocks read them. */
static cudaError_t round_x(backend *be, products *p, const projection *c, const float *up, float *at, size_t padded)
{
    const weight *w = &c->jobs[0].w;
    size_t blocks = qblock_count(w->cols);
    int8_t *code = c->exact ? NULL : (int8_t *)at;
    float *scale = at + c->n * blocks * WORDS;
    x_rows x = {ptr<float>(c->x), up, w->cols, blocks, padded, c->norm.p.p, c->norm.type, c->eps};
    p->x = at;
    p->n = c->n;
    p->cols = blocks * QBLOCK_COLS;
    p->code = code;
    p->scale = scale;
    return launch_dependent(be, round_blocks_k, dim3((unsigned)c->n * cuda_blocks(blocks, WARPS)), dim3(BLOCK), 0, code,
                            scale, at, x);
}

/* True if the thread blocks of a product quantize x themselves; p->x is then the original x. False if so many blocks
 * run one after another on a multiprocessor that a separate launch is cheap in comparison. */
static bool rounds_itself(backend *be, products *p, const projection *c, unsigned tiles)
{
    size_t cols = c->jobs[0].w.cols;
    if (tiles > 8 * (unsigned)cuda_of(be)->n_sm) return false;
    if (c->exact || c->n > MOST_X || c->n * cols > MOST_OWN || cols % QBLOCK_COLS != 0 || (uintptr_t)c->x.p % 16 != 0)
        return false;
    p->x = ptr<float>(c->x);
    p->n = c->n;
    p->cols = cols;
    p->norm = c->norm.p.p;
    p->norm_type = c->norm.type;
    p->eps = c->eps;
    return true;
}

/* Returns the floats of scratch for the rounded rows: a block has WORDS words of codes, and a scale. */
static size_t room_of(size_t n, size_t padded, size_t cols, bool exact)
{
    return exact ? n * qblock_count(cols) * QBLOCK_COLS : (n * WORDS + padded) * qblock_count(cols);
}

/* Rows of 16 bits (linear.cu) take more than codes. */
size_t cuda_linear_room(size_t n, size_t cols, bool exact)
{
    return max(room_of(n, scales_padded(n), cols, exact), (n * cols + 1) / 2);
}

void cuda_linear_qblocks(backend *be, const projection *c, const float *up)
{
    const weight *w = &c->jobs[0].w;
    bool many = c->n > most_x(w->type) && !c->exact;
    size_t padded = many ? scales_padded(c->n) : (size_t)MOST_X;
    while (padded < c->n && !c->exact) padded *= 2;
    size_t room = room_of(c->n, padded, w->cols, c->exact);
    products p = {};
    unsigned tiles = lay_out(&p, c->jobs, c->n_jobs, c->gated, many ? (size_t)GEMM_ROWS : (size_t)TILE);
    if (c->into.p) p.job[0].out = ptr<float>(c->into), p.add = true;
    cudaError_t rc = cudaSuccess;
    if (many || !rounds_itself(be, &p, c, tiles)) {
        float *at = (float *)cuda_room(be, &cuda_of(be)->rounded, room, sizeof(float), "rounded activations");
        if (at) rc = round_x(be, &p, c, up, at, padded);
        if (!at || !cuda_check(be, rc, "linear: rounding [%zu, %zu]", c->n, w->cols)) return;
    }
    if (many) rc = gemm_blocks(be, w->type, &p, tiles);
    else rc = w->type == DT_Q8 ? few<DT_Q8>(be, &p, tiles, c) : few<DT_Q4>(be, &p, tiles, c);
    cuda_check(be, rc, "linear [%zu, %zu] x [%zu, %zu] of %s", c->n, w->cols, w->rows, w->cols, dtype_name(w->type));
}

/* ---- quantization of weights: ref/quant.c, operation by operation ---- */

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

/* One thread per block of a row. */
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
