/* SPDX-License-Identifier: MIT */
/* CPython's random.Random: the same choices from the same seed. Source: Matsumoto and Nishimura 1998 (MT19937);
 * CPython 3.11 Lib/random.py and Modules/_randommodule.c. */
#ifndef EVAL_PYTHON_RANDOM_H
#define EVAL_PYTHON_RANDOM_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t state[624];
    size_t at; /* of the next number */
} python_random;

/* Random(seed) of a whole number: its 32-bit words, the lowest first, without zeros at the end but for the first. */
void python_random_seed(python_random *r, const uint32_t *words, size_t n);
uint32_t python_random_next(python_random *r);
/* Uniform in [0, n), 0 < n <= 2^32: Random._randbelow. */
uint64_t python_random_below(python_random *r, uint64_t n);
/* random.shuffle. */
void python_random_shuffle(python_random *r, size_t *x, size_t n);
/* random.sample(range(n), n): a permutation. x [n]; n at most 5. */
void python_random_permute(python_random *r, size_t *x, size_t n);

#endif
