/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/comm_impl.h"

status comm_mpi_init(comm *c, err *e)
{
    (void)c;
    return err_set(
        e, ST_UNSUPPORTED,
        "started by mpirun, but this program was built without MPI: install libopenmpi-dev and run ./configure again");
}
