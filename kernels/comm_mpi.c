/* SPDX-License-Identifier: MIT */
/* Ranks through Open MPI. The library is opened only if a launcher started this process; linking it would add 3 ms to
 * every start. Sums are computed here, since MPI implementations may add in any order. */
#include "config.h"

#include "kernels/comm_impl.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

#ifndef OPEN_MPI
#error "Open MPI's mpi.h is required: its handles are looked up as symbols"
#endif

#define LIBRARY "libmpi.so.40" /* Open MPI 2 to 5 */

/* MPI's functions, and Open MPI's constant handles, to which its macros refer. */
/* clang-format off */
#define CALLS(X)                                                                                                     \
    X(Init_thread) X(Finalize) X(Abort) X(Comm_rank) X(Comm_size) X(Comm_dup) X(Comm_split_type) X(Comm_free)        \
    X(Comm_set_errhandler) X(Error_string) X(Test) X(Ibarrier) X(Ibcast) X(Iallgather) X(Iallgatherv) X(Ialltoallv)
#define HANDLES(X)                                                                                                   \
    X(comm_world, MPI_Comm) X(byte, MPI_Datatype) X(float, MPI_Datatype) X(int, MPI_Datatype)                        \
    X(info_null, MPI_Info) X(errors_return, MPI_Errhandler)
/* clang-format on */

#define FUNCTION(f)  __typeof__(MPI_##f) *f;
#define HANDLE(h, t) t h##_;

enum {
    SUM_FLOATS = 1 << 20,   /* maximum of floats reduced at a time */
    SMALL_FLOATS = 1 << 14, /* up to this size every rank receives all parts and adds them, which saves an exchange */
    BYTES_MAX = 1 << 30,    /* counts are int */
    LOOK_NS = 500000000,
    LOOKS = 4,       /* number of liveness checks of other ranks that must fail before a waiting rank ends */
    ALONE_NS_MAX = 3 /* seconds that a failed rank waits for the others at the end */
};

typedef struct {
    void *library;
    CALLS(FUNCTION)
    HANDLES(HANDLE)
    MPI_Comm ranks, end; /* communicators of the engine's calls, and of the final one */
    float *parts;        /* [part_floats]: data of the other ranks */
    size_t part_floats;
    int *pids; /* [n_pids]: processes of the other ranks on this machine */
    int n_pids;
    bool lost;                /* one of these processes has died */
    bool requested, all_here; /* exit codes of all ranks (in counts) were requested, and have arrived */
    int *counts, *offsets, *other_counts, *other_offsets; /* [size] each */
} mpi;

/* ---- the library ---- */

static status find(void **out, const mpi *m, const char *name, err *e)
{
    *out = dlsym(m->library, name);
    return *out ? ST_OK : err_set(e, ST_UNSUPPORTED, "%s: symbol %s not found; Open MPI is required", LIBRARY, name);
}

static status load(mpi *m, err *e)
{
    /* plug-ins of MPI look up its symbols */
    m->library = dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (!m->library) return err_set(e, ST_UNSUPPORTED, "started by mpirun, but MPI cannot be opened: %s", dlerror());
#define FIND_FUNCTION(f)  TRY(find((void **)&m->f, m, "MPI_" #f, e));
#define FIND_HANDLE(h, t) TRY(find((void **)&m->h##_, m, "ompi_mpi_" #h, e));
    CALLS(FIND_FUNCTION)
    HANDLES(FIND_HANDLE)
    return ST_OK;
}

static status check(const mpi *m, int code, const char *what, err *e)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (code == MPI_SUCCESS) return ST_OK;
    m->Error_string(code, text, &n);
    return err_set(e, ST_DEVICE, "MPI: %s: %s", what, text);
}

/* True if the process exists. mpirun ends the other ranks when one dies, but it sometimes misses the death (Open MPI
 * 4.1.4). */
static bool is_alive(int pid)
{
    char path[32], text[256];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *name_end = strrchr(text, ')'); /* followed by a space and the state */
    return name_end && name_end[1] && name_end[2] != 'Z' && name_end[2] != 'X';
}

static status check_peers(mpi *m, const char *what, int *looks, err *e)
{
    for (int i = 0; i < m->n_pids; i++) {
        if (is_alive(m->pids[i]) || ++*looks < LOOKS) continue;
        m->lost = true;
        return err_set(e, ST_DEVICE, "MPI: %s: the rank with process %d has died", what, m->pids[i]);
    }
    return ST_OK;
}

