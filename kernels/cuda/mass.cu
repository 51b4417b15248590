/* SPDX-License-Identifier: MIT */
/* Number of items that hold a fraction of the attention (mass_job of ops_select.h). An item's distance, from the
 * largest logit down to its own, orders items like their scores. Items are counted, and their masses summed, by two
 * digits of the distance: bins of 1/64, then bins of 2^-17 within the one where the sum reaches the fraction. Bins of
 * equal width in logits spread the items better than digits of their bits. In the last bin each item counts with the
 * bin's mean.
 *
 * Masses are multiples of 2^-40, so that sums are exact, their order does not matter, and they never fall when an item
 * is added. The errors, as fractions of the sum over all, are below the 1e-5 of ops_select.h:
 * mean of the last bin     2^-19, since its masses differ by a factor of at most 1 + 2^-17; none for equal scores
 * multiples                n 2^-41 for n items, and the sum fits 64 bits below 2^24 items
 * expf and the logits      2^-22 and the rounding of x * scale (2^-18 at 64): those of sums in double as well
 *
 * Lists of up to WIDE items take one thread block and three passes. Others take three launches for all lists and
 * sequences: the largest logit, then one for each digit, each of which reads 4 N bytes. */
#include "config.h"

#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/votes.cuh"

typedef unsigned long long u64;

enum {
    WIDE = 16384,
    SMALL = 4096,
    BLOCK = 1024,
    AHEAD = 8, /* items of a thread, loaded at once */
    ITEMS = BLOCK * AHEAD,
    BIN_BITS = 11,
    BINS = 1 << BIN_BITS,
    FAR = 32, /* items at this distance and beyond have no mass */
    DIGITS_OF_ONE = 1 << 17
};

typedef struct {
    const float *score;
    size_t stride;
    item_range items;
    list_groups of;
    float scale, p;
    int64_t least, most;
    const float *slope;
    int64_t *k;
} mass_args;

static mass_args mass_args_of(const mass_job &j)
{
    return {ptr<float>(j.score), j.stride,         j.items, groups_of(j.spans), j.scale, j.p, j.least, j.most,
            ptr<float>(j.slope), ptr<int64_t>(j.k)};
}

/* A block's list: its candidates are the columns [lo, hi), of which at most `most` may be taken. */
typedef struct {
    const float *score;
    int64_t lo, hi, most;
    float scale;
    size_t list; /* index over all jobs */
    int n_blocks;
} mass_list;

static __device__ __forceinline__ mass_list list_of(const mass_args &a)
{
    size_t l = blockIdx.y;
    mass_list m = {a.score + l * a.stride,     a.items.lo, a.items.hi, 0, a.slope ? a.scale * a.slope[l] : a.scale,
                   blockIdx.z * gridDim.y + l, 1};
    if (a.of.group) {
        group_columns in = columns_of(a.of, l, m.lo, m.hi);
        m.lo = in.first, m.hi = in.end;
    }
    int64_t n = max(m.hi - m.lo, (int64_t)0);
    m.most = min(a.most, n);
    m.n_blocks = (int)max((n + ITEMS - 1) / ITEMS, (int64_t)1);
    return m;
}

/* The bin where the sum reaches the fraction, without padding. */
typedef struct {
    u64 want;         /* mass wanted of the bin; before the first search 0 */
    u64 mass;         /* of the bin */
    int64_t above, n; /* items before the bin and in it */
    int64_t bin;
} mass_state;

/* True if k does not depend on sums. */
static __device__ __forceinline__ bool is_decided(const mass_args &a, const mass_list &m, float top, int64_t *k)
{
    *k = a.p > 0 || m.most < a.least ? m.most : a.least;
    return m.most <= a.least || !(a.p > 0 && a.p < 1) || isinf(top);
}

static __device__ __forceinline__ int64_t k_of(const mass_args &a, const mass_list &m, const mass_state &s)
{
    int64_t more = (int64_t)ceil((double)s.want / ((double)s.mass / (double)s.n));
    return min(max(s.above + min(more, s.n), a.least), m.most);
}

