/* SPDX-License-Identifier: MIT */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* Monotonic time in nanoseconds. */
int64_t clock_ns(void);
/* Time of day, since 1970, in nanoseconds; it may be set back. */
int64_t clock_real_ns(void);
/* Processor time of the calling thread. */
int64_t clock_thread_ns(void);

#endif
