/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/python_random.h"

enum { N = 624, M = 397 };

static void seed_one(python_random *r, uint32_t seed)
{
    r->state[0] = seed;
    for (uint32_t i = 1; i < N; i++) {
        uint32_t before = r->state[i - 1];
        r->state[i] = 1812433253u * (before ^ (before >> 30)) + i;
    }
    r->at = N;
}

static uint32_t mixed(const python_random *r, size_t i, uint32_t factor)
{
    uint32_t before = r->state[i - 1];
    return r->state[i] ^ ((before ^ (before >> 30)) * factor);
}

void python_random_seed(python_random *r, const uint32_t *words, size_t n)
{
    size_t i = 1, j = 0;
    seed_one(r, 19650218u);
    for (size_t k = n > N ? n : N; k > 0; k--) {
        r->state[i] = mixed(r, i, 1664525u) + words[j] + (uint32_t)j;
        j = (j + 1) % n;
        if (++i < N) continue;
        r->state[0] = r->state[N - 1];
        i = 1;
    }
    for (size_t k = N - 1; k > 0; k--) {
        r->state[i] = mixed(r, i, 1566083941u) - (uint32_t)i;
        if (++i < N) continue;
        r->state[0] = r->state[N - 1];
        i = 1;
    }
    r->state[0] = 0x80000000u;
}

static void turn(python_random *r)
{
    for (size_t i = 0; i < N; i++) {
        uint32_t y = (r->state[i] & 0x80000000u) | (r->state[(i + 1) % N] & 0x7fffffffu);
        r->state[i] = r->state[(i + M) % N] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    r->at = 0;
}

uint32_t python_random_next(python_random *r)
{
    if (r->at == N) turn(r);
    uint32_t y = r->state[r->at++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* The bits of n are drawn until they are less. */
uint64_t python_random_below(python_random *r, uint64_t n)
{
    int bits = 64 - __builtin_clzll(n);
    for (;;) {
        uint64_t x = bits > 32 ? python_random_next(r) : python_random_next(r) >> (32 - bits);
        if (bits > 32) x |= (uint64_t)(python_random_next(r) >> (64 - bits)) << 32;
        if (x < n) return x;
    }
}

void python_random_shuffle(python_random *r, size_t *x, size_t n)
{
    for (size_t i = n; i-- > 1;) {
        size_t j = (size_t)python_random_below(r, i + 1), kept = x[i];
        x[i] = x[j];
        x[j] = kept;
    }
}

void python_random_permute(python_random *r, size_t *x, size_t n)
{
    size_t pool[5];
    for (size_t i = 0; i < n; i++) pool[i] = i;
    for (size_t i = 0; i < n; i++) {
        size_t j = (size_t)python_random_below(r, n - i);
        x[i] = pool[j];
        pool[j] = pool[n - i - 1];
    }
}
