/* SPDX-License-Identifier: MIT */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* Returns monotonic time in nanoseconds. */
int64_t clock_ns(void);
/* Returns the time of day in nanoseconds since 1970; it may be set back. */
int64_t clock_real_ns(void);
/* Returns the processor time of the calling thread in nanoseconds. */
int64_t clock_thread_ns(void);

#endif
