/* SPDX-License-Identifier: MIT */
/* Samples of the rows outside the lists (ops_tail.h). */
#include "config.h"

#include "kernels/cuda/attention.cuh"
#include "kernels/ops_tail.h"

enum { ADDERS = 128 };

/* Returns the first entry of an ascending list whose slot is at least `slot`. */
static __device__ __forceinline__ int64_t first_from(const attn_unit &u, int64_t slot)
{
    int64_t lo = 0, hi = u.n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if ((int64_t)slot_of(u, mid) < slot) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

typedef struct {
    const int32_t *idx;   /* NULL: none */
    const int64_t *range; /* NULL: [first, first + count) */
    int64_t first, count;
    size_t idx_stride, rows;
    int64_t n;
    uint64_t seed;
    int layer, lists, heads_per_list;
    int32_t *out;
    int64_t *out_range, *left;
    float *bias;
} drawn_args;

static drawn_args drawn_args_of(const tail_sample_job &j)
{
    const attn_job &of = j.of;
    drawn_args a = {};
    a.idx = ptr<int32_t>(of.idx), a.range = ptr<int64_t>(of.range);
    a.first = of.first, a.count = of.n_max;
    a.idx_stride = of.idx_stride, a.rows = j.rows;
    a.n = j.n;
    a.seed = j.seed, a.layer = j.layer;
    a.lists = (int)of.n_lists, a.heads_per_list = (int)(of.n_heads / of.n_lists);
    a.out = ptr<int32_t>(j.idx), a.out_range = ptr<int64_t>(j.range), a.left = ptr<int64_t>(j.left);
    a.bias = ptr<float>(j.bias);
    return a;
}

/* Returns the list of a sample; other fields of attn_unit are not set. */
static __device__ __forceinline__ attn_unit list_of(const drawn_args &j, int list)
{
    attn_unit u = {};
    u.first = j.range ? j.range[2 * list] : j.first;
    u.n = j.range ? j.range[2 * list + 1] : j.count;
    u.idx = j.idx ? j.idx + list * j.idx_stride : NULL;
    return u;
}

/* Returns token number `rank` among those outside the list. */
static __device__ __forceinline__ int64_t left_at(const drawn_args &j, const attn_unit &u, int64_t rank)
{
    int64_t lo = 0, hi = j.n - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (mid + 1 - first_from(u, mid + 1) > rank) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

/* One block per list; a thread has every ADDERS-th of its draws. */
static __global__ void sample_k(job_list<drawn_args> jobs)
{
    const drawn_args &j = jobs.job[blockIdx.y];
    int list = (int)blockIdx.x;
    attn_unit u = list_of(j, list);
    int64_t m = j.n - u.n, b = min(m, (int64_t)j.rows);
    for (int64_t i = threadIdx.x; i < b; i += ADDERS) {
        int64_t lo = i * m / b, size = (i + 1) * m / b - lo;
        int64_t rank = lo + tail_draw(j.seed, j.n - 1, j.layer, (size_t)list, (size_t)i, size);
        j.out[list * j.rows + (size_t)i] = (int32_t)left_at(j, u, rank);
        for (int h = list * j.heads_per_list; h < (list + 1) * j.heads_per_list; h++)
            j.bias[h * j.rows + (size_t)i] = (float)log((double)size);
    }
    if (threadIdx.x > 0) return;
    j.out_range[2 * list] = 0, j.out_range[2 * list + 1] = b;
    j.left[list] = m;
}

void cuda_tail_sample(backend *be, const tail_sample_job *jobs, size_t n)
{
    unsigned lists = (unsigned)jobs->of.n_lists;
    if (!cuda_begin(be, "tail.sample")) return;
    in_lists(jobs, n, drawn_args_of, [&](auto &list, unsigned m) {
        cudaError_t rc = launch(sample_k, dim3(lists, m), dim3(ADDERS), 0, cuda_stream(be), list);
        cuda_check(be, rc, "tail.sample [%u, %zu]", lists, jobs->rows);
    });
}

typedef struct {
    const float *scores, *parts;
    const int64_t *range, *left;
    size_t score_stride, stride;
    int n_parts, heads_per_list;
    float *out;
    unsigned long long *read;
} missed_args;

static missed_args missed_args_of(const tail_missed_job &j)
{
    missed_args a = {};
    a.scores = ptr<float>(j.of.scores), a.parts = ptr<float>(j.parts);
    a.range = ptr<int64_t>(j.of.range), a.left = ptr<int64_t>(j.left);
    a.score_stride = j.of.score_stride, a.stride = j.stride;
    a.n_parts = (int)j.n_parts, a.heads_per_list = (int)(j.of.n_heads / j.of.n_lists);
    a.out = ptr<float>(j.out);
    a.read = ptr<unsigned long long>(j.of.read);
    return a;
}

/* Computes mass fraction and sigma of a query head whose sample has b of m tokens. */
static __device__ __forceinline__ void missed_of(const missed_args &j, int head, int64_t b, int64_t m)
{
    const float *score = j.scores + head * j.score_stride;
    double top = -INFINITY, all = 0, tau = 0, turns = 0, before = 0;
    for (int p = 0; p < j.n_parts; p++) top = fmax(top, (double)j.parts[p * j.stride + head]);
    for (int p = 0; p < j.n_parts; p++) all += exp((double)j.parts[p * j.stride + head] - top);
    if (!(all > 0)) b = 0;
    for (int64_t i = 0; i < b; i++) {
        double y = exp((double)score[i] - top) / all;
        tau += y;
        turns += i ? (y - before) * (y - before) : 0;
        before = y;
    }
    double var = 0 < b && b < m ? (1 - (double)b / (double)m) * (double)b / (2 * (double)(b - 1)) * turns : 0;
    tau = fmin(tau, 1.0);
    j.out[2 * head] = (float)tau;
    j.out[2 * head + 1] = tau > 0 ? (float)(sqrt(var) / tau) : 0;
}

/* One block of one warp per list; a thread has every 32nd of its heads, and the first thread sums them. */
static __global__ void missed_k(job_list<missed_args> jobs)
{
    const missed_args &j = jobs.job[blockIdx.y];
    int list = (int)blockIdx.x, first = list * j.heads_per_list;
    int64_t b = j.range[2 * list + 1], m = j.left[list];
    for (int h = (int)threadIdx.x; h < j.heads_per_list; h += 32) missed_of(j, first + h, b, m);
    __syncthreads();
    if (threadIdx.x > 0 || !j.read) return;
    double sum = 0, off = 0;
    for (int h = first; h < first + j.heads_per_list; h++) {
        double tau = (double)j.out[2 * h];
        sum += tau;
        off += tau * (1 - tau) * (double)j.out[2 * h + 1];
    }
    atomicAdd(&j.read[READ_MISSED], (unsigned long long)(sum * READ_ONE + 0.5));
    atomicAdd(&j.read[READ_MISSED_VAR], (unsigned long long)(off * off * READ_ONE + 0.5));
    atomicAdd(&j.read[READ_MEASURED], (unsigned long long)j.heads_per_list);
}

void cuda_tail_missed(backend *be, const tail_missed_job *jobs, size_t n)
{
    unsigned lists = (unsigned)jobs->of.n_lists;
    if (!cuda_begin(be, "tail.missed")) return;
    in_lists(jobs, n, missed_args_of, [&](auto &list, unsigned m) {
        cudaError_t rc = launch(missed_k, dim3(lists, m), dim3(32), 0, cuda_stream(be), list);
        cuda_check(be, rc, "tail.missed [%u, %zu]", lists, jobs->n_parts);
    });
}
