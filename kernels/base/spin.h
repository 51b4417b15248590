/* SPDX-License-Identifier: MIT */
/* Limit on the time that idle OpenMP threads spin before they sleep. Without it they spin for milliseconds, and on a
 * busy machine they occupy the core of the thread that they wait for. */
#ifndef BASE_SPIN_H
#define BASE_SPIN_H

#include <stdbool.h>

/* Sets the limit in the environment, which libgomp reads when it is loaded and libomp when it is first used. Returns
 * false and changes nothing if the environment already sets a wait policy (OMP_WAIT_POLICY, GOMP_SPINCOUNT,
 * KMP_BLOCKTIME). */
bool spin_bound(void);
/* Reverts spin_bound. */
void spin_unbound(void);

#endif
