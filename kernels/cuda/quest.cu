/* SPDX-License-Identifier: MIT */
/* Page bounds (ops_quest.h). */
#include "config.h"

#include "kernels/cuda/groups.cuh"
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

/* Page `page` from the keys of slots [page * size, n) of each head. */
template <class T, class R> static __global__ void redo_k(pages x, half_rows rows, int64_t n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), head = i / x.dim, c = i % x.dim;
    if (head >= x.heads) return;
    size_t page = (size_t)n / x.page;
    T *top = (T *)x.bound + (head * x.cap + page) * 2 * x.dim + c, *low = top + x.dim;
    for (size_t p = page * x.page; p < (size_t)n; p++) {
        float v = element_of<R>(rows, head, (int64_t)p, c);
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
                                    cuda_stream(be), x, rows_of(rows, false), n);
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

/* A row of blocks has `group` heads that read the pages of one KV head together: all of its query heads, or by groups
 * (groups.cuh) those that follow one list. */
template <class T, bool GROUPS>
static __global__ void __launch_bounds__(SCORE_BLOCK)
    score_k(pages x, float *score, size_t stride, const float *q, int group, const int64_t *n, list_groups g,
            bool max_channel, unsigned long long *read)
{
    SHARED_DYN(float, mine);
    int part = blockIdx.y, head = part * x.heads / (int)gridDim.y, lane = threadIdx.x % PARTS;
    places in = {NULL, 1, n[2], n[1], n[2]};
    if (GROUPS) in = places_of(g, list_of_part(g), n[1], n[2]);
    load_group(mine, q, part, group, x.dim);
    if (read && blockIdx.x == 0 && threadIdx.x == 0 && in.end > in.first)
        atomicAdd(read, (unsigned long long)(in.end - in.first) * 2 * x.dim * sizeof(T));
    for (int turn = 0; turn < SCORE_TURNS; turn++) {
        int64_t p = ((int64_t)blockIdx.x * SCORE_TURNS + turn) * SCORE_ROWS + threadIdx.x / PARTS;
        bool inside = p >= in.first && p < in.end, blank = GROUPS && !inside && p < in.n * in.per;
        size_t page = !inside ? 0 : GROUPS ? (size_t)item_of(in, p) : (size_t)p;
        const T *row = (const T *)x.bound + (head * x.cap + page) * 2 * x.dim;
        float top[MOST_CHANNELS], low[MOST_CHANNELS];
        load_part(top, row, lane, inside ? x.dim : 0);
        load_part(low, row + x.dim, lane, inside ? x.dim : 0);
        for (int h = 0; h < group; h++) {
            float s = page_bound(top, low, mine + h * x.dim, lane, x.dim, max_channel);
            if ((inside || blank) && lane == 0) score[(size_t)(part * group + h) * stride + p] = inside ? s : -INFINITY;
        }
    }
}

/* n_max: most scores of a head. */
template <bool GROUPS>
static void score_parts(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *index, buf n,
                        const list_groups &g, size_t parts, int64_t n_max, bool max_channel, buf read)
{
    pages x = pages_of(index);
    int group = (int)(n_heads / parts);
    if (!cuda_begin(be, "quest.score")) return;
    by_type(index->type, [&](auto t) {
        cudaError_t rc = launch(score_k<decltype(t), GROUPS>, score_grid(n_max, parts), dim3(SCORE_BLOCK),
                                (size_t)group * x.dim * sizeof(float), cuda_stream(be), x, ptr<float>(score), stride,
                                ptr<float>(q), group, ptr<int64_t>(n), g, max_channel, ptr<unsigned long long>(read));
        cuda_check(be, rc, "quest.score [%zu, %d], up to %lld pages", n_heads, x.dim, (long long)n_max);
    });
}

static void quest_score(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *x, buf n,
                        int64_t n_max, bool max_channel, buf read)
{
    score_parts<false>(be, score, stride, q, n_heads, x, n, {}, x->n_kv_heads, n_max, max_channel, read);
}

static void quest_score_groups(backend *be, buf score, size_t stride, buf q, size_t n_heads, const quest_index *x, buf n,
                               const item_groups *g, bool max_channel, buf read)
{
    score_parts<true>(be, score, stride, q, n_heads, x, n, groups_of(g), parts_of(g, x->n_kv_heads), g->n_max * g->per,
                      max_channel, read);
}

const quest_ops cuda_quest = {quest_add, quest_redo, quest_score, quest_score_groups};
