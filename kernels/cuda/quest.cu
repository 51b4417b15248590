/* SPDX-License-Identifier: MIT */
/* Page bounds (ops_quest.h). */
#include "config.h"

#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/scores.cuh"
#include "kernels/ops_quest.h"

typedef struct {
    void *bound;
    float *sum;
    size_t cap, page;
    int heads, dim;
    quest_how how;
} pages;

static pages pages_of(const quest_index *x)
{
    return {x->bound.p, ptr<float>(x->sum), x->cap, x->page, (int)x->n_kv_heads, (int)x->head_dim, x->how};
}

/* Rounded as the rows are. */
template <class T> static __device__ __forceinline__ float round_to(float x)
{
    T y;
    put_f32(&y, x);
    return to_f32(y);
}

/* Channel c of the key of position p joins its page: its bounds, or their mean. */
template <class T> static __device__ __forceinline__ void join(const pages &x, int head, int c, size_t p, float v)
{
    bool mean = x.how == QUEST_MEAN;
    size_t at = (head * x.cap + p / x.page) * (mean ? 1 : 2) * x.dim + c, before = p % x.page;
    T *top = (T *)x.bound + at, *low = top + x.dim;
    if (mean) {
        float *sum = x.sum + head * x.dim + c;
        *sum = before == 0 ? v : __fadd_rn(*sum, v);
        put_f32(top, __fdiv_rn(*sum, (float)(before + 1)));
        return;
    }
    if (before == 0 || v > to_f32(*top)) put_f32(top, v);
    if (before == 0 || v < to_f32(*low)) put_f32(low, v);
}

/* A thread has one channel of one head of a job and takes the keys in order. k f32 [n][heads][dim]. */
template <class T> static __global__ void add_k(job_list<index_adds<pages>> jobs)
{
    const index_adds<pages> &j = jobs.job[blockIdx.y];
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), head = i / j.x.dim, c = i % j.x.dim;
    if (head >= j.x.heads) return;
    for (int64_t t = 0; t < j.n; t++)
        join<T>(j.x, head, c, (size_t)(j.pos + t), round_to<T>(j.k[(t * j.x.heads + head) * j.x.dim + c]));
}

void cuda_quest_add(backend *be, const index_add_job *jobs, size_t n)
{
    const quest_index *q = (const quest_index *)jobs->index;
    unsigned channels = cuda_blocks(q->n_kv_heads * q->head_dim, 128);
    if (!cuda_begin(be, "quest.add")) return;
    by_type(q->type, [&](auto t) {
        in_lists(jobs, n, adds_of(pages_of), [&](auto &list, unsigned m) {
            cudaError_t rc = launch(add_k<decltype(t)>, dim3(channels, m), dim3(128), 0, cuda_stream(be), list);
            cuda_check(be, rc, "quest.add [%zu, %zu, %zu]", jobs->n, q->n_kv_heads, q->head_dim);
        });
    });
}

/* Page `page` from the keys of slots [page * size, n) of each head. */
template <class T, class R> static __global__ void redo_k(pages x, half_rows rows, int64_t n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), head = i / x.dim, c = i % x.dim;
    if (head >= x.heads) return;
    for (size_t p = (size_t)n / x.page * x.page; p < (size_t)n; p++)
        join<T>(x, head, c, p, element_of<R>(rows, head, (int64_t)p, c));
}

void cuda_quest_redo(backend *be, const void *index, const kv_rows *rows, int64_t n)
{
    const quest_index *q = (const quest_index *)index;
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
static __device__ __forceinline__ float page_bound(const float *top, const float *low, const float *q, int lane,
                                                   int dim, quest_how how)
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
    if (how != QUEST_MAXCH) return sum_parts(p);
    for (int m = 1; m < PARTS; m *= 2) best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, m));
    return best;
}

typedef struct {
    pages x;
    float *score;
    size_t stride;
    const float *q;
    int64_t lo, hi;
    list_groups of;
    unsigned long long *read;
} quest_scores;

/* A row of blocks has `group` heads of a job that read the pages of one KV head together: all of its query heads, or by
 * groups (groups.cuh) those that follow one list. */
template <class T, bool GROUPS, bool MEAN>
static __global__ void __launch_bounds__(SCORE_BLOCK) score_k(job_list<quest_scores> jobs, int group)
{
    SHARED_DYN(float, mine);
    const quest_scores &j = jobs.job[blockIdx.z];
    const pages x = j.x;
    int part = blockIdx.y, head = part * x.heads / (int)gridDim.y, lane = threadIdx.x % PARTS;
    places in = {NULL, 1, j.hi, j.lo, j.hi};
    if (GROUPS) in = places_of(j.of, list_of_part(j.of), j.lo, j.hi);
    load_group(mine, j.q, part, group, x.dim);
    if (j.read && blockIdx.x == 0 && threadIdx.x == 0 && in.end > in.first)
        atomicAdd(j.read, (unsigned long long)(in.end - in.first) * (MEAN ? 1 : 2) * x.dim * sizeof(T));
    for (int turn = 0; turn < SCORE_TURNS; turn++) {
        int64_t p = ((int64_t)blockIdx.x * SCORE_TURNS + turn) * SCORE_ROWS + threadIdx.x / PARTS;
        bool inside = p >= in.first && p < in.end, blank = GROUPS && !inside && p < in.n * in.per;
        size_t page = !inside ? 0 : GROUPS ? (size_t)item_of(in, p) : (size_t)p;
        const T *row = (const T *)x.bound + (head * x.cap + page) * (MEAN ? 1 : 2) * x.dim;
        float top[MOST_CHANNELS], low[MOST_CHANNELS];
        load_part(top, row, lane, inside ? x.dim : 0);
        if (!MEAN) load_part(low, row + x.dim, lane, inside ? x.dim : 0);
        for (int h = 0; h < group; h++) {
            const float *q = mine + h * x.dim;
            float s = MEAN ? dot_parts(top, q, lane, x.dim) : page_bound(top, low, q, lane, x.dim, x.how);
            if ((inside || blank) && lane == 0)
                j.score[(size_t)(part * group + h) * j.stride + p] = inside ? s : -INFINITY;
        }
    }
}

static quest_scores quest_scores_of(const score_job &j)
{
    return {pages_of((const quest_index *)j.index),
            ptr<float>(j.score),
            j.stride,
            ptr<float>(j.q),
            j.items.lo,
            j.items.hi,
            groups_of(j.spans),
            ptr<unsigned long long>(j.read)};
}

void cuda_quest_score(backend *be, const score_job *jobs, size_t n)
{
    const quest_index *x = (const quest_index *)jobs->index;
    size_t parts = parts_of(jobs, x->n_kv_heads), group = jobs->n_heads / parts;
    int64_t most = most_places(jobs, n);
    if (!cuda_begin(be, "quest.score")) return;
    by_type(x->type, [&](auto t) {
        typedef decltype(t) T;
        bool mean = x->how == QUEST_MEAN;
        auto kernel = jobs->spans ? (mean ? score_k<T, true, true> : score_k<T, true, false>)
                                  : (mean ? score_k<T, false, true> : score_k<T, false, false>);
        in_lists(jobs, n, quest_scores_of, [&](auto &list, unsigned m) {
            cudaError_t rc = launch(kernel, score_grid(most, parts, m), dim3(SCORE_BLOCK),
                                    group * x->head_dim * sizeof(float), cuda_stream(be), list, (int)group);
            cuda_check(be, rc, "quest.score [%zu, %zu], up to %lld pages", jobs->n_heads, x->head_dim, (long long)most);
        });
    });
}
