/* SPDX-License-Identifier: MIT */
/* SplitMix64 (Steele, Lea, Flood 2014): small, seedable, the same on every machine. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

typedef struct {
    uint64_t state;
} rng;

static inline uint64_t rng_next(rng *r)
{
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Uniform in [0, 1) with 24 random bits. */
static inline float rng_float(rng *r)
{
    return (float)(rng_next(r) >> 40) * 0x1p-24f;
}

/* Uniform in [0, n); n > 0. Its bias of 2^-64 n is negligible. */
static inline uint64_t rng_below(rng *r, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)rng_next(r) * n) >> 64);
}

#endif
