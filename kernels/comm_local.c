/* SPDX-License-Identifier: MIT */
/* Ranks that the process forks on one machine. They communicate through shared memory. The process itself starts
 * nothing else and waits for them. */
#include "config.h"

#include "kernels/comm_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

enum {
    SLOT = 1 << 20, /* bytes that a rank transfers at a time */
    LINE = 64,
    RUNNING = -1
};

/* Time that a failed rank waits for the others at the end. */
static const int64_t alone_ns_max = 1000000000;

/* State of one rank, written only by it. */
typedef struct {
    _Alignas(LINE) _Atomic uint64_t exchanges; /* number begun; data of the last one is ready */
    _Atomic int code;                          /* RUNNING, then its exit code */
} rank_state;

/* Shared memory, followed by slots [2][size][SLOT] for even and odd exchanges. */
typedef struct {
    _Atomic int speaker; /* the first rank that failed; -1: none */
    rank_state at[COMM_LOCAL_MAX];
} board;

typedef struct {
    board *b;
    unsigned char *slots;
    size_t bytes; /* size of the mapping */
    bool ended, all_here;
} local;

/* ---- exchanges ---- */

static uint64_t exchanges_of(const local *l, int rank)
{
    return atomic_load_explicit(&l->b->at[rank].exchanges, memory_order_acquire);
}

static int code_of(const board *b, int rank)
{
    return atomic_load_explicit(&b->at[rank].code, memory_order_acquire);
}

/* Contributes n <= SLOT bytes and returns the data of all ranks, [size][SLOT]. The data is valid until the exchange
 * after the next begins. That exchange begins only when all ranks have begun the next one, and have thus read this one.
 * If a rank has died, this never returns; the launching process ends this one. */
static const unsigned char *exchange(comm *c, const void *p, size_t n)
{
    local *l = c->ctx;
    uint64_t exchanges = exchanges_of(l, c->rank) + 1;
    unsigned char *all = l->slots + exchanges % 2 * (size_t)c->size * SLOT;
    if (n) memcpy(all + (size_t)c->rank * SLOT, p, n);
    atomic_store_explicit(&l->b->at[c->rank].exchanges, exchanges, memory_order_release);
    for (int r = 0; r < c->size; r++) {
        int64_t began = clock_ns();
        long nap = 0;
        while (exchanges_of(l, r) < exchanges) comm_rest(clock_ns() - began, &nap);
    }
    return all;
}

static size_t piece_of(size_t n, size_t at, size_t most)
{
    return n - at < most ? n - at : most;
}

static status local_all_reduce(comm *c, float *x, size_t n, err *e)
{
    (void)e;
    for (size_t at = 0, k; at < n; at += k) {
        k = piece_of(n, at, SLOT / sizeof *x);
        const float *all = (const void *)exchange(c, x + at, k * sizeof *x);
        memcpy(x + at, all, k * sizeof *x);
        for (int r = 1; r < c->size; r++)
            for (size_t i = 0; i < k; i++) x[at + i] += all[(size_t)r * (SLOT / sizeof *x) + i];
    }
    return ST_OK;
}

static status local_all_gather(comm *c, void *out, const void *in, size_t bytes, err *e)
{
    (void)e;
    for (size_t at = 0, k; at < bytes; at += k) {
        k = piece_of(bytes, at, SLOT);
        const unsigned char *all = exchange(c, (const unsigned char *)in + at, k);
        for (int r = 0; r < c->size; r++)
            memcpy((unsigned char *)out + (size_t)r * bytes + at, all + (size_t)r * SLOT, k);
    }
    return ST_OK;
}

static status local_broadcast(comm *c, void *p, size_t bytes, int root, err *e)
{
    (void)e;
    for (size_t at = 0, k; at < bytes; at += k) {
        unsigned char *to = (unsigned char *)p + at;
        k = piece_of(bytes, at, SLOT);
        const unsigned char *all = exchange(c, to, c->rank == root ? k : 0);
        if (c->rank != root) memcpy(to, all + (size_t)root * SLOT, k);
    }
    return ST_OK;
}

