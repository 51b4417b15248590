/* SPDX-License-Identifier: MIT */
/* Top-k selection among many items: radix-select with several thread blocks per list, in two launches for all lists of
 * a layer and all sequences of a batch. A block has ITEMS items. The first launch counts the leading digits of the
 * keys; the last block of a list to finish finds the digit of the k-th largest. In the second launch every block
 * stores, in order, its items whose digit is large enough. The last block selects among them by the rest of the key, in
 * two digits of 10 bits, and writes the list. Counts are integers, so the order of the atomic adds does not matter.
 * first   reads 4 N bytes, the scores, or the scores of the heads that it combines; stores 4 N then
 * second  reads 4 N, writes 2 S for the S remaining items, reads them and their scores 5 times, from caches
 * S is k plus the items that share the digit of the k-th. A digit is an eighth of an octave of scores: typically 1 to 4
 * thousand items at 128k. In the worst case all scores have one digit and S = N, which is correct but as slow as one
 * thread block. */
#include "config.h"

#include "kernels/cuda/choose.cuh"
#include "kernels/cuda/last.cuh"
#include "kernels/cuda/votes.cuh"

enum {
    WIDE = 16384, /* lists of more items use these kernels */
    BLOCK = 1024,
    AHEAD = 8,    /* items of a thread, loaded at once */
    COMBINED = 2, /* items of a thread, with scores that are combined first */
    RUN = 32 * AHEAD,
    ITEMS = BLOCK * AHEAD,
    BINS = 4096,
    FIRST_SHIFT = 20,
    NEXT_BINS = 1024,
    NEXT_BITS = 10
};

/* Scratch of a launch; lists are those of all jobs. */
typedef struct {
    int *digits;       /* [lists][BINS], and */
    int *done;         /* [lists][2]: left at 0 */
    unsigned *least;   /* [lists]: the first digit of the k-th largest */
    int *k;            /* [lists]: number to select among the keys with that digit; 0: to_take decided */
    int *count, *from; /* [lists][n_blocks]: items remaining in a block, and in those before it */
    uint16_t *left;    /* [lists][n_blocks][ITEMS]: items, counted from the block's first */
    size_t n_blocks;
} wide_room;

/* A list in one kernel. */
typedef struct {
    choice c;
    const float *score;
    size_t list;  /* index over all jobs */
    int n_blocks; /* of this list */
    int64_t first, k;
} view;

/* items: of a block. */
static __device__ __forceinline__ view view_of(const choose_args &a, int items)
{
    view v;
    v.c = forced_of(a);
    v.k = to_take(a, blockIdx.y, v.c.hi - v.c.lo, &v.c);
    v.score = a.score + blockIdx.y * a.stride;
    v.list = blockIdx.z * gridDim.y + blockIdx.y;
    v.n_blocks = (int)max((v.c.items + items - 1) / items, (int64_t)1);
    v.first = (int64_t)blockIdx.x * items;
    return v;
}

static __device__ __forceinline__ bool is_forced(const choice &c, int64_t i)
{
    return i < c.head || i >= c.tail;
}

/* Counts of digits in shared memory. Consecutive equal digits in a thread cost one atomic add. */
typedef struct {
    int *bins, digit, n;
} counter;

static __device__ __forceinline__ counter counter_begin(int *bins, int n)
{
    for (int i = threadIdx.x; i < n; i += BLOCK) bins[i] = 0;
    __syncthreads();
    return {bins, 0, 0};
}

static __device__ __forceinline__ void count(counter &c, int digit)
{
    if (digit != c.digit && c.n > 0) {
        atomicAdd(&c.bins[c.digit], c.n);
        c.n = 0;
    }
    c.digit = digit;
    c.n++;
}

static __device__ __forceinline__ void counter_end(const counter &c)
{
    if (c.n > 0) atomicAdd(&c.bins[c.digit], c.n);
    __syncthreads();
}

/* Finds the largest digit down to which there are k keys; k becomes the remainder within it. n: counts of PER digits of
 * this thread, in descending order; the first thread has the largest digits. */
template <int PER> static __device__ unsigned narrow(const int n[PER], int64_t *k, int64_t *room)
{
    int top = PER * (BLOCK - (int)threadIdx.x) - 1;
    int64_t sum = 0, all, *at = room + MOST_WARPS;
#pragma unroll
    for (int i = 0; i < PER; i++) sum += n[i];
    int64_t before = warp_before(sum, &all);
    before += block_before(all, room, &all);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        if (before < *k && before + n[i] >= *k) { /* true in one thread */
            at[0] = top - i;
            at[1] = *k - before;
        }
        before += n[i];
    }
    __syncthreads();
    unsigned digit = (unsigned)at[0];
    *k = at[1];
    __syncthreads();
    return digit;
}

/* Counts the first digits of N scores per thread, whose items are BLOCK apart from `item` on. The last block of the
 * list to finish finds the digit of the k-th largest. */
