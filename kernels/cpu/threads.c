/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/cpu/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Reads a number from /sys/devices/system/cpu/cpuN/topology/NAME; -1 if it does not exist. */
static int topology(int cpu, const char *name)
{
    char path[96];
    int value = -1;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, name);
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    if (fscanf(f, "%d", &value) != 1) value = -1;
    fclose(f);
    return value;
}

int threads_physical_cores(void)
{
    cpu_set_t set;
    int core[CPU_SETSIZE], package[CPU_SETSIZE], n = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set)) continue;
        int c = topology(cpu, "core_id"), p = topology(cpu, "physical_package_id");
        bool known = false;
        for (int i = 0; i < n && c >= 0; i++) known |= core[i] == c && package[i] == p;
        if (known) continue;
        core[n] = c;
        package[n++] = p;
    }
    return n > 0 ? n : 1;
}

/* Returns this process's part of the cores. A process that is bound to some cores does not share them. */
static int cores_of_process(int n)
{
    int cores = threads_physical_cores(), each = cores / n;
    long all = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) <= all / n) return cores;
    return each > 0 ? each : 1;
}

int threads_choose(int wanted, int n)
{
#ifdef _OPENMP
    if (wanted > 0) return wanted;
    return n > 1 ? cores_of_process(n) : threads_physical_cores();
#else
    (void)wanted;
    (void)cores_of_process;
    (void)n;
    return 1;
#endif
}

int threads_id(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

int threads_count(void)
{
#ifdef _OPENMP
    return omp_get_num_threads();
#else
    return 1;
#endif
}

#ifdef _OPENMP
/* Returns the size of the team that a parallel region of n gets here. */
static int team_of(int n)
{
    int team = 1;
#pragma omp parallel num_threads(n)
#pragma omp master
    team = omp_get_num_threads();
    return team;
}

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool end;
} probe;

static void *wait_for_end(void *arg)
{
    probe *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->end) pthread_cond_wait(&p->ended, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Returns how many threads, at most n including the caller's, the system allows this process at a time. */
static int startable(int n)
{
    probe p = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    int started = 0;
    while (threads && started < n - 1 && pthread_create(&threads[started], NULL, wait_for_end, &p) == 0) started++;
    pthread_mutex_lock(&p.lock);
    p.end = true;
    pthread_cond_broadcast(&p.ended);
    pthread_mutex_unlock(&p.lock);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    free(threads);
    return started + 1;
}
#endif

int threads_granted(int n)
{
#ifdef _OPENMP
    n = startable(n);
    return omp_in_parallel() ? n : team_of(n);
#else
    (void)n;
    return 1;
#endif
}

int threads_lend(thread_loan *loan, int n)
{
#ifdef _OPENMP
    *loan = (thread_loan){omp_get_max_threads(), omp_get_dynamic()};
    int team = omp_in_parallel() ? 1 : team_of(n);
    omp_set_dynamic(0);
    omp_set_num_threads(team);
    return team;
#else
    *loan = (thread_loan){n, 0};
    return 1;
#endif
}

void threads_return(const thread_loan *loan)
{
#ifdef _OPENMP
    omp_set_num_threads(loan->threads);
    omp_set_dynamic(loan->dynamic);
#else
    (void)loan;
#endif
}