static status local_barrier(comm *c, err *e)
{
    (void)e;
    exchange(c, NULL, 0);
    return ST_OK;
}

/* ---- the end of a rank ---- */

/* True if all other ranks have ended or wait for this one, which contributes nothing more. */
static bool none_running(const comm *c)
{
    const local *l = c->ctx;
    for (int r = 0; r < c->size; r++)
        if (code_of(l->b, r) == RUNNING && exchanges_of(l, r) <= exchanges_of(l, c->rank)) return false;
    return true;
}

static bool all_ended(const board *b, int size)
{
    for (int r = 0; r < size; r++)
        if (code_of(b, r) == RUNNING) return false;
    return true;
}

/* Publishes this rank's exit code and waits for the others to end; a failed rank waits only briefly. */
static void end(comm *c, int rc)
{
    local *l = c->ctx;
    int64_t began = clock_ns(), waited = 0;
    int none = -1;
    long nap = 0;
    if (l->ended) return;
    l->ended = true;
    if (rc) atomic_compare_exchange_strong(&l->b->speaker, &none, c->rank);
    atomic_store_explicit(&l->b->at[c->rank].code, rc, memory_order_release);
    while (!(l->all_here = all_ended(l->b, c->size))) {
        if (rc && (none_running(c) || waited > alone_ns_max)) return;
        comm_rest(waited, &nap);
        waited = clock_ns() - began;
    }
}

static int local_speaker(comm *c, int rc)
{
    const local *l = c->ctx;
    end(c, rc);
    int first = atomic_load(&l->b->speaker);
    return first < 0 ? 0 : first;
}

static int local_close(comm *c, int rc)
{
    local *l = c->ctx;
    end(c, rc);
    for (int r = 0; r < c->size && l->all_here; r++)
        if (code_of(l->b, r) > rc) rc = code_of(l->b, r);
    mem_unmap(l->b, l->bytes);
    mem_free(l);
    return rc;
}

static const comm_ops local_ops = {.all_reduce = local_all_reduce,
                                   .all_gather = local_all_gather,
                                   .broadcast = local_broadcast,
                                   .barrier = local_barrier,
                                   .speaker = local_speaker,
                                   .close = local_close};

/* ---- the launching process ---- */

typedef struct {
    board *b;
    pid_t pid[COMM_LOCAL_MAX]; /* 0: not started, or ended */
    int size, left, rc;
    int signal; /* signal to end all ranks with; 0: none */
    bool cut;   /* some ranks were ended because another had ended */
    err *e;
} launch;

static void kill_ranks(const launch *l, int sig, bool all)
{
    for (int r = 0; r < l->size; r++)
        if (l->pid[r] && (all || code_of(l->b, r) <= 0)) kill(l->pid[r], sig);
}

/* Records the end of a rank. A rank that fails alone has reported the reason; the others wait for it in vain. */
static void note_end(launch *l, int rank, pid_t pid, int how)
{
    int rc = WIFEXITED(how) ? WEXITSTATUS(how) : 1;
    bool early = !all_ended(l->b, l->size);
    l->pid[rank] = 0;
    l->left--;
    if (l->cut && WIFSIGNALED(how)) return;
    if (rc > l->rc) l->rc = rc;
    if (WIFSIGNALED(how) && !l->signal)
        err_set(l->e, ST_DEVICE, "rank %d (process %d) was ended by signal %d", rank, (int)pid, WTERMSIG(how));
    if (!early) return;
    l->cut = true;
    if (l->rc == 0) l->rc = 1;
    kill_ranks(l, SIGKILL, false);
}

static void reap(launch *l)
{
    int how;
    pid_t pid;
    while ((pid = waitpid(-1, &how, WNOHANG)) > 0)
        for (int r = 0; r < l->size; r++)
            if (l->pid[r] == pid) note_end(l, r, pid, how);
}

