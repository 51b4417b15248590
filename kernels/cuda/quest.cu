/* SPDX-License-Identifier: MIT */
/* Page bounds (ops_quest.h). */
#include "config.h"

#include "kernels/cuda/scores.cuh"
#include "kernels/ops_quest.h"

typedef struct {
    void *bound;
    size_t cap, page;
    int heads, dim;
} pages;

static pages pages_of(const quest_index *x)
{
    return {x->bound.p, x->cap, x->page, (int)x->n_kv_heads, (int)x->head_dim};
}

/* Rounded as the rows are. */
template <class T> static __device__ __forceinline__ float round_to(float x)
{
    T y;
    put_f32(&y, x);
    return to_f32(y);
}

/* A thread has one channel of one head and takes the keys in order. k f32 [n][heads][dim], of positions first on. */
template <class T> static __global__ void add_k(pages x, const int64_t *pos, const float *k, size_t n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), head = i / x.dim, c = i % x.dim;
    if (head >= x.heads) return;
    for (size_t t = 0; t < n; t++) {
        size_t p = (size_t)pos[0] + t, at = (head * x.cap + p / x.page) * 2 * x.dim + c;
        T *top = (T *)x.bound + at, *low = top + x.dim;
        float v = round_to<T>(k[(t * x.heads + head) * x.dim + c]);
        bool anew = p % x.page == 0;
        if (anew || v > to_f32(*top)) put_f32(top, v);
        if (anew || v < to_f32(*low)) put_f32(low, v);
    }
}

static void quest_add(backend *be, const quest_index *q, buf pos, buf k, size_t n)
{
    pages x = pages_of(q);
    if (n == 0 || !cuda_begin(be, "quest.add")) return;
    by_type(q->type, [&](auto t) {
        cudaError_t rc = launch(add_k<decltype(t)>, dim3(cuda_blocks((size_t)x.heads * x.dim, 128)), dim3(128), 0,
                                cuda_stream(be), x, ptr<int64_t>(pos), ptr<float>(k), n);
        cuda_check(be, rc, "quest.add [%zu, %d, %d]", n, x.heads, x.dim);
    });
}

/* Page `page` from rows [page * size, n) of each head. */
template <class T, class R> static __global__ void redo_k(pages x, const R *rows, size_t cap, int64_t n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), head = i / x.dim, c = i % x.dim;
    if (head >= x.heads) return;
    size_t page = (size_t)n / x.page;
    T *top = (T *)x.bound + (head * x.cap + page) * 2 * x.dim + c, *low = top + x.dim;
    for (size_t p = page * x.page; p < (size_t)n; p++) {
        float v = to_f32(rows[(head * cap + p) * x.dim + c]);
        if (p % x.page == 0 || v > to_f32(*top)) put_f32(top, v);
        if (p % x.page == 0 || v < to_f32(*low)) put_f32(low, v);
    }
}

static void quest_redo(backend *be, const quest_index *q, const kv_rows *rows, int64_t n)
{
    pages x = pages_of(q);
    if (!cuda_begin(be, "quest.redo")) return;
    by_type(q->type, [&](auto t) {
        by_type(rows->type, [&](auto r) {
            typedef decltype(t) T;
            typedef decltype(r) R;
            cudaError_t rc = launch(redo_k<T, R>, dim3(cuda_blocks((size_t)x.heads * x.dim, 128)), dim3(128), 0,
                                    cuda_stream(be), x, (const R *)ptr<R>(rows->k), rows->cap, n);
            cuda_check(be, rc, "quest.redo [%d, %d]", x.heads, x.dim);
        });
    });
}

/* Each term is the larger of two rounded products (ref/quest.c). */
static __device__ __forceinline__ float page_bound(const float *top, const float *low, const float *q, int lane, int dim,
                                                   bool max_channel)
{
    float p = 0, best = -INFINITY;
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++) {
        int c = lane + PARTS * i;
        if (c >= dim) continue;
        float a = __fmul_rn(q[c], top[i]), b = __fmul_rn(q[c], low[i]), term = a > b ? a : b;
        p = __fadd_rn(p, term);
        if (term > best) best = term;
    }
    if (!max_channel) return sum_parts(p);
    for (int m = 1; m < PARTS; m *= 2) best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, m));
    return best;
}

template <class T>
static __global__ void __launch_bounds__(SCORE_BLOCK)
    score_k(pages x, float *score, size_t stride, const float *q, int group, const int64_t *n, bool max_channel,
            unsigned long long *read)
{
    SHARED_DYN(float, mine);
    int head = blockIdx.y, lane = threadIdx.x % PARTS;
    load_group(mine, q, head, group, x.dim);
    if (read && blockIdx.x == 0 && head == 0 && threadIdx.x == 0 && n[2] > n[1])
        atomicAdd(read, (unsigned long long)(n[2] - n[1]) * x.heads * 2 * x.dim * sizeof(T));
    for (int turn = 0; turn < SCORE_TURNS; turn++) {
        int64_t p = ((int64_t)blockIdx.x * SCORE_TURNS + turn) * SCORE_ROWS + threadIdx.x / PARTS;
        bool inside = p >= n[1] && p < n[2];
        const T *row = (const T *)x.bound + (head * x.cap + (inside ? (size_t)p : 0)) * 2 * x.dim;
        float top[MOST_CHANNELS], low[MOST_CHANNELS];
        load_part(top, row, lane, inside ? x.dim : 0);
        load_part(low, row + x.dim, lane, inside ? x.dim : 0);
        for (int g = 0; g < group; g++) {
            float s = page_bound(top, low, mine + g * x.dim, lane, x.dim, max_channel);
            if (inside && lane == 0) score[(size_t)(head * group + g) * stride + p] = s;
        }
    }
}

static void quest_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *index, buf n,
                        int64_t n_max, bool max_channel, buf read)
{
    pages x = pages_of(index);
    int group = (int)(n_heads / index->n_kv_heads);
    if (!cuda_begin(be, "quest.score")) return;
    by_type(index->type, [&](auto t) {
        cudaError_t rc = launch(score_k<decltype(t)>, score_grid(n_max, index->n_kv_heads), dim3(SCORE_BLOCK),
                                (size_t)group * x.dim * sizeof(float), cuda_stream(be), x, ptr<float>(score), stride,
                                ptr<float>(q), group, ptr<int64_t>(n), max_channel, ptr<unsigned long long>(read));
        cuda_check(be, rc, "quest.score [%zu, %d], up to %lld pages", n_heads, x.dim, (long long)n_max);
    });
}

const quest_ops cuda_quest = {quest_add, quest_redo, quest_score};
