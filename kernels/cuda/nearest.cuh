/* SPDX-License-Identifier: MIT */
/* Nearest centroid of each key (ops_kmeans.h), by one thread block: a tile of keys times tiles of centroids. A thread
 * keeps its sums in registers and accumulates them channel by channel. */
#ifndef KERNELS_CUDA_NEAREST_CUH
#define KERNELS_CUDA_NEAREST_CUH

#include <float.h>

#include "kernels/cuda/cuda.cuh"

enum {
    NEAR_TILE = 64, /* keys, and centroids */
    NEAR_SIDE = 16, /* threads that share a key, and a centroid */
    NEAR_EACH = NEAR_TILE / NEAR_SIDE,
    NEAR_BLOCK = NEAR_SIDE * NEAR_SIDE,
    NEAR_CHANNELS = 16 /* loaded at once */
};

typedef struct {
    float x[NEAR_CHANNELS][NEAR_TILE + 1], c[NEAR_CHANNELS][NEAR_TILE + 1], bias[NEAR_TILE];
} near_tile;

/* Centroids of all subspaces of all heads: unit i is subspace i mod parts of head i / parts. */
typedef struct {
    const void *p;
    size_t cap;
    int count, parts, dim; /* dim: channels of a subspace */
    bool half, l2;
} centroids;

static __device__ __forceinline__ float centroid_at(const centroids &c, size_t unit, int i, int channel)
{
    size_t at = (unit * c.cap + i) * c.dim + channel;
    return c.half ? to_f32(((const __half *)c.p)[at]) : ((const float *)c.p)[at];
}

/* Loads channels [from, from + NEAR_CHANNELS) of the centroids from `first` on; zeros past the ends. */
static __device__ __forceinline__ void load_centroids(near_tile *t, const centroids &c, size_t unit, int first,
                                                      int from)
{
    int channel = threadIdx.x % NEAR_CHANNELS;
    for (int i = threadIdx.x / NEAR_CHANNELS; i < NEAR_TILE; i += NEAR_BLOCK / NEAR_CHANNELS) {
        bool inside = first + i < c.count && from + channel < c.dim;
        t->c[channel][i] = inside ? centroid_at(c, unit, first + i, from + channel) : 0;
    }
}

/* Sets the initial values of the sums of a tile's centroids. Ends with a barrier. */
static __device__ __forceinline__ void set_biases(near_tile *t, const centroids &c, size_t unit, int first)
{
    float sum = 0;
    for (int from = 0; c.l2 && from < c.dim; from += NEAR_CHANNELS) {
        load_centroids(t, c, unit, first, from);
        __syncthreads();
        for (int i = 0; threadIdx.x < NEAR_TILE && i < NEAR_CHANNELS && from + i < c.dim; i++)
            sum = __fadd_rn(sum, __fmul_rn(t->c[i][threadIdx.x], t->c[i][threadIdx.x]));
        __syncthreads();
    }
    if (threadIdx.x < NEAR_TILE) t->bias[threadIdx.x] = __fmul_rn(-0.5f, sum);
    __syncthreads();
}

/* Computes the sums of a tile of keys with a tile of centroids: thread (x, y) has keys y + 16 i and centroids x + 16 k.
 * keys.at(head, i, c) returns channel c of key i of a head. */
template <class K>
static __device__ __forceinline__ void near_sums(float sum[NEAR_EACH][NEAR_EACH], near_tile *t, const K &keys,
                                                 const centroids &c, size_t unit, int64_t key, int64_t n, int first)
{
    int x = threadIdx.x % NEAR_SIDE, y = threadIdx.x / NEAR_SIDE, channel = threadIdx.x % NEAR_CHANNELS;
    int head = (int)unit / c.parts, base = (int)unit % c.parts * c.dim;
    set_biases(t, c, unit, first);
#pragma unroll
    for (int i = 0; i < NEAR_EACH; i++)
#pragma unroll
        for (int k = 0; k < NEAR_EACH; k++) sum[i][k] = t->bias[x + NEAR_SIDE * k];
    for (int from = 0; from < c.dim; from += NEAR_CHANNELS) {
        load_centroids(t, c, unit, first, from);
        for (int i = threadIdx.x / NEAR_CHANNELS; i < NEAR_TILE; i += NEAR_BLOCK / NEAR_CHANNELS) {
            bool inside = key + i < n && from + channel < c.dim;
            t->x[channel][i] = inside ? keys.at(head, key + i, base + from + channel) : 0;
        }
        __syncthreads();
        for (int j = 0; j < NEAR_CHANNELS && from + j < c.dim; j++)
#pragma unroll
            for (int i = 0; i < NEAR_EACH; i++)
#pragma unroll
                for (int k = 0; k < NEAR_EACH; k++)
                    sum[i][k] = __fadd_rn(sum[i][k], __fmul_rn(t->x[j][y + NEAR_SIDE * i], t->c[j][x + NEAR_SIDE * k]));
        __syncthreads();
    }
}

/* Returns in best[i] of thread (x, y) the centroid nearest to key y + 16 i of the tile that starts at `key`. */
template <class K>
static __device__ __forceinline__ void near_keys(int best[NEAR_EACH], near_tile *t, const K &keys, const centroids &c,
                                                 size_t unit, int64_t key, int64_t n)
{
    float most[NEAR_EACH], sum[NEAR_EACH][NEAR_EACH];
#pragma unroll
    for (int i = 0; i < NEAR_EACH; i++) most[i] = -FLT_MAX, best[i] = 0;
    for (int first = 0; first < c.count; first += NEAR_TILE) {
        near_sums(sum, t, keys, c, unit, key, n, first);
#pragma unroll
        for (int i = 0; i < NEAR_EACH; i++)
#pragma unroll
            for (int k = 0; k < NEAR_EACH; k++) {
                int at = first + (int)threadIdx.x % NEAR_SIDE + NEAR_SIDE * k;
                float s = sum[i][k] > FLT_MAX ? FLT_MAX : sum[i][k];
                if (at < c.count && s > most[i]) most[i] = s, best[i] = at;
            }
    }
#pragma unroll
    for (int i = 0; i < NEAR_EACH; i++)
        for (int m = NEAR_SIDE / 2; m > 0; m /= 2) {
            float s = __shfl_xor_sync(ALL_LANES, most[i], m);
            int at = __shfl_xor_sync(ALL_LANES, best[i], m);
            if (s > most[i] || (s == most[i] && at < best[i])) most[i] = s, best[i] = at;
        }
}

static inline dim3 near_grid(int64_t n_max, size_t units, unsigned jobs)
{
    return dim3(cuda_blocks((size_t)n_max, NEAR_TILE), (unsigned)units, jobs);
}

#endif