/* Catches SIGCHLD, and the signals that end a process unless they are ignored. */
static void catch_signals(sigset_t *set, sigset_t *old)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction a;
    sigemptyset(set);
    sigaddset(set, SIGCHLD);
    signal(SIGCHLD, SIG_DFL);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (sigaction(ends[i], NULL, &a) == 0 && a.sa_handler != SIG_IGN) sigaddset(set, ends[i]);
    sigprocmask(SIG_BLOCK, set, old);
}

static void wait_for_ranks(launch *l, const sigset_t *set)
{
    while (l->left > 0) {
        int sig = sigwaitinfo(set, NULL);
        if (sig > 0 && sig != SIGCHLD) {
            l->signal = sig;
            kill_ranks(l, sig, true);
        }
        reap(l);
    }
}

/* Sets up a new rank: it ends with the launching process, and only the first has standard input and output. */
static void settle(int rank, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    if (rank == 0) return;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0) _exit(1);
    close(null);
}

/* Allocates everything that the ranks share before they are started. */
static status prepare(comm **out, int n, err *e)
{
    comm *c;
    local *l;
    TRY(MEM_NEW(&c, 1, e));
    if (MEM_NEW(&l, 1, e) != ST_OK) {
        mem_free(c);
        return ST_NOMEM;
    }
    l->bytes = sizeof *l->b + 2 * (size_t)n * SLOT;
    void *p = mmap(NULL, l->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        mem_free(l);
        mem_free(c);
        return err_set(e, ST_NOMEM, "%d ranks: cannot allocate shared memory: %s", n, strerror(errno));
    }
    l->b = p;
    l->slots = (unsigned char *)p + sizeof *l->b;
    atomic_init(&l->b->speaker, -1);
    for (int r = 0; r < n; r++) atomic_init(&l->b->at[r].code, RUNNING);
    *c = (comm){.name = "local", .size = n, .local_size = n, .ops = &local_ops, .ctx = l};
    *out = c;
    return ST_OK;
}

static void forget(comm *c)
{
    local *l = c->ctx;
    mem_unmap(l->b, l->bytes);
    mem_free(l);
    mem_free(c);
}

/* Returns true in a rank. If the system cannot start all processes, ends those that were started. */
static bool start_ranks(comm *c, launch *l, const sigset_t *old)
{
    pid_t own = getpid();
    for (int r = 0; r < l->size; r++) {
        pid_t pid = fork();
        if (pid == 0) {
            sigprocmask(SIG_SETMASK, old, NULL);
            settle(r, own);
            c->rank = c->local_rank = r;
            return true;
        }
        if (pid < 0) {
            err_set(l->e, ST_NOMEM, "rank %d of %d cannot be started: %s", r, l->size, strerror(errno));
            l->rc = 1;
            l->cut = true;
            kill_ranks(l, SIGKILL, true);
            return false;
        }
        l->pid[r] = pid;
        l->left++;
    }
    return false;
}

status comm_fork(comm **out, int n, int *rc, err *e)
{
    sigset_t set, old;
    comm *c = NULL;
    *out = NULL;
    if (n > COMM_LOCAL_MAX)
        return err_set(e, ST_USAGE, "--tp %d: at most %d ranks on one machine without mpirun", n, COMM_LOCAL_MAX);
    TRY(prepare(&c, n, e));
    launch l = {.b = ((local *)c->ctx)->b, .size = n, .e = e};
    fflush(NULL);
    catch_signals(&set, &old);
    if (start_ranks(c, &l, &old)) {
        *out = c;
        return ST_OK;
    }
    wait_for_ranks(&l, &set);
    forget(c);
    if (l.signal) signal(l.signal, SIG_DFL);
    sigprocmask(SIG_SETMASK, &old, NULL);
    if (l.signal) raise(l.signal);
    *rc = l.rc;
    return ST_OK;
}
