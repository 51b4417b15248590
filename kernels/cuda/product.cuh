/* SPDX-License-Identifier: MIT */
/* Code shared by our own kernels of products. With few rows of x a thread block has TILE rows of w (of two jobs in a
 * gated call), whose columns are divided among its warps. It applies the norm to x first and ends with bias, gate and
 * sum, in the order and with the bits of the separate ops (`project` in ops.h). */
#ifndef KERNELS_CUDA_PRODUCT_CUH
#define KERNELS_CUDA_PRODUCT_CUH

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/rows.cuh"

enum {
    MOST_JOBS = 4, /* products in one launch */
    TILE = 16,     /* rows of w per thread block */
    WARPS = 8,
    BLOCK = 32 * WARPS
};

typedef struct {
    float *out;
    const unsigned char *w;
    const void *bias;
    size_t rows;
    dtype bias_type;
    unsigned first; /* first block */
} product;

typedef struct {
    product job[MOST_JOBS];
    int n_jobs;
    bool add; /* adds to the content of out */
    const float *x;
    size_t n, cols;
    const void *norm; /* weights of x's norm; NULL: none */
    dtype norm_type;  /* for weights stored as elements: their type */
    float eps;
    const int8_t *code; /* weights in blocks: x in 8 bits and its scales. NULL: computed by the kernel; x is then padded
                           to whole blocks */
    const float *scale;
} products;

/* Returns the job of a thread block; in a gated call the first of the two. */
template <int JOBS> static __device__ __forceinline__ int job_of(const products &p)
{
    int job = 0;
    while (JOBS == 1 && job + 1 < p.n_jobs && blockIdx.x >= p.job[job + 1].first) job++;
    return job;
}

/* Returns an element of out from the warps' sums: row r of a tile times row m of x. */
template <int JOBS, int M>
static __device__ __forceinline__ float sum_of(const products &p, int job, const float (*part)[JOBS * TILE][M], int r,
                                               int m, size_t row)
{
    const product &j = p.job[job];
    float s = 0;
    for (int w = 0; w < WARPS; w++) s += part[w][r][m];
    return s + (j.bias ? element(j.bias, j.bias_type, row) : 0);
}

/* Writes a tile of out. part: sums of all warps, after a barrier. */
template <int JOBS, int M>
static __device__ __forceinline__ void finish(const products &p, int job, const float (*part)[JOBS * TILE][M],
                                              size_t row0, size_t x0)
{
    const product &j = p.job[job];
    for (int i = threadIdx.x; i < TILE * M; i += BLOCK) {
        int r = i % TILE, m = i / TILE;
        if (row0 + r >= j.rows || x0 + m >= p.n) continue;
        float s = sum_of<JOBS, M>(p, job, part, r, m, row0 + r);
        if constexpr (JOBS == 2) s = swiglu_of(s, sum_of<JOBS, M>(p, 1, part, TILE + r, m, row0 + r));
        float *out = &j.out[(x0 + m) * j.rows + row0 + r];
        *out = p.add ? *out + s : s;
    }
}

/* True if a launch has so few thread blocks that each may use half of a multiprocessor's registers (`o` and `down` of
 * an 8B shape have 256). More loads are then in flight; the bits are the same. */
static inline bool deep(backend *be, unsigned blocks)
{
    return blocks <= 2 * (unsigned)cuda_of(be)->n_sm;
}

/* Fills the jobs of a launch, each with its own thread blocks of `tile` rows of w. Returns the number of blocks. */
static inline unsigned lay_out(products *p, const linear_job *jobs, size_t n_jobs, bool gated, size_t tile)
{
    unsigned blocks = 0;
    for (size_t i = 0; i < n_jobs; i++) {
        const linear_job *j = &jobs[i];
        p->job[i] = {ptr<float>(j->out), j->w.p.p, j->bias.p.p, j->w.rows, j->bias.type, blocks};
        if (!gated || i == 0) blocks += cuda_blocks(j->w.rows, tile);
    }
    p->n_jobs = (int)n_jobs;
    return blocks;
}

#endif
