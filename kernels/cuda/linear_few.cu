/* SPDX-License-Identifier: MIT */
/* Products of few rows of x with weights stored as elements, bound by the bytes of the weights. Each lane always has
 * several weight loads in flight, and each use starts the next load. bf16 uses the tensor cores, with x split into
 * three bf16 parts whose sum is x, so that all products are exact. The other types use the float32 units. A row of x
 * has its own column of the tensor core tile, so its bits do not depend on the other rows. */
#include "config.h"

#include <type_traits>

#include "kernels/cuda/product.cuh"

/* Lane 4 g + t of a warp has columns N t .. + N of rows g and g + 8 of a tile. */
enum { LANES = 4 };

/* N elements of a row of w: 16 bytes, or one element if rows do not start at multiples of 16 bytes. */
template <class T, int N> struct weight_piece {
    uint4 v = {0, 0, 0, 0};
    __device__ __forceinline__ void load(const T *p, bool inside)
    {
        load_stream(v, p, inside);
    }
    __device__ __forceinline__ void get(float w[N]) const
    {
        unpack(w, v, (const T *)0);
    }
};
template <class T> struct weight_piece<T, 1> {
    float v = 0;
    __device__ __forceinline__ void load(const T *p, bool inside)
    {
        if (inside) v = to_f32(*p);
    }
    __device__ __forceinline__ void get(float w[1]) const
    {
        w[0] = v;
    }
};

/* Loads N columns of a row of x; with NORM, normed with weights from norm on. */
template <class T, int N, bool NORM>
static __device__ __forceinline__ void load_x(float v[N], const float *x, const T *norm, float scale)
{
    if constexpr (N == 1) v[0] = *x;
    else
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float4 f = load_f4(x + i);
            v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
        }
    if constexpr (NORM) {
        float w[N];
        unpack(w, load16(norm), (const T *)0);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = normed(v[i], scale, w[i]);
    }
}

/* Rows of x from x0 on, with their norm. Rows past the last repeat the first. */
template <class T, int M> struct x_tile {
    const float *x, *scale;
    const T *norm;
    int cols, n;

    template <int N, bool NORM> __device__ __forceinline__ void load(float v[N], int m, int c) const
    {
        m = m < n ? m : 0;
        load_x<T, N, NORM>(v, x + m * cols + c, norm + c, NORM ? scale[m] : 1);
    }
};

/* A warp's sums for a tile of each of JOBS. add: multiplies pieces of w with x from column c on; x is 0 if inside is
 * false. */
template <class T, int N, int M, int JOBS, bool NORM> struct sums {
    float s[2 * JOBS][M] = {};

    __device__ __forceinline__ void add(const weight_piece<T, N> w[2 * JOBS], const x_tile<T, M> &x, int c, bool inside)
    {
#pragma unroll
        for (int m = 0; m < M; m++) {
            float v[N] = {};
            if (inside) x.template load<N, NORM>(v, m, c);
#pragma unroll
            for (int r = 0; r < 2 * JOBS; r++) {
                float u[N];
                w[r].get(u);
#pragma unroll
                for (int i = 0; i < N; i++) s[r][m] = fmaf(u[i], v[i], s[r][m]);
            }
        }
    }
    __device__ __forceinline__ void put(float (*part)[M])
    {
        const int g = threadIdx.x % 32 / LANES, t = threadIdx.x % LANES;
#pragma unroll
        for (int r = 0; r < 2 * JOBS; r++)
#pragma unroll
            for (int m = 0; m < M; m++) {
                float v = s[r][m];
                v += __shfl_xor_sync(ALL_LANES, v, 1);
                v += __shfl_xor_sync(ALL_LANES, v, 2);
                if (t == 0) part[8 * r + g][m] = v;
            }
    }
};

/* Splits x into parts of 8 mantissa bits: word i of part k has columns 2 i and 2 i + 1. */
static __device__ __forceinline__ void split_x(unsigned part[3][4], const float v[8])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a = v[2 * i], b = v[2 * i + 1];
#pragma unroll
        for (int k = 0; k < 3; k++) {
            unsigned u = __float_as_uint(a), w = __float_as_uint(b) & 0xffff0000u;
            part[k][i] = u >> 16 | w;
            a -= __uint_as_float(u & 0xffff0000u); /* NaN for infinity */
            b -= __uint_as_float(w);
        }
    }
}