template <int N>
static __device__ __forceinline__ void count_first(view v, const wide_room &w, const float x[N], int64_t item)
{
    SHARED(int, bins, [BINS]);
    SHARED(int64_t, room, [MOST_WARPS + 2]);
    constexpr int PER = BINS / BLOCK;
    int *digits = w.digits + v.list * BINS, n[PER];
    counter c = counter_begin(bins, BINS);
#pragma unroll
    for (int i = 0; i < N; i++) {
        int64_t at = item + i * BLOCK;
        if (at >= v.c.lo && at < v.c.hi) count(c, (int)(key_of(x[i]) >> FIRST_SHIFT));
    }
    counter_end(c);
    for (int i = threadIdx.x; i < BINS; i += BLOCK)
        if (bins[i] > 0) atomicAdd(&digits[i], bins[i]);
    if (!is_last(&w.done[2 * v.list], v.n_blocks)) return;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int *d = &digits[PER * (BLOCK - (int)threadIdx.x) - 1 - i];
        n[i] = atomicExch(d, 0);
    }
    unsigned least = narrow<PER>(n, &v.k, room);
    if (threadIdx.x == 0) w.least[v.list] = least, w.k[v.list] = (int)v.k;
}

static __global__ void __launch_bounds__(BLOCK) first_k(job_list<choose_args> jobs, wide_room w)
{
    grid_wait();
    view v = view_of(jobs.job[blockIdx.z], ITEMS);
    if (v.k <= 0 || (int)blockIdx.x >= v.n_blocks) return;
    float x[AHEAD];
    int64_t i0 = v.first + threadIdx.x;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int64_t item = i0 + i * BLOCK;
        x[i] = item >= v.c.lo && item < v.c.hi ? v.score[item] : 0;
    }
    count_first<AHEAD>(v, w, x, i0);
}

/* The same with scores that are combined here, and stored, also of items that are no candidates. Blocks have fewer
 * items, since a combination takes longer than reading a score. */
static __global__ void __launch_bounds__(BLOCK)
    combine_first_k(job_list<choose_args> jobs, wide_room w, job_list<combine_args> heads, combine_how how)
{
    grid_wait();
    view v = view_of(jobs.job[blockIdx.z], COMBINED * BLOCK);
    const combine_args &from = heads.job[blockIdx.z];
    if ((int)blockIdx.x >= v.n_blocks) return;
    float x[COMBINED];
    int64_t i0 = v.first + threadIdx.x;
#pragma unroll
    for (int i = 0; i < COMBINED; i++) {
        int64_t item = i0 + i * BLOCK;
        x[i] = item >= from.lo && item < from.hi ? combine_item(from, how, item) : 0;
    }
    if (v.k > 0) count_first<COMBINED>(v, w, x, i0);
}

/* Stores the block's items that may be selected, in order. */
static __device__ void leave(const view &v, const wide_room &w, unsigned least, int64_t *room)
{
    int64_t run = v.first + threadIdx.x / 32 * RUN, all;
    size_t block = v.list * w.n_blocks + blockIdx.x;
    unsigned lane = threadIdx.x % 32, kept[AHEAD];
    bool none = v.k == 0 && v.c.least != 0; /* decided without scores: no candidate remains; else all do */
    float x[AHEAD];
    int n = 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int64_t item = run + 32 * i + lane;
        x[i] = item >= v.c.lo && item < v.c.hi ? v.score[item] : 0;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int64_t item = run + 32 * i + lane;
        bool candidate = item >= v.c.lo && item < v.c.hi;
        bool keep =
            item < v.c.items && (is_forced(v.c, item) || (candidate && !none && key_of(x[i]) >> FIRST_SHIFT >= least));
        kept[i] = __ballot_sync(ALL_LANES, keep);
        n += __popc(kept[i]);
    }
    int64_t at = block_before(n, room, &all);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (kept[i] >> lane & 1)
            w.left[block * ITEMS + at + __popc(kept[i] & ((1u << lane) - 1))] =
                (uint16_t)(run - v.first + 32 * i + lane);
        at += __popc(kept[i]);
    }
    if (threadIdx.x == 0) w.count[block] = (int)all;
}

/* Computes from[b] for all blocks of a list; returns the total number of remaining items. */
static __device__ int64_t count_before(const view &v, const wide_room &w, int64_t *room)
{
    const int *count = w.count + v.list * w.n_blocks;
    int *from = w.from + v.list * w.n_blocks;
    int64_t before = 0, all;
    for (int b0 = 0; b0 < v.n_blocks; b0 += BLOCK) {
        int b = b0 + threadIdx.x;
        int64_t at = warp_before(b < v.n_blocks ? count[b] : 0, &all);
        at += before + block_before(all, room, &all);
        if (b < v.n_blocks) from[b] = (int)at;
        before += all;
    }
    __syncthreads();
    return before;
}