/* Calls f(score) for those of the n scores that this thread has, and loads AHEAD of them at once. */
template <class F> static __device__ __forceinline__ void each(const float *score, int64_t n_scores, F f)
{
    int n = (int)max(n_scores, (int64_t)0), step = (int)blockDim.x;
    for (int i0 = (int)threadIdx.x; i0 < n; i0 += AHEAD * step) {
        float x[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) x[i] = i0 + i * step < n ? score[i0 + i * step] : 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (i0 + i * step < n) f(x[i]);
    }
}

/* Returns the largest logit of the columns. room: float [MOST_WARPS]. */
static __device__ float largest(const mass_list &m, int64_t from, int64_t to, float *room)
{
    float top = -INFINITY;
    each(m.score + from, to - from, [&](float x) { top = fmaxf(top, logit(x, m.scale)); });
    return block_max(top, room);
}

/* Bins in shared memory. A sum is in two halves, since 32-bit atomic additions are the native ones there. Consecutive
 * items of a thread in one bin cost one addition. */
typedef struct {
    unsigned *count, *low, *high; /* [BINS] */
    unsigned bin, n;
    u64 mass;
} tally;

static __device__ __forceinline__ tally tally_begin(unsigned *bins)
{
    for (int i = threadIdx.x; i < 3 * BINS; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    return {bins, bins + BINS, bins + 2 * BINS, 0, 0, 0};
}

static __device__ __forceinline__ void tally_put(const tally &t)
{
    if (t.n == 0) return;
    unsigned low = (unsigned)t.mass, was = atomicAdd(&t.low[t.bin], low);
    unsigned high = (unsigned)(t.mass >> 32) + (was + low < was ? 1 : 0);
    if (high > 0) atomicAdd(&t.high[t.bin], high);
    atomicAdd(&t.count[t.bin], t.n);
}

static __device__ __forceinline__ u64 sum_of(const tally &t, int bin)
{
    return (u64)t.high[bin] << 32 | t.low[bin];
}

/* Adds the columns [from, to) by their first digit or, with step 1, those whose first digit is `bin` by the second. */
static __device__ void tally_columns(tally &t, const mass_list &m, int64_t from, int64_t to, float top, int step,
                                     unsigned bin)
{
    each(m.score + from, to - from, [&](float x) {
        float far = fminf(__fsub_rn(top, logit(x, m.scale)), (float)FAR); /* NaN too is FAR */
        unsigned digits = min((unsigned)(far * DIGITS_OF_ONE), (unsigned)(BINS * BINS - 1)), now = digits >> BIN_BITS;
        if (step == 1 && now != bin) return;
        if (step == 1) now = digits % BINS;
        if (now != t.bin) {
            tally_put(t);
            t.bin = now, t.n = 0, t.mass = 0;
        }
        t.n++;
        t.mass += (u64)(expf(-far) * 0x1p40f + 0.5f);
    });
    tally_put(t);
    __syncthreads();
}

/* Shared memory of a search; room: for block_before. */
typedef struct {
    int64_t room[MOST_WARPS];
    mass_state found;
} search_room;

/* Returns the bin of t in which the sum reaches s.want, or the fraction p of all where that is not known yet. */
static __device__ mass_state find_bin(const tally &t, mass_state s, float p, search_room *r)
{
    int per = BINS / (int)blockDim.x, first = (int)threadIdx.x * per;
    int64_t mass = 0, n = 0, all, count;
    for (int b = first; b < first + per; b++) mass += (int64_t)sum_of(t, b), n += t.count[b];
    int64_t before = warp_before(mass, &all), above = warp_before(n, &count);
    before += block_before(all, r->room, &all);
    above += block_before(count, r->room, &count);
    u64 want = s.want ? s.want : (u64)ceil((double)p * (double)(u64)all);
    for (int b = first; b < first + per; b++) {
        u64 sum = sum_of(t, b), from = (u64)before;
        if (from < want && from + sum >= want) /* true in one thread */
            r->found = {want - from, sum, s.above + above, (int64_t)t.count[b], b};
        before += (int64_t)sum, above += t.count[b];
    }
    __syncthreads();
    s = r->found;
    __syncthreads();
    return s;
}

/* One block per list. */
static __global__ void __launch_bounds__(BLOCK) mass_k(job_list<mass_args> jobs)
{
    grid_wait();
    SHARED(unsigned, bins, [3 * BINS]);
    SHARED(search_room, room, [1]);
    SHARED(float, tops, [MOST_WARPS]);
    const mass_args &a = jobs.job[blockIdx.z];
    const mass_list m = list_of(a);
    float top = largest(m, m.lo, m.hi, tops);
    mass_state s = {};
    int64_t k;
    if (!is_decided(a, m, top, &k)) {
        for (int step = 0; step < 2; step++) {
            tally t = tally_begin(bins);
            tally_columns(t, m, m.lo, m.hi, top, step, (unsigned)s.bin);
            s = find_bin(t, s, a.p, room);
        }
        k = k_of(a, m, s);
    }
    if (threadIdx.x == 0) a.k[blockIdx.y] = k;
}

/* ---- many items: several blocks per list ---- */

/* Scratch of the launches; lists are those of all jobs. */
typedef struct {
    u64 *sum;          /* [lists][BINS], */
    unsigned *count;   /* [lists][BINS], and */
    int *done;         /* [lists]: left at 0 */
    mass_state *state; /* [lists]: after the first digit */
    float *top;        /* [lists][n_blocks]: of a block's columns */
    size_t n_blocks;
} mass_room;

static __global__ void __launch_bounds__(BLOCK) top_k(job_list<mass_args> jobs, mass_room w)
{
    grid_wait();
    SHARED(float, tops, [MOST_WARPS]);
    const mass_list m = list_of(jobs.job[blockIdx.z]);
    int64_t from = m.lo + (int64_t)blockIdx.x * ITEMS;
    if ((int)blockIdx.x >= m.n_blocks) return;
    float top = largest(m, from, min(from + ITEMS, m.hi), tops);
    if (threadIdx.x == 0) w.top[m.list * w.n_blocks + blockIdx.x] = top;
}

static __device__ float top_of_blocks(const mass_list &m, const mass_room &w, float *room)
{
    float top = -INFINITY;
    for (int b = threadIdx.x; b < m.n_blocks; b += BLOCK) top = fmaxf(top, w.top[m.list * w.n_blocks + b]);
    return block_max(top, room);
}

/* Adds the block's bins to those of its list. */
static __device__ void put_bins(const tally &t, const mass_room &w, size_t list)
{
#pragma unroll
    for (int i = 0; i < BINS / BLOCK; i++) {
        int b = (int)threadIdx.x + i * BLOCK;
        if (t.count[b] == 0) continue;
        atomicAdd(&w.count[list * BINS + b], t.count[b]);
        atomicAdd(&w.sum[list * BINS + b], sum_of(t, b));
    }
}

/* Replaces the block's bins by those of the list, which become 0. */
static __device__ void take_bins(const tally &t, const mass_room &w, size_t list)
{
#pragma unroll
    for (int i = 0; i < BINS / BLOCK; i++) {
        int b = (int)threadIdx.x + i * BLOCK;
        u64 sum = atomicExch(&w.sum[list * BINS + b], (u64)0);
        t.count[b] = atomicExch(&w.count[list * BINS + b], 0u);
        t.low[b] = (unsigned)sum, t.high[b] = (unsigned)(sum >> 32);
    }
    __syncthreads();
}

/* The launch for one digit. The last block of a list to finish searches. */
template <int STEP> static __global__ void __launch_bounds__(BLOCK) digit_k(job_list<mass_args> jobs, mass_room w)
{
    grid_wait();
    SHARED(unsigned, bins, [3 * BINS]);
    SHARED(search_room, room, [1]);
    SHARED(float, tops, [MOST_WARPS]);
    const mass_args &a = jobs.job[blockIdx.z];
    const mass_list m = list_of(a);
    int64_t from = m.lo + (int64_t)blockIdx.x * ITEMS, k;
    if ((int)blockIdx.x >= m.n_blocks) return;
    float top = top_of_blocks(m, w, tops);
    if (is_decided(a, m, top, &k)) {
        if (blockIdx.x == 0 && threadIdx.x == 0) a.k[blockIdx.y] = k;
        return;
    }
    mass_state s = {};
    if (STEP == 1) s = w.state[m.list];
    tally t = tally_begin(bins);
    tally_columns(t, m, from, min(from + ITEMS, m.hi), top, STEP, (unsigned)s.bin);
    put_bins(t, w, m.list);
    if (!is_last(&w.done[m.list], m.n_blocks)) return;
    take_bins(t, w, m.list);
    s = find_bin(t, s, a.p, room);
    if (threadIdx.x > 0) return;
    if (STEP == 0) w.state[m.list] = s;
    else a.k[blockIdx.y] = k_of(a, m, s);
}

/* Sets up scratch for n_lists lists of that many items; returns false after a fault. */
static bool room_of(backend *be, mass_room *w, size_t n_lists, int64_t n_items)
{
    w->n_blocks = cuda_blocks((size_t)n_items, ITEMS);
    size_t bytes = n_lists * (sizeof(mass_state) + w->n_blocks * sizeof(float));
    int *zeros = cuda_zeros(be, n_lists * (3 * BINS + 1), "sums of masses");
    w->state = (mass_state *)cuda_room(be, &cuda_of(be)->parts, bytes, 1, "masses");
    if (!zeros || !w->state) return false;
    w->top = (float *)(void *)(w->state + n_lists);
    w->sum = (u64 *)(void *)zeros;
    w->count = (unsigned *)(w->sum + n_lists * BINS);
    w->done = (int *)(w->count + n_lists * BINS);
    return true;
}

void cuda_mass_reserve(backend *be, size_t n_lists, int64_t n_items)
{
    mass_room w;
    if (n_items > WIDE) room_of(be, &w, n_lists, n_items);
}

static void mass_wide(backend *be, const job_list<mass_args> &list, unsigned n, size_t n_lists, int64_t most)
{
    mass_room w;
    if (!room_of(be, &w, n * n_lists, most)) return;
    dim3 grid((unsigned)w.n_blocks, (unsigned)n_lists, n);
    for (auto pass : {top_k, digit_k<0>, digit_k<1>}) {
        cudaError_t rc = launch_dependent(be, pass, grid, dim3(BLOCK), 0, list, w);
        if (!cuda_check(be, rc, "mass [%zu lists], up to %lld scores", n_lists, (long long)most)) return;
    }
}

void cuda_select_mass(backend *be, const mass_job *jobs, size_t n)
{
    if (jobs->n_lists == 0 || !cuda_begin(be, "mass")) return;
    int64_t most = 0;
    for (const mass_job *j = jobs; j < jobs + n; j++)
        most = max(most, j->spans ? j->spans->n_max * j->spans->per : j->items.hi - j->items.lo);
    in_lists(jobs, n, mass_args_of, [&](auto &list, unsigned m) {
        if (most > WIDE) {
            mass_wide(be, list, m, jobs->n_lists, most);
            return;
        }
        cudaError_t rc = launch_dependent(be, mass_k, dim3(1, (unsigned)jobs->n_lists, m),
                                          dim3(most <= SMALL ? 256 : BLOCK), 0, list);
        cuda_check(be, rc, "mass [%zu lists], up to %lld scores", jobs->n_lists, (long long)most);
    });
}