/* Waits for a call that was begun; sets *done to false if it has not finished after limit_ns (0: no limit). */
static status wait_for(mpi *m, MPI_Request *r, const char *what, int64_t limit_ns, bool *done, err *e)
{
    int64_t began = clock_ns(), now = began, looked = began;
    long nap = 0;
    int looks = 0;
    for (int flag = 0;; now = clock_ns()) {
        TRY(check(m, m->Test(r, &flag, MPI_STATUS_IGNORE), what, e));
        *done = flag;
        if (flag || (limit_ns && now - began > limit_ns)) return ST_OK;
        if (now - looked > LOOK_NS) {
            TRY(check_peers(m, what, &looks, e));
            looked = now;
        }
        comm_rest(now - began, &nap);
    }
}

static status finish(mpi *m, int began, MPI_Request *r, const char *what, err *e)
{
    bool done;
    TRY(check(m, began, what, e));
    return wait_for(m, r, what, 0, &done, e);
}

/* ---- sums ---- */

static void add_parts(float *out, const float *parts, size_t n, size_t stride, int size)
{
    for (size_t i = 0; i < n; i++) {
        float sum = parts[i];
        for (int r = 1; r < size; r++) sum += parts[(size_t)r * stride + i];
        out[i] = sum;
    }
}

static status sum_small(comm *c, float *x, size_t n, err *e)
{
    mpi *m = c->ctx;
    MPI_Request r;
    int began = m->Iallgather(x, (int)n, m->float_, m->parts, (int)n, m->float_, m->ranks, &r);
    TRY(finish(m, began, &r, "all-reduce", e));
    add_parts(x, m->parts, n, n, c->size);
    return ST_OK;
}

/* Each rank adds up one piece of x and sends it to all. */
static status sum_pieces(comm *c, float *x, size_t n, err *e)
{
    mpi *m = c->ctx;
    MPI_Request r;
    size_t piece = (n + (size_t)c->size - 1) / (size_t)c->size, mine;
    for (int i = 0; i < c->size; i++) {
        size_t from = (size_t)i * piece < n ? (size_t)i * piece : n;
        m->offsets[i] = (int)from;
        m->counts[i] = (int)(n - from < piece ? n - from : piece);
    }
    mine = (size_t)m->counts[c->rank];
    for (int i = 0; i < c->size; i++) {
        m->other_counts[i] = (int)mine;
        m->other_offsets[i] = i * (int)piece;
    }
    int began = m->Ialltoallv(x, m->counts, m->offsets, m->float_, m->parts, m->other_counts, m->other_offsets,
                              m->float_, m->ranks, &r);
    TRY(finish(m, began, &r, "all-reduce", e));
    add_parts(x + m->offsets[c->rank], m->parts, mine, piece, c->size);
    began = m->Iallgatherv(MPI_IN_PLACE, 0, m->float_, x, m->counts, m->offsets, m->float_, m->ranks, &r);
    return finish(m, began, &r, "all-reduce", e);
}

static status mpi_all_reduce(comm *c, float *x, size_t n, err *e)
{
    if (c->size == 1) return ST_OK;
    for (size_t i = 0; i < n;) {
        size_t k = n - i < SUM_FLOATS ? n - i : SUM_FLOATS;
        TRY(k <= SMALL_FLOATS ? sum_small(c, x + i, k, e) : sum_pieces(c, x + i, k, e));
        i += k;
    }
    return ST_OK;
}

/* ---- the other calls ---- */

static status mpi_all_gather(comm *c, void *out, const void *in, size_t bytes, err *e)
{
    mpi *m = c->ctx;
    MPI_Request r;
    if (bytes > BYTES_MAX)
        return err_set(e, ST_UNSUPPORTED, "MPI: all-gather of %zu bytes a rank: must be at most %d", bytes, BYTES_MAX);
    unsigned char *own = (unsigned char *)out + (size_t)c->rank * bytes;
    if (own != in) memcpy(own, in, bytes);
    int began = m->Iallgather(MPI_IN_PLACE, 0, m->byte_, out, (int)bytes, m->byte_, m->ranks, &r);
    return finish(m, began, &r, "all-gather", e);
}

static status mpi_broadcast(comm *c, void *p, size_t bytes, int root, err *e)
{
    mpi *m = c->ctx;
    MPI_Request r;
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < BYTES_MAX ? bytes - at : BYTES_MAX;
        int began = m->Ibcast((unsigned char *)p + at, (int)n, m->byte_, root, m->ranks, &r);
        TRY(finish(m, began, &r, "broadcast", e));
        at += n;
    }
    return ST_OK;
}

