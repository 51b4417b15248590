/* SPDX-License-Identifier: MIT */
/* Communication between ranks that compute together: `self` (one process), `local` (processes that this one forks),
 * `mpi` (processes started by mpirun, on one machine or several). Every rank makes the same calls in the same order. A
 * call returns when this rank has its result. */
#ifndef KERNELS_COMM_H
#define KERNELS_COMM_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct comm comm; /* as in ops.h */

enum { COMM_RANKS_MAX = 1024, COMM_LOCAL_MAX = 64 };

typedef struct {
    status (*all_reduce)(comm *, float *x, size_t n, err *e);
    status (*all_gather)(comm *, void *out, const void *in, size_t bytes, err *e);
    status (*broadcast)(comm *, void *p, size_t bytes, int root, err *e);
    status (*barrier)(comm *, err *e);
    int (*speaker)(comm *, int rc);
    int (*close)(comm *, int rc);
} comm_ops;

struct comm {
    const char *name;           /* "self", "local", "mpi" */
    int rank, size;             /* 0 <= rank < size */
    int local_rank, local_size; /* among the ranks of this machine */
    const comm_ops *ops;
    void *ctx;
};

/* Opens the ranks that this process was started with: MPI's under mpirun (of Open MPI, or another launcher that speaks
 * PMIx), otherwise `self`. MPI is loaded and initialised only under a launcher, once a process, and is then called from
 * this thread alone. Errors: ST_UNSUPPORTED (a launcher, but built without MPI; a launcher of another MPI), ST_DEVICE
 * (MPI fails). */
status comm_open(comm **out, err *e);

/* Sets *yes if a launcher that Open MPI understands started this process. Errors: ST_UNSUPPORTED (a launcher of another
 * MPI). */
status comm_launched(bool *yes, err *e);

/* Starts n ranks on this machine by forking, which must happen before the process has threads or a device. Each rank
 * gets ST_OK and *out; only the first has standard input and output. The calling process returns when all have ended:
 * *out is NULL, *rc their greatest exit status, and e describes a rank that was ended by a signal or could not be
 * started. If a rank ends early, the others are ended within seconds. A signal that ends this process (Ctrl-C, SIGTERM)
 * first ends all ranks; the process then ends by the same signal. Errors: ST_USAGE (n), ST_NOMEM. */
status comm_fork(comm **out, int n, int *rc, err *e);

/* Chooses the rank that reports why it ends with rc; called once before the end. If several fail, it is one of them:
 * the first to call (`local`), or the lowest (`mpi`). If the others do not reach their end within seconds, it is this
 * rank. */
int comm_speaker(comm *c, int rc);

/* Ends this rank with its exit code; returns the greatest code of all ranks. If the others do not call this within
 * seconds after a rank has failed, all are aborted and the call does not return. */
int comm_close(comm *c, int rc);

/* x[i] becomes the sum of all ranks' x[i], added in the order of the ranks in float32. The bits are the same on every
 * rank, for any n and timing. x: [n], in host memory. */
status comm_all_reduce(comm *c, float *x, size_t n, err *e);

/* out [size][bytes] receives in [bytes] of every rank. in may lie in out, at this rank's index. */
status comm_all_gather(comm *c, void *out, const void *in, size_t bytes, err *e);

/* Copies p [bytes] of rank root to all ranks. c NULL: a single process, nothing to do. */
status comm_broadcast(comm *c, void *p, size_t bytes, int root, err *e);

/* Returns when every rank has called it. */
status comm_barrier(comm *c, err *e);

#ifdef __cplusplus
}
#endif

#endif