/* Sums on tensor cores. A lane's columns 8 t .. + 8 are 2 in each of its words, for w and x alike. The second and third
 * part have separate sums, so that fewer numbers are added to the large ones. */
template <int M, int JOBS, bool NORM> struct sums<__nv_bfloat16, 8, M, JOBS, NORM> {
    float high[JOBS][M / 8][4] = {}, low[JOBS][M / 8][4] = {};

    __device__ __forceinline__ void add(const weight_piece<__nv_bfloat16, 8> w[2 * JOBS],
                                        const x_tile<__nv_bfloat16, M> &x, int c, bool inside)
    {
#pragma unroll
        for (int h = 0; h < M / 8; h++) {
            float v[8] = {};
            unsigned part[3][4];
            if (inside) x.template load<8, NORM>(v, 8 * h + threadIdx.x % 32 / LANES, c);
            split_x(part, v);
#pragma unroll
            for (int j = 0; j < JOBS; j++) {
                const uint4 a = w[2 * j].v, b = w[2 * j + 1].v;
                const unsigned left[2][4] = {{a.x, b.x, a.y, b.y}, {a.z, b.z, a.w, b.w}};
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    mma(low[j][h], left[s], part[2] + 2 * s, __nv_bfloat16());
                    mma(low[j][h], left[s], part[1] + 2 * s, __nv_bfloat16());
                    mma(high[j][h], left[s], part[0] + 2 * s, __nv_bfloat16());
                }
            }
        }
    }
    __device__ __forceinline__ void put(float (*part)[M])
    {
        const int g = threadIdx.x % 32 / LANES, t = threadIdx.x % LANES;
#pragma unroll
        for (int j = 0; j < JOBS; j++)
#pragma unroll
            for (int h = 0; h < M / 8; h++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    part[TILE * j + 8 * (i / 2) + g][8 * h + 2 * t + i % 2] = high[j][h][i] + low[j][h][i];
    }
};

/* True if the products use the tensor cores; number of thread blocks per multiprocessor, limited by registers. */
template <class T, int N> constexpr bool TENSOR = std::is_same<T, __nv_bfloat16>::value &&N == 8;
template <class T, int N, int M, int JOBS, bool DEEP>
constexpr int FIT = !DEEP && (M == 1 || (TENSOR<T, N> && M == MOST_X && JOBS == 1)) ? 3 : 2;

/* Warps take pieces of LANES x N columns in turn with AHEAD loads in flight: each use starts the next load. Each warp
 * adds its pieces in ascending order, then the warps are added. DEEP: for launches that leave registers unused. */
