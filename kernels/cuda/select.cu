/* SPDX-License-Identifier: MIT */
/* From scores to lists (ops_select.h). */
#include "config.h"

#include "kernels/cuda/scores.cuh"
#include "kernels/ops_select.h"

enum { BLOCK = 256, MOST_WARPS = 32, DIGITS = 256, GROUP_MAX = 1024, SMALL = 4096 };

/* ---- scores ---- */

static __global__ void mean_heads_k(float *out, const float *q, size_t all, int group, int dim)
{
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x, r = i / dim, c = i % dim;
    if (i >= all) return;
    float sum = 0;
    for (int h = 0; h < group; h++) sum = __fadd_rn(sum, q[(r * group + h) * dim + c]);
    out[i] = __fdiv_rn(sum, (float)group);
}

static void mean_heads(backend *be, buf out, buf q, size_t n_rows, size_t n_heads, size_t n_groups, size_t dim)
{
    size_t all = n_rows * n_groups * dim;
    if (all == 0 || !cuda_begin(be, "mean_heads")) return;
    cudaError_t rc = launch(mean_heads_k, dim3(cuda_blocks(all, BLOCK)), dim3(BLOCK), 0, cuda_stream(be), ptr<float>(out),
                            ptr<float>(q), all, (int)(n_heads / n_groups), (int)dim);
    cuda_check(be, rc, "mean_heads [%zu, %zu, %zu]", n_rows, n_heads, dim);
}

template <class T>
static __global__ void __launch_bounds__(SCORE_BLOCK)
    exact_k(float *score, size_t stride, const float *q, int group, const T *rows, size_t cap, int dim, const int64_t *n,
            unsigned long long *read)
{
    SHARED_DYN(float, mine);
    int head = blockIdx.y, lane = threadIdx.x % PARTS;
    load_group(mine, q, head, group, dim);
    if (read && blockIdx.x == 0 && head == 0 && threadIdx.x == 0 && n[2] > n[1])
        atomicAdd(read, (unsigned long long)(n[2] - n[1]) * gridDim.y * dim * sizeof(T));
    for (int turn = 0; turn < SCORE_TURNS; turn++) {
        int64_t i = ((int64_t)blockIdx.x * SCORE_TURNS + turn) * SCORE_ROWS + threadIdx.x / PARTS;
        bool inside = i >= n[1] && i < n[2];
        float x[MOST_CHANNELS];
        load_part(x, rows + (head * cap + (inside ? (size_t)i : 0)) * dim, lane, inside ? dim : 0);
        for (int g = 0; g < group; g++) {
            float s = dot_parts(x, mine + g * dim, lane, dim);
            if (inside && lane == 0) score[(size_t)(head * group + g) * stride + i] = s;
        }
    }
}

static void exact(backend *be, buf score, size_t stride, buf q, size_t n_heads, const kv_rows *rows, buf n, int64_t n_max,
                  buf read)
{
    int group = (int)(n_heads / rows->n_kv_heads), dim = (int)rows->head_dim;
    if (!cuda_begin(be, "exact scores")) return;
    by_type(rows->type, [&](auto t) {
        typedef decltype(t) T;
        cudaError_t rc = launch(exact_k<T>, score_grid(n_max, rows->n_kv_heads), dim3(SCORE_BLOCK),
                                (size_t)group * dim * sizeof(float), cuda_stream(be), ptr<float>(score), stride, ptr<float>(q),
                                group, (const T *)ptr<T>(rows->k), rows->cap, dim, ptr<int64_t>(n),
                                ptr<unsigned long long>(read));
        cuda_check(be, rc, "exact scores [%zu, %d], up to %lld keys", n_heads, dim, (long long)n_max);
    });
}

/* ---- combination of heads ---- */

static __device__ __forceinline__ float logit(float x, float scale)
{
    return isnan(x) ? -INFINITY : x * scale;
}

/* Log of the sum of exp of one head's candidates; a block has a head. */
static __global__ void head_lse_k(float *lse, const float *in, size_t stride, const int64_t *n, float scale)
{
    SHARED(float, part, [BLOCK / 32]);
    const float *x = in + blockIdx.x * stride;
    float top = -INFINITY, sum = 0;
    for (int64_t i = n[1] + threadIdx.x; i < n[2]; i += BLOCK) top = fmaxf(top, logit(x[i], scale));
    top = block_max(top, part);
    for (int64_t i = n[1] + threadIdx.x; i < n[2] && !isinf(top); i += BLOCK) sum += expf(logit(x[i], scale) - top);
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) lse[blockIdx.x] = isinf(top) ? top : top + logf(sum);
}

/* A head without a finite score has no vote. */
static __device__ __forceinline__ float vote(const float *x, size_t stride, const float *lse, int group, float scale)
{
    float top = -INFINITY, sum = 0;
    for (int h = 0; h < group; h++)
        if (!isinf(lse[h])) top = fmaxf(top, logit(x[h * stride], scale) - lse[h]);
    if (isinf(top)) return top;
    for (int h = 0; h < group; h++)
        if (!isinf(lse[h])) sum += expf(logit(x[h * stride], scale) - lse[h] - top);
    return top + logf(sum);
}

