/* SPDX-License-Identifier: MIT */
/* Selection of tokens by exact scores (ops_token.h). */
#include "config.h"

#include "kernels/cuda/scores.cuh"

enum { BLOCK = 256 };

/* ---- scores ---- */

typedef struct {
    const float *q;
    half_rows rows;
    float *score;
    size_t stride;
    int64_t lo, hi;
    int kv, heads;
    const int64_t *state;
} token_scores;

static __device__ __forceinline__ int query_of(const token_scores &j, int kv_head, int i)
{
    return kv_head * (j.heads / j.kv) + i;
}

/* Loads the query heads that read one kv head into shared memory. */
static __device__ __forceinline__ void load_queries(float *to, const token_scores &j, int kv_head)
{
    int dim = j.rows.dim, group = j.heads / j.kv;
    for (int i = threadIdx.x; i < group * dim; i += SCORE_BLOCK)
        to[i] = j.q[(size_t)query_of(j, kv_head, i / dim) * dim + i % dim];
    __syncthreads();
}

/* 16 lanes share a row of one kv head. */
template <class T> static __global__ void __launch_bounds__(SCORE_BLOCK) score_k(token_scores j)
{
    SHARED_DYN(float, mine);
    int kv_head = blockIdx.y, lane = threadIdx.x % PARTS, dim = j.rows.dim, group = j.heads / j.kv;
    if (j.state && *j.state == 0) return;
    load_queries(mine, j, kv_head);
    for (int turn = 0; turn < SCORE_TURNS; turn++) {
        int64_t slot = j.lo + ((int64_t)blockIdx.x * SCORE_TURNS + turn) * SCORE_ROWS + (int64_t)(threadIdx.x / PARTS);
        bool inside = slot < j.hi;
        float x[MOST_CHANNELS];
        load_stored<T>(x, j.rows, kv_head, slot, inside);
        for (int i = 0; i < group; i++) {
            float s = dot_parts(x, mine + i * dim, lane, dim);
            if (inside && lane == 0) j.score[(size_t)query_of(j, kv_head, i) * j.stride + slot] = s;
        }
    }
}

void cuda_token_score(backend *be, const token_score_job *j)
{
    size_t kv = j->rows.n_kv_heads, dim = j->rows.head_dim;
    attn_args read;
    attn_job job = slots_job(&j->rows, j->lo, j->hi - j->lo, j->read);
    if (j->state.p) job.range = buf_at(j->state, TOKEN_FIRST * sizeof(int64_t));
    if (j->hi <= j->lo || !cuda_begin(be, "token.score") || !attn_args_of(be, &read, &job)) return;
    cuda_count_rows(be, &read, false);
    token_scores a = {ptr<float>(j->q), rows_of(&j->rows, false), ptr<float>(j->score),  j->stride, j->lo, j->hi,
                      (int)kv,          (int)j->n_heads,          ptr<int64_t>(j->state)};
    by_rows(j->rows.type, [&](auto t) {
        cudaError_t rc = launch(score_k<decltype(t)>, score_grid(j->hi - j->lo, kv, 1), dim3(SCORE_BLOCK),
                                j->n_heads / kv * dim * sizeof(float), cuda_stream(be), a);
        cuda_check(be, rc, "token.score [%zu, %zu], %lld keys", j->n_heads, dim, (long long)(j->hi - j->lo));
    });
    const combine_job votes = token_votes(j);
    if (j->votes.p) cuda_select_combine(be, &votes, 1);
}

/* ---- reused selections ---- */

typedef struct {
    float *probe;
    const float *u;
    int64_t *state;
    int n_parts, part;
    float least;
    int64_t most, lo, hi;
} match_args;

/* Returns the product of two rows in memory, by 16 lanes, in all of them. */
static __device__ __forceinline__ float dot_lanes(const float *x, const float *y, int lane, int n)
{
    float p = 0;
    for (int c = lane; c < n; c += PARTS) p = __fadd_rn(p, __fmul_rn(x[c], y[c]));
    return sum_parts(p);
}

/* One warp, both halves of which compute the same. */
static __global__ void match_k(match_args a)
{
    int lane = threadIdx.x % PARTS;
    float xy = 0, xx = 0, yy = 0;
    for (int i = 0; i < a.n_parts; i++) {
        const float *x = a.u + (size_t)i * a.part, *y = a.probe + (size_t)i * a.part;
        xy = __fadd_rn(xy, dot_lanes(x, y, lane, a.part));
        xx = __fadd_rn(xx, dot_lanes(x, x, lane, a.part));
        yy = __fadd_rn(yy, dot_lanes(y, y, lane, a.part));
    }
    float bound = __fmul_rn(__fmul_rn(a.least, __fsqrt_rn(xx)), __fsqrt_rn(yy));
    int64_t again = a.state[TOKEN_AGAIN];
    bool near = xx > 0 && yy > 0 && xy >= bound && again >= 0 && again < a.most;
    __syncwarp();
    if (!near)
        for (int c = threadIdx.x; c < a.n_parts * a.part; c += 32) a.probe[c] = a.u[c];
    if (threadIdx.x > 0) return;
    a.state[TOKEN_FRESH] = !near;
    a.state[TOKEN_AGAIN] = near ? again + 1 : 0;
    a.state[TOKEN_FIRST] = a.lo;
    a.state[TOKEN_COUNT] = near ? 0 : a.hi - a.lo;
    if (!near) a.state[TOKEN_END] = a.hi;
}

