/* SPDX-License-Identifier: MIT */
/* Speed of single operations on random data of a model's shape, without a model. */
#ifndef EVAL_BENCH_KERNEL_H
#define EVAL_BENCH_KERNEL_H

#include "eval/bench/bench_sample.h"

/* Shape of one layer, and its selection. Rows are f16 unless a kernel's name says otherwise. */
typedef struct {
    size_t n_heads, n_kv_heads, head_dim;
    int64_t ctx, budget;
    uint64_t seed;
} kernel_shape;

/* Measurement of one kernel. */
typedef struct {
    const char *name, *unit; /* unit: the item that `ns` is given for */
    double units;            /* units of one sample */
    double need;             /* bytes or operations of one sample; 0: no limit applies */
    bool product;            /* `need` counts operations; the limit is that of matrix products */
    bench_samples samples;
} kernel_result;

enum { BENCH_KERNEL_CTX = 512 }; /* minimum tokens of context */
size_t bench_kernels(void);      /* number of kernels */
const char *bench_kernel_name(size_t i);
/* Times kernel i. A sample reads more memory than the caches hold, except for kernels whose input is cached in a real
 * step. timing: meter, n_threads and kind. ctx must be at least BENCH_KERNEL_CTX and at least the budget. Errors:
 * ST_NOMEM; ST_UNSUPPORTED: the backend lacks the operation; faults of ops. */
status bench_kernel(size_t i, backend *be, const kernel_shape *s, const bench_timing *timing, kernel_result *out,
                    err *e);

#endif
