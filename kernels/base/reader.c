/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/reader.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/base/mem.h"
#include "kernels/base/reader_impl.h"

struct reader {
    const read_way *way;
    void *state;
};

static status open_way(reader **out, const read_way *way, int depth, err *e)
{
    reader *r;
    *out = NULL;
    if (depth < 1 || depth > READER_DEPTH)
        return err_set(e, ST_USAGE, "%d reads in flight: must be in [1, %d]", depth, READER_DEPTH);
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
    return err_set(e, ST_USAGE, "reader '%s': unknown kind; use %s or %s", kind, ways[0]->kind, ways[1]->kind);
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
    if (f.why == 0) return err_set(e, ST_IO, "%s: unexpected end of file at %llu of %llu bytes", what, at, end);
    return err_set(e, ST_IO, "%s: reading at byte %llu: %s", what, at, strerror(f.why));
}
