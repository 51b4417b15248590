/* SPDX-License-Identifier: MIT */
/* Reads by io_uring: one system call submits a batch, and no thread of ours blocks in a read. */
#include "config.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <time.h>

#include "kernels/base/mem.h"
#include "kernels/base/reader_impl.h"

typedef struct {
    struct io_uring ring;
    size_t depth, n_free;
    size_t *free_at; /* [depth] unused indices of `under` */
    reading *under;  /* [depth] */
} uring;

/* Queues a read; the ring has an entry for each of `depth` readings. */
static void queue_read(uring *u, size_t at)
{
    reading *g = &u->under[at];
    struct io_uring_sqe *s = io_uring_get_sqe(&u->ring);
    io_uring_prep_readv(s, g->job->fd, g->to, (unsigned)g->n_to, g->at);
    io_uring_sqe_set_data64(s, at);
}

/* Handles the end of one read. After a failure at job f->job only earlier jobs continue. */
static void take_result(uring *u, size_t at, int got, read_failure *f)
{
    reading *g = &u->under[at];
    reading_step s = reading_next(g, got);
    if (s == READING_FAILED) reading_failed(g, f);
    if (s == READING_MORE && g->index < f->job) queue_read(u, at);
    else u->free_at[u->n_free++] = at;
}

/* Tests whether the kernel accepts submissions at all: a sandbox may forbid single system calls. */
static int try_ring(struct io_uring *ring)
{
    struct io_uring_cqe *c;
    io_uring_prep_nop(io_uring_get_sqe(ring));
    int rc = io_uring_submit_and_wait(ring, 1);
    if (rc >= 0) rc = io_uring_wait_cqe(ring, &c);
    if (rc >= 0) io_uring_cqe_seen(ring, c);
    return rc;
}

/* Submits the queue and waits for a result. The kernel may run out of resources for a moment. It never drops a
 * submitted read, so this must not return early. */
static void submit_and_wait(uring *u)
{
    int rc = io_uring_submit_and_wait(&u->ring, 1);
    if (rc < 0 && rc != -EINTR) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void uring_run(void *way, const read_job *jobs, size_t n, read_failure *f)
{
    uring *u = way;
    size_t next = 0;
    while ((next < n && f->job == SIZE_MAX) || u->n_free < u->depth) {
        while (next < n && f->job == SIZE_MAX && u->n_free) {
            size_t at = u->free_at[u->n_free - 1];
            if (reading_start(&u->under[at], &jobs[next], next) == READING_MORE) {
                u->n_free--;
                queue_read(u, at);
            }
            next++;
        }
        if (u->n_free == u->depth) continue;
        submit_and_wait(u);
        struct io_uring_cqe *c;
        while (io_uring_peek_cqe(&u->ring, &c) == 0) {
            size_t at = (size_t)io_uring_cqe_get_data64(c);
            int got = c->res;
            io_uring_cqe_seen(&u->ring, c);
            take_result(u, at, got, f);
        }
    }
}

static void uring_close(void *way)
{
    uring *u = way;
    io_uring_queue_exit(&u->ring);
    mem_free(u->free_at);
    mem_free(u->under);
    mem_free(u);
}

static status uring_open(void **out, int depth, err *e)
{
    uring *u;
    status st;
    bool ring = false;
    TRY(mem_alloc((void **)&u, 1, sizeof *u, "reader", e));
    u->depth = u->n_free = (size_t)depth;
    TRY_GOTO(MEM_NEW(&u->under, u->depth, e));
    TRY_GOTO(MEM_NEW(&u->free_at, u->depth, e));
    for (size_t i = 0; i < u->depth; i++) u->free_at[i] = i;
    int rc = io_uring_queue_init((unsigned)depth, &u->ring, 0);
    ring = rc == 0;
    if (ring) rc = try_ring(&u->ring);
    if (rc < 0) {
        st = err_set(e, ST_UNSUPPORTED, "io_uring: %s", strerror(-rc));
        goto done;
    }
    *out = u;
done:
    if (st != ST_OK) {
        if (ring) io_uring_queue_exit(&u->ring);
        mem_free(u->free_at);
        mem_free(u->under);
        mem_free(u);
    }
    return st;
}

const read_way read_uring = {.kind = "io_uring", .open = uring_open, .close = uring_close, .run = uring_run};
