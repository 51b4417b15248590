/* SPDX-License-Identifier: MIT */
/* Timed runs between two readings of the machine's limits, and which of them count. */
#ifndef EVAL_BENCH_SAMPLE_H
#define EVAL_BENCH_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/meter.h"

enum { SAMPLES_WANTED = 20, SAMPLES_MOST = 2 * SAMPLES_WANTED, SAMPLES_LEAST = 3 };

/* Why a sample does not count. */
typedef enum {
    SAMPLE_COUNTS,
    SAMPLE_PREEMPTED, /* another process took a core */
    SAMPLE_WAITED,    /* threads slept: a core was not there, or there is not enough work for them */
    SAMPLE_UNSTEADY,  /* the limit before it and the one behind it differ */
    SAMPLE_VERDICTS
} sample_verdict;

/* spent: from before the first reading to behind the second one; limit: the two readings, 0 where there are none.
 * Refused: a switch to another process (beyond one for each 25 ms: the kernel's own work); CPU time below 98 % of
 * the threads' time; readings that differ by more than 12 % of the smaller one. Source: cpu-kernels.md. */
sample_verdict sample_judge(const meter_usage *spent, int n_threads, const double limit[2]);

/* What is timed. prepare (may be NULL) comes before the first reading; run sets *ns to the part of it that counts. */
typedef struct {
    status (*prepare)(void *ctx, err *e);
    status (*run)(void *ctx, int64_t *ns, err *e);
    int64_t (*waited)(
        void *ctx); /* ns that runs have waited for files so far, in which threads may sleep; NULL: never */
    void *ctx;
    meter *meter; /* NULL: every sample counts */
    int n_threads;
    size_t wanted; /* samples that count, of at most twice as many; 0: SAMPLES_WANTED */
    bool product;  /* the limit is that of products of this kind, not of reading */
    product_kind kind;
    comm *ranks; /* that take the same samples; NULL: one process alone */
} bench_timing;

typedef struct {
    size_t n; /* that count */
    size_t refused[SAMPLE_VERDICTS];
    bool enough; /* at least SAMPLES_LEAST (or all, where there are fewer) and a third count; else the lists hold all */
    size_t n_listed;
    double ns[SAMPLES_MOST], read_gbs[SAMPLES_MOST]; /* and the mean of the readings */
    double limit[SAMPLES_MOST]; /* that of the products, 10^9 operations/s, or read_gbs; 0: not known */
} bench_samples;

/* t->wanted that count, fewer where they take long. */
status bench_sample(bench_samples *out, const bench_timing *t, err *e);
/* Keeps those whose verdict is SAMPLE_COUNTS, or all where these are not enough. n: as many as there are. */
void samples_settle(bench_samples *s, const sample_verdict *verdict, size_t n);

/* Medians over the lists: units of work a second and their spread, the bandwidth, the limit. */
typedef struct {
    double speed, spread, read_gbs, limit, share; /* share: of what is needed, of the limit beside it; -1: not known */
} sample_summary;
/* work: units of one run (tokens); need: bytes or operations of one run. */
sample_summary samples_summary(const bench_samples *s, double work, double need);

#endif
