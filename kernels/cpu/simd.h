/* SPDX-License-Identifier: MIT */
/* One vector type for all levels: the kernels k_*.c are written once against this interface and compiled once per level
 * with -DCPU_LEVEL=0 (generic), 1 (AVX2), 2 (AVX-512), 3 (2 with BF16, VNNI, VBMI and GFNI), 4 (NEON) or 5 (4 with dot
 * products of bytes). A level's header defines
 *
 *   VF, VF_LANES                       a vector of floats
 *   TILE_ROWS, TILE_VECS               accumulator tile of prefill (rows x vectors)
 *   PV_ACC                             accumulators of decode's P V (heads x vectors)
 *   DOT_X, DOT_W                       tile of dot products (x rows x w rows, DOT_ACC vectors each)
 *   vf_set1 vf_zero vf_add vf_sub vf_mul vf_div vf_sqrt vf_fma vf_max
 *   vf_load vf_store                   unaligned
 *   vf_load_n vf_store_n               the first n < VF_LANES lanes; the others load as 0
 *   vf_load_{f16,bf16} vf_store_{f16,bf16}   with conversion, nearest even; unaligned
 *   vf_codes                           VF_LANES unsigned numbers of 2 or 4 bits, lowest first
 *   vf_set1_f16                        one f16 number in all lanes
 *   vf_bytes vf_signed_bytes           VF_LANES bytes as floats
 *   vf_e4m3                            VF_LANES numbers of half.h's e4m3_to_f32, not NaN, times 2^-8
 *   vf_store_s8                        integers of at most 8 bits as signed bytes
 *   vf_sum vf_hmax                     over the lanes, in a fixed order
 *   vf_sum_each                        lane i of the result is the sum of vector i of VF_LANES
 *   vf_transpose(out, to, in, from)    row i of out, at out + i * to, is column i of in, VF_LANES by VF_LANES
 *   vf_swap(v, by)                     lane i is lane i ^ by of v; by is a power of two
 *   vf_held                            the same value, kept in a register by the compiler rather than loaded for each
 *                                      use
 *   vf_round vf_exp2i                  nearest integer; 2^n of an integer -127 <= n <= 127 (-127: 0)
 *   vf_log_split                       x = m 2^e of a positive normal x, sqrt(1/2) <= m < sqrt(2): m, and e
 *   vf_min                             like vf_max: b if one operand is NaN
 *   vf_by_sign(q, a, b)                lanes of b where q has its sign bit set, otherwise of a
 *   vf_ge                              lane l of a >= b as bit l; 0 with a NaN
 *   vf_keep(out, set, v)               stores the lanes of v whose bit is set; writes up to VF_LANES numbers in all
 *   vi_keep(out, set, first)           the same for the integers first + l; returns their number
 *   vb_ge(p, least)                    bit i is p[i] >= least, of 64 unsigned bytes
 *   VD vd_zero vd_add vd_sum           VF_LANES sums in double: of the lanes of vectors; then over the lanes
 *   VI vi_load vi_shr2                 VF_LANES words of 32 bits; all of them >> 2
 *   vi_set1 vi_store
 *   vi_add_ge(s, c, a, b)              s + c in the lanes where a >= b, otherwise s; vi_add_gt: where a > b
 *   vi_inc_less(s, a, b)               s + 1 in the lanes where a < b < 2^31, otherwise s
 *   VT vt_make vt_get                  table of the 4 sums b0 w0 + b1 w1 of finite w0, w1; the entry of index
 *                                      bits b0, b1 = the lowest bits of each word
 *
 * Every operation is exact to the bit for a given level, so that a result depends only on the order of operations in
 * the kernel. x86's max(a, b) is b if one operand is NaN, and so is every level's. */
#ifndef KERNELS_CPU_SIMD_H
#define KERNELS_CPU_SIMD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/ops.h"

/* Loops over register tiles must unroll fully, so that an array of vectors stays in registers. Sanitizers are excluded:
 * they would instrument each copy and compile for minutes. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ROLLED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(ROLLED) || !defined(__OPTIMIZE__)
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#define INLINE static inline __attribute__((always_inline, unused))

#define SIMD_AVX    (CPU_LEVEL >= 1 && CPU_LEVEL <= 3) /* x86 levels, all with AVX2 */
#define SIMD_AVX512 (CPU_LEVEL == 2 || CPU_LEVEL == 3)
#define SIMD_VBMI   (CPU_LEVEL == 3)
#define SIMD_CODES  (CPU_LEVEL == 1 || CPU_LEVEL == 3) /* decode attention multiplies codes directly (decode.h) */
#define SIMD_NEON   (CPU_LEVEL >= 4)

/* Copies an even number of bytes <= all, a power of two. Not a call, because that would spill the registers of the
 * surrounding tile. */
INLINE void copy_few(void *to, const void *from, const size_t all, size_t bytes)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    UNROLL for (size_t piece = all; piece >= 2; piece /= 2)
    {
        if (!(bytes & piece)) continue;
        memcpy(t, f, piece);
        t += piece;
        f += piece;
    }
}