static __device__ __forceinline__ float reduce(const float *x, size_t stride, int group, gqa_mode mode)
{
    float r = mode == GQA_MAX_S && isnan(x[0]) ? -INFINITY : x[0];
    for (int h = 1; h < group; h++) {
        float y = x[h * stride];
        r = mode != GQA_MAX_S ? __fadd_rn(r, y) : y > r ? y : r;
    }
    return mode == GQA_MEAN_S || mode == GQA_LAYER_MEAN ? __fdiv_rn(r, (float)group) : r;
}

/* lse NULL: no vote. */
static __global__ void combine_k(float *out, const float *in, size_t stride, const float *lse, int group, const int64_t *n,
                                 gqa_mode mode, float scale)
{
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    size_t l = blockIdx.y;
    if (i < n[1] || i >= n[2]) return;
    const float *x = in + l * group * stride + i;
    out[l * stride + i] = lse ? vote(x, stride, lse + l * group, group, scale) : reduce(x, stride, group, mode);
}

static void combine(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_lists, buf n, int64_t n_max,
                    gqa_mode mode, float scale)
{
    size_t group = n_heads / n_lists;
    float *lse = NULL;
    cudaError_t rc = cudaSuccess;
    if (n_max <= 0 || !cuda_begin(be, "combine")) return;
    if (group > 1 && (mode == GQA_VOTE || mode == GQA_LAYER_VOTE)) {
        lse = (float *)cuda_room(be, &cuda_of(be)->parts, n_heads, sizeof(float), "votes");
        if (!lse) return;
        rc = launch(head_lse_k, dim3((unsigned)n_heads), dim3(BLOCK), 0, cuda_stream(be), lse, ptr<float>(in), stride,
                    ptr<int64_t>(n), scale);
    }
    if (!cuda_check(be, rc, "votes of %zu heads", n_heads)) return;
    rc = launch(combine_k, dim3(cuda_blocks((size_t)n_max, BLOCK), (unsigned)n_lists), dim3(BLOCK), 0, cuda_stream(be),
                ptr<float>(out), ptr<float>(in), stride, lse, (int)group, ptr<int64_t>(n), mode, scale);
    cuda_check(be, rc, "combine [%zu of %zu heads], up to %lld items", n_lists, n_heads, (long long)n_max);
}

/* ---- choice: radix-select of the k-th largest, then lists in ascending order ---- */

typedef struct {
    const float *score;
    const int64_t *n, *k, *tail, *first;
    size_t stride, n_k;
    int64_t granule, head, idx_stride;
    int32_t *idx;
    int64_t *range;
} choose_args;