template <class T, int N, int M, int JOBS, bool NORM, bool DEEP>
static __global__ void __launch_bounds__(BLOCK, FIT<T, N, M, JOBS, DEEP>) gemv_k(products p)
{
    constexpr int AHEAD = (TENSOR<T, N> || M == 1 ? 4 / JOBS : 1) * (DEEP ? 2 : 1), STEP = LANES * N * WARPS;
    SHARED(float, part, [WARPS][JOBS * TILE][M]);
    SHARED(float, scale, [M]);
    const int job = job_of<JOBS>(p), warp = threadIdx.x / 32, g = threadIdx.x % 32 / LANES;
    const size_t row0 = (size_t)(blockIdx.x - p.job[job].first) * TILE, x0 = (size_t)blockIdx.y * M;
    const x_tile<T, M> x = {p.x + x0 * p.cols, scale, (const T *)p.norm, (int)p.cols, (int)min(p.n - x0, (size_t)M)};
    const T *row[2 * JOBS];
    weight_piece<T, N> w[AHEAD][2 * JOBS];
    sums<T, N, M, JOBS, NORM> sum;
    int c = LANES * N * warp + N * (threadIdx.x % LANES), left = (int)p.cols - c;
#pragma unroll
    for (int r = 0; r < 2 * JOBS; r++) {
        const product &j = p.job[JOBS == 2 ? r / 2 : job];
        size_t at = row0 + g + r % 2 * 8;
        row[r] = (const T *)j.w + (at < j.rows ? at : row0) * p.cols + c;
    }
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
#pragma unroll
        for (int r = 0; r < 2 * JOBS; r++) w[a][r].load(row[r] + a * STEP, a * STEP < left);
    grid_wait(); /* weights are constant */
    if constexpr (NORM) norm_scales<true, M>(scale, part[0][0], x.x, x.n, p.cols, p.eps);
    for (int trips = (int)p.cols / (AHEAD * STEP); trips > 0; trips--) {
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            sum.add(w[a], x, c + a * STEP, true);
#pragma unroll
            for (int r = 0; r < 2 * JOBS; r++) w[a][r].load(row[r] + (a + AHEAD) * STEP, (a + AHEAD) * STEP < left);
        }
        c += AHEAD * STEP;
        left -= AHEAD * STEP;
#pragma unroll
        for (int r = 0; r < 2 * JOBS; r++) row[r] += AHEAD * STEP;
    }
    if ((int)p.cols % (AHEAD * STEP) != 0)
#pragma unroll
        for (int a = 0; a < AHEAD; a++) sum.add(w[a], x, c + a * STEP, a * STEP < left);
    sum.put(part[warp]);
    __syncthreads();
    finish<JOBS, M>(p, job, part, row0, x0);
}

template <class T, int N, int JOBS, bool NORM> static cudaError_t by_n(backend *be, const products *p, unsigned blocks)
{
    constexpr int FEW = TENSOR<T, N> ? MOST_X : 1, MANY = TENSOR<T, N> ? 2 * MOST_X : MOST_X;
    constexpr bool MAY = TENSOR<T, N> && JOBS == 1 && !NORM;
    dim3 grid(blocks, cuda_blocks(p->n, p->n <= FEW ? FEW : MANY));
    auto run = p->n > FEW                ? gemv_k<T, N, MANY, JOBS, NORM, false>
               : MAY && deep(be, blocks) ? gemv_k<T, N, FEW, JOBS, NORM, MAY>
                                         : gemv_k<T, N, FEW, JOBS, NORM, false>;
    return launch_dependent(be, run, grid, dim3(BLOCK), 0, *p);
}

bool cuda_few_aligned(const projection *c)
{
    bool all = (uintptr_t)c->x.p % 16 == 0 && (uintptr_t)c->norm.p.p % 16 == 0;
    for (size_t i = 0; i < c->n_jobs; i++) {
        const weight *w = &c->jobs[i].w;
        all = all && (uintptr_t)w->p.p % 16 == 0 && w->cols * dtype_size(w->type) % 16 == 0;
    }
    return all;
}

void cuda_few(backend *be, const projection *c)
{
    products p = {};
    dtype t = c->jobs[0].w.type;
    bool wide = cuda_few_aligned(c);
    unsigned blocks = lay_out(&p, c->jobs, c->n_jobs, c->gated, TILE);
    p.x = ptr<float>(c->x);
    p.n = c->n;
    p.cols = c->jobs[0].w.cols;
    p.norm = c->norm.p.p;
    p.eps = c->eps;
    if (c->into.p) p.job[0].out = ptr<float>(c->into), p.add = true;
    by_type(t, [&](auto e) {
        typedef decltype(e) T;
        constexpr int N = pack<T>::N;
        cudaError_t rc = !wide      ? by_n<T, 1, 1, false>(be, &p, blocks)
                         : c->gated ? by_n<T, N, 2, true>(be, &p, blocks)
                         : p.norm   ? by_n<T, N, 1, true>(be, &p, blocks)
                                    : by_n<T, N, 1, false>(be, &p, blocks);
        cuda_check(be, rc, "linear [%zu, %zu] x [%zu, %zu]", p.n, p.cols, c->jobs[0].w.rows, p.cols);
    });
}
