/* SPDX-License-Identifier: MIT */
/* Block rows of K and V (ops_rows.h): reading, rotating and writing them. */
#ifndef KERNELS_CUDA_ROW_BLOCKS_CUH
#define KERNELS_CUDA_ROW_BLOCKS_CUH

#include "kernels/cuda/cuda.cuh"
#include "kernels/ops_rows.h"

enum { ROW_BLOCKS_MAX = 8 /* of a row */ };

/* Units of a DT_Q8 or DT_Q4 row, used in place of an element type. */
struct row8 {
    unsigned char code;
};
struct row4 {
    unsigned char codes;
};

template <class T> struct row_form {
    enum { BITS = 0 };
};
template <> struct row_form<row8> {
    enum { BITS = 8, OFFSET = 128 };
};
template <> struct row_form<row4> {
    enum { BITS = 4, OFFSET = 8 };
};
template <class T> static constexpr bool in_blocks = row_form<T>::BITS > 0;

template <> struct pack<row8> {
    enum { N = 8 };
};
template <> struct pack<row4> {
    enum { N = 8 };
};

/* Like by_type, for the types that K and V rows may have; by_blocks_of only for those in blocks. */
template <class F> static inline void by_blocks_of(dtype t, F &&f)
{
    if (t == DT_Q8) f(row8());
    else f(row4());
}
template <class F> static inline void by_rows(dtype t, F &&f)
{
    if (dtype_in_qblocks(t)) by_blocks_of(t, f);
    else by_type(t, f);
}

/* Returns the bytes of the codes of n elements; the bytes of a row. */
template <class T> static __host__ __device__ __forceinline__ int code_bytes(int n)
{
    return n * row_form<T>::BITS / 8;
}
template <class T> static __host__ __device__ __forceinline__ size_t block_row_bytes(int n)
{
    return (size_t)(code_bytes<T>(n) + n / ROW_BLOCK * 2);
}

/* Returns row number i of rows of dim elements. */
template <class T> static __device__ __forceinline__ const T *row_of(const void *rows, size_t i, int dim)
{
    if constexpr (in_blocks<T>) return (const T *)rows + i * block_row_bytes<T>(dim);
    else return (const T *)rows + i * dim;
}

/* Returns a code as a float, minus its offset. */
template <class T> static __device__ __forceinline__ float code_less_offset(unsigned code)
{
    return __uint_as_float(0x4b000000u | code) - (float)(8388608 + row_form<T>::OFFSET);
}

template <class T> static __device__ __forceinline__ float scale_in(const T *row, int dim, int block)
{
    const unsigned short *d = (const unsigned short *)(const void *)(row + code_bytes<T>(dim));
    return __half2float(__ushort_as_half(d[block]));
}

/* Returns element c as stored, without rotating back. */
template <class T> static __device__ __forceinline__ float stored_at(const T *row, int dim, int c)
{
    unsigned byte = *(const unsigned char *)(row + code_bytes<T>(c));
    unsigned code = row_form<T>::BITS == 8 ? byte : byte >> c % 2 * 4 & 15;
    return __fmul_rn(scale_in(row, dim, c / ROW_BLOCK), code_less_offset<T>(code));
}

/* Returns f32(1 / sqrt(dim)). */
static __device__ __forceinline__ float hadamard_scale(int dim)
{
    return dim == 32 ? 0x1.6a09e6p-3f : dim == 64 ? 0x1p-3f : dim == 128 ? 0x1.6a09e6p-4f : 0x1p-4f;
}

/* Returns element c of H x, where x is the stored row. Reads the whole row; the bits equal those of rotating all
 * of it. */
template <class T> static __device__ __noinline__ float rotated_at(const T *row, int dim, int c)
{
    float part[ROW_BLOCKS_MAX];
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS_MAX; b++) {
        float x[ROW_BLOCK];
        part[b] = 0;
        if (b * ROW_BLOCK >= dim) continue;
#pragma unroll
        for (int i = 0; i < ROW_BLOCK; i++) x[i] = stored_at(row, dim, b * ROW_BLOCK + i);
#pragma unroll
        for (int span = 1; span < ROW_BLOCK; span *= 2)
#pragma unroll
            for (int i = 0; i < ROW_BLOCK; i += 2 * span)
                x[i] = c & span ? __fsub_rn(x[i], x[i + span]) : __fadd_rn(x[i], x[i + span]);
        part[b] = x[0];
    }
#pragma unroll
    for (int span = 1; span < ROW_BLOCKS_MAX; span *= 2) {
        if (span * ROW_BLOCK >= dim) continue;
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS_MAX; b += 2 * span)
            part[b] = c & span * ROW_BLOCK ? __fsub_rn(part[b], part[b + span]) : __fadd_rn(part[b], part[b + span]);
    }
    return __fmul_rn(part[0], hadamard_scale(dim));
}

