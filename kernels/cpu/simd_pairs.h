/* SPDX-License-Identifier: MIT */
/* Products of pairs of bf16 numbers, for levels with HAS_PAIRS: each lane of a vector holds a pair, the even number in
 * the low half.
 *
 *   vp_pack(lo, hi)      numbers rounded to nearest even; lo, then hi, in order
 *   vp_join(even, odd)   the same; lane l holds even[l] and odd[l]
 *   vp_dot(x, y, acc)    lane l of acc + x[2l] y[2l] + x[2l + 1] y[2l + 1]
 *   vp_exp2(x)           2^x to 1e-5 for x <= 0, finer than bf16; 0 for -INFINITY
 *
 * Denormals count as 0. Other levels call none of these. */
#ifndef KERNELS_CPU_SIMD_PAIRS_H
#define KERNELS_CPU_SIMD_PAIRS_H

#include "kernels/cpu/simd.h"

#if CPU_LEVEL == 3

enum { HAS_PAIRS = 1 };

INLINE VF vp_pack(VF lo, VF hi)
{
    return (VF)_mm512_cvtne2ps_pbh(hi, lo);
}

INLINE VF vp_join(VF even, VF odd)
{
    const __m512i turn = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                          21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(turn, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
}

INLINE VF vp_dot(VF x, VF y, VF acc)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)y);
}

/* 2^x = 2^floor(x) 2^f with a polynomial that is exact at both ends of 0 <= f <= 1. */
INLINE VF vp_exp2(VF x)
{
    VF f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    VF p = vf_fma(vf_set1(1.36976637e-2f), f, vf_set1(5.19274315e-2f));
    p = vf_fma(p, f, vf_set1(2.41283692e-1f));
    p = vf_fma(p, f, vf_set1(6.93091213e-1f));
    return _mm512_scalef_ps(vf_fma(p, f, vf_set1(1.0f)), x);
}

#else

enum { HAS_PAIRS = 0 };

INLINE VF vp_pack(VF lo, VF hi)
{
    return (void)hi, lo;
}
INLINE VF vp_join(VF even, VF odd)
{
    return (void)odd, even;
}
INLINE VF vp_dot(VF x, VF y, VF acc)
{
    return (void)x, (void)y, acc;
}
INLINE VF vp_exp2(VF x)
{
    return x;
}

#endif

#endif
