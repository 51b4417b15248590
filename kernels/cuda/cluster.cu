/* SPDX-License-Identifier: MIT */
/* Clusters of tokens (ops_cluster.h), with the bits of ref except for the logs of sizes. */
#include "config.h"

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/radix.cuh"

enum { BLOCK = 256, WARPS = BLOCK / 32, SMALL = 4096, WIDE = 1024, MEAN_BLOCK = 128 };

/* ---- members ---- */

typedef struct {
    int32_t *start, *member; /* of the current clusters: [heads][cap + 1] from the first of them on; [heads][tokens] */
    const int32_t *code;
    size_t cap, tokens, code_cap;
    int64_t first, n;
    int count;
} cluster_lists;

/* Finds the tokens of one cluster, with one warp: calls f with the number of preceding ones and the token. Returns
 * their number. */
template <class F> static __device__ __forceinline__ int members_of(const cluster_lists &x, int head, int c, F f)
{
    const int32_t *code = x.code + head * x.code_cap;
    unsigned lane = threadIdx.x % 32;
    int before = 0;
    for (int64_t i0 = 0; i0 < x.n; i0 += 32) {
        bool hit = i0 + lane < x.n && code[i0 + lane] == c;
        unsigned hits = __ballot_sync(ALL_LANES, hit);
        if (hit) f(before + __popc(hits & ((1u << lane) - 1)), i0 + lane);
        before += __popc(hits);
    }
    return before;
}

/* Sets start[c + 1] to the number of members of cluster c. */
static __global__ void __launch_bounds__(BLOCK) cluster_count_k(cluster_lists x)
{
    int c = (int)(blockIdx.x * WARPS + threadIdx.x / 32), head = blockIdx.y;
    if (c >= x.count) return;
    int n = members_of(x, head, c, [](int, int64_t) {});
    if (threadIdx.x % 32 == 0) x.start[head * (x.cap + 1) + c + 1] = n;
}

/* Returns the sum of x over the threads before this one; *all: over the block. */
static __device__ __forceinline__ int64_t before_thread(int64_t x, int64_t *room, int64_t *all)
{
    int64_t warp, before = warp_before(x, &warp);
    return before + block_before(warp, room, all);
}

/* Turns member counts into starts; one block per head. */
static __global__ void __launch_bounds__(WIDE) cluster_start_k(cluster_lists x)
{
    SHARED(int64_t, room, [MOST_WARPS]);
    int32_t *start = x.start + blockIdx.x * (x.cap + 1);
    int64_t at = start[0], all;
    for (int c0 = 0; c0 < x.count; c0 += WIDE) {
        int c = c0 + (int)threadIdx.x;
        int64_t n = c < x.count ? start[c + 1] : 0, end = at + n + before_thread(n, room, &all);
        if (c < x.count) start[c + 1] = (int32_t)end;
        at += all;
    }
}

static __global__ void __launch_bounds__(BLOCK) cluster_place_k(cluster_lists x)
{
    int c = (int)(blockIdx.x * WARPS + threadIdx.x / 32), head = blockIdx.y;
    if (c >= x.count) return;
    int32_t *member = x.member + head * x.tokens + x.start[head * (x.cap + 1) + c];
    members_of(x, head, c, [&](int before, int64_t i) { member[before] = (int32_t)(x.first + i); });
}

/* One block per cluster of a head; a thread has some of its channels. empty: the mean of no members. */
template <class T, class R>
static __global__ void __launch_bounds__(MEAN_BLOCK)
    cluster_mean_k(cluster_lists x, half_rows rows, T *mean, float empty)
{
    int c = blockIdx.x, head = blockIdx.y;
    const int32_t *start = x.start + head * (x.cap + 1) + c, *member = x.member + head * x.tokens;
    int from = start[0], to = start[1];
    mean += (head * x.cap + c) * rows.dim;
    for (int i = threadIdx.x; i < rows.dim; i += MEAN_BLOCK) {
        double sum = 0;
        for (int m = from; m < to; m++) sum += (double)element_of<R>(rows, head, member[m], i);
        put_f32(mean + i, to > from ? (float)(sum / (to - from)) : empty);
    }
}

/* Means have the type of the rows, except for block rows. */
template <class F> static void by_means(dtype mean, dtype rows, F &&f)
{
    by_rows(rows, [&](auto r) {
        if constexpr (in_blocks<decltype(r)>) by_type(mean, [&](auto t) { f(t, r); });
        else f(r, r);
    });
}

