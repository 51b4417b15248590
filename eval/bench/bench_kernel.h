/* SPDX-License-Identifier: MIT */
/* Speed of single ops on random data of a model's shape, outside of any model. */
#ifndef EVAL_BENCH_KERNEL_H
#define EVAL_BENCH_KERNEL_H

#include "eval/bench/bench_sample.h"

/* One layer of a model with f16 rows, and what is selected of it. */
typedef struct {
    size_t n_heads, n_kv_heads, head_dim;
    int64_t ctx, budget;
    uint64_t seed;
} kernel_shape;

/* What was measured. */
typedef struct {
    const char *name, *unit; /* unit: what `ns` is for */
    double units;            /* of one sample */
    double need;             /* bytes or operations of one sample; 0: no limit applies */
    bool product;            /* operations, to be compared with products */
    bench_samples samples;
} kernel_result;

enum { BENCH_KERNEL_CTX = 512 }; /* tokens of context at least */
size_t bench_kernels(void);      /* their number */
const char *bench_kernel_name(size_t i);
/* Times kernel i. Each sample goes over as much memory as is in no cache, but for kernels whose input is in
 * the cache when a step comes to them. timing: meter, n_threads and kind. ctx must be at least BENCH_KERNEL_CTX, and
 * not below the budget. Errors: ST_NOMEM; ST_UNSUPPORTED: the backend lacks the
 * operation; faults of ops. */
status bench_kernel(size_t i, backend *be, const kernel_shape *s, const bench_timing *timing, kernel_result *out,
                    err *e);

#endif
