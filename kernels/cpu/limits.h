/* SPDX-License-Identifier: MIT */
/* Measured limits of the CPU; kernels/meter.h supports every backend. */
#ifndef KERNELS_CPU_LIMITS_H
#define KERNELS_CPU_LIMITS_H

#include "kernels/ops.h"

typedef enum { PRODUCT_F32, PRODUCT_BF16, PRODUCT_S8, PRODUCT_KINDS } product_kind;

/* Medians over the passes, all threads of the backend. */
typedef struct {
    double read_gbs;            /* memory read (copied: read and written), 10^9 bytes/s */
    double read_low, read_high; /* the slowest and the fastest pass */
    bool copied;
    double gemm_gops[PRODUCT_KINDS]; /* 10^9 operations/s of 512 x 2048 x 2048 (a device: larger); 0: not supported */
    char gemm_name[128];             /* "oneDNN 2.6.3"; built-in kernels if no library is built in */
    size_t buffer_bytes;             /* bytes that the passes walk through */
} kernel_limits;

/* Repeats measurements next to the timed work: on shared machines memory bandwidth can halve within seconds. */
typedef struct cpu_meter cpu_meter;

/* Allocates a buffer of four times the last-level cache, at least 256 MB. be must be a cpu backend and outlive the
 * meter. Errors: ST_NOMEM; ST_UNSUPPORTED for another device. */
status cpu_meter_create(cpu_meter **out, backend *be, err *e);
void cpu_meter_free(cpu_meter *m);
/* Measures for about a second. */
void cpu_meter_limits(cpu_meter *m, kernel_limits *out);
/* Returns the rate of one pass over the next METER_READ bytes, none of which is cached, in 10^9 bytes/s. */
enum { METER_READ = 64 << 20 };
double cpu_meter_read(cpu_meter *m);
/* Returns the rate of one product in 10^9 operations/s; 0 if this CPU or build does not support the kind. */
double cpu_meter_product(cpu_meter *m, product_kind kind);
/* Returns the rate of one thread's tile products in 10^9 operations/s, in a few microseconds; 0 without tiles. Another
 * guest of the host that uses the unit halves it. */
double cpu_meter_tiles(const cpu_meter *m);

/* Writes random numbers near 0.01 as f32 and as bf16, small ones as bytes, because zeros and denormals differ in speed.
 * bytes is even. */
void limits_noise(unsigned char *p, size_t bytes);
/* Returns the median of an odd number of values, which are sorted; n is small. */
double limits_middle(double *x, size_t n);

/* Cumulative times; subtract two readings. */
typedef struct {
    int64_t wall_ns, cpu_ns; /* cpu: sum over the backend's threads */
    int64_t switches;        /* times that another process took a core from this one */
} meter_usage;
meter_usage cpu_meter_usage(const cpu_meter *m);

#endif
