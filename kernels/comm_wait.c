/* SPDX-License-Identifier: MIT */
/* Waiting for other ranks. Separate from comm_local.c, which calls _exit and signal: libkvasir must not contain
 * those. */
#include "config.h"

#include "kernels/comm_impl.h"

#include <sched.h>
#include <time.h>

enum { SPIN_NS = 1000000, NAP_NS = 20000, NAP_NS_MAX = 1000000 };

void comm_rest(int64_t waited_ns, long *nap_ns)
{
    if (waited_ns < SPIN_NS) {
        sched_yield();
        return;
    }
    *nap_ns = *nap_ns ? 2 * *nap_ns : NAP_NS;
    if (*nap_ns > NAP_NS_MAX) *nap_ns = NAP_NS_MAX;
    nanosleep(&(struct timespec){0, *nap_ns}, NULL);
}
