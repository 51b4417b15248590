/* SPDX-License-Identifier: MIT */
/* Selection by score within a thread block: keys that order like scores, the k-th largest key, prefix sums. */
#ifndef KERNELS_CUDA_RADIX_CUH
#define KERNELS_CUDA_RADIX_CUH

#include "kernels/cuda/dev.cuh"

enum { MOST_WARPS = 32, DIGITS = 256 };

/* Returns a number that orders like the score: NaN as -INFINITY, both zeros equal. */
static __device__ __forceinline__ unsigned key_of(float x)
{
    unsigned u = __float_as_uint(isnan(x) ? -INFINITY : x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Returns the sum over the lanes before this one; *all: the sum over the warp. */
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

/* Returns the same over the warps of a block, each with one x. room: int64_t [MOST_WARPS]. */
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

/* Finds one digit of the k-th largest key: counts the digits of the keys that agree in the digits above, then takes the
 * largest digit down to which there are k. Returns the remaining k within that digit. weight(i): number of times that
 * key(i) counts. */
template <class F, class W>
static __device__ int64_t next_digit(F key, W weight, int64_t lo, int64_t hi, unsigned *prefix, int shift, int64_t k,
                                     int *count, int64_t *found)
{
    for (int i = threadIdx.x; i < DIGITS; i += blockDim.x) count[i] = 0;
    __syncthreads();
    unsigned above = shift == 24 ? 0 : ~0u << (shift + 8);
    for (int64_t i = lo + threadIdx.x; i < hi; i += blockDim.x) {
        unsigned u = key(i);
        if ((u & above) == *prefix) atomicAdd(&count[u >> shift & (DIGITS - 1)], weight(i));
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

/* Returns the k-th largest of key(i), lo <= i < hi, where key(i) counts weight(i) times. The weights sum to at least *k
 * > 0. *k becomes the number of entries with that key among the k largest. count: int [DIGITS], found: int64_t [2], in
 * shared memory. Called by whole blocks. */
template <class F, class W>
static __device__ __forceinline__ unsigned kth_key(F key, W weight, int64_t lo, int64_t hi, int64_t *k, int *count,
                                                   int64_t *found)
{
    unsigned prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) *k = next_digit(key, weight, lo, hi, &prefix, shift, *k, count, found);
    return prefix;
}

/* The same with each key counted once. */
template <class F>
static __device__ __forceinline__ unsigned kth_key(F key, int64_t lo, int64_t hi, int64_t *k, int *count,
                                                   int64_t *found)
{
    return kth_key(
        key, [](int64_t) { return 1; }, lo, hi, k, count, found);
}

#endif
