/* SPDX-License-Identifier: MIT */
/* One job of a reader: computes its next read from each result. */
#include "config.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "kernels/base/reader_impl.h"

/* Consecutive attempts to read a file that has no data yet. */
enum { MOST_TRIES = 10000 };

static atomic_long give_in, give_what;

void reader_test_give(long n, long result)
{
    atomic_store(&give_what, result);
    atomic_store(&give_in, n);
}

/* Applies a test hook to the next read: a result of 0 or less replaces its own, or it reads fewer bytes. */
static void take_given(reading *g)
{
    g->given = 1;
    if (atomic_load(&give_in) <= 0 || atomic_fetch_sub(&give_in, 1) != 1) return;
    long give = atomic_load(&give_what);
    if (give <= 0) {
        g->given = give;
        return;
    }
    size_t left = (size_t)give;
    for (int i = 0; i < g->n_to; i++) {
        if (g->to[i].iov_len > left) g->to[i].iov_len = left;
        left -= g->to[i].iov_len;
        if (left == 0) g->n_to = i + 1;
    }
}

/* Prepares a read into the unfilled part of the buffers. */
static void next_read(reading *g)
{
    size_t skip = g->done;
    g->at = g->job->at + g->done;
    g->n_to = 0;
    for (int i = 0; i < g->job->n_to; i++) {
        struct iovec v = g->job->to[i];
        if (skip >= v.iov_len) {
            skip -= v.iov_len;
            continue;
        }
        g->to[g->n_to++] = (struct iovec){(char *)v.iov_base + skip, v.iov_len - skip};
        skip = 0;
    }
    take_given(g);
}

reading_step reading_start(reading *g, const read_job *job, size_t index)
{
    *g = (reading){.job = job, .index = index};
    for (int i = 0; i < job->n_to; i++) g->size += job->to[i].iov_len;
    if (g->size == 0) return READING_DONE;
    next_read(g);
    return READING_MORE;
}

reading_step reading_next(reading *g, ssize_t got)
{
    if (g->given <= 0) got = g->given;
    if (got == -EINTR || (got == -EAGAIN && ++g->tries < MOST_TRIES)) {
        next_read(g);
        return READING_MORE;
    }
    if (got <= 0) {
        g->given = got; /* -errno, or 0 at the end of the file, for reading_failed */
        return READING_FAILED;
    }
    g->tries = 0;
    g->done += (size_t)got;
    if (g->done >= g->size) return READING_DONE;
    next_read(g);
    return READING_MORE;
}

void reading_failed(const reading *g, read_failure *f)
{
    struct stat s;
    if (g->index >= f->job) return;
    *f = (read_failure){.job = g->index, .at = g->at, .end = g->job->at + g->size, .why = (int)-g->given};
    /* With O_DIRECT, a read at the unaligned end of a file fails with EINVAL. */
    if (f->why == EINVAL && g->done && fstat(g->job->fd, &s) == 0 && (uint64_t)s.st_size <= g->at) f->why = 0;
}
