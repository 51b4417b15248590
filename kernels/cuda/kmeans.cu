/* SPDX-License-Identifier: MIT */
/* k-means over keys (ops_kmeans.h). */
#include "config.h"

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/nearest.cuh"
#include "kernels/ops_kmeans.h"

enum { AHEAD = 4 /* keys loaded before they are added */ };

/* Keys of a store from slot `first` on. */
template <class T> struct stored_keys {
    const half_rows &rows;
    const float *less;
    int64_t first;

    __device__ __forceinline__ float at(int head, int64_t i, int c) const
    {
        float x = element_of<T>(rows, head, first + i, c);
        return less ? __fsub_rn(x, less[head * rows.dim + c]) : x;
    }
};

typedef struct {
    half_rows rows;
    const float *less;
    int64_t first, n;
    centroids c;
    kmeans_start start;
    int iters;
    int32_t *work;
    unsigned char *code;
    size_t code_cap;
    bool wide;
} kmeans_args;

static kmeans_args args_of(const kmeans_job &j)
{
    size_t dim = j.rows->head_dim / j.parts;
    return {rows_of(j.rows, false),
            ptr<float>(j.less),
            j.first,
            (int64_t)j.n,
            {j.centroid.p, j.cap, (int)j.count, (int)j.parts, (int)dim, j.type == DT_F16, j.metric == KMEANS_L2},
            j.start,
            j.iters,
            ptr<int32_t>(j.work),
            j.code.p,
            j.code_cap,
            j.wide};
}

template <class T> static __device__ __forceinline__ stored_keys<T> keys_of(const kmeans_args &j)
{
    return {j.rows, j.less, j.first};
}

/* ---- mean ---- */

/* One thread per channel. */
template <class T> static __global__ void mean_k(float *out, half_rows rows, int64_t first, int64_t n)
{
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x), head = blockIdx.y;
    double sum = 0;
    if (c >= rows.dim) return;
    for (int64_t i = 0; i < n; i += AHEAD) {
        float x[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) x[k] = i + k < n ? element_of<T>(rows, head, first + i + k, c) : 0;
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k < n) sum += (double)x[k];
    }
    out[head * rows.dim + c] = (float)(sum / (double)n);
}

void cuda_kmeans_mean(backend *be, buf out, const kv_rows *rows, int64_t first, size_t n)
{
    if (!cuda_begin(be, "kmeans.mean")) return;
    by_rows(rows->type, [&](auto t) {
        cudaError_t rc = launch(mean_k<decltype(t)>, dim3(cuda_blocks(rows->head_dim, 32), (unsigned)rows->n_kv_heads),
                                dim3(32), 0, cuda_stream(be), ptr<float>(out), rows_of(rows, false), first, (int64_t)n);
        cuda_check(be, rc, "kmeans.mean [%zu, %zu, %zu]", n, rows->n_kv_heads, rows->head_dim);
    });
}

/* ---- training ---- */

/* One block per centroid of a unit; threads are channels. */
template <class T> static __global__ void start_k(job_list<kmeans_args> jobs)
{
    const kmeans_args &j = jobs.job[blockIdx.z];
    int i = blockIdx.x, unit = blockIdx.y, c = threadIdx.x;
    if (i >= j.c.count || c >= j.c.dim) return;
    float *to = (float *)j.c.p + (unit * j.c.cap + i) * j.c.dim + c;
    int64_t slot = j.start.base + (int64_t)((2 * (j.start.at + i) + j.start.half) * j.start.n / (2 * j.start.count));
    *to = keys_of<T>(j).at(unit / j.c.parts, slot - j.first, unit % j.c.parts * j.c.dim + c);
}

/* A block has a tile of keys of one unit. t: the iteration; negative: the assignment is the result. */
template <class T> static __global__ void __launch_bounds__(NEAR_BLOCK) code_k(job_list<kmeans_args> jobs, int t)
{
    SHARED(near_tile, tile, [1]);
    const kmeans_args &j = jobs.job[blockIdx.z];
    int64_t key = (int64_t)blockIdx.x * NEAR_TILE;
    size_t unit = blockIdx.y, head = unit / j.c.parts, part = unit % j.c.parts;
    int best[NEAR_EACH];
    if (key >= j.n || t >= j.iters) return;
    near_keys(best, tile, keys_of<T>(j), j.c, unit, key, j.n);
#pragma unroll
    for (int i = 0; i < NEAR_EACH; i++) {
        int64_t row = key + threadIdx.x / NEAR_SIDE + NEAR_SIDE * i;
        size_t at = (head * j.code_cap + (size_t)row) * j.c.parts + part;
        if (row >= j.n || threadIdx.x % NEAR_SIDE > 0) continue;
        if (t >= 0) j.work[unit * j.n + row] = best[i];
        else if (j.wide) ((int32_t *)(void *)j.code)[at] = best[i];
        else j.code[at] = (unsigned char)best[i];
    }
}

