/* SPDX-License-Identifier: MIT */
/* Backends that the methods of a test run on; tests/list.sh lists the tests that are also built for CUDA. */
#ifndef TESTS_UNIT_DEVICES_H
#define TESTS_UNIT_DEVICES_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#if defined(CUDA_SHIM) || defined(CUDA_DEVICE)
#define ON_CUDA
static const char *const METHOD_DEVICES[] __attribute__((unused)) = {"cuda"};
#else
static const char *const METHOD_DEVICES[] __attribute__((unused)) = {"ref", "cpu"};
#endif
/* Compares attention over the same values in rows of two types: the same bits on a CPU. A device reads rows of another
 * type with other threads, so that the order of sums differs (NMSE at most 1e-10). */
static inline bool rows_agree(const float *got, const float *want, size_t n)
{
#ifdef ON_CUDA
    double far = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        double w = (double)want[i], d = (double)got[i] - w;
        far += d * d;
        sum += w * w;
    }
    return far <= 1e-10 * sum;
#else
    return memcmp(got, want, n * sizeof *got) == 0;
#endif
}

/* True if attention of decode steps multiplies codes directly, with queries and weights of 16 bits (ops_rows.h), on a
 * backend with this description. */
static inline bool multiplies_codes(const char *about)
{
    return strstr(about, "AVX-512 VNNI") || strstr(about, "AVX2");
}

enum { N_METHOD_DEVICES = sizeof METHOD_DEVICES / sizeof METHOD_DEVICES[0] };

#endif
