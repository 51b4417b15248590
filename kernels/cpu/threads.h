/* SPDX-License-Identifier: MIT */
/* OpenMP behind four functions, so that a build without it has one thread and no #ifdef elsewhere. */
#ifndef KERNELS_CPU_THREADS_H
#define KERNELS_CPU_THREADS_H

#include <stddef.h>

/* Physical cores that this process may run on (at least 1). */
int threads_physical_cores(void);
/* `wanted`, or for 0 the share that one of n processes on this machine has of the physical cores; 1 in a build without
 * OpenMP. */
int threads_choose(int wanted, int n);

/* Inside a parallel region. */
int threads_id(void);
int threads_count(void);

/* The part of [0, n) that belongs to this thread; `unit`: boundaries are multiples of it. */
static inline void threads_split(size_t n, size_t unit, size_t *from, size_t *to)
{
    size_t id = (size_t)threads_id(), count = (size_t)threads_count(), units = (n + unit - 1) / unit;
    *from = units * id / count * unit;
    *to = units * (id + 1) / count * unit;
    if (*from > n) *from = n;
    if (*to > n) *to = n;
}

/* Sets the thread count of the libraries that share OpenMP; returns the one before. */
int threads_set_default(int n);

#endif
