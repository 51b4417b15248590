/* SPDX-License-Identifier: MIT */
/* Rows in host memory of which the device holds some copies (kv_near in ops_tier.h), as kernels read them. */
#ifndef KERNELS_CUDA_NEAR_CUH
#define KERNELS_CUDA_NEAR_CUH

#include "kernels/cuda/codes.cuh"
#include "kernels/ops_tier.h"

typedef struct {
    unsigned char *k, *v; /* NULL: none */
    int32_t *ring, *tag, *claim;
    unsigned long long *count; /* NULL: rows are on the device, or reads are not counted */
    int64_t first, rows;       /* rows: number per head */
    unsigned window, slots;
    bool exact;
} near_args;

static inline near_args near_of(const kv_rows *r)
{
    near_args a = {};
    const kv_near *n = r->near;
    if (!n) return a;
    a.k = n->k.p, a.v = n->v.p;
    a.ring = ptr<int32_t>(n->ring), a.tag = ptr<int32_t>(n->tag), a.claim = ptr<int32_t>(n->claim);
    a.count = ptr<unsigned long long>(n->count);
    a.first = n->first, a.rows = n->first + n->window + n->slots;
    a.window = (unsigned)n->window, a.slots = (unsigned)n->slots;
    a.exact = n->exact;
    return a;
}

/* Returns the row of a head that holds a permanent slot or one of the newest; -1: none. */
static __device__ __forceinline__ int64_t kept_row(const near_args &n, int64_t slot)
{
    if (slot < n.first) return slot;
    unsigned s = (unsigned)slot & (n.window - 1);
    return n.window && n.ring[s] == slot + 1 ? n.first + s : -1;
}

/* Returns the device row, counted over all heads, that holds a head's slot; -1: only host memory has it. */
static __device__ __forceinline__ int64_t near_row(const near_args &n, int head, int64_t slot)
{
    int64_t row = kept_row(n, slot);
    unsigned s = (unsigned)slot & (n.slots - 1);
    if (row < 0 && n.slots && n.tag[(size_t)head * n.slots + s] == slot + 1) row = n.first + n.window + s;
    return row < 0 ? -1 : head * n.rows + row;
}

/* Reader like row_reader for float rows or block_reader; it reads the device copy if there is one, else host memory. */
template <class T, int N> struct near_reader {
    const half_rows &r;
    int head;
    const near_args &n;
    const T *near;

    /* Returns the row of a slot. Negative: -1 - a row on the device. */
    __device__ __forceinline__ int64_t row_at(size_t slot) const
    {
        int64_t row = near_row(n, head, (int64_t)slot);
        return row < 0 ? (int64_t)slot : -1 - row;
    }
    __device__ __forceinline__ const T *at(int64_t row) const
    {
        const void *rows = row < 0 ? (const void *)near : r.exact;
        return row_of<T>(rows, row < 0 ? (size_t)(-1 - row) : head * r.cap + (size_t)row, r.dim);
    }
    __device__ __forceinline__ void load(loaded &to, int64_t row, int c) const
    {
        if constexpr (in_blocks<T>) {
            size_t aligned = (size_t)(uintptr_t)r.exact | (size_t)(uintptr_t)near | block_row_bytes<T>(r.dim);
            to.bits = load_eight(at(row), r.dim, c, aligned);
        } else if constexpr (N == 1) to.bits.x = __float_as_uint(to_f32(at(row)[c]));
        else to.bits = load16(at(row) + c);
    }
    __device__ __forceinline__ void widen(float x[N], const loaded &from, int64_t, int, group_pairs<N> &) const
    {
        if constexpr (in_blocks<T>) widen_eight<T>(x, from.bits);
        else if constexpr (N == 1) x[0] = __uint_as_float(from.bits.x);
        else unpack(x, from.bits, (const T *)0);
    }
};

#endif
