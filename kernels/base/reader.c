/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/reader.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/base/mem.h"
#include "kernels/base/reader_impl.h"

/* A file that has nothing to give at once is asked so many times in a row. */
enum { MOST_TRIES = 10000 };

static atomic_long give_in, give_what;

void reader_test_give(long n, long result)
{
    atomic_store(&give_what, result);
    atomic_store(&give_in, n);
}

/* What a test wants of the read that is about to be made: 0 or less in place of its result, or fewer bytes. */
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

/* The places that are not filled yet. */
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

reading_step reading_go_on(reading *g, ssize_t got)
{
    if (g->given <= 0) got = g->given;
    if (got == -EINTR || (got == -EAGAIN && ++g->tries < MOST_TRIES)) {
        next_read(g);
        return READING_MORE;
    }
    if (got <= 0) {
        g->given = got; /* the reason, for reading_failed */
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
    /* Past the end of a file that is read by blocks the system does not like where the rest begins. */
    if (f->why == EINVAL && g->done && fstat(g->job->fd, &s) == 0 && (uint64_t)s.st_size <= g->at) f->why = 0;
}

struct reader {
    const read_way *way;
    void *state;
};

static status open_way(reader **out, const read_way *way, int depth, err *e)
{
    reader *r;
    *out = NULL;
    if (depth < 1 || depth > READER_DEPTH)
        return err_set(e, ST_USAGE, "%d reads in flight, 1 to %d expected", depth, READER_DEPTH);
    TRY(mem_alloc((void **)&r, 1, sizeof *r, "reader", e));
    r->way = way;
    status st = way->open(&r->state, depth, e);
    if (st == ST_OK) *out = r;
    else mem_free(r);
    return st;
}

status reader_open(reader **out, int depth, err *e)
{
    err why = {0};
    status st = open_way(out, &read_uring, depth, &why);
    if (st == ST_UNSUPPORTED) return open_way(out, &read_threads, depth, e);
    if (st != ST_OK) err_set(e, st, "%s", why.msg);
    return st;
}

status reader_open_kind(reader **out, const char *kind, int depth, err *e)
{
    const read_way *ways[] = {&read_uring, &read_threads};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(kind, ways[i]->kind) == 0) return open_way(out, ways[i], depth, e);
    *out = NULL;
    return err_set(e, ST_USAGE, "reader '%s', expected %s or %s", kind, ways[0]->kind, ways[1]->kind);
}

const char *reader_kind(const reader *r)
{
    return r->way->kind;
}

void reader_close(reader *r)
{
    if (!r) return;
    r->way->close(r->state);
    mem_free(r);
}

status reader_run(reader *r, const read_job *jobs, size_t n, const char *what, err *e)
{
    read_failure f = {.job = SIZE_MAX};
    if (n) r->way->run(r->state, jobs, n, &f);
    if (f.job == SIZE_MAX) return ST_OK;
    unsigned long long at = f.at, end = f.end;
    if (f.why == 0) return err_set(e, ST_IO, "%s: the file ends at %llu of %llu bytes", what, at, end);
    return err_set(e, ST_IO, "%s: reading at byte %llu: %s", what, at, strerror(f.why));
}
