/* SPDX-License-Identifier: MIT */
/* Sums over GPUs with NCCL, one process per GPU. The library is opened if there are several ranks. The communicator is
 * never destroyed: ncclCommDestroy is called by all ranks together, so a rank that fails alone would wait for the
 * others. */
#include "config.h"

#include "kernels/comm.h"
#include "kernels/cuda/cuda.cuh"

#ifdef HAVE_NCCL

#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/cuda/library.h"

#define NCCL_CALLS(X)                                                                                                  \
    X(ncclGetVersion) X(ncclGetUniqueId) X(ncclCommInitRank) X(ncclAllReduce) X(ncclAllGather) X(ncclGetErrorString)

struct cuda_nccl {
    void *library;
    cudaStream_t stream;
    ncclComm_t comm;
    char name[32];
#define NCCL_MEMBER(f) decltype(&f) f##_p;
    NCCL_CALLS(NCCL_MEMBER)
};

static status find_calls(cuda_nccl *n, err *e)
{
    /* A file that the loader finds and cannot open ends the search. */
    n->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const char *why = n->library ? "" : dlerror();
    if (!n->library && strstr(why, "No such file")) n->library = cuda_library("libnccl", 2, 2, 2);
    if (!n->library)
        return err_set(e, ST_UNSUPPORTED,
                       "--device cuda: ranks need NCCL: libnccl.so.2 was not found; set LD_LIBRARY_PATH to its folder");
#define NCCL_FIND(f)                                                                                                   \
    *(void **)&n->f##_p = dlsym(n->library, #f);                                                                       \
    if (!n->f##_p) return err_set(e, ST_UNSUPPORTED, "--device cuda: libnccl.so.2 has no %s", #f);
    NCCL_CALLS(NCCL_FIND)
    return ST_OK;
}

/* 2.18.3 is encoded as 21803, since 2.9. */
static void set_name(cuda_nccl *n)
{
    int v = 0;
    n->ncclGetVersion_p(&v);
    snprintf(n->name, sizeof n->name, "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

/* Broadcasts the first rank's id. If it has none, it sends its error code and all ranks fail. */
static status join(cuda_nccl *n, comm *ranks, err *e)
{
    struct {
        ncclUniqueId id;
        int rc;
    } first = {};
    if (ranks->rank == 0) first.rc = n->ncclGetUniqueId_p(&first.id);
    TRY(comm_broadcast(ranks, &first, sizeof first, 0, e));
    int rc = first.rc ? first.rc : n->ncclCommInitRank_p(&n->comm, ranks->size, first.id, ranks->rank);
    if (rc == ncclSuccess) return ST_OK;
    return err_set(e, ST_DEVICE, "--device cuda: NCCL with %d ranks: %s", ranks->size,
                   n->ncclGetErrorString_p((ncclResult_t)rc));
}

status cuda_nccl_create(cuda_nccl **out, comm *ranks, cudaStream_t s, err *e)
{
    cuda_nccl *n;
    TRY(mem_alloc((void **)&n, 1, sizeof *n, "NCCL", e));
    n->stream = s;
    status st = find_calls(n, e);
    if (st == ST_OK) st = join(n, ranks, e);
    if (st != ST_OK) {
        cuda_nccl_free(n);
        return st;
    }
    set_name(n);
    *out = n;
    return ST_OK;
}

void cuda_nccl_free(cuda_nccl *n)
{
    mem_free(n);
}

const char *cuda_nccl_name(const cuda_nccl *n)
{
    return n->name;
}

static const char *text_of(const cuda_nccl *n, ncclResult_t rc)
{
    return rc == ncclSuccess ? NULL : n->ncclGetErrorString_p(rc);
}

const char *cuda_nccl_sum(cuda_nccl *n, float *x, size_t count)
{
    return text_of(n, n->ncclAllReduce_p(x, x, count, ncclFloat, ncclSum, n->comm, n->stream));
}

const char *cuda_nccl_gather(cuda_nccl *n, float *out, const float *in, size_t count)
{
    return text_of(n, n->ncclAllGather_p(in, out, count, ncclFloat, n->comm, n->stream));
}

#else

status cuda_nccl_create(cuda_nccl **, comm *ranks, cudaStream_t, err *e)
{
    return err_set(e, ST_UNSUPPORTED, "--device cuda: built without NCCL (no nccl.h); %d ranks need it", ranks->size);
}

void cuda_nccl_free(cuda_nccl *)
{
}

const char *cuda_nccl_name(const cuda_nccl *)
{
    return "";
}

const char *cuda_nccl_sum(cuda_nccl *, float *, size_t)
{
    return "built without NCCL";
}

const char *cuda_nccl_gather(cuda_nccl *, float *, const float *, size_t)
{
    return "built without NCCL";
}

#endif