/* Returns remaining item number e. */
static __device__ __forceinline__ int64_t item_left(const view &v, const wide_room &w, int64_t e)
{
    const int *from = w.from + v.list * w.n_blocks;
    int lo = 0, hi = v.n_blocks - 1; /* the last block with no more than e before it */
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (from[mid] <= e) lo = mid;
        else hi = mid - 1;
    }
    return (int64_t)lo * ITEMS + w.left[(v.list * w.n_blocks + lo) * ITEMS + e - from[lo]];
}

static __global__ void __launch_bounds__(BLOCK) second_k(job_list<choose_args> jobs, wide_room w)
{
    grid_wait();
    SHARED(int, bins, [NEXT_BINS]);
    SHARED(int64_t, room, [MOST_WARPS + 2]);
    const choose_args &a = jobs.job[blockIdx.z];
    view v = view_of(a, ITEMS);
    if ((int)blockIdx.x >= v.n_blocks) return;
    bool by_score = v.k > 0;
    unsigned least = by_score ? w.least[v.list] : v.c.least >> FIRST_SHIFT;
    leave(v, w, least, room);
    if (!is_last(&w.done[2 * v.list + 1], v.n_blocks)) return;
    int64_t n = count_before(v, w, room);
    if (by_score) v.c.least = least << FIRST_SHIFT, v.c.ties = w.k[v.list];
    for (int shift = FIRST_SHIFT - NEXT_BITS; by_score && shift >= 0; shift -= NEXT_BITS) {
        counter c = counter_begin(bins, NEXT_BINS);
        for (int64_t e = threadIdx.x; e < n; e += BLOCK) {
            int64_t i = item_left(v, w, e);
            unsigned u = is_forced(v.c, i) ? 0 : key_of(v.score[i]);
            if (u >> (shift + NEXT_BITS) == v.c.least >> (shift + NEXT_BITS))
                count(c, (int)(u >> shift & (NEXT_BINS - 1)));
        }
        counter_end(c);
        int mine = bins[NEXT_BINS - 1 - threadIdx.x];
        v.c.least |= narrow<1>(&mine, &v.c.ties, room) << shift;
    }
    auto where = [&](int64_t e) {
        int64_t i = item_left(v, w, e);
        return spot{i, i};
    };
    list_best(a, blockIdx.y, v.score, v.c, n, room, where);
}

bool choose_is_wide(int64_t most)
{
    return most > WIDE;
}

/* Sets up scratch for n_lists lists of that many items; returns false after a fault. */
static bool room_of(backend *be, wide_room *w, size_t n_lists, int64_t n_items)
{
    size_t all = n_lists * cuda_blocks((size_t)n_items, ITEMS);
    size_t bytes = all * (2 * sizeof(int) + ITEMS * sizeof(uint16_t)) + n_lists * (sizeof(int) + sizeof(unsigned));
    int *zeros = cuda_zeros(be, n_lists * (BINS + 2), "counts of digits");
    unsigned char *p = (unsigned char *)cuda_room(be, &cuda_of(be)->parts, bytes, 1, "remaining items");
    if (!zeros || !p) return false;
    w->n_blocks = all / n_lists;
    w->digits = zeros, w->done = zeros + n_lists * BINS;
    w->count = (int *)(void *)p, w->from = w->count + all;
    w->k = w->from + all, w->least = (unsigned *)(w->k + n_lists);
    w->left = (uint16_t *)(void *)(w->least + n_lists);
    return true;
}

status cuda_select_reserve(backend *be, size_t n_lists, int64_t n_items, err *e)
{
    wide_room w;
    n_lists *= max(cuda_of(be)->most_jobs, (size_t)1);
    if (n_items > WIDE) room_of(be, &w, n_lists, n_items);
    cuda_mass_reserve(be, n_lists, n_items);
    return cuda_reserved(be, e);
}

static cudaError_t combine_first(backend *be, dim3 grid, const job_list<choose_args> &list, const wide_room &w,
                                 const cuda_combined &heads)
{
    job_list<combine_args> from = {};
    for (size_t i = 0; i < heads.n; i++) from.job[i] = cuda_combine_args(heads.job[i]);
    grid.x *= ITEMS / (COMBINED * BLOCK);
    return launch_dependent(be, combine_first_k, grid, dim3(BLOCK), 0, list, w, from,
                            cuda_combine_how(be, heads.job, heads.lse));
}

void choose_wide(backend *be, const job_list<choose_args> &list, unsigned n, size_t n_lists, int64_t most,
                 const cuda_combined &heads)
{
    wide_room w;
    if (!room_of(be, &w, n * n_lists, most)) return;
    dim3 grid((unsigned)w.n_blocks, (unsigned)n_lists, n);
    cudaError_t rc = heads.n > 0 ? combine_first(be, grid, list, w, heads)
                                 : launch_dependent(be, first_k, grid, dim3(BLOCK), 0, list, w);
    if (rc == cudaSuccess) rc = launch_dependent(be, second_k, grid, dim3(BLOCK), 0, list, w);
    cuda_check(be, rc, "choose [%zu lists], up to %lld items", n_lists, (long long)most);
}
