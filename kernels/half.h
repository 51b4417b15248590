/* SPDX-License-Identifier: MIT */
/* Conversions of 16-bit floats, rounding to nearest even, in plain C; the reference for the SIMD versions. */
#ifndef KERNELS_HALF_H
#define KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline float bits_to_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t f32_to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bf16_to_f32(uint16_t h)
{
    return bits_to_f32((uint32_t)h << 16);
}

static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u = f32_to_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)((u >> 16) | 0x40); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 0x3ff;
    if (exp == 31) return bits_to_f32(sign | 0x7f800000 | man << 13 | (man ? 0x400000 : 0));
    if (exp) return bits_to_f32(sign | (exp + 112) << 23 | man << 13);
    float sub = (float)man * 0x1p-24f;
    return bits_to_f32(sign | f32_to_bits(sub));
}

/* Returns the number of an E4M3 code: a sign, 4 bits of exponent (bias 7), 3 of mantissa, no infinity. Source: OCP
 * 8-bit floating point specification, section 5. */
static inline float e4m3_to_f32(uint8_t c)
{
    uint32_t sign = (uint32_t)(c & 0x80) << 24, exp = (c >> 3) & 15, man = c & 7;
    if (exp == 15 && man == 7) return bits_to_f32(sign | 0x7fc00000);
    if (exp) return bits_to_f32(sign | (exp + 120) << 23 | man << 20);
    float sub = (float)man * 0x1p-9f;
    return bits_to_f32(sign | f32_to_bits(sub));
}

static inline uint16_t f32_to_f16(float f)
{
    uint32_t u = f32_to_bits(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above round to infinity */
    if (a < 0x38800000) {                                  /* below 2^-14: subnormal or zero */
        /* Adding 2^-1 with an ulp of 2^-24 makes the FPU round to the subnormal grid. */
        uint32_t m = f32_to_bits(bits_to_f32(a) + 0.5f) - 0x3f000000;
        return (uint16_t)(sign | m);
    }
    return (uint16_t)(sign | ((a + 0xfff + ((a >> 13) & 1) - 0x38000000) >> 13));
}

#endif