/* A number that orders as the score does: NaN as -INFINITY, zeros alike. */
static __device__ __forceinline__ unsigned key_of(float x)
{
    unsigned u = __float_as_uint(isnan(x) ? -INFINITY : x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* What a list's items are chosen by: all candidates with a key above `least`, and the first `ties` with that key. */
typedef struct {
    int64_t lo, hi, items, head, tail;
    unsigned least;
    int64_t ties;
} choice;

/* Sum over the lanes before this one; *all: over the warp. */
static __device__ __forceinline__ int64_t warp_before(int64_t x, int64_t *all)
{
    int lane = threadIdx.x % 32;
    int64_t sum = x;
    for (int m = 1; m < 32; m *= 2) {
        int64_t y = __shfl_up_sync(ALL_LANES, sum, m);
        if (lane >= m) sum += y;
    }
    *all = __shfl_sync(ALL_LANES, sum, 31);
    return sum - x;
}

/* The same over the warps of the block, each with one x; room: int64_t [MOST_WARPS]. */
static __device__ __forceinline__ int64_t block_before(int64_t x, int64_t *room, int64_t *all)
{
    int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    int64_t before = 0;
    if (threadIdx.x % 32 == 0) room[warp] = x;
    __syncthreads();
    *all = 0;
    for (int w = 0; w < warps; w++) {
        if (w < warp) before += room[w];
        *all += room[w];
    }
    __syncthreads();
    return before;
}

/* One digit of the k-th largest key: counts of the digits of those that agree above, then the largest digit down to which
 * there are k. Returns what of k is left within that digit. */
static __device__ int64_t next_digit(const float *s, const choice &c, unsigned *prefix, int shift, int64_t k, int *count,
                                     int64_t *found)
{
    for (int i = threadIdx.x; i < DIGITS; i += blockDim.x) count[i] = 0;
    __syncthreads();
    unsigned above = shift == 24 ? 0 : ~0u << (shift + 8);
    for (int64_t i = c.lo + threadIdx.x; i < c.hi; i += blockDim.x) {
        unsigned u = key_of(s[i]);
        if ((u & above) == *prefix) atomicAdd(&count[u >> shift & (DIGITS - 1)], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        int64_t sum = 0, all;
        int top = DIGITS - 1 - 8 * (int)threadIdx.x; /* a lane has 8 digits, the first lane the largest */
        for (int d = top; d > top - 8; d--) sum += count[d];
        int64_t before = warp_before(sum, &all);
        if (before < k && before + sum >= k) {
            int d = top;
            for (; before + count[d] < k; d--) before += count[d];
            found[0] = d;
            found[1] = k - before;
        }
    }
    __syncthreads();
    *prefix |= (unsigned)found[0] << shift;
    int64_t left = found[1];
    __syncthreads();
    return left;
}

static __device__ __forceinline__ bool is_tie(const float *s, const choice &c, int64_t i)
{
    return i >= c.lo && i < c.hi && !(i < c.head || i >= c.tail) && key_of(s[i]) == c.least;
}

/* Slots of item i that are listed. */
static __device__ __forceinline__ int64_t slots_of(const choose_args &a, int64_t i, int64_t *from)
{
    int64_t first = a.first ? a.first[0] : 0, to = min((i + 1) * a.granule, a.n[0]);
    *from = max(i * a.granule, first);
    return max(to - *from, (int64_t)0);
}

/* Walks a warp's items [from, to). ties, at: ties and slots before them. Without idx the slots are only counted. */
static __device__ int64_t walk(const choose_args &a, const float *s, const choice &c, int64_t from, int64_t to, int64_t ties,
                               int64_t at, int32_t *idx)
{
    unsigned lane = threadIdx.x % 32;
    for (int64_t i0 = from; i0 < to; i0 += 32) {
        int64_t i = i0 + lane, first = 0, all;
        bool inside = i < to, forced = inside && (i < c.head || i >= c.tail), tie = inside && is_tie(s, c, i);
        unsigned same = __ballot_sync(ALL_LANES, tie);
        bool take = forced || (inside && !forced && i >= c.lo && i < c.hi &&
                               (tie ? ties + __popc(same & ((1u << lane) - 1)) < c.ties : key_of(s[i]) > c.least));
        int64_t n = take ? slots_of(a, i, &first) : 0, mine = at + warp_before(n, &all);
        for (int64_t t = 0; idx && t < n; t++) idx[mine + t] = (int32_t)(first + t);
        ties += __popc(same);
        at += all;
    }
    return at;
}

static __global__ void choose_k(choose_args a)
{
    SHARED(int, count, [DIGITS]);
    SHARED(int64_t, found, [2]);
    SHARED(int64_t, room, [MOST_WARPS]);
    size_t l = blockIdx.x;
    const float *s = a.score + l * a.stride;
    int64_t k = a.k[a.n_k == 1 ? 0 : l], all;
    choice c = {max(a.n[1], a.head), min(a.n[2], a.tail[0]), (a.n[0] + a.granule - 1) / a.granule, a.head, a.tail[0],
                0xffffffffu, 0}; /* no score has this key: nothing but the forced items */
    int64_t candidates = max(c.hi - c.lo, (int64_t)0);
    if (k >= candidates) {
        c.least = 0; /* nor this one: all */
    } else if (k > 0) {
        unsigned prefix = 0;
        for (int shift = 24; shift >= 0; shift -= 8) k = next_digit(s, c, &prefix, shift, k, count, found);
        c.least = prefix;
        c.ties = k;
    }
    /* A warp has a run of items; ties, then slots of the runs before it. */
    int64_t warps = blockDim.x / 32, run = (c.items + warps - 1) / warps, from = threadIdx.x / 32 * run;
    int64_t to = min(from + run, c.items), ties = 0;
    for (int64_t i = from; i < to; i += 32) {
        bool tie = i + threadIdx.x % 32 < to && is_tie(s, c, i + threadIdx.x % 32);
        ties += __popc(__ballot_sync(ALL_LANES, tie));
    }
    ties = block_before(ties, room, &all);
    int64_t at = block_before(walk(a, s, c, from, to, ties, 0, NULL), room, &all);
    walk(a, s, c, from, to, ties, at, a.idx + l * a.idx_stride);
    if (threadIdx.x == 0) {
        a.range[2 * l] = 0;
        a.range[2 * l + 1] = all;
    }
}

static void choose(backend *be, const choose_job *j)
{
    choose_args a = {ptr<float>(j->score), ptr<int64_t>(j->n), ptr<int64_t>(j->k), ptr<int64_t>(j->tail),
                     ptr<int64_t>(j->first), j->stride, j->n_k, j->granule, j->head, j->idx_stride,
                     ptr<int32_t>(j->idx), ptr<int64_t>(j->range)};
    if (j->n_lists == 0 || !cuda_begin(be, "choose")) return;
    cudaError_t rc = launch(choose_k, dim3((unsigned)j->n_lists), dim3(j->n_items_max <= SMALL ? 128 : 1024), 0, cuda_stream(be), a);
    cuda_check(be, rc, "choose [%zu lists], up to %lld items", j->n_lists, (long long)j->n_items_max);
}

const select_ops cuda_select = {mean_heads, exact, combine, choose};
