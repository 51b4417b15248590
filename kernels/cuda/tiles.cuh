/* SPDX-License-Identifier: MIT */
/* Tiles of keys or values in shared memory, and products with them. */
#ifndef KERNELS_CUDA_TILES_CUH
#define KERNELS_CUDA_TILES_CUH

#include <type_traits>

#include "kernels/cuda/attention.cuh"

enum { PAD = 4 };

/* Returns the floats from row to row of a tile. */
static __host__ __device__ __forceinline__ int stride_of(int dim)
{
    return (dim + 3) / 4 * 4 + PAD;
}

/* Loads entries [at, at + KEYS) of the list as floats, N channels at a time; block rows stay in their stored form.
 * Entries outside [lo, hi) may hold anything and become 0. */
template <class T, int N, bool CODES, int KEYS, int BLOCK>
static __device__ void load_tile(float *tile, const half_rows &rows, const attn_unit &u, int64_t at, int64_t lo,
                                 int64_t hi)
{
    const int stride = stride_of(rows.dim), vectors = (stride - PAD) / N;
    typedef std::conditional_t<in_blocks<T>, block_reader<T>, row_reader<T, N, CODES>> reader;
    const reader from = {rows, u.kv_head};
    for (int i = threadIdx.x; i < KEYS * vectors; i += BLOCK) {
        int key = i / vectors, c = i % vectors * N;
        float x[N] = {};
        if (at + key >= lo && at + key < hi && c < rows.dim) {
            int64_t row = from.row_at(slot_of(u, at + key));
            loaded bits;
            group_pairs<N> pairs = {-1, {}, {}};
            from.load(bits, row, c);
            from.widen(x, bits, row, c, pairs);
        }
        for (int k = 0; k < N; k++) tile[key * stride + c + k] = x[k];
    }
}

/* Computes the products of the query row q with KEYS / PER_ROW rows of a tile. PER_ROW threads share the tile; this one
 * has rows mine, mine + PER_ROW, ... */
template <int KEYS, int PER_ROW>
static __device__ __forceinline__ void tile_products(float s[KEYS / PER_ROW], const float *q, const float *tile,
                                                     int mine, int stride)
{
#pragma unroll
    for (int k = 0; k < KEYS / PER_ROW; k++) s[k] = 0;
    for (int c = 0; c < stride - PAD; c += 4) {
        float4 a = load_f4(q + c);
#pragma unroll
        for (int k = 0; k < KEYS / PER_ROW; k++) {
            float4 b = load_f4(tile + (mine + PER_ROW * k) * stride + c);
            s[k] = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, s[k]))));
        }
    }
}

#endif