#if CPU_LEVEL == 5
#include "kernels/cpu/simd_neon.h"
#define LEVEL(name) name##_neon_dot
#elif CPU_LEVEL == 4
#include "kernels/cpu/simd_neon.h"
#define LEVEL(name) name##_neon
#elif CPU_LEVEL == 3
#include "kernels/cpu/simd_avx512.h"
#define LEVEL(name) name##_avx512_bf16
#elif CPU_LEVEL == 2
#include "kernels/cpu/simd_avx512.h"
#define LEVEL(name) name##_avx512
#elif CPU_LEVEL == 1
#include "kernels/cpu/simd_avx2.h"
#define LEVEL(name) name##_avx2
#else
#include "kernels/cpu/simd_generic.h"
#define LEVEL(name) name##_generic
#endif

#if !SIMD_AVX512
INLINE void vf_transpose(float *out, size_t to, const float *in, size_t from)
{
    for (size_t c = 0; c < VF_LANES; c++)
        for (size_t j = 0; j < VF_LANES; j++) out[c * to + j] = in[j * from + c];
}
#endif

#if !SIMD_AVX /* AVX levels have masked loads and stores */
INLINE VF vf_load_n(const float *p, size_t n)
{
    float f[VF_LANES] = {0};
    copy_few(f, p, sizeof f, 4 * n);
    return vf_load(f);
}

INLINE void vf_store_n(float *p, VF v, size_t n)
{
    float f[VF_LANES];
    vf_store(f, v);
    copy_few(p, f, sizeof f, 4 * n);
}
#endif

#if !SIMD_AVX512
INLINE void vf_keep(float *out, unsigned set, VF v)
{
    float f[VF_LANES];
    vf_store(f, v);
    for (; set; set &= set - 1) *out++ = f[__builtin_ctz(set)];
}

INLINE size_t vi_keep(int32_t *out, unsigned set, int32_t first)
{
    size_t n = 0;
    for (; set; set &= set - 1) out[n++] = first + __builtin_ctz(set);
    return n;
}
#endif

/* Vector accumulators of one dot product. This constant is part of the definition of results: linear has the same bits
 * for one row of x and for many because every tile uses it. */
enum { DOT_ACC = 2 };

enum { EXP2_MOST = 4 }; /* vectors of vf_exp2_each */

#if !SIMD_AVX512
/* x 2^n for an integer n in [-126, 127] */
INLINE VF vf_by_exp2i(VF x, VF n)
{
    return vf_mul(x, vf_exp2i(n));
}
#endif

/* Loads VF_LANES elements of type t from element i on, as float. */
INLINE VF vf_load_as(const void *p, size_t i, dtype t)
{
    const unsigned char *b = p;
    if (t == DT_F32) return vf_load((const float *)(const void *)(b + 4 * i));
    return t == DT_F16 ? vf_load_f16(b + 2 * i) : vf_load_bf16(b + 2 * i);
}

/* Loads n < VF_LANES elements in the same way; reads nothing beyond them. */
INLINE VF vf_load_as_n(const void *p, size_t i, dtype t, size_t n)
{
    const unsigned char *b = p;
    if (t == DT_F32) return vf_load_n((const float *)(const void *)(b + 4 * i), n);
    uint16_t h[VF_LANES] = {0};
    copy_few(h, b + 2 * i, sizeof h, 2 * n);
    return t == DT_F16 ? vf_load_f16(h) : vf_load_bf16(h);
}

INLINE void vf_store_as(void *p, size_t i, VF v, dtype t)
{
    unsigned char *b = p;
    if (t == DT_F32) vf_store((float *)(void *)(b + 4 * i), v);
    else if (t == DT_F16) vf_store_f16(b + 2 * i, v);
    else vf_store_bf16(b + 2 * i, v);
}

INLINE void vf_store_as_n(void *p, size_t i, VF v, dtype t, size_t n)
{
    unsigned char *b = p;
    uint16_t h[VF_LANES];
    if (t == DT_F32) {
        vf_store_n((float *)(void *)(b + 4 * i), v, n);
        return;
    }
    if (t == DT_F16) vf_store_f16(h, v);
    else vf_store_bf16(h, v);
    copy_few(b + 2 * i, h, sizeof h, 2 * n);
}

/* exp(x) to 2 ulp; 0 below -87.7, about 2.4e38 above 88.4, NaN for NaN.
 * exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2, with ln 2 in two parts so that r is
 * nearly exact (Cody and Waite). Source of the polynomial: Cephes, expf.c. */
INLINE VF vf_exp(VF x)
{
    x = vf_max(vf_set1(-88.0f), x);
    x = vf_sub(vf_zero(), vf_max(vf_set1(-88.3762626f), vf_sub(vf_zero(), x)));
    VF n = vf_round(vf_mul(x, vf_set1(1.44269504f)));
    VF r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    VF p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
    return vf_mul(p, vf_exp2i(n));
}

