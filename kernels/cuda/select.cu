/* SPDX-License-Identifier: MIT */
/* From scores to lists (ops_select.h). */
#include "config.h"

#include "kernels/cuda/choose.cuh"
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/scores.cuh"

enum { BLOCK = 256, GROUP_MAX = 1024, SMALL = 4096 };

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

/* Bytes of a key, of a group's pairs the share of one row. */
static __device__ __forceinline__ size_t key_bytes(const half_rows &r, size_t exact, int64_t slot)
{
    const half_codes &h = r.codes;
    if (h.at[slot] >= 0) return exact;
    return h.row_bytes + (h.group ? 4 * (size_t)r.dim / (size_t)h.group : 4 * (size_t)h.runs);
}

template <class T, bool CODES>
static __global__ void __launch_bounds__(SCORE_BLOCK, CODES ? 5 : 10) /* codes: ptxas spills for a sixth */
    exact_k(float *score, size_t stride, const float *q, int group, half_rows r, const int64_t *n, unsigned long long *read)
{
    SHARED_DYN(float, mine);
    int head = blockIdx.y, lane = threadIdx.x % PARTS, dim = r.dim;
    load_group(mine, q, head, group, dim);
    if (!CODES && read && blockIdx.x == 0 && head == 0 && threadIdx.x == 0 && n[2] > n[1])
        atomicAdd(read, (unsigned long long)(n[2] - n[1]) * gridDim.y * dim * sizeof(T));
    for (int turn = 0; turn < SCORE_TURNS; turn++) {
        int64_t i = ((int64_t)blockIdx.x * SCORE_TURNS + turn) * SCORE_ROWS + threadIdx.x / PARTS;
        bool inside = i >= n[1] && i < n[2];
        float x[MOST_CHANNELS] = {};
        if (CODES) {
#pragma unroll
            for (int k = 0; k < MOST_CHANNELS; k++)
                if (inside && lane + PARTS * k < dim) x[k] = element_of<T>(r, head, i, lane + PARTS * k);
            unsigned long long bytes = warp_sum(inside && lane == 0 ? key_bytes(r, dim * sizeof(T), i) : 0);
            if (read && threadIdx.x % 32 == 0 && bytes) atomicAdd(read, bytes);
        } else {
            load_part(x, (const T *)r.exact + (head * r.cap + (inside ? (size_t)i : 0)) * dim, lane, inside ? dim : 0);
        }
        for (int g = 0; g < group; g++) {
            float s = dot_parts(x, mine + g * dim, lane, dim);
            if (inside && lane == 0) score[(size_t)(head * group + g) * stride + i] = s;
        }
    }
}

