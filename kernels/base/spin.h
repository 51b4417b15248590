/* SPDX-License-Identifier: MIT */
/* How long idle OpenMP threads spin before they sleep. Without a bound they spin for milliseconds, and where other
 * programs run, they take the core from the thread that they wait for. */
#ifndef BASE_SPIN_H
#define BASE_SPIN_H

#include <stdbool.h>

/* Bounds the spin in the environment, which libgomp reads when it is loaded and libomp when it is first used. Returns
 * false and changes nothing if the environment names a wait already (OMP_WAIT_POLICY, GOMP_SPINCOUNT,
 * KMP_BLOCKTIME). */
bool spin_bound(void);
/* Takes back what spin_bound set. */
void spin_unbound(void);

#endif
