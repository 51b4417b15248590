/* SPDX-License-Identifier: MIT */
/* Noise for the choice of a token (draw.h), one number for each seed, position and token id. Bits are the same on every
 * machine: no library function whose last bits may differ is used, and every product that is added is an fma. Also
 * compiled for devices. */
#ifndef KERNELS_GUMBEL_H
#define KERNELS_GUMBEL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define GUMBEL_FN static __host__ __device__ __forceinline__
#else
#define GUMBEL_FN static inline
#endif

/* Returns 53 random bits m, output k = pos 2^32 + id + 1 of SplitMix64 (base/rng.h) from `seed`; u = (m + 1/2)
 * 2^-53. */
GUMBEL_FN uint64_t gumbel_bits(uint64_t seed, int64_t pos, uint32_t id)
{
    uint64_t z = seed + (((uint64_t)pos << 32) + id + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) >> 11;
}

/* log(1 + f) for f in [-1/2, 1/2]: 2 atanh(f / (2 + f)) by its series, to 1e-13. */
GUMBEL_FN double gumbel_log1p(double f)
{
    double s = f / (2.0 + f), z = s * s, t = s * z, p = 1.0 / 25;
    for (int k = 23; k >= 3; k -= 2) p = fma(p, z, 1.0 / (double)k);
    double half = fma(t, p, s);
    return half + half;
}

/* log(x 2^e) for a normal x > 0. */
GUMBEL_FN double gumbel_log(double x, int e)
{
    uint64_t b;
    memcpy(&b, &x, sizeof b);
    e += (int)(b >> 52) - 1023;
    b = (b & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u;
    memcpy(&x, &b, sizeof x);
    if (x > 1.4142135623730951) {
        x *= 0.5;
        e++;
    }
    return fma((double)e, 0.69314718055994531, gumbel_log1p(x - 1.0));
}

/* -log(-log u). */
GUMBEL_FN double gumbel_noise(uint64_t m)
{
    uint64_t a = 2 * m + 1, rest = ((uint64_t)1 << 54) - a; /* u = a 2^-54, 1 - u = rest 2^-54 */
    double log_u = m >> 52 ? gumbel_log1p((double)rest * -0x1p-54) : gumbel_log((double)a, -54);
    return -gumbel_log(-log_u, 0);
}

/* Returns a cheap upper bound of gumbel_noise(m): -log(1 - u), with 1 - u rounded down to a power of two. */
GUMBEL_FN double gumbel_bound(uint64_t m)
{
    uint64_t rest = ((uint64_t)1 << 54) - (2 * m + 1);
#ifdef __CUDA_ARCH__
    int zeros = __clzll((long long)rest);
#else
    int zeros = __builtin_clzll(rest);
#endif
    return (double)(zeros - 9) * 0.6931471806;
}

/* Upper bound of all noise. */
#define GUMBEL_MOST 37.5

/* Best item so far in a search for the largest score; the lower id among equal scores. */
typedef struct {
    double score;
    int32_t id; /* -1: none yet */
} gumbel_best;

/* Considers item `id` with the finite value x, in a choice with temperature `temp` at position pos. */
GUMBEL_FN void gumbel_try(gumbel_best *best, uint64_t seed, int64_t pos, double temp, float x, int32_t id)
{
    double logit = (double)x / temp;
    if (best->id >= 0 && logit + GUMBEL_MOST < best->score) return;
    uint64_t m = gumbel_bits(seed, pos, (uint32_t)id);
    if (best->id >= 0 && logit + gumbel_bound(m) < best->score) return;
    double score = logit + gumbel_noise(m);
    if (best->id >= 0 && (score < best->score || (score == best->score && id > best->id))) return;
    best->score = score;
    best->id = id;
}

#endif
