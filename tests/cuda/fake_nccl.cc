/* SPDX-License-Identifier: MIT */
/* Stand-in for libnccl.so.2 in tests of the program on the host's shim. Ranks are processes of one machine, device
 * memory is their memory, and sums are formed in shared memory, in rank order. FAKE_NCCL_FAIL=N or N:R: the N-th sum or
 * gather fails, for all ranks or for rank R alone. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <deque>

#include "tests/cushim/nccl.h"

namespace
{
enum : size_t { MOST_RANKS = 16, SLOT = 1 << 14 }; /* floats of one exchange */

struct board {
    std::atomic<int> joined;
    std::atomic<unsigned long> turn[MOST_RANKS]; /* number of exchanges each rank has begun */
    float slot[2][MOST_RANKS][SLOT];
};

struct job {
    ncclComm_t comm;
    const float *in;
    float *out;
    size_t count;
    bool sum; /* otherwise a gather */
};

std::deque<job> jobs; /* graphs run them again */
} // namespace

struct ncclComm {
    board *b;
    int rank, size;
};

static std::deque<ncclComm> comms; /* never destroyed */

static void nap(void)
{
    timespec t = {0, 50000};
    nanosleep(&t, NULL);
}

/* Sends n floats and returns those of all ranks, [MOST_RANKS][SLOT]. */
static float (*exchange(ncclComm_t c, const float *p, size_t n))[SLOT]
{
    unsigned long turn = c->b->turn[c->rank] + 1;
    memcpy(c->b->slot[turn % 2][c->rank], p, n * sizeof *p);
    c->b->turn[c->rank] = turn;
    for (int r = 0; r < c->size; r++)
        while (c->b->turn[r] < turn) nap();
    return c->b->slot[turn % 2];
}

static void run(void *p)
{
    const job *j = (const job *)p;
    for (size_t at = 0, n; at < j->count; at += n) {
        n = j->count - at < SLOT ? j->count - at : SLOT;
        float(*all)[SLOT] = exchange(j->comm, j->in + at, n);
        for (int r = 0; r < j->comm->size; r++)
            for (size_t i = 0; i < n; i++) {
                float *to = j->out + at + i + (j->sum ? 0 : r * j->count);
                *to = j->sum && r > 0 ? *to + all[r][i] : all[r][i];
            }
    }
}

static ncclResult_t queue(const job &j, cudaStream_t stream)
{
    static long n_calls;
    int n = 0, rank = j.comm->rank;
    const char *fail = getenv("FAKE_NCCL_FAIL");
    if (fail && sscanf(fail, "%d:%d", &n, &rank) > 0 && ++n_calls == n && rank == j.comm->rank)
        return ncclInternalError;
    jobs.push_back(j);
    return cudaLaunchHostFunc(stream, run, &jobs.back()) == cudaSuccess ? ncclSuccess : ncclSystemError;
}

extern "C" {

ncclResult_t ncclGetVersion(int *version)
{
    *version = 10203;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t); /* a killed process leaves its board */
    snprintf(id->internal, sizeof id->internal, "/kvasir-fake-nccl-%ld-%ld", (long)getpid(), t.tv_nsec);
    return ncclSuccess;
}

/* Returns when all ranks have joined; the first one then unlinks the name. */
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n, ncclUniqueId id, int rank)
{
    if (n > (int)MOST_RANKS) return ncclInvalidArgument;
    int fd = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(board)) != 0) return ncclSystemError;
    void *p = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) return ncclSystemError;
    comms.push_back({(board *)p, rank, n});
    *comm = &comms.back();
    (*comm)->b->joined++;
    while ((*comm)->b->joined < n) nap();
    if (rank == 0) shm_unlink(id.internal);
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclFloat || op != ncclSum) return ncclInvalidArgument;
    return queue({comm, (const float *)in, (float *)out, count, true}, stream);
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    if (type != ncclFloat) return ncclInvalidArgument;
    return queue({comm, (const float *)in, (float *)out, count, false}, stream);
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclInternalError ? "a failure that was asked for" : "the test's library failed";
}
}