/* Returns the sum of channel c of the keys whose code is `mine`, in order, and their number. Called by whole warps,
 * whose threads have neighbouring channels. */
template <class K>
static __device__ __forceinline__ double sum_of(const K &keys, const int32_t *code, int64_t n, int mine, int head,
                                                int c, bool inside, int *number)
{
    double sum = 0;
    *number = 0;
    for (int64_t from = 0; from < n; from += 32) {
        int64_t i = from + threadIdx.x % 32;
        unsigned set = __ballot_sync(ALL_LANES, i < n && code[i] == mine);
        *number += __popc(set);
        while (set) {
            float x[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                int at = __ffs((int)set) - 1;
                x[k] = set && inside ? keys.at(head, from + at, c)
                                     : 0; /* adding 0 does not change the sum, which is never -0 */
                set &= set - 1;
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++) sum += (double)x[k];
        }
    }
    return sum;
}

/* One block per centroid of a unit; threads are channels. */
template <class T> static __global__ void __launch_bounds__(HEAD_DIM_MAX) move_k(job_list<kmeans_args> jobs, int t)
{
    SHARED(double, all, [HEAD_DIM_MAX]);
    const kmeans_args &j = jobs.job[blockIdx.z];
    int i = blockIdx.x, unit = blockIdx.y, c = threadIdx.x, number;
    bool inside = c < j.c.dim;
    if (i >= j.c.count || t >= j.iters) return;
    double sum = sum_of(keys_of<T>(j), j.work + unit * j.n, j.n, i, unit / j.c.parts, unit % j.c.parts * j.c.dim + c,
                        inside, &number);
    double by = number;
    if (!j.c.l2) {
        all[c] = inside ? sum : 0;
        __syncthreads();
        by = 0;
        for (int k = 0; k < j.c.dim; k++) by = __dadd_rn(by, __dmul_rn(all[k], all[k]));
        by = sqrt(by);
    }
    if (inside && by > 0) ((float *)j.c.p)[(unit * j.c.cap + i) * j.c.dim + c] = (float)(sum / by);
}

/* Largest sizes of n jobs. */
typedef struct {
    size_t rows, count, units, dim;
    int iters;
} kmeans_sizes;

static kmeans_sizes sizes_of(const kmeans_job *jobs, size_t n)
{
    kmeans_sizes s = {0, 0, jobs->rows->n_kv_heads * jobs->parts, jobs->rows->head_dim / jobs->parts, 0};
    for (size_t i = 0; i < n; i++) {
        s.rows = max(s.rows, jobs[i].n);
        s.count = max(s.count, jobs[i].count);
        s.iters = max(s.iters, jobs[i].iters);
    }
    return s;
}

void cuda_kmeans_train(backend *be, const kmeans_job *jobs, size_t n)
{
    kmeans_sizes s = sizes_of(jobs, n);
    if (s.rows == 0 || !cuda_begin(be, "kmeans.train")) return;
    by_rows(jobs->rows->type, [&](auto type) {
        typedef decltype(type) T;
        in_lists(jobs, n, args_of, [&](auto &list, unsigned m) {
            dim3 each((unsigned)s.count, (unsigned)s.units, m), channels((unsigned)(s.dim + 31) / 32 * 32);
            cudaError_t rc = launch(start_k<T>, each, channels, 0, cuda_stream(be), list);
            for (int t = 0; t < s.iters && rc == cudaSuccess; t++) {
                rc = launch(code_k<T>, near_grid((int64_t)s.rows, s.units, m), dim3(NEAR_BLOCK), 0, cuda_stream(be),
                            list, t);
                if (rc == cudaSuccess) rc = launch(move_k<T>, each, channels, 0, cuda_stream(be), list, t);
            }
            cuda_check(be, rc, "kmeans.train [%zu, %zu, %zu, %zu]", s.rows, s.count, s.units, s.dim);
        });
    });
}

void cuda_kmeans_assign(backend *be, const kmeans_job *jobs, size_t n)
{
    kmeans_sizes s = sizes_of(jobs, n);
    if (s.rows == 0 || !cuda_begin(be, "kmeans.assign")) return;
    by_rows(jobs->rows->type, [&](auto type) {
        in_lists(jobs, n, args_of, [&](auto &list, unsigned m) {
            cudaError_t rc = launch(code_k<decltype(type)>, near_grid((int64_t)s.rows, s.units, m), dim3(NEAR_BLOCK), 0,
                                    cuda_stream(be), list, -1);
            cuda_check(be, rc, "kmeans.assign [%zu, %zu, %zu, %zu]", s.rows, s.count, s.units, s.dim);
        });
    });
}
