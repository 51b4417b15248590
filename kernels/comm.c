/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/comm_impl.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/ops.h"

/* ---- a single process ---- */

static status self_all_reduce(comm *c, float *x, size_t n, err *e)
{
    (void)c, (void)x, (void)n, (void)e;
    return ST_OK;
}

static status self_all_gather(comm *c, void *out, const void *in, size_t bytes, err *e)
{
    (void)c, (void)e;
    memmove(out, in, bytes);
    return ST_OK;
}

static status self_broadcast(comm *c, void *p, size_t bytes, int root, err *e)
{
    (void)c, (void)p, (void)bytes, (void)root, (void)e;
    return ST_OK;
}

static status self_barrier(comm *c, err *e)
{
    (void)c, (void)e;
    return ST_OK;
}

static int self_speaker(comm *c, int rc)
{
    (void)c, (void)rc;
    return 0;
}

static int self_close(comm *c, int rc)
{
    (void)c;
    return rc;
}

static const comm_ops self_ops = {self_all_reduce, self_all_gather, self_broadcast,
                                  self_barrier,    self_speaker,    self_close};

/* ---- all kinds ---- */

status comm_launched(bool *yes, err *e)
{
    const char *pmi = getenv("PMI_SIZE");
    *yes = getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK");
    if (!*yes && pmi && strcmp(pmi, "1") != 0)
        return err_set(e, ST_UNSUPPORTED,
                       "started as one of %s ranks by a PMI launcher, which is not supported; use Open MPI's mpirun or "
                       "a PMIx launcher (srun --mpi=pmix)",
                       pmi);
    return ST_OK;
}

status comm_open(comm **out, err *e)
{
    bool mpi;
    comm *c;
    *out = NULL;
    TRY(comm_launched(&mpi, e));
    TRY(MEM_NEW(&c, 1, e));
    *c = (comm){.name = "self", .size = 1, .local_size = 1, .ops = &self_ops};
    status st = mpi ? comm_mpi_init(c, e) : ST_OK;
    if (st != ST_OK) mem_free(c);
    else *out = c;
    return st;
}

int comm_speaker(comm *c, int rc)
{
    return c->ops->speaker(c, rc);
}

int comm_close(comm *c, int rc)
{
    if (!c) return rc;
    rc = c->ops->close(c, rc);
    mem_free(c);
    return rc;
}

status comm_all_reduce(comm *c, float *x, size_t n, err *e)
{
    return c->ops->all_reduce(c, x, n, e);
}

status comm_all_gather(comm *c, void *out, const void *in, size_t bytes, err *e)
{
    return c->ops->all_gather(c, out, in, bytes, e);
}

status comm_broadcast(comm *c, void *p, size_t bytes, int root, err *e)
{
    return c ? c->ops->broadcast(c, p, bytes, root, e) : ST_OK;
}

status comm_barrier(comm *c, err *e)
{
    return c->ops->barrier(c, e);
}

int backend_ranks(const backend *be)
{
    return be->ranks ? be->ranks->size : 1;
}

int backend_rank(const backend *be)
{
    return be->ranks ? be->ranks->rank : 0;
}
