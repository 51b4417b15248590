/* SPDX-License-Identifier: MIT */
/* What this machine can do at most, measured: the yardstick of `bench`. */
#ifndef KERNELS_CPU_LIMITS_H
#define KERNELS_CPU_LIMITS_H

#include "kernels/ops.h"

typedef struct {
    double read_gbs;         /* memory read, 10^9 bytes/s, all threads */
    double gemm_f32_gflops;  /* the vendor's (or the built-in) product, 512 x 2048 x 2048 */
    double gemm_bf16_gflops; /* 0: none on this CPU or in this build */
    double gemm_int8_gops;   /* 0: none */
    size_t buffer_bytes;     /* read for read_gbs */
} kernel_limits;

/* Takes about two seconds and buffer_bytes of memory. be must be a cpu backend.
 * Errors: ST_NOMEM; ST_UNSUPPORTED for another device. */
status cpu_measure_limits(backend *be, kernel_limits *out, err *e);

#endif
