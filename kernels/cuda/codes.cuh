/* SPDX-License-Identifier: MIT */
/* Rows of a store as kernels read them: float rows, block rows, and quantized rows (kv_codes in ops.h), which are
 * converted in registers. "exact" in names means float or block rows. */
#ifndef KERNELS_CUDA_CODES_CUH
#define KERNELS_CUDA_CODES_CUH

#include "kernels/cuda/row_blocks.cuh"
#include "kernels/ops_codes.h"

/* Quantized rows of K or of V. */
typedef struct {
    const int32_t *at; /* NULL: a slot is an exact row */
    unsigned char *code;
    __half *pair;
    size_t cap, row_bytes;
    int bits, group, run, runs; /* group 0: one pair per run of a row */
    bool zero_point;
} half_codes;

/* Exact and quantized rows of one half (K or V) of a layer. */
typedef struct {
    const void *exact;
    size_t cap;
    int dim;
    bool rotated; /* exact rows are blocks that are stored Hadamard-rotated */
    half_codes codes;
} half_rows;

static inline half_codes codes_of(const kv_rows *r, bool value)
{
    const kv_codes *c = &r->codes;
    half_codes h = {};
    if (c->bits == 0) return h;
    h.at = ptr<int32_t>(value ? c->v_at : c->k_at);
    h.code = ptr<unsigned char>(value ? c->v : c->k);
    h.pair = ptr<__half>(value ? c->v_pair : c->k_pair);
    h.cap = c->cap;
    h.row_bytes = codes_row_bytes(c, r->head_dim);
    h.bits = c->bits;
    h.group = value || c->by_token ? 0 : (int)c->group;
    h.run = (int)c->run;
    h.runs = (int)codes_runs(c, r->head_dim);
    h.zero_point = c->zero_point;
    return h;
}

static inline half_rows rows_of(const kv_rows *r, bool value)
{
    bool rotated = r->rotated & (value ? KV_ROTATED_V : KV_ROTATED_K);
    return {value ? r->v.p : r->k.p, r->cap, (int)r->head_dim, rotated, codes_of(r, value)};
}

/* True if codes can be read n neighbouring channels at a time; n is 4 or 8. */
static inline bool codes_wide(const half_codes *h, int n)
{
    if (!h->at) return true;
    uintptr_t pair = (uintptr_t)h->pair % (h->group ? 2 * n : 4);
    return (uintptr_t)h->code % 4 == 0 && pair == 0 && (h->group || h->run % n == 0 || h->runs == 1);
}

/* Returns the pair (a, b) of a channel of a quantized row; b is *apart numbers after a. */
static __device__ __forceinline__ const __half *pair_of(const half_codes &h, int dim, int head, int64_t row, int c,
                                                        int *apart)
{
    *apart = h.group ? dim : 1;
    if (h.group) return h.pair + (head * (h.cap / h.group) + row / h.group) * 2 * dim + c;
    return h.pair + ((head * h.cap + row) * h.runs + c / h.run) * 2;
}

/* Returns the bytes of a row, exact or quantized. `exact`: bytes of an exact row. first: includes the pairs of the
 * row's group. */
static __device__ __forceinline__ size_t bytes_of(const half_codes &h, size_t exact, int dim, int64_t row, bool first)
{
    if (row >= 0) return exact;
    return h.row_bytes + 4 * (size_t)(!h.group ? h.runs : first ? dim : 0);
}

/* Returns a code as a float without a conversion instruction. */
static __device__ __forceinline__ float code_f32(unsigned code)
{
    return __uint_as_float(0x4b000000u | code) - 8388608.0f;
}

/* Dequantizes a code. The product is exact, so the order of the operations does not change the bits. */
static __device__ __forceinline__ float from_code(const half_codes &h, float code, float a, float b)
{
    return h.zero_point ? b * (code - a) : fmaf(code, b, a);
}

/* Returns channel c of a slot. Block rows are never quantized again; rotated ones are rotated back. */
template <class T> static __device__ __forceinline__ float element_of(const half_rows &r, int head, int64_t slot, int c)
{
    if constexpr (in_blocks<T>)
        return element_in(row_of<T>(r.exact, head * r.cap + (size_t)slot, r.dim), r.dim, c, r.rotated);
    else {
        int64_t row = r.codes.at ? r.codes.at[slot] : slot;
        if (row >= 0) return to_f32(((const T *)r.exact)[(head * r.cap + row) * r.dim + c]);
        const half_codes &h = r.codes;
        int apart, bit = c * h.bits;
        row = -1 - row;
        const __half *p = pair_of(h, r.dim, head, row, c, &apart);
        unsigned byte = h.code[(head * h.cap + row) * h.row_bytes + bit / 8];
        return from_code(h, code_f32(byte >> bit % 8 & ((1u << h.bits) - 1)), to_f32(p[0]), to_f32(p[apart]));
    }
}

/* ---- N neighbouring channels of a row: loaded first, converted later ---- */

/* Data loaded by a lane: 16 bytes of an exact row, or codes and, if pairs are per run, their pair. */
typedef struct {
    uint4 bits;
} loaded;