/* Returns element c of a row of any type, rotated back if it is stored rotated. */
template <class T>
static __device__ __forceinline__ float element_in(const T *row, int dim, int c, [[maybe_unused]] bool rotated)
{
    if constexpr (in_blocks<T>) return rotated ? rotated_at(row, dim, c) : stored_at(row, dim, c);
    else return to_f32(row[c]);
}

/* ---- one row per warp: element l + 32 b is number b of lane l, so that a block has one element in each lane ---- */

template <class X> static __device__ __forceinline__ void load_lanes(float x[ROW_BLOCKS_MAX], const X *row, int dim)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS_MAX; b++) x[b] = b * ROW_BLOCK < dim ? row[b * ROW_BLOCK + lane] : 0;
}

static __device__ __forceinline__ void store_lanes(float *row, const float x[ROW_BLOCKS_MAX], int dim)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS_MAX; b++)
        if (b * ROW_BLOCK < dim) row[b * ROW_BLOCK + lane] = x[b];
}

/* Replaces x by H x; dim is a power of two. */
static __device__ __forceinline__ void hadamard_lanes(float x[ROW_BLOCKS_MAX], int dim)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int span = 1; span < ROW_BLOCK; span *= 2)
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS_MAX; b++) {
            if (b * ROW_BLOCK >= dim) continue;
            float y = __shfl_xor_sync(ALL_LANES, x[b], span);
            x[b] = lane & span ? __fsub_rn(y, x[b]) : __fadd_rn(x[b], y);
        }
#pragma unroll
    for (int span = 1; span < ROW_BLOCKS_MAX; span *= 2) {
        if (span * ROW_BLOCK >= dim) continue;
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS_MAX; b++) {
            if (b & span) continue;
            float y = x[b], z = x[b + span];
            x[b] = __fadd_rn(y, z);
            x[b + span] = __fsub_rn(y, z);
        }
    }
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS_MAX; b++) x[b] = __fmul_rn(x[b], hadamard_scale(dim));
}

/* Rotates n rows in memory, `stride` apart, with the warps of a thread block. No barrier. */
static __device__ __forceinline__ void hadamard_rows(float *to, const float *from, int n, size_t stride, int dim)
{
    for (int i = (int)threadIdx.x / 32; i < n; i += (int)blockDim.x / 32) {
        float x[ROW_BLOCKS_MAX];
        load_lanes(x, from + (size_t)i * stride, dim);
        hadamard_lanes(x, dim);
        store_lanes(to + (size_t)i * stride, x, dim);
    }
}

/* Loads a row, rotated back if it is stored rotated. */
template <class T>
static __device__ __forceinline__ void get_row(float x[ROW_BLOCKS_MAX], const T *row, int dim, bool rotated)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS_MAX; b++) x[b] = b * ROW_BLOCK < dim ? stored_at(row, dim, b * ROW_BLOCK + lane) : 0;
    if (rotated) hadamard_lanes(x, dim);
}

/* ---- one block per warp, one element per lane: scale and codes as in ops_weights.h, with the same bits ---- */

static __device__ __forceinline__ unsigned short scale_bits(float d)
{
    unsigned short h = __half_as_ushort(__float2half_rn(d));
    return (h & 0x7fff) > QBLOCK_LARGEST ? (unsigned short)((h & 0x8000) | QBLOCK_LARGEST) : h;
}

static __device__ __forceinline__ float rounded_to(float x, float d, float lo, float hi)
{
    float inverse = d != 0 ? __fdiv_rn(1, d) : 0;
    return rintf(fminf(fmaxf(__fmul_rn(x, inverse), lo), hi));
}

/* Returns the squared error of the scale d in all lanes, summed in the order of the definition. */
static __device__ __forceinline__ float error_of(float x, float code, float d)
{
    float rest = __fsub_rn(x, __fmul_rn(d, code)), square = __fmul_rn(rest, rest);
    int first = (int)threadIdx.x % 8;
    float sum = __shfl_sync(ALL_LANES, square, first);
#pragma unroll
    for (int i = 8; i < ROW_BLOCK; i += 8) sum = __fadd_rn(sum, __shfl_sync(ALL_LANES, square, first + i));
    for (int m = 4; m > 0; m /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, m));
    return sum;
}

static __device__ __forceinline__ float scale_q8(float x, float most, unsigned short *bits)
{
    unsigned short h = scale_bits(__fdiv_rn(most, 127));
    if (h < QBLOCK_LARGEST && most > __fmul_rn(127.5f, __half2float(__ushort_as_half(h)))) h++;
    *bits = h;
    return rounded_to(x, __half2float(__ushort_as_half(h)), -127, 127);
}

static __device__ __forceinline__ float scale_q4(float x, float most, unsigned short *bits)
{
    float extreme = __ballot_sync(ALL_LANES, x <= -most) ? -most : most, least = 0, best = 0;
    const float ends[QBLOCK_TRIES] = {8, 7.5f, 7, 8.5f, 9};
#pragma unroll
    for (int i = 0; i < QBLOCK_TRIES; i++) {
        unsigned short h = scale_bits(__fdiv_rn(-extreme, ends[i]));
        float d = __half2float(__ushort_as_half(h)), code = rounded_to(x, d, -8, 7), error = error_of(x, code, d);
        if (i > 0 && !(error < least)) continue;
        least = error;
        best = code;
        *bits = h;
    }
    return best;
}

