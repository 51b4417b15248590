/* SPDX-License-Identifier: MIT */
/* OpenMP behind a few functions, so that a build without it has one thread and no #ifdef elsewhere.
 *
 * A parallel region may get fewer threads than it asks for: OMP_THREAD_LIMIT, OMP_DYNAMIC, OMP_MAX_ACTIVE_LEVELS, a
 * region around it, a limit on threads or processes. Kernels here split work by the team that runs (threads_split).
 * Libraries split it by the count that they are given, so they are given the team that runs (threads_lend). */
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

/* Threads, at most n, that parallel regions of n get: where the system starts no more, OpenMP would end the program.
 * Inside a parallel region of the caller: those that the system starts. */
int threads_granted(int n);

/* OpenMP's settings of the calling thread before threads_lend. */
typedef struct {
    int threads, dynamic;
} thread_loan;

/* Prepares a call of a library that runs OpenMP regions of a count that it reads or is given: returns that count, at
 * most n, which its regions get until threads_return. 1 inside a parallel region. */
int threads_lend(thread_loan *loan, int n);
void threads_return(const thread_loan *loan);

#endif
