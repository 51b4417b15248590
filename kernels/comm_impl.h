/* SPDX-License-Identifier: MIT */
/* What the implementations of comm.h share. Not for other folders. */
#ifndef KERNELS_COMM_IMPL_H
#define KERNELS_COMM_IMPL_H

#include <stdint.h>

#include "kernels/comm.h"

/* Between two looks of one who waits, and has for waited_ns: others may have the core at first; who waits long (for a
 * user's line, say) sleeps, longer each time. *nap_ns: 0 before the first call. */
void comm_rest(int64_t waited_ns, long *nap_ns);
/* Fills in a zeroed comm. Errors: ST_UNSUPPORTED (built without MPI), ST_DEVICE. */
status comm_mpi_init(comm *c, err *e);

#endif
