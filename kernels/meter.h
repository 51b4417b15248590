/* SPDX-License-Identifier: MIT */
/* Measured limits of a backend, the yardstick of `bench`. kernels/cpu/limits.h measures the CPU. A device is measured
 * by its own ops: copies within its memory, and `linear` with enough rows to fill it. */
#ifndef KERNELS_METER_H
#define KERNELS_METER_H

#include "kernels/cpu/limits.h"

typedef struct meter meter;

/* Creates a meter; be must outlive it. On a device it allocates memory: sizes grow until a pass lasts METER_PASS_NS, up
 * to an eighth of the free memory. Errors: ST_NOMEM; faults of ops. */
enum { METER_PASS_NS = 2000000 };
status meter_create(meter **out, backend *be, err *e);
void meter_free(meter *m);
/* Measures for about a second. On a device the bandwidth is that of copies, bytes read plus bytes written, and the
 * product rates are those of `linear` with f32 and bf16 weights of at most 8192 x 8192; the 8-bit rate is 0. */
void meter_limits(meter *m, kernel_limits *out);
/* Returns the rate of one pass in 10^9 bytes/s. If sizes could grow far enough, no data is read from a cache. */
double meter_read(meter *m);
/* Returns the rate of one product in 10^9 operations/s; 0 if this kind is not supported. */
double meter_product(meter *m, product_kind kind);
/* Like cpu_meter_tiles; 0 on a device. */
double meter_tiles(const meter *m);
/* Like cpu_meter_usage; all 0 on a device, whose threads are not the host's. */
meter_usage meter_spent(const meter *m);

#endif
