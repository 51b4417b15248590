/* SPDX-License-Identifier: MIT */
/* OpenMP wrapped in a few functions; a build without it has one thread and needs no #ifdef elsewhere.
 *
 * A parallel region may get fewer threads than requested: OMP_THREAD_LIMIT, OMP_DYNAMIC, OMP_MAX_ACTIVE_LEVELS, an
 * enclosing region, a limit on threads or processes. Kernels here split work by the actual team (threads_split).
 * Libraries split it by the count that they are given, so they are given the size of the actual team (threads_lend). */
#ifndef KERNELS_CPU_THREADS_H
#define KERNELS_CPU_THREADS_H

#include <stddef.h>

/* Returns the number of physical cores that this process may run on (at least 1). */
int threads_physical_cores(void);
/* Returns `wanted`, or for 0 this process's part of the physical cores, shared by n processes on this machine; 1 in a
 * build without OpenMP. */
int threads_choose(int wanted, int n);

/* Valid inside a parallel region. */
int threads_id(void);
int threads_count(void);

/* Computes the part of [0, n) for this thread; boundaries are multiples of `unit`. */
static inline void threads_split(size_t n, size_t unit, size_t *from, size_t *to)
{
    size_t id = (size_t)threads_id(), count = (size_t)threads_count(), units = (n + unit - 1) / unit;
    *from = units * id / count * unit;
    *to = units * (id + 1) / count * unit;
    if (*from > n) *from = n;
    if (*to > n) *to = n;
}

/* Returns how many threads, at most n, parallel regions of n threads get. If the system cannot start more, OpenMP would
 * end the program. Inside a parallel region of the caller: the number that the system can start. */
int threads_granted(int n);

/* OpenMP's settings of the calling thread before threads_lend. */
typedef struct {
    int threads, dynamic;
} thread_loan;

/* Prepares a call of a library that runs OpenMP regions of a size that it reads or is given. Returns that size, at most
 * n, which its regions get until threads_return. 1 inside a parallel region. */
int threads_lend(thread_loan *loan, int n);
void threads_return(const thread_loan *loan);

#endif