void cuda_cluster_fill(backend *be, const cluster_index *x, const cluster_fill *j)
{
    size_t heads = x->mean.n_kv_heads, skipped = j->from * x->mean.head_dim;
    cluster_lists l = {ptr<int32_t>(x->start) + j->from,
                       ptr<int32_t>(x->member),
                       ptr<int32_t>(j->code),
                       x->mean.cap,
                       x->tokens,
                       j->code_cap,
                       j->first,
                       (int64_t)j->n,
                       (int)j->count};
    dim3 by_warp(cuda_blocks(j->count, WARPS), (unsigned)heads);
    if (j->count == 0 || !cuda_begin(be, "cluster.fill")) return;
    cudaError_t rc = launch(cluster_count_k, by_warp, dim3(BLOCK), 0, cuda_stream(be), l);
    if (rc == cudaSuccess) rc = launch(cluster_start_k, dim3((unsigned)heads), dim3(WIDE), 0, cuda_stream(be), l);
    if (rc == cudaSuccess) rc = launch(cluster_place_k, by_warp, dim3(BLOCK), 0, cuda_stream(be), l);
    if (!cuda_check(be, rc, "cluster.fill [%zu, %zu], %zu tokens", heads, j->count, j->n)) return;
    by_means(x->mean.type, j->rows->type, [&](auto t, auto r) {
        typedef decltype(t) T;
        typedef decltype(r) R;
        for (int value = 0; value < 2 && rc == cudaSuccess; value++)
            rc = launch(cluster_mean_k<T, R>, dim3((unsigned)j->count, (unsigned)heads), dim3(MEAN_BLOCK), 0,
                        cuda_stream(be), l, rows_of(j->rows, value), ptr<T>(value ? x->mean.v : x->mean.k) + skipped,
                        value ? 0.0f : NAN);
        cuda_check(be, rc, "cluster.fill [%zu, %zu], means", heads, j->count);
    });
}

/* ---- selection ---- */

typedef struct {
    const float *score;
    const int32_t *start, *member;
    unsigned *key, *bits;
    int32_t *idx, *group;
    int64_t *range, *groups;
    float *bias;
    unsigned long long *read;
    size_t stride, cap, tokens, idx_stride, group_stride;
    int64_t n, words, k, most, head;
    int per; /* query heads per kv head */
} cluster_choices;

/* State of a thread block while it selects for one kv head. */
struct cluster_block {
    const cluster_choices &a;
    int head;
    const int32_t *start;
    unsigned *key, *bits;
    int *count;
    int64_t *found, *room;

    __device__ __forceinline__ int size(int64_t c) const
    {
        return start[c + 1] - start[c];
    }
};

/* Sets keys that order like scores, 0 for clusters without members, and clears the selected tokens. */
static __device__ void open_clusters(const cluster_block &b)
{
    for (int64_t w = threadIdx.x; w < b.a.words; w += blockDim.x) b.bits[w] = 0;
    for (int64_t c = threadIdx.x; c < b.a.n; c += blockDim.x) {
        float s = b.a.score[b.head * b.a.stride + c];
        int n = b.size(c);
        b.key[c] = n > 0 ? key_of(s) : 0;
    }
    __syncthreads();
}

/* Marks the members of the clusters that lanes of the warp have selected. */
static __device__ __forceinline__ void mark_members(const cluster_block &b, int64_t c, bool taken)
{
    const int32_t *member = b.a.member + b.head * b.a.tokens;
    int from = taken ? b.start[c] : 0, to = taken ? b.start[c + 1] : 0;
    for (unsigned left = __ballot_sync(ALL_LANES, taken); left; left &= left - 1) {
        int lane = __ffs((int)left) - 1, end = __shfl_sync(ALL_LANES, to, lane);
        for (int m = __shfl_sync(ALL_LANES, from, lane) + (int)(threadIdx.x % 32); m < end; m += 32)
            atomicOr(&b.bits[member[m] / 32], 1u << member[m] % 32);
    }
}

/* Selects the best clusters that fit into k and sets their keys to 0. Returns the number of other clusters with
 * members. */
static __device__ int64_t take_clusters(const cluster_block &b)
{
    const cluster_choices &a = b.a;
    int64_t left = a.k + 1, ties = 0, all,
            others = 0; /* with k + 1 tokens, the last cluster is the one that does not fit */
    unsigned cut = a.k >= b.start[a.n] ? 0 : 0xffffffffu;
    if (cut && a.k > 0)
        cut = kth_key([&](int64_t c) { return b.key[c]; }, [&](int64_t c) { return b.size(c); }, 0, a.n, &left, b.count,
                      b.found);
    left--;
    for (int64_t c0 = 0; c0 < a.n; c0 += blockDim.x) {
        int64_t c = c0 + threadIdx.x;
        unsigned key = c < a.n ? b.key[c] : 0;
        int64_t size = key && key == cut ? b.size(c) : 0, end = ties + size + before_thread(size, b.room, &all);
        bool taken = key > cut || (size > 0 && end <= left);
        ties += all;
        others += key && !taken;
        if (taken) b.key[c] = 0;
        mark_members(b, c, taken);
    }
    return block_sum(others, b.room);
}

