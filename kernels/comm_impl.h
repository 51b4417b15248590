/* SPDX-License-Identifier: MIT */
/* What an implementation of comm.h offers to comm_open. Not for other folders. */
#ifndef KERNELS_COMM_IMPL_H
#define KERNELS_COMM_IMPL_H

#include "kernels/comm.h"

/* Fills in a zeroed comm. Errors: ST_UNSUPPORTED (built without MPI), ST_DEVICE. */
status comm_mpi_init(comm *c, err *e);

#endif