/* exp(x) to 2 ulp for x <= 0: vf_exp with paired coefficients, which shorten the dependency chain. */
INLINE VF vf_exp_down(VF x)
{
    x = vf_max(vf_set1(-88.0f), x);
    VF n = vf_round(vf_mul(x, vf_set1(1.44269504f)));
    VF r = vf_fma(n, vf_set1(2.12194440e-4f), vf_fma(n, vf_set1(-0.693359375f), x)), z = vf_mul(r, r);
    VF p = vf_fma(vf_set1(1.9875691500e-4f), r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, z, vf_fma(vf_set1(8.3334519073e-3f), r, vf_set1(4.1665795894e-2f)));
    p = vf_fma(p, z, vf_fma(vf_set1(1.6666665459e-1f), r, vf_set1(5.0000001201e-1f)));
    return vf_mul(vf_add(vf_fma(p, z, r), vf_set1(1.0f)), vf_exp2i(n));
}

/* a x + b without fma: the bits of scores that decide a selection do not depend on the level. */
INLINE VF vf_line(float a, float b, VF x)
{
    return vf_add(vf_mul(x, vf_set1(a)), vf_set1(b));
}

/* log(x) of positive normal numbers to 2 ulp, no fma; paired coefficients have shorter dependency chains than Horner's
 * rule. Source of the polynomial: Cephes, logf.c. */
INLINE VF vf_log(VF x)
{
    VF m, e = vf_log_split(x, &m);
    m = vf_sub(m, vf_set1(1.0f));
    VF z = vf_mul(m, m), high = vf_mul(z, vf_line(7.0376836292e-2f, -1.1514610310e-1f, m));
    high = vf_add(high, vf_line(1.1676998740e-1f, -1.2420140846e-1f, m));
    VF low = vf_mul(z, vf_line(1.4249322787e-1f, -1.6668057665e-1f, m));
    low = vf_add(low, vf_line(2.0000714765e-1f, -2.4999993993e-1f, m));
    VF p = vf_add(low, vf_mul(vf_mul(z, z), high));
    p = vf_add(vf_mul(p, m), vf_set1(3.3333331174e-1f));
    p = vf_add(vf_mul(vf_mul(m, z), p), vf_mul(e, vf_set1(-2.12194440e-4f)));
    p = vf_sub(p, vf_mul(vf_set1(0.5f), z));
    return vf_add(vf_add(m, p), vf_mul(e, vf_set1(0.693359375f)));
}

/* 2^x to 2 ulp for x <= 0, no fma, of n vectors in parallel to hide the latency of the long chains. 2^-126 below that
 * and for NaN. Source of the polynomial: Cephes, exp2f.c. */
INLINE void vf_exp2_each(const int n, VF *x)
{
    VF e[EXP2_MOST], z[EXP2_MOST], p[EXP2_MOST], low[EXP2_MOST];
    UNROLL for (int i = 0; i < n; i++) x[i] = vf_max(x[i], vf_set1(-126.0f));
    UNROLL for (int i = 0; i < n; i++) e[i] = vf_round(x[i]);
    UNROLL for (int i = 0; i < n; i++) x[i] = vf_sub(x[i], e[i]);
    UNROLL for (int i = 0; i < n; i++) z[i] = vf_mul(x[i], x[i]);
    UNROLL for (int i = 0; i < n; i++) p[i] = vf_add(vf_mul(z[i], vf_set1(1.535336188319500e-4f)),
                                                     vf_line(1.339887440266574e-3f, 9.618437357674640e-3f, x[i]));
    UNROLL for (int i = 0; i < n; i++) low[i] =
        vf_add(vf_mul(z[i], vf_line(5.550332471162809e-2f, 2.402264791363012e-1f, x[i])),
               vf_line(6.931472028550421e-1f, 1.0f, x[i]));
    UNROLL for (int i = 0; i < n; i++) p[i] = vf_mul(vf_mul(z[i], z[i]), p[i]);
    UNROLL for (int i = 0; i < n; i++) x[i] = vf_by_exp2i(vf_add(low[i], p[i]), e[i]);
}

INLINE VF vf_exp2_plain(VF x)
{
    vf_exp2_each(1, &x);
    return x;
}

INLINE void prefetch(const void *p)
{
    __builtin_prefetch(p, 0, 3);
}

/* Loads at most a vector of the remaining `left` floats. */
INLINE VF vf_load_some(const float *p, size_t left)
{
    return left >= VF_LANES ? vf_load(p) : vf_load_n(p, left);
}

INLINE void vf_store_some(float *p, VF v, size_t left)
{
    if (left >= VF_LANES) vf_store(p, v);
    else vf_store_n(p, v, left);
}

INLINE VF vf_load_some_as(const void *p, size_t i, dtype t, size_t left)
{
    return left >= VF_LANES ? vf_load_as(p, i, t) : vf_load_as_n(p, i, t, left);
}

#endif
