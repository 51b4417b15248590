/* SPDX-License-Identifier: MIT */
/* Random numbers of CPython's `random` and of NumPy's legacy RandomState, with which published data sets and orders of
 * choices were generated. Both use the Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), with different seeding
 * and output functions. Source: CPython 3.11 Lib/random.py and Modules/_randommodule.c, NumPy legacy seeding. */
#ifndef EVAL_PYTHON_RANDOM_H
#define EVAL_PYTHON_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

enum { MT_WORDS = 624, PYTHON_UUID_CHARS = 36 };

typedef struct {
    uint32_t word[MT_WORDS];
    int at;
} mersenne;

/* random.seed(seed) with an integer; numpy.random.seed(seed). */
void mersenne_seed_python(mersenne *m, uint64_t seed);
void mersenne_seed_numpy(mersenne *m, uint32_t seed);

/* random(): in [0, 1), with 53 bits. */
double python_random(mersenne *m);
/* Uniform in [0, n), as in choice, randint and shuffle; 0 < n < 2^32. */
uint32_t python_below(mersenne *m, uint32_t n);
/* random.choices: k of the `size` characters from `first` on, and a NUL. */
void python_letters(mersenne *m, char *out, size_t k, char first, int size);
/* str(uuid.UUID(int=getrandbits(128), version=4)) */
void python_uuid(mersenne *m, char out[PYTHON_UUID_CHARS + 1]);
/* random.sample: k of the numbers 0..n-1 into out; k <= n < 2^32. */
status python_sample(mersenne *m, uint32_t *out, size_t n, size_t k, err *e);
/* Fills order[n] with 0..n-1, shuffled by random.Random(seed).shuffle with a generator of its own. */
void python_shuffled(uint32_t *order, size_t n, uint64_t seed);

/* numpy.random.randint(10000, 99999) */
uint32_t numpy_five_digits(mersenne *m);

#endif
