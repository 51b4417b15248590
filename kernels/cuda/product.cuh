/* SPDX-License-Identifier: MIT */
/* What the kernels of products by few rows of x share: a block of threads has TILE rows of w, of two jobs in a gated
 * call, whose columns its warps share; it norms x before, and ends with bias, gate and sum, in the order and with the
 * bits of the ops that stand for it (`project` in ops.h). */
#ifndef KERNELS_CUDA_PRODUCT_CUH
#define KERNELS_CUDA_PRODUCT_CUH

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/rows.cuh"

enum {
    MOST_JOBS = 4, /* products of one launch */
    TILE = 16,     /* rows of w of a block of threads */
    WARPS = 8,
    BLOCK = 32 * WARPS
};

typedef struct {
    float *out;
    const unsigned char *w;
    const void *bias;
    size_t rows;
    dtype bias_type;
    unsigned first; /* block */
} product;

typedef struct {
    product job[MOST_JOBS];
    int n_jobs;
    bool add; /* to what lies in out */
    const float *x;
    size_t n, cols;
    const void *norm; /* weights of x's norm; NULL: none */
    dtype norm_type;  /* of weights in elements: theirs */
    float eps;
    const int8_t *code; /* weights in blocks: x in 8 bits and its scales, NULL: the kernel makes them; x is padded to
                           whole blocks then */
    const float *scale;
} products;

/* The job of a block of threads: the first of two in a gated call. */
template <int JOBS> static __device__ __forceinline__ int job_of(const products &p)
{
    int job = 0;
    while (JOBS == 1 && job + 1 < p.n_jobs && blockIdx.x >= p.job[job + 1].first) job++;
    return job;
}

/* A number of out from what the warps have: sums of row r of a tile by row m of x. */
template <int JOBS, int M>
static __device__ __forceinline__ float sum_of(const products &p, int job, const float (*part)[JOBS * TILE][M], int r,
                                               int m, size_t row)
{
    const product &j = p.job[job];
    float s = 0;
    for (int w = 0; w < WARPS; w++) s += part[w][r][m];
    return s + (j.bias ? element(j.bias, j.bias_type, row) : 0);
}

/* part: of all warps, behind a barrier. */
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

/* Whether a launch has so few blocks of threads that each may have a whole half of a processor's registers: `o` and
 * `down` of an 8B shape are 256. More loads are under way then, and the bits are the same. */
static inline bool deep(backend *be, unsigned blocks)
{
    return blocks <= 2 * (unsigned)cuda_of(be)->n_sm;
}

/* Fills the jobs of a launch, of which each has blocks of threads of its own; returns how many those are. */
static inline unsigned lay_out(products *p, const linear_job *jobs, size_t n_jobs, bool gated)
{
    unsigned blocks = 0;
    for (size_t i = 0; i < n_jobs; i++) {
        const linear_job *j = &jobs[i];
        p->job[i] = {ptr<float>(j->out), j->w.p.p, j->bias.p.p, j->w.rows, j->bias.type, blocks};
        if (!gated || i == 0) blocks += cuda_blocks(j->w.rows, TILE);
    }
    p->n_jobs = (int)n_jobs;
    return blocks;
}

#endif
