/* SPDX-License-Identifier: MIT */
/* Product-quantized keys (ops_pq.h). */
#include "config.h"

#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/nearest.cuh"
#include "kernels/cuda/scores.cuh"
#include "kernels/ops_pq.h"

enum { PQ_TURNS = 8 /* tokens per thread */ };

typedef struct {
    unsigned char *code;
    centroids c;
    size_t cap;
    int heads, dim;
    bool trained;
} pq_words_of_keys;

static pq_words_of_keys words_of(const pq_index *x)
{
    return {x->code.p,
            {x->centroid.p, pq_words(x), (int)pq_words(x), (int)x->parts, (int)(x->head_dim / x->parts), true, true},
            x->cap,
            (int)x->n_kv_heads,
            (int)x->head_dim,
            x->trained > 0};
}

/* ---- adding ---- */

/* New keys f32 [n][heads][dim], rounded as rows of the store. */
template <class T> struct fresh_keys {
    const float *k;
    int heads, dim;

    __device__ __forceinline__ float at(int head, int64_t i, int c) const
    {
        T y;
        put_f32(&y, k[((size_t)i * heads + head) * dim + c]);
        return to_f32(y);
    }
};

/* A block has a tile of keys of one subspace of one head. The launch bounds prevent spills on sm_90. */
template <class T>
static __global__ void __launch_bounds__(NEAR_BLOCK, 2) add_k(job_list<index_adds<pq_words_of_keys>> jobs)
{
    SHARED(near_tile, tile, [1]);
    const index_adds<pq_words_of_keys> &j = jobs.job[blockIdx.z];
    int64_t key = (int64_t)blockIdx.x * NEAR_TILE;
    size_t unit = blockIdx.y, head = unit / j.x.c.parts, part = unit % j.x.c.parts;
    int best[NEAR_EACH];
    if (!j.x.trained || key >= j.n) return;
    near_keys(best, tile, fresh_keys<T>{j.k, j.x.heads, j.x.dim}, j.x.c, unit, key, j.n);
#pragma unroll
    for (int i = 0; i < NEAR_EACH; i++) {
        int64_t row = key + threadIdx.x / NEAR_SIDE + NEAR_SIDE * i;
        size_t at = (head * j.x.cap + (size_t)(j.pos + row)) * j.x.c.parts + part;
        if (row < j.n && threadIdx.x % NEAR_SIDE == 0) j.x.code[at] = (unsigned char)best[i];
    }
}

void cuda_pq_add(backend *be, const index_add_job *jobs, size_t n)
{
    const pq_index *x = (const pq_index *)jobs->index;
    size_t most = 0;
    for (size_t i = 0; i < n; i++)
        if (((const pq_index *)jobs[i].index)->trained > 0) most = max(most, jobs[i].n);
    if (most == 0 || !cuda_begin(be, "pq.add")) return;
    by_type(x->type, [&](auto t) {
        in_lists(jobs, n, adds_of(words_of), [&](auto &list, unsigned m) {
            cudaError_t rc = launch(add_k<decltype(t)>, near_grid((int64_t)most, x->n_kv_heads * x->parts, m),
                                    dim3(NEAR_BLOCK), 0, cuda_stream(be), list);
            cuda_check(be, rc, "pq.add [%zu, %zu, %zu]", most, x->n_kv_heads, x->head_dim);
        });
    });
}

void cuda_pq_redo(backend *be, const void *x, const kv_rows *rows, int64_t n)
{
    (void)be, (void)x, (void)rows, (void)n;
}

/* ---- scores ---- */

typedef struct {
    pq_words_of_keys x;
    float *score;
    size_t stride;
    const float *q;
    int64_t lo, hi;
    unsigned long long *read, bytes;
} pq_scores;

/* Computes the products of a query with all centroids of its kv head: [parts][words]. Ends with a barrier. */
static __device__ __forceinline__ void make_products(float *table, const centroids &c, int head, const float *q)
{
    int lane = threadIdx.x % PARTS, all = c.parts * c.count;
    for (int from = 0; from < all; from += SCORE_ROWS) {
        int i = from + threadIdx.x / PARTS, part = i / c.count;
        float v[MOST_CHANNELS];
        const __half *row = (const __half *)c.p + ((size_t)head * all + i) * c.dim;
        load_part(v, row, lane, i < all ? c.dim : 0);
        float s = dot_parts(v, q + part * c.dim, lane, i < all ? c.dim : 0);
        if (i < all && lane == 0) table[i] = s;
    }
    __syncthreads();
}

/* A block has SCORE_BLOCK * PQ_TURNS tokens of one query head. */
static __global__ void __launch_bounds__(SCORE_BLOCK) score_k(job_list<pq_scores> jobs, int group)
{
    SHARED_DYN(float, table);
    const pq_scores &j = jobs.job[blockIdx.z];
    const centroids &c = j.x.c;
    int h = blockIdx.y, head = h / group;
    int64_t from = j.lo + (int64_t)blockIdx.x * SCORE_BLOCK * PQ_TURNS, to = min(from + SCORE_BLOCK * PQ_TURNS, j.hi);
    add_read(j.read, j.bytes);
    if (from >= to) return;
    make_products(table, c, head, j.q + (size_t)h * j.x.dim);
    for (int64_t t = from + threadIdx.x; t < to; t += SCORE_BLOCK) {
        const unsigned char *code = j.x.code + (head * j.x.cap + (size_t)t) * c.parts;
        float sum = table[code[0] & (c.count - 1)];
        for (int p = 1; p < c.parts; p++) sum = __fadd_rn(sum, table[p * c.count + (code[p] & (c.count - 1))]);
        j.score[h * j.stride + t] = sum;
    }
}

static pq_scores pq_scores_of(const score_job &j)
{
    const pq_index *x = (const pq_index *)j.index;
    return {words_of(x),
            ptr<float>(j.score),
            j.stride,
            ptr<float>(j.q),
            j.items.lo,
            j.items.hi,
            ptr<unsigned long long>(j.read),
            pq_bytes(x, j.items.hi - j.items.lo)};
}

void cuda_pq_score(backend *be, const score_job *jobs, size_t n)
{
    const pq_index *x = (const pq_index *)jobs->index;
    int64_t most = 1;
    for (size_t i = 0; i < n; i++) most = max(most, jobs[i].items.hi - jobs[i].items.lo);
    unsigned blocks = cuda_blocks((size_t)most, SCORE_BLOCK * PQ_TURNS);
    if (!cuda_begin(be, "pq.score")) return;
    in_lists(jobs, n, pq_scores_of, [&](auto &list, unsigned m) {
        cudaError_t rc =
            launch(score_k, dim3(blocks, (unsigned)jobs->n_heads, m), dim3(SCORE_BLOCK),
                   x->parts * pq_words(x) * sizeof(float), cuda_stream(be), list, (int)(jobs->n_heads / x->n_kv_heads));
        cuda_check(be, rc, "pq.score [%zu, %zu], up to %lld tokens", jobs->n_heads, x->head_dim, (long long)most);
    });
}