/* Pairs of N channels of the group read last. Rows of a group are adjacent in a list. */
template <int N> struct group_pairs {
    int64_t group;
    float a[N], b[N];
};

template <int N> static __device__ __forceinline__ unsigned load_codes(const unsigned char *p, int bits)
{
    if (N * bits == 32) return *reinterpret_cast<const unsigned *>(p);
    if (N * bits == 16) return *reinterpret_cast<const unsigned short *>(p);
    return *p;
}

template <int N>
static __device__ __forceinline__ void widen_codes(float x[N], unsigned codes, const half_codes &h, const float *a,
                                                   const float *b, int step)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        unsigned code = h.bits == 4 ? codes >> 4 * i & 15 : codes >> 2 * i & 3;
        x[i] = from_code(h, code_f32(code), a[step * i], b[step * i]);
    }
}

/* Loads the N halves at p, which is aligned to N * 2 bytes. */
template <int N> static __device__ __forceinline__ void load_halves(float x[N], const __half *p)
{
    const unsigned *w = reinterpret_cast<const unsigned *>(p);
    uint4 u = make_uint4(0, 0, 0, 0);
    if (N == 8) u = load16(p);
    else {
        uint2 v = *reinterpret_cast<const uint2 *>(w);
        u.x = v.x, u.y = v.y;
    }
    float all[8];
    unpack(all, u, p);
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = all[i];
}

/* Reader for the rows of one head. T: element type of exact rows. N > 1: number of channels in 16 bytes. CODES: the
 * store may have quantized rows. */
template <class T, int N, bool CODES> struct row_reader {
    const half_rows &r;
    int head;

    /* Returns the row of a slot. Negative: -1 - a quantized row. */
    __device__ __forceinline__ int64_t row_at(size_t slot) const
    {
        return CODES ? (int64_t)r.codes.at[slot] : (int64_t)slot;
    }

    __device__ __forceinline__ void load(loaded &to, int64_t row, int c) const
    {
        if (CODES && row < 0) {
            const half_codes &h = r.codes;
            size_t at = head * h.cap + (size_t)(-1 - row);
            to.bits.x = load_codes<N>(h.code + at * h.row_bytes + c * h.bits / 8, h.bits);
            if (!h.group) to.bits.y = *reinterpret_cast<const unsigned *>(h.pair + (at * h.runs + c / h.run) * 2);
        } else {
            to.bits = load16((const T *)r.exact + (head * r.cap + (size_t)row) * r.dim + c);
        }
    }

    __device__ __forceinline__ void widen(float x[N], const loaded &from, int64_t row, int c,
                                          group_pairs<N> &kept) const
    {
        if (!CODES || row >= 0) {
            unpack(x, from.bits, (const T *)0);
            return;
        }
        const half_codes &h = r.codes;
        if (!h.group) {
            float a = __half2float(__ushort_as_half((unsigned short)(from.bits.y & 0xffff)));
            float b = __half2float(__ushort_as_half((unsigned short)(from.bits.y >> 16)));
            widen_codes<N>(x, from.bits.x, h, &a, &b, 0);
            return;
        }
        int64_t group = (-1 - row) / h.group;
        if (group != kept.group) {
            const __half *p = h.pair + (head * (h.cap / h.group) + group) * 2 * r.dim + c;
            kept.group = group;
            load_halves<N>(kept.a, p);
            load_halves<N>(kept.b, p + r.dim);
        }
        widen_codes<N>(x, from.bits.x, h, kept.a, kept.b, 1);
    }
};

/* Reader for block rows as stored, without rotating them back. */
template <class T> struct block_reader {
    const half_rows &r;
    int head;

    __device__ __forceinline__ int64_t row_at(size_t slot) const
    {
        return (int64_t)slot;
    }
    __device__ __forceinline__ const T *at(int64_t row) const
    {
        return row_of<T>(r.exact, head * r.cap + (size_t)row, r.dim);
    }
    __device__ __forceinline__ void load(loaded &to, int64_t row, int c) const
    {
        size_t aligned = (size_t)(uintptr_t)r.exact | block_row_bytes<T>(r.dim);
        to.bits = load_eight(at(row), r.dim, c, aligned);
    }
    __device__ __forceinline__ void widen(float x[8], const loaded &from, int64_t, int, group_pairs<8> &) const
    {
        widen_eight<T>(x, from.bits);
    }
};

/* Reader for single channels, for rows that are not aligned. */
template <class T, bool CODES> struct row_reader<T, 1, CODES> {
    const half_rows &r;
    int head;

    __device__ __forceinline__ int64_t row_at(size_t slot) const
    {
        return (int64_t)slot;
    }
    __device__ __forceinline__ void load(loaded &to, int64_t slot, int c) const
    {
        float x =
            CODES ? element_of<T>(r, head, slot, c) : to_f32(((const T *)r.exact)[(head * r.cap + slot) * r.dim + c]);
        to.bits.x = __float_as_uint(x);
    }
    __device__ __forceinline__ void widen(float x[1], const loaded &from, int64_t, int, group_pairs<1> &) const
    {
        x[0] = __uint_as_float(from.bits.x);
    }
};

#endif
