/* SPDX-License-Identifier: MIT */
/* What a backend can do at most, measured: the yardstick of `bench`. The CPU is measured by kernels/cpu/limits.h, a
 * device by its own ops: copies within its memory, and `linear` with as many rows as fill it. */
#ifndef KERNELS_METER_H
#define KERNELS_METER_H

#include "kernels/cpu/limits.h"

typedef struct meter meter;

/* be must outlive the meter. On a device it takes memory: sizes grow until a pass lasts METER_PASS_NS, and stay below
 * an eighth of what is free. Errors: ST_NOMEM; faults of ops. */
enum { METER_PASS_NS = 2000000 };
status meter_create(meter **out, backend *be, err *e);
void meter_free(meter *m);
/* Takes about a second. On a device the bandwidth is that of copies, bytes read and bytes written together; rates of
 * products are those of `linear` with f32 and bf16 weights of 8192 x 8192 at most, of 8 bits 0. */
void meter_limits(meter *m, kernel_limits *out);
/* One pass: 10^9 bytes/s. None of what is read is in a cache, where sizes grew far enough. */
double meter_read(meter *m);
/* One product: 10^9 operations/s; 0: none of the kind here. */
double meter_product(meter *m, product_kind kind);
/* As cpu_meter_usage; a device's threads are not the host's: all 0. */
meter_usage meter_spent(const meter *m);

#endif
