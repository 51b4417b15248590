/* SPDX-License-Identifier: MIT */
/* Scores of tokens by the store's K rows, exact and quantized (ops_coded.h). 16 lanes have SCORE_TURNS consecutive
 * tokens, one query head after the other, so that the pairs of a group are folded into the query once for them. */
#include "config.h"

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/scores.cuh"
#include "kernels/ops_coded.h"

void cuda_coded_add(backend *be, const index_add_job *jobs, size_t n)
{
    (void)be, (void)jobs, (void)n;
}

void cuda_coded_redo(backend *be, const void *x, const kv_rows *rows, int64_t n)
{
    (void)be, (void)x, (void)rows, (void)n;
}

typedef struct {
    half_rows rows;
    float *score;
    size_t stride;
    const float *q;
    int64_t lo, hi;
} coded_scores;

/* A lane's part of a query, with the pairs of a group folded in. */
typedef struct {
    int64_t group; /* -1: none */
    float f[MOST_CHANNELS], add;
} coded_fold;

static __device__ __forceinline__ float code_at(const half_codes &h, int head, int64_t row, int c)
{
    int bit = c * h.bits;
    unsigned byte = h.code[(head * h.cap + (size_t)row) * h.row_bytes + bit / 8];
    return code_f32(byte >> bit % 8 & ((1u << h.bits) - 1));
}

/* Returns a lane's partial sum of q and exact row `row` in its stored form. */
template <class T>
static __device__ __forceinline__ float exact_part(const half_rows &r, int head, int64_t row, const float *q, int lane)
{
    const T *x = row_of<T>(r.exact, head * r.cap + (size_t)row, r.dim);
    float p = 0;
    for (int c = lane; c < r.dim; c += PARTS) p = __fadd_rn(p, __fmul_rn(q[c], element_in(x, r.dim, c, false)));
    return p;
}

static __device__ __forceinline__ void fold_group(coded_fold &k, const half_rows &r, int head, int64_t group,
                                                  const float *q, int lane)
{
    const __half *a = r.codes.pair + (head * (r.codes.cap / r.codes.group) + (size_t)group) * 2 * r.dim, *b = a + r.dim;
    k.group = group;
    k.add = 0;
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++) {
        int c = lane + PARTS * i;
        if (c >= r.dim) continue;
        k.f[i] = __fmul_rn(q[c], to_f32(b[c]));
        k.add = __fadd_rn(k.add, __fmul_rn(r.codes.zero_point ? k.f[i] : q[c], to_f32(a[c])));
    }
}

/* row < 0: a quantized row with pairs per channel. Called by all lanes of the warp. */
template <class T>
static __device__ __forceinline__ float score_by_channel(coded_fold &k, const half_rows &r, int head, int64_t row,
                                                         const float *q, int lane)
{
    float p = 0;
    if (row >= 0) p = exact_part<T>(r, head, row, q, lane);
    else {
        int64_t group = (-1 - row) / r.codes.group;
        if (group != k.group) fold_group(k, r, head, group, q, lane);
#pragma unroll
        for (int i = 0; i < MOST_CHANNELS; i++) {
            int c = lane + PARTS * i;
            if (c < r.dim) p = __fadd_rn(p, __fmul_rn(k.f[i], code_at(r.codes, head, -1 - row, c)));
        }
    }
    p = sum_parts(p);
    float add = sum_parts(k.add);
    if (row >= 0) return p;
    return r.codes.zero_point ? __fsub_rn(p, add) : __fadd_rn(add, p);
}

