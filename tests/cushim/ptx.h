/* SPDX-License-Identifier: MIT */
/* Host versions of the PTX functions in kernels/cuda/ptx.cuh. An asynchronous copy to shared memory may happen at any
 * time between its start and the wait for it. It is written twice: first with all bits set, and at the wait with its
 * bytes. The race check thus sees accesses that still read the old bytes or already read the new ones. */
#ifndef TESTS_CUSHIM_PTX_H
#define TESTS_CUSHIM_PTX_H

static inline float exp2_fast(float x)
{
    return shim_inexact(exp2f(x));
}

static inline unsigned and_or(unsigned x, unsigned mask, unsigned bits)
{
    return (x & mask) | bits;
}

static inline unsigned pack2(float lo, float hi, __nv_bfloat16)
{
    return __float2bfloat16_rn(lo).bits | (unsigned)__float2bfloat16_rn(hi).bits << 16;
}
static inline unsigned pack2(float lo, float hi, __half)
{
    return __float2half_rn(lo).bits | (unsigned)__float2half_rn(hi).bits << 16;
}

/* Computes d += a b for one warp. */
template <class D, class W> void shim_mma(D d[4], const W a[4], const W b[2], int kind, const char *f, int l)
{
    shim_fragments in;
    D out[4];
    memcpy(in.a, a, sizeof in.a);
    memcpy(in.b, b, sizeof in.b);
    memcpy(in.c, d, sizeof in.c);
    shim_warp(SHIM_MMA, ~0u, &in, out, sizeof out, kind, f, l);
    memcpy(d, out, sizeof out);
}
static inline void mma(float d[4], const unsigned a[4], const unsigned b[2], __nv_bfloat16, SHIM_HERE)
{
    shim_mma(d, a, b, SHIM_MMA_BF16, f, l);
}
static inline void mma(float d[4], const unsigned a[4], const unsigned b[2], __half, SHIM_HERE)
{
    shim_mma(d, a, b, SHIM_MMA_F16, f, l);
}
static inline void mma(float d[4], const float a[4], const float b[2], SHIM_HERE)
{
    shim_mma(d, a, b, SHIM_MMA_TF32, f, l);
}
static inline void mma_bytes(int d[4], const unsigned a[4], const unsigned b[2], int c, SHIM_HERE)
{
    for (int i = 0; i < 4; i++) d[i] = c;
    shim_mma(d, a, b, SHIM_MMA_S8, f, l);
}

static inline void mma_bytes(int d[4], const unsigned a[4], const unsigned b[2], SHIM_HERE)
{
    shim_mma(d, a, b, SHIM_MMA_S8, f, l);
}
static inline unsigned top_bits(unsigned x)
{
    return (x >> 7 & 0x01010101) * 255;
}

template <class T> void load_stream(T &v, const void *p, bool inside)
{
    if (inside) v = *(const T *)p;
}

static inline void load_matrices(unsigned r[4], const void *row, SHIM_HERE)
{
    for (int i = 0; i < 4; i++) {
        uintptr_t p = shim_shuffle(~0u, (uintptr_t)row, 8 * i + shim_lane / 4, f, l);
        r[i] = ((const unsigned *)p)[shim_lane % 4];
    }
}
static inline void load_matrices_transposed(unsigned r[4], const void *row, SHIM_HERE)
{
    for (int i = 0; i < 4; i++) {
        uintptr_t p = shim_shuffle(~0u, (uintptr_t)row, 8 * i + shim_lane % 4 * 2, f, l);
        uintptr_t q = shim_shuffle(~0u, (uintptr_t)row, 8 * i + shim_lane % 4 * 2 + 1, f, l);
        r[i] = ((const uint16_t *)p)[shim_lane / 4] | (unsigned)((const uint16_t *)q)[shim_lane / 4] << 16;
    }
}

static inline void copy16_async(void *to, const void *from, bool inside)
{
    *(uint4 *)to = uint4{~0u, ~0u, ~0u, ~0u};
    shim_copy_later(to, from, inside);
}
static inline void copies_end_group()
{
    shim_copies_end_group();
}
template <int N> void copies_wait()
{
    shim_late_copy c;
    while (shim_copy_due(N, &c)) *(uint4 *)c.to = c.inside ? *(const uint4 *)c.from : uint4{0, 0, 0, 0};
}

static inline void grid_wait()
{
    shim_grid_wait();
}

#endif