/* Returns the code of this lane's x, minus the offset, and the bits of the scale. */
template <class T> static __device__ __forceinline__ float quantize_lane(float x, unsigned short *bits)
{
    unsigned most = __float_as_uint(x) & 0x7fffffffu;
    for (int m = 16; m > 0; m /= 2) most = max(most, __shfl_xor_sync(ALL_LANES, most, m));
    *bits = QBLOCK_NAN;
    if (most >= 0x7f800000u) return 0;
    if (row_form<T>::BITS == 8) return scale_q8(x, __uint_as_float(most), bits);
    return scale_q4(x, __uint_as_float(most), bits);
}

/* Quantizes x, in its stored form, into a row and into a copy of it; copy NULL: none. */
template <class T>
static __device__ __forceinline__ void put_lanes(T *row, T *copy, const float x[ROW_BLOCKS_MAX], int dim)
{
    constexpr int BITS = row_form<T>::BITS;
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS_MAX; b++) {
        if (b * ROW_BLOCK >= dim) continue;
        unsigned short d;
        unsigned code = (unsigned)((int)quantize_lane<T>(x[b], &d) + row_form<T>::OFFSET);
        if (BITS == 4) code |= __shfl_down_sync(ALL_LANES, code, 1) << 4;
        for (int i = 0; i < (copy ? 2 : 1); i++) {
            unsigned char *to = (unsigned char *)(i ? copy : row);
            if (BITS == 8 || lane % 2 == 0) to[code_bytes<T>(b * ROW_BLOCK + lane)] = (unsigned char)code;
            if (lane == 0) ((unsigned short *)(void *)(to + code_bytes<T>(dim)))[b] = d;
        }
    }
}

/* Replaces x by the values that reading its stored row would give. */
template <class T> static __device__ __forceinline__ void round_lanes(float x[ROW_BLOCKS_MAX], int dim, bool rotated)
{
    if (rotated) hadamard_lanes(x, dim);
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS_MAX; b++) {
        if (b * ROW_BLOCK >= dim) continue;
        unsigned short d;
        int code = (int)quantize_lane<T>(x[b], &d); /* never -0 */
        x[b] = __fmul_rn(__half2float(__ushort_as_half(d)), (float)code);
    }
    if (rotated) hadamard_lanes(x, dim);
}

/* ---- 8 neighbouring elements of a row: loaded first, converted later ---- */

/* Loads the codes into x and y, the scale into z. */
template <class T> static __device__ __forceinline__ uint4 load_eight(const T *row, int dim, int c, size_t aligned)
{
    const unsigned char *p = (const unsigned char *)(row + code_bytes<T>(c));
    const unsigned *words = (const unsigned *)(const void *)p;
    const unsigned short *halves = (const unsigned short *)(const void *)p;
    uint4 u = make_uint4(0, 0, 0, 0);
    u.z = ((const unsigned short *)(const void *)(row + code_bytes<T>(dim)))[c / ROW_BLOCK];
    if (aligned % 4) u.x = halves[0] | (unsigned)halves[1] << 16;
    else if (row_form<T>::BITS == 4 || aligned % 8) u.x = words[0];
    if (row_form<T>::BITS == 4) return u;
    if (aligned % 4) u.y = halves[2] | (unsigned)halves[3] << 16;
    else if (aligned % 8) u.y = words[1];
    else {
        uint2 v = *(const uint2 *)(const void *)p;
        u.x = v.x, u.y = v.y;
    }
    return u;
}

template <class T> static __device__ __forceinline__ void widen_eight(float x[8], uint4 u)
{
    constexpr int BITS = row_form<T>::BITS, PER = 32 / BITS;
    const unsigned w[2] = {u.x, u.y};
    float d = __half2float(__ushort_as_half((unsigned short)u.z));
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = d * code_less_offset<T>(w[i / PER] >> i % PER * BITS & ((1u << BITS) - 1));
}

/* Replaces x by H x, up to rounding, for rows of L lanes with 8 neighbouring elements each. */
template <int L> static __device__ __forceinline__ void hadamard_eight(float x[8], int lane, int dim)
{
#pragma unroll
    for (int span = 1; span < 8; span *= 2)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i & span) continue;
            float y = x[i], z = x[i + span];
            x[i] = y + z;
            x[i + span] = y - z;
        }
#pragma unroll
    for (int span = 1; span < L; span *= 2) {
        if (8 * span >= dim) continue;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float y = __shfl_xor_sync(ALL_LANES, x[i], span);
            x[i] = lane & span ? y - x[i] : x[i] + y;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= hadamard_scale(dim);
}

#endif