/* The same with pairs per run of a row. */
template <class T>
static __device__ __forceinline__ float score_by_run(const half_rows &r, int head, int64_t row, const float *q,
                                                     int lane)
{
    const half_codes &h = r.codes;
    float exact = sum_parts(row >= 0 ? exact_part<T>(r, head, row, q, lane) : 0), score = 0;
    for (int i = 0; i < h.runs; i++) {
        int end = min((i + 1) * h.run, r.dim);
        float p = 0, s = 0, a = 0, b = 0;
        for (int c = i * h.run + lane; row < 0 && c < end; c += PARTS) {
            p = __fadd_rn(p, __fmul_rn(q[c], code_at(h, head, -1 - row, c)));
            s = __fadd_rn(s, q[c]);
        }
        p = sum_parts(p);
        s = sum_parts(s);
        if (row < 0) {
            const __half *pair = h.pair + ((head * h.cap + (size_t)(-1 - row)) * h.runs + i) * 2;
            a = to_f32(pair[0]), b = to_f32(pair[1]);
        }
        float as = __fmul_rn(a, s);
        float term = h.zero_point ? __fmul_rn(b, __fsub_rn(p, as)) : __fadd_rn(as, __fmul_rn(b, p));
        score = i == 0 ? term : __fadd_rn(score, term);
    }
    return row >= 0 ? exact : score;
}

template <class T, bool RUNS>
static __global__ void __launch_bounds__(SCORE_BLOCK) score_k(job_list<coded_scores> jobs, int group)
{
    SHARED_DYN(float, mine);
    const coded_scores &j = jobs.job[blockIdx.z];
    const half_rows r = j.rows;
    int head = blockIdx.y, lane = threadIdx.x % PARTS;
    int64_t first = ((int64_t)blockIdx.x * SCORE_ROWS + threadIdx.x / PARTS) * SCORE_TURNS;
    load_group(mine, j.q, head, group, r.dim);
    if (in_blocks<T> && r.rotated) {
        hadamard_rows(mine, mine, group, (size_t)r.dim, r.dim);
        __syncthreads();
    }
    for (int h = 0; h < group; h++) {
        const float *q = mine + h * r.dim;
        coded_fold fold = {};
        fold.group = -1;
        for (int turn = 0; turn < SCORE_TURNS; turn++) {
            int64_t t = first + turn;
            bool inside = t >= j.lo && t < j.hi;
            int64_t row = !inside ? j.lo : t;
            if (r.codes.at) row = r.codes.at[row];
            float s = RUNS ? score_by_run<T>(r, head, row, q, lane) : score_by_channel<T>(fold, r, head, row, q, lane);
            if (inside && lane == 0) j.score[(size_t)(head * group + h) * j.stride + t] = s;
        }
    }
}

static coded_scores coded_scores_of(const score_job &j)
{
    const kv_rows *rows = ((const coded_index *)j.index)->rows;
    return {rows_of(rows, false), ptr<float>(j.score), j.stride, ptr<float>(j.q), j.items.lo, j.items.hi};
}

/* Counts the bytes read by the scores of a job. */
static void count_keys(backend *be, const score_job &j)
{
    attn_args a;
    int64_t n = max(j.items.hi - j.items.lo, (int64_t)0);
    attn_job job = slots_job(((const coded_index *)j.index)->rows, j.items.lo, n, j.read);
    if (j.read.p && n > 0 && attn_args_of(be, &a, &job)) cuda_count_rows(be, &a, false);
}

void cuda_coded_score(backend *be, const score_job *jobs, size_t n)
{
    const kv_rows *rows = ((const coded_index *)jobs->index)->rows;
    size_t group = jobs->n_heads / rows->n_kv_heads;
    int64_t most = 0;
    for (size_t i = 0; i < n; i++) most = max(most, jobs[i].items.hi);
    if (!cuda_begin(be, "coded.score")) return;
    by_rows(rows->type, [&](auto t) {
        typedef decltype(t) T;
        auto kernel = rows->codes.by_token ? score_k<T, true> : score_k<T, false>;
        in_lists(jobs, n, coded_scores_of, [&](auto &list, unsigned m) {
            cudaError_t rc = launch(kernel, score_grid(most, rows->n_kv_heads, m), dim3(SCORE_BLOCK),
                                    group * rows->head_dim * sizeof(float), cuda_stream(be), list, (int)group);
            cuda_check(be, rc, "coded.score [%zu, %zu], up to %lld tokens", jobs->n_heads, rows->head_dim,
                       (long long)most);
        });
    });
    for (size_t i = 0; i < n; i++) count_keys(be, jobs[i]);
}
