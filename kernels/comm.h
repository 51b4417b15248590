/* SPDX-License-Identifier: MIT */
/* Ranks that compute one thing together: `self` (one process), `local` (processes that this one forks), `mpi`
 * (processes started by mpirun, on one machine or several). Every rank makes the same calls in the same order; a call
 * returns when this rank has its result. */
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

/* The ranks that this process was started with: under mpirun (of Open MPI, or another launcher that speaks PMIx) MPI's,
 * else `self`. MPI is loaded and initialised only under a launcher, once a process; MPI is then called from this
 * thread alone. Errors: ST_UNSUPPORTED (a launcher, but built without MPI; a launcher of another MPI), ST_DEVICE
 * (MPI fails). */
status comm_open(comm **out, err *e);

/* Whether a launcher that Open MPI understands started this process. Errors: ST_UNSUPPORTED (one of another MPI). */
status comm_launched(bool *yes, err *e);

/* Starts n ranks on this machine by forking, which a process must do before it has threads or a device. In each of them
 * ST_OK and *out; the first alone has standard input and output. In the process itself it returns when all have ended:
 * *out NULL, *rc their exit status, the greatest, and e's text where one was ended by a signal or could not be started.
 * Where a rank ends before the others, they are ended within seconds; what ends this process (Ctrl-C, SIGTERM) ends
 * all, and then it by the same signal. Errors: ST_USAGE (n), ST_NOMEM. */
status comm_fork(comm **out, int n, int *rc, err *e);

/* Before the end, once: which rank is to tell why it ends with rc. Where several fail, one of them: the first to come
 * here (`local`), or the lowest; this one where the others do not come to their end within seconds: it fails alone. */
int comm_speaker(comm *c, int rc);

/* The end of this rank, with its exit code; returns the code that all agree on, the greatest. A rank that fails alone
 * ends the others too: if they do not come here within seconds, all are aborted and the call does not return. */
int comm_close(comm *c, int rc);

/* x[i] becomes the sum of all ranks' x[i], added in the order of the ranks in float32: the same bits on every rank, at
 * any n and any timing. x: [n], in host memory. */
status comm_all_reduce(comm *c, float *x, size_t n, err *e);

/* out: [size][bytes]: what every rank gave as in [bytes]. out may hold in at its own rank's place. */
status comm_all_gather(comm *c, void *out, const void *in, size_t bytes, err *e);

/* Copies p [bytes] of rank root to all ranks. c NULL: there is one process only. */
status comm_broadcast(comm *c, void *p, size_t bytes, int root, err *e);

/* Returns when every rank is here. */
status comm_barrier(comm *c, err *e);

#ifdef __cplusplus
}
#endif

#endif
