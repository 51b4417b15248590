/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/python_random.h"

#include <stdbool.h>
#include <stdio.h>

#include "kernels/base/mem.h"

enum { MT_SHIFT = 397 };

/* ---- MT19937 ---- */

/* init_genrand: NumPy's seeding, and the first step of CPython's. */
void mersenne_seed_numpy(mersenne *m, uint32_t seed)
{
    m->word[0] = seed;
    for (uint32_t i = 1; i < MT_WORDS; i++) m->word[i] = 1812433253u * (m->word[i - 1] ^ m->word[i - 1] >> 30) + i;
    m->at = MT_WORDS;
}

/* init_by_array with the 32-bit words of the seed, least significant first. */
void mersenne_seed_python(mersenne *m, uint64_t seed)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t n = key[1] ? 2 : 1;
    uint32_t *w = m->word, i = 1;
    mersenne_seed_numpy(m, 19650218u);
    for (uint32_t k = 0; k < MT_WORDS; k++) {
        w[i] = (w[i] ^ (w[i - 1] ^ w[i - 1] >> 30) * 1664525u) + key[k % n] + k % n;
        if (++i == MT_WORDS) w[0] = w[MT_WORDS - 1], i = 1;
    }
    for (uint32_t k = 1; k < MT_WORDS; k++) {
        w[i] = (w[i] ^ (w[i - 1] ^ w[i - 1] >> 30) * 1566083941u) - i;
        if (++i == MT_WORDS) w[0] = w[MT_WORDS - 1], i = 1;
    }
    w[0] = 0x80000000u;
}

static void next_words(mersenne *m)
{
    uint32_t *w = m->word;
    for (int i = 0; i < MT_WORDS; i++) {
        uint32_t y = (w[i] & 0x80000000u) | (w[(i + 1) % MT_WORDS] & 0x7fffffffu);
        w[i] = w[(i + MT_SHIFT) % MT_WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    m->at = 0;
}

static uint32_t next(mersenne *m)
{
    if (m->at == MT_WORDS) next_words(m);
    uint32_t y = m->word[m->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* ---- CPython ---- */

double python_random(mersenne *m)
{
    uint32_t a = next(m) >> 5, b = next(m) >> 6;
    return ((double)a * 67108864.0 + (double)b) / 9007199254740992.0;
}

uint32_t python_below(mersenne *m, uint32_t n)
{
    const int bits = 32 - __builtin_clz(n);
    uint32_t x;
    do x = next(m) >> (32 - bits);
    while (x >= n);
    return x;
}

void python_letters(mersenne *m, char *out, size_t k, char first, int size)
{
    for (size_t i = 0; i < k; i++) out[i] = (char)(first + (int)(python_random(m) * size));
    out[k] = 0;
}

void python_uuid(mersenne *m, char out[PYTHON_UUID_CHARS + 1])
{
    uint32_t w[4]; /* least significant first */
    for (int i = 0; i < 4; i++) w[i] = next(m);
    w[2] = (w[2] & ~0xf000u) | 0x4000u;
    w[1] = (w[1] & ~0xc0000000u) | 0x80000000u;
    snprintf(out, PYTHON_UUID_CHARS + 1, "%08x-%04x-%04x-%04x-%04x%08x", w[3], w[2] >> 16, w[2] & 0xffff, w[1] >> 16,
             w[1] & 0xffff, w[0]);
}

/* Draws without replacement from a list; used for small populations. */
static status sample_pool(mersenne *m, uint32_t *out, size_t n, size_t k, err *e)
{
    uint32_t *pool;
    TRY(MEM_NEW(&pool, n, e));
    for (size_t i = 0; i < n; i++) pool[i] = (uint32_t)i;
    for (size_t i = 0; i < k; i++) {
        uint32_t j = python_below(m, (uint32_t)(n - i));
        out[i] = pool[j];
        pool[j] = pool[n - i - 1];
    }
    mem_free(pool);
    return ST_OK;
}

/* Draws again if a number was already taken; used for large populations. */
static status sample_set(mersenne *m, uint32_t *out, size_t n, size_t k, err *e)
{
    bool *taken;
    TRY(MEM_NEW(&taken, n, e));
    for (size_t i = 0; i < k; i++) {
        do out[i] = python_below(m, (uint32_t)n);
        while (taken[out[i]]);
        taken[out[i]] = true;
    }
    mem_free(taken);
    return ST_OK;
}

status python_sample(mersenne *m, uint32_t *out, size_t n, size_t k, err *e)
{
    size_t most = 21, set = 1; /* set: smallest power of 4 that is at least 3 k */
    while (k > 5 && set < 3 * k) set *= 4;
    if (k > 5) most += set;
    return n <= most ? sample_pool(m, out, n, k, e) : sample_set(m, out, n, k, e);
}

void python_shuffled(uint32_t *order, size_t n, uint64_t seed)
{
    mersenne m;
    mersenne_seed_python(&m, seed);
    for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (size_t i = n; i-- > 1;) {
        uint32_t j = python_below(&m, (uint32_t)(i + 1)), x = order[i];
        order[i] = order[j];
        order[j] = x;
    }
}

/* ---- NumPy ---- */

uint32_t numpy_five_digits(mersenne *m)
{
    const uint32_t mask = 131071, most = 89998;
    uint32_t x;
    do x = next(m) & mask;
    while (x > most);
    return 10000 + x;
}