void cuda_token_match(backend *be, const token_cache *c, buf u, int64_t lo, int64_t hi)
{
    match_args a = {ptr<float>(c->probe),
                    ptr<float>(u),
                    ptr<int64_t>(c->state),
                    (int)c->n_parts,
                    (int)c->part,
                    c->least,
                    c->most,
                    lo,
                    hi};
    if (!cuda_begin(be, "token.match")) return;
    cudaError_t rc = launch(match_k, dim3(1), dim3(32), 0, cuda_stream(be), a);
    cuda_check(be, rc, "token.match [%zu, %zu]", c->n_parts, c->part);
}

static __global__ void keep_k(float *out, const float *in, int64_t lo, int64_t hi, const int64_t *state)
{
    int64_t i = lo + (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= hi) return;
    if (state[TOKEN_FRESH]) out[i] = fmaxf(-INFINITY, in[i]);
    else if (i >= state[TOKEN_END]) out[i] = -INFINITY;
}

void cuda_token_keep(backend *be, buf out, buf in, int64_t lo, int64_t hi, buf state)
{
    if (hi <= lo || !cuda_begin(be, "token.keep")) return;
    cudaError_t rc =
        launch(keep_k, dim3(cuda_blocks((size_t)(hi - lo), BLOCK)), dim3(BLOCK), 0, cuda_stream(be), ptr<float>(out),
               (const float *)ptr<float>(in), lo, hi, (const int64_t *)ptr<int64_t>(state));
    cuda_check(be, rc, "token.keep, %lld votes", (long long)(hi - lo));
}

/* ---- copies ---- */

/* One thread per element of K and V. */
template <class T>
static __global__ void gather_k(float *k, float *v, size_t cap, half_rows keys, half_rows values, const int32_t *idx,
                                int64_t n)
{
    int head = blockIdx.y, dim = keys.dim;
    size_t e = (size_t)blockIdx.x * BLOCK + threadIdx.x, i = e / dim;
    int c = (int)(e % dim);
    if ((int64_t)i >= n) return;
    int64_t slot = idx[i];
    size_t to = (head * cap + i) * dim + c;
    k[to] = element_of<T>(keys, head, slot, c);
    v[to] = element_of<T>(values, head, slot, c);
}

/* The same for block rows: one warp per row; blockIdx.z: K or V. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    gather_blocks_k(float *k, float *v, size_t cap, half_rows keys, half_rows values, const int32_t *idx, int64_t n)
{
    const void *rows = blockIdx.z ? values.exact : keys.exact;
    int64_t i = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / 32;
    int head = blockIdx.y, dim = keys.dim;
    bool rotated = blockIdx.z ? values.rotated : keys.rotated;
    float x[ROW_BLOCKS_MAX];
    if (i >= n) return;
    size_t slot = (size_t)idx[i];
    get_row(x, row_of<T>(rows, head * keys.cap + slot, dim), dim, rotated);
    store_lanes((blockIdx.z ? v : k) + (head * cap + (size_t)i) * dim, x, dim);
}

template <class T> static constexpr auto gatherer_of()
{
    if constexpr (in_blocks<T>) return gather_blocks_k<T>;
    else return gather_k<T>;
}

void cuda_token_gather(backend *be, const kv_rows *out, const kv_rows *rows, buf idx, int64_t n, buf read)
{
    attn_args j;
    attn_job job = slots_job(rows, 0, n, read);
    job.idx = idx;
    if (n <= 0 || !cuda_begin(be, "token.gather") || !attn_args_of(be, &j, &job)) return;
    cuda_count_rows(be, &j, true);
    by_rows(rows->type, [&](auto t) {
        typedef decltype(t) T;
        dim3 grid(cuda_blocks((size_t)n * rows->head_dim, BLOCK), (unsigned)j.n_units);
        if (in_blocks<T>) grid = dim3(cuda_blocks((size_t)n * 32, BLOCK), (unsigned)j.n_units, 2);
        cudaError_t rc =
            launch(gatherer_of<T>(), grid, dim3(BLOCK), 0, cuda_stream(be), ptr<float>(out->k), ptr<float>(out->v),
                   out->cap, rows_of(rows, false), rows_of(rows, true), ptr<int32_t>(idx), n);
        cuda_check(be, rc, "token.gather [%zu, %zu], %lld rows", rows->n_kv_heads, rows->head_dim, (long long)n);
    });
}
