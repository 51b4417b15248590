/* SPDX-License-Identifier: MIT */
/* Code shared by the implementations of comm.h. Private to kernels/. */
#ifndef KERNELS_COMM_IMPL_H
#define KERNELS_COMM_IMPL_H

#include <stdint.h>

#include "kernels/comm.h"

/* Pauses between two polls after waiting for waited_ns. At first it only yields the core; after a long wait (for a
 * user's line, for example) it sleeps, longer each time. *nap_ns must be 0 before the first call. */
void comm_rest(int64_t waited_ns, long *nap_ns);
/* Fills a zeroed comm. Errors: ST_UNSUPPORTED (built without MPI), ST_DEVICE. */
status comm_mpi_init(comm *c, err *e);

#endif