/* Lists the best of the remaining clusters for estimates. */
static __device__ void leave_clusters(const cluster_block &b, int64_t others)
{
    const cluster_choices &a = b.a;
    int64_t left = a.most, ties = 0, at = 0, all;
    unsigned cut = left >= others ? 0 : 0xffffffffu;
    if (cut && left > 0) cut = kth_key([&](int64_t c) { return b.key[c]; }, 0, a.n, &left, b.count, b.found);
    for (int64_t c0 = 0; c0 < a.n; c0 += blockDim.x) {
        int64_t c = c0 + threadIdx.x;
        unsigned key = c < a.n ? b.key[c] : 0;
        int64_t tie = key && key == cut, before = ties + before_thread(tie, b.room, &all);
        bool leave = key > cut || (tie && before < left);
        ties += all;
        int64_t index = at + before_thread(leave, b.room, &all);
        at += all;
        if (!leave) continue;
        a.group[b.head * a.group_stride + index] = (int32_t)c;
        for (int h = b.head * a.per; h < (b.head + 1) * a.per; h++)
            a.bias[h * a.group_stride + index] = logf((float)b.size(c));
    }
    if (threadIdx.x > 0) return;
    a.groups[2 * b.head] = 0;
    a.groups[2 * b.head + 1] = at;
}

/* Lists the slots before `head`, then those marked in the bits. */
static __device__ void list_members(const cluster_block &b)
{
    const cluster_choices &a = b.a;
    int32_t *out = a.idx + b.head * a.idx_stride;
    int64_t at = a.head, all;
    for (int64_t t = threadIdx.x; t < a.head; t += blockDim.x) out[t] = (int32_t)t;
    for (int64_t w0 = 0; w0 < a.words; w0 += blockDim.x) {
        int64_t w = w0 + threadIdx.x;
        unsigned set = w < a.words ? b.bits[w] : 0;
        int64_t index = at + before_thread(__popc(set), b.room, &all);
        for (; set; set &= set - 1) out[index++] = (int32_t)(32 * w) + __ffs((int)set) - 1;
        at += all;
    }
    if (threadIdx.x > 0) return;
    a.range[2 * b.head] = 0;
    a.range[2 * b.head + 1] = at;
    if (a.read) atomicAdd(a.read, (unsigned long long)(4 * (a.n + 1 + at - a.head)));
}

static __global__ void __launch_bounds__(WIDE) cluster_choose_k(job_list<cluster_choices> jobs)
{
    SHARED(int, count, [DIGITS]);
    SHARED(int64_t, found, [2]);
    SHARED(int64_t, room, [MOST_WARPS]);
    const cluster_choices &a = jobs.job[blockIdx.y];
    int head = blockIdx.x;
    const cluster_block b = {
        a, head, a.start + head * (a.cap + 1), a.key + head * a.stride, a.bits + head * a.words, count, found, room};
    open_clusters(b);
    int64_t others = take_clusters(b);
    leave_clusters(b, others);
    list_members(b);
}

static cluster_choices choices_of(const cluster_choice &j)
{
    const cluster_index *x = j.x;
    return {ptr<float>(j.score),
            ptr<int32_t>(x->start),
            ptr<int32_t>(x->member),
            ptr<unsigned>(j.key),
            ptr<unsigned>(j.bits),
            ptr<int32_t>(j.idx),
            ptr<int32_t>(j.group),
            ptr<int64_t>(j.range),
            ptr<int64_t>(j.groups),
            ptr<float>(j.bias),
            ptr<unsigned long long>(j.read),
            j.stride,
            x->mean.cap,
            x->tokens,
            j.idx_stride,
            j.group_stride,
            j.n,
            (int64_t)cluster_words(j.n_slots),
            j.k,
            j.most,
            j.head,
            (int)(j.n_heads / x->mean.n_kv_heads)};
}

void cuda_cluster_choose(backend *be, const cluster_choice *jobs, size_t n)
{
    size_t heads = jobs->x->mean.n_kv_heads;
    int64_t most = 0;
    if (!cuda_begin(be, "cluster.choose")) return;
    for (size_t i = 0; i < n; i++) most = max(most, jobs[i].n);
    in_lists(jobs, n, choices_of, [&](auto &list, unsigned m) {
        cudaError_t rc = launch(cluster_choose_k, dim3((unsigned)heads, m), dim3(most <= SMALL ? BLOCK : WIDE), 0,
                                cuda_stream(be), list);
        cuda_check(be, rc, "cluster.choose [%zu], up to %lld clusters", heads, (long long)most);
    });
}
