/* SPDX-License-Identifier: MIT */
/* Timed runs between two readings of the machine's limits, and the rules by which they count. */
#ifndef EVAL_BENCH_SAMPLE_H
#define EVAL_BENCH_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/meter.h"

enum { SAMPLES_WANTED = 20, SAMPLES_MOST = 2 * SAMPLES_WANTED, SAMPLES_LEAST = 3 };

/* Verdict on a sample. */
typedef enum {
    SAMPLE_COUNTS,
    SAMPLE_PREEMPTED, /* another process took a core */
    SAMPLE_WAITED,    /* threads slept: a core was missing, or there is too little work for all threads */
    SAMPLE_UNSTEADY,  /* the limits before and after it differ */
    SAMPLE_VERDICTS
} sample_verdict;

/* Judges a sample. spent: usage from before the first reading to after the second one; limit: the two readings, 0 if
 * missing. Refused: more than one switch to another process per 25 ms (the kernel's own work); CPU time below 98 % of
 * the threads' time; readings that differ by more than 12 % of the smaller one. Source: cpu-kernels.md. */
sample_verdict sample_judge(const meter_usage *spent, int n_threads, const double limit[2]);

/* A timed operation. prepare (may be NULL) runs before the first reading; run sets *ns to the time that counts. */
typedef struct {
    status (*prepare)(void *ctx, err *e);
    status (*run)(void *ctx, int64_t *ns, err *e);
    int64_t (*waited)(void *ctx); /* ns spent waiting for files so far, in which threads may sleep; NULL: never */
    void *ctx;
    meter *meter; /* NULL: every sample counts */
    int n_threads;
    size_t wanted; /* number of samples that must count, out of at most twice as many; 0: SAMPLES_WANTED */
    bool product;  /* compare with the speed of products of this kind instead of the memory bandwidth */
    product_kind kind;
    comm *ranks; /* ranks that take the same samples; NULL: one process */
} bench_timing;

typedef struct {
    size_t n; /* number of samples that count */
    size_t refused[SAMPLE_VERDICTS];
    bool enough; /* at least SAMPLES_LEAST (or all, if fewer) and a third count; else the lists hold all samples */
    size_t n_listed;
    double ns[SAMPLES_MOST], read_gbs[SAMPLES_MOST]; /* time; mean of the two readings */
    double tiles[SAMPLES_MOST];                      /* meter_tiles, mean of the two readings */
    double limit[SAMPLES_MOST]; /* speed of products in 10^9 operations/s, or read_gbs; 0: unknown */
} bench_samples;

/* Takes samples until t->wanted count; fewer if they take long. */
status bench_sample(bench_samples *out, const bench_timing *t, err *e);
/* Keeps the samples with verdict SAMPLE_COUNTS, or all n if these are not enough. */
void samples_settle(bench_samples *s, const sample_verdict *verdict, size_t n);

/* Medians over the lists: units of work per second and their spread, the bandwidth, the limit, meter_tiles. */
typedef struct {
    double speed, spread, read_gbs, limit, tiles;
    double fraction; /* fraction of the limit that `need` reaches; -1: unknown */
    double of_tiles; /* the same of meter_tiles, which is the rate of one thread */
} sample_summary;
/* Summarizes the samples. work: units (tokens) of one run; need: bytes or operations of one run. */
sample_summary samples_summary(const bench_samples *s, double work, double need);

#endif