static status mpi_barrier(comm *c, err *e)
{
    mpi *m = c->ctx;
    MPI_Request r;
    int began = m->Ibarrier(m->ranks, &r);
    return finish(m, began, &r, "barrier", e);
}

/* ---- begin and end ---- */

static void free_ctx(mpi *m)
{
    mem_unmap(m->parts, m->part_floats * sizeof *m->parts);
    mem_free(m->counts);
    mem_free(m->pids);
    mem_free(m);
}

/* Gathers exit codes on a communicator of its own, since others may still be inside another call. */
static void ask_codes(mpi *m, int rc)
{
    MPI_Request r;
    if (m->requested) return;
    m->requested = true;
    if (m->Iallgather(&rc, 1, m->int_, m->counts, 1, m->int_, m->end, &r) == MPI_SUCCESS)
        wait_for(m, &r, "end", rc ? (int64_t)ALONE_NS_MAX * 1000000000 : 0, &m->all_here, NULL);
}

static int mpi_speaker(comm *c, int rc)
{
    mpi *m = c->ctx;
    int first = 0;
    ask_codes(m, rc);
    if (!m->all_here) return c->rank;
    while (first + 1 < c->size && m->counts[first] == 0) first++;
    return first;
}

static int mpi_close(comm *c, int rc)
{
    mpi *m = c->ctx;
    ask_codes(m, rc);
    if (m->lost) { /* other ranks may have died too */
        free_ctx(m);
        return rc ? rc : 1;
    }
    if (!m->all_here) m->Abort(m->comm_world_, rc ? rc : 1);
    for (int i = 0; i < c->size; i++)
        if (m->counts[i] > rc) rc = m->counts[i];
    m->Finalize();
    free_ctx(m);
    return rc;
}

static const comm_ops mpi_ops = {mpi_all_reduce, mpi_all_gather, mpi_broadcast, mpi_barrier, mpi_speaker, mpi_close};

/* Finds the ranks visible from this process, which excludes those in other containers. */
static status find_peers(const comm *c, mpi *m, MPI_Comm local, err *e)
{
    int own = (int)getpid(), *all;
    MPI_Request r;
    TRY(MEM_NEW(&m->pids, (size_t)c->local_size, e));
    all = m->pids;
    TRY(finish(m, m->Iallgather(&own, 1, m->int_, all, 1, m->int_, local, &r), &r, "start", e));
    for (int i = 0; i < c->local_size; i++)
        if (all[i] != own && is_alive(all[i])) m->pids[m->n_pids++] = all[i];
    return ST_OK;
}

static status open_ranks(comm *c, mpi *m, err *e)
{
    MPI_Comm local;
    int level;
    TRY(check(m, m->Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level), "start", e));
    TRY(check(m, m->Comm_dup(m->comm_world_, &m->ranks), "start", e));
    TRY(check(m, m->Comm_dup(m->comm_world_, &m->end), "start", e));
    m->Comm_set_errhandler(m->ranks, m->errors_return_);
    m->Comm_set_errhandler(m->end, m->errors_return_);
    m->Comm_rank(m->ranks, &c->rank);
    m->Comm_size(m->ranks, &c->size);
    if (c->size > COMM_RANKS_MAX)
        return err_set(e, ST_UNSUPPORTED, "%d ranks: must be at most %d", c->size, COMM_RANKS_MAX);
    TRY(check(m, m->Comm_split_type(m->ranks, MPI_COMM_TYPE_SHARED, 0, m->info_null_, &local), "start", e));
    m->Comm_rank(local, &c->local_rank);
    m->Comm_size(local, &c->local_size);
    TRY(find_peers(c, m, local, e));
    m->Comm_free(&local);
    return ST_OK;
}

status comm_mpi_init(comm *c, err *e)
{
    mpi *m;
    TRY(MEM_NEW(&m, 1, e));
    status st;
    TRY_GOTO(load(m, e));
    TRY_GOTO(open_ranks(c, m, e));
    size_t size = (size_t)c->size;
    TRY_GOTO(MEM_NEW(&m->counts, 4 * size, e));
    m->offsets = m->counts + size;
    m->other_counts = m->offsets + size;
    m->other_offsets = m->other_counts + size;
    m->part_floats = size * SMALL_FLOATS > SUM_FLOATS + size ? size * SMALL_FLOATS : SUM_FLOATS + size;
    TRY_GOTO(mem_map_anon((void **)&m->parts, m->part_floats * sizeof *m->parts, "sums of ranks", e));
    c->name = "mpi";
    c->ops = &mpi_ops;
    c->ctx = m;
    return ST_OK;
done:
    free_ctx(m);
    return st;
}