static void exact(backend *be, buf score, size_t stride, buf q, size_t n_heads, const kv_rows *rows, buf n, int64_t n_max,
                  buf read)
{
    half_rows r = rows_of(rows, false);
    int group = (int)(n_heads / rows->n_kv_heads);
    if (!cuda_begin(be, "exact scores")) return;
    by_type(rows->type, [&](auto t) {
        typedef decltype(t) T;
        auto kernel = r.codes.at ? exact_k<T, true> : exact_k<T, false>;
        cudaError_t rc = launch(kernel, score_grid(n_max, rows->n_kv_heads), dim3(SCORE_BLOCK),
                                (size_t)group * r.dim * sizeof(float), cuda_stream(be), ptr<float>(score), stride, ptr<float>(q),
                                group, r, ptr<int64_t>(n), ptr<unsigned long long>(read));
        cuda_check(be, rc, "exact scores [%zu, %d], up to %lld keys", n_heads, r.dim, (long long)n_max);
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

/* by: what a mean divides by. */
static __device__ __forceinline__ float reduce(const float *x, size_t stride, int group, gqa_mode mode, float by)
{
    float r = mode == GQA_MAX_S && isnan(x[0]) ? -INFINITY : x[0];
    for (int h = 1; h < group; h++) {
        float y = x[h * stride];
        r = mode != GQA_MAX_S ? __fadd_rn(r, y) : y > r ? y : r;
    }
    return mode == GQA_MEAN_S || mode == GQA_LAYER_MEAN ? __fdiv_rn(r, by) : r;
}

/* lse NULL: no vote. */
static __global__ void combine_k(float *out, const float *in, size_t stride, const float *lse, int group, const int64_t *n,
                                 gqa_mode mode, float by, float scale)
{
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    size_t l = blockIdx.y;
    if (i < n[1] || i >= n[2]) return;
    const float *x = in + l * group * stride + i;
    out[l * stride + i] = lse ? vote(x, stride, lse + l * group, group, scale) : reduce(x, stride, group, mode, by);
}

static void combine(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_lists, buf n, int64_t n_max,
                    gqa_mode mode, float scale)
{
    size_t group = n_heads / n_lists;
    float *lse = NULL, by = (float)group * (mode == GQA_LAYER_MEAN ? (float)backend_ranks(be) : 1);
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
                ptr<float>(out), ptr<float>(in), stride, lse, (int)group, ptr<int64_t>(n), mode, by, scale);
    cuda_check(be, rc, "combine [%zu of %zu heads], up to %lld items", n_lists, n_heads, (long long)n_max);
    if (mode >= GQA_LAYER_MEAN) cuda_sum(be, ptr<float>(out), (size_t)n_max);
}

/* ---- choice: radix-select of the k-th largest, then lists in ascending order ---- */

/* What a list is made of, in ascending order: n items, of which [lo, hi) are candidates. By groups these are the places
 * from `first` on, between the items before lo and those from `tail` on. */
typedef struct {
    int64_t lo, hi, n, tail;
    places in;
} entries;

template <bool GROUPS> static __device__ __forceinline__ entries entries_of(const choice &c, const list_groups &g, size_t l)
{
    if (!GROUPS) return {c.lo, c.hi, c.items, 0, {}};
    places in = places_of(g, l, c.lo, c.hi);
    int64_t lo = min(c.head, c.items), hi = lo + max(in.end - in.first, (int64_t)0), tail = max(c.tail, lo);
    return {lo, hi, hi + max(c.items - tail, (int64_t)0), tail, in};
}

template <bool GROUPS> static __device__ __forceinline__ spot spot_of(const entries &e, int64_t i)
{
    if (!GROUPS) return {i, i};
    if (i < e.lo) return {i, 0};
    if (i >= e.hi) return {e.tail + i - e.hi, 0};
    int64_t place = e.in.first + i - e.lo;
    return {item_of(e.in, place), place};
}

template <bool GROUPS> static __global__ void choose_k(choose_args a, list_groups g)
{
    SHARED(int, count, [DIGITS]);
    SHARED(int64_t, found, [2]);
    SHARED(int64_t, room, [MOST_WARPS]);
    size_t l = blockIdx.x;
    const float *s = a.score + l * a.stride;
    choice c = forced_of(a);
    entries e = entries_of<GROUPS>(c, g, l);
    int64_t all, k = to_take(a, l, e.hi - e.lo, &c);
    auto where = [&e](int64_t i) { return spot_of<GROUPS>(e, i); };
    if (k > 0) {
        auto key = [&](int64_t i) { return key_of(s[where(i).place]); };
        unsigned prefix = kth_key(key, e.lo, e.hi, &k, count, found);
        c.least = prefix;
        c.ties = k;
    }
    /* A warp has a run of items; ties, then slots of the runs before it. */
    int64_t warps = blockDim.x / 32, run = (e.n + warps - 1) / warps, from = threadIdx.x / 32 * run;
    int64_t to = min(from + run, e.n), ties = 0;
    for (int64_t i = from; i < to; i += 32) {
        bool tie = i + threadIdx.x % 32 < to && is_tie(s, c, where(i + threadIdx.x % 32));
        ties += __popc(__ballot_sync(ALL_LANES, tie));
    }
    ties = block_before(ties, room, &all);
    int64_t at = block_before(walk(a, s, c, from, to, ties, 0, NULL, where), room, &all);
    walk(a, s, c, from, to, ties, at, a.idx + l * a.idx_stride, where);
    if (threadIdx.x == 0) {
        a.range[2 * l] = 0;
        a.range[2 * l + 1] = all;
    }
}

static choose_args args_of(const choose_job *j)
{
    return {ptr<float>(j->score), ptr<int64_t>(j->n), ptr<int64_t>(j->k), ptr<int64_t>(j->tail),
            ptr<int64_t>(j->first), j->stride, j->n_k, j->granule, j->head, j->idx_stride,
            ptr<int32_t>(j->idx), ptr<int64_t>(j->range)};
}

/* A block of threads a list; most: scores of one. */
template <bool GROUPS> static void choose_lists(backend *be, const choose_job *j, const list_groups &g, int64_t most)
{
    cudaError_t rc = launch(choose_k<GROUPS>, dim3((unsigned)j->n_lists), dim3(most <= SMALL ? 128 : 1024), 0, cuda_stream(be),
                            args_of(j), g);
    cuda_check(be, rc, "choose [%zu lists], up to %lld scores", j->n_lists, (long long)most);
}

static void choose(backend *be, const choose_job *j)
{
    if (j->n_lists == 0 || !cuda_begin(be, "choose")) return;
    if (choose_is_wide(j)) {
        choose_args a = args_of(j);
        choose_wide(be, j, &a);
        return;
    }
    choose_lists<false>(be, j, {}, j->n_items_max);
}

/* Places are few, a small multiple of what is taken. */
static void choose_groups(backend *be, const choose_job *j, const item_groups *g)
{
    if (j->n_lists > 0 && cuda_begin(be, "choose_groups")) choose_lists<true>(be, j, groups_of(g), g->n_max * g->per);
}

const select_ops cuda_select = {mean_heads, exact, combine, choose, choose_reserve, choose_groups};
