/* SPDX-License-Identifier: MIT */
/* Rows in host memory that are copied to the device before attention reads them. Each slot maps to one row of the
 * cache. Among misses that map to the same row the highest slot takes it, unless the occupying row is also needed.
 * Other misses are read from host memory. Since device rows are copies, the content of the cache does not affect the
 * bits of results. */
#include "config.h"

#include "kernels/cuda/attention.cuh"

enum { BLOCK = 512, AHEAD = 4 /* rows in flight per warp */, COUNT_BLOCKS = 64, FOUND = INT32_MAX };

/* The entries of all lists of a kv head, one list after the other. */
struct head_lists {
    const attn_args &j;
    int head, per; /* number of its lists */

    __device__ head_lists(const attn_args &job) : j(job), head(blockIdx.x), per(job.n_units / job.n_kv_heads)
    {
    }

    /* Calls f(slot, exists) for the entries of this thread; called by all lanes of a warp together. */
    template <class F> __device__ __forceinline__ void each(F &&f) const
    {
        for (int i = 0; i < per; i++) {
            attn_unit u = unit_of(j, head * per + i);
            int64_t lo, hi;
            visible(j, u, 0, lo, hi);
            int from = (int)(u.first + lo),
                to = (int)(u.first + hi); /* indices into the list's buffer; slots are i32 */
            for (int at = from + (int)(blockIdx.y * BLOCK); at < to; at += (int)(gridDim.y * BLOCK)) {
                int e = at + (int)threadIdx.x;
                f(e < to ? (int)slot_at(u, e) : 0, e < to);
            }
        }
    }
};

static __device__ void add_counts(const near_args &n, unsigned long long asked, unsigned long long found,
                                  unsigned long long bytes)
{
    asked = warp_sum(asked), found = warp_sum(found), bytes = warp_sum(bytes);
    if (threadIdx.x % 32 != 0) return;
    if (asked) atomicAdd(&n.count[NEAR_ASKED], asked);
    if (found) atomicAdd(&n.count[NEAR_FOUND], found);
    if (bytes) atomicAdd(&n.count[NEAR_LINK], bytes);
}

/* Counts the reads of a contiguous list: the whole range, none of which is copied. */
static __global__ void __launch_bounds__(BLOCK) count_k(attn_args j)
{
    head_lists lists(j);
    unsigned long long asked = 0, found = 0;
    lists.each([&](int slot, bool is) {
        asked += is;
        found += is && (j.near.exact || near_row(j.near, lists.head, slot) >= 0);
    });
    add_counts(j.near, 2 * asked, 2 * found, 2 * (asked - found) * j.row_bytes);
}

/* Copies K and V of the rows of the lanes that have `won`, with the whole warp. */
template <class U> static __device__ void copy_rows(const attn_args &j, int head, int slot, bool won)
{
    const near_args &n = j.near;
    size_t units = j.row_bytes / sizeof(U);
    for (unsigned left = __ballot_sync(ALL_LANES, won); left;) {
        size_t from[AHEAD];
        unsigned to[AHEAD]; /* within the device copies: less than 2^32 units */
        int m = 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int lane = left ? __ffs((int)left) - 1 : 0;
            int s = __shfl_sync(ALL_LANES, slot, lane);
            from[i] = ((size_t)head * j.cap + (size_t)s) * units;
            to[i] = (unsigned)((head * n.rows + n.first + n.window + ((unsigned)s & (n.slots - 1))) * units);
            m += left != 0;
            left &= left - 1;
        }
        for (size_t c = threadIdx.x % 32; c < 2 * units; c += 32) {
            bool value = c >= units;
            const U *host = (const U *)(value ? j.v : j.k) + (c - value * units);
            U *near = (U *)(value ? n.v : n.k) + (c - value * units);
            U x[AHEAD] = {};
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (i < m) x[i] = host[from[i]];
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (i < m) near[to[i]] = x[i];
        }
    }
}

/* One block per kv head, so that barriers separate the steps of the assignment. */
template <class U> static __global__ void __launch_bounds__(BLOCK) bring_k(attn_args j)
{
    const near_args &n = j.near;
    head_lists lists(j);
    int32_t *tag = n.tag + (size_t)lists.head * n.slots, *claim = n.claim + (size_t)lists.head * n.slots;
    unsigned mask = n.slots - 1;
    unsigned asked = 0, found = 0, moved = 0;
    lists.each([&](int slot, bool is) {
        bool kept = is && kept_row(n, slot) >= 0, here = is && !kept && tag[slot & mask] == slot + 1;
        if (here) atomicMax(&claim[slot & mask], (int)FOUND);
        asked += is;
        found += kept || here;
    });
    __syncthreads();
    lists.each([&](int slot, bool is) {
        if (is && kept_row(n, slot) < 0 && tag[slot & mask] != slot + 1) atomicMax(&claim[slot & mask], slot + 1);
    });
    __syncthreads();
    lists.each([&](int slot, bool is) {
        bool won = is && kept_row(n, slot) < 0 && atomicCAS(&claim[slot & mask], slot + 1, 0) == slot + 1;
        if (won) tag[slot & mask] = slot + 1;
        moved += won;
        copy_rows<U>(j, lists.head, slot, won);
    });
    __syncthreads();
    lists.each([&](int slot, bool is) {
        if (!is || kept_row(n, slot) >= 0) return;
        if (tag[slot & mask] == slot + 1) atomicExch(&claim[slot & mask], 0);
        else moved++; /* it will be read over the link */
    });
    add_counts(n, 2ull * asked, 2ull * found, 2ull * moved * j.row_bytes);
}

void cuda_bring(backend *be, const attn_job *job)
{
    attn_args j;
    if (job->rows.codes.bits || job->copied || !cuda_begin(be, "bring") || !attn_args_of(be, &j, job)) return;
    cudaError_t rc;
    if (!j.idx || j.near.slots == 0)
        rc = launch(count_k, dim3((unsigned)j.n_kv_heads, COUNT_BLOCKS), dim3(BLOCK), 0, cuda_stream(be), j);
    else if (attn_wide(&j) && ((uintptr_t)j.near.k | (uintptr_t)j.near.v) % 16 == 0)
        rc = launch(bring_k<uint4>, dim3((unsigned)j.n_kv_heads), dim3(BLOCK), 0, cuda_stream(be), j);
    else rc = launch(bring_k<uint16_t>, dim3((unsigned)j.n_kv_heads), dim3(BLOCK), 0, cuda_stream(be), j);
    cuda_check(be, rc, "bring, %d heads, up to %lld rows", j.n_kv_heads, (long long)job->n_max);
}
