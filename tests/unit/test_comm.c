/* SPDX-License-Identifier: MIT */
/* Collective calls: by itself one process; `N` as the first argument: N processes that it forks. tests/cli/mpi.t starts
 * it under mpirun. Rank 0 prints. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "kernels/comm.h"
#include "kernels/ops.h"
#include "tests/tap.h"

/* Numbers of one rank: of so many sizes that another order of additions gives other bits. */
static void fill(float *x, size_t n, int rank)
{
    rng r = {77 + (uint64_t)rank};
    for (size_t i = 0; i < n; i++) x[i] = (rng_float(&r) - 0.5f) * (float)(1 << (i % 20));
}

/* Computes the sum in rank order. */
static void sum_in_order(float *out, float *room, size_t n, int size)
{
    fill(out, n, 0);
    for (int r = 1; r < size; r++) {
        fill(room, n, r);
        for (size_t i = 0; i < n; i++) out[i] += room[i];
    }
}

static bool on_all_ranks(comm *c, bool good)
{
    float bad = good ? 0 : 1;
    return comm_all_reduce(c, &bad, 1, NULL) == ST_OK && bad == 0;
}

static void test_all_reduce(comm *c)
{
    static const size_t sizes[] = {1, 7, 2048, 16384, 16385, 100003, (1 << 20) + 5};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t n = sizes[k];
        float *x, *want, *room;
        err e = {0};
        if (MEM_NEW(&x, n, &e) || MEM_NEW(&want, n, &e) || MEM_NEW(&room, n, &e)) abort();
        sum_in_order(want, room, n, c->size);
        bool good = true;
        for (int again = 0; again < 3; again++) {
            fill(x, n, c->rank);
            if (again == c->rank % 3) usleep(2000); /* who comes late changes nothing */
            good = good && comm_all_reduce(c, x, n, &e) == ST_OK && memcmp(x, want, n * sizeof *x) == 0;
        }
        ok(on_all_ranks(c, good), "the sum of %zu numbers is that in the order of ranks, bit for bit", n);
        mem_free(x), mem_free(want), mem_free(room);
    }
    err e = {0};
    is_ok(comm_all_reduce(c, NULL, 0, &e), &e, "a sum of nothing");
}

static void test_all_gather(comm *c)
{
    enum { BYTES = 1001 };
    unsigned char *out, in[BYTES];
    err e = {0};
    if (MEM_NEW(&out, (size_t)c->size * BYTES, &e)) abort();
    memset(in, c->rank + 1, BYTES);
    bool good = comm_all_gather(c, out, in, BYTES, &e) == ST_OK;
    for (int r = 0; r < c->size; r++)
        for (int i = 0; i < BYTES; i++) good = good && out[r * BYTES + i] == r + 1;
    ok(on_all_ranks(c, good), "all-gather: every rank has every rank's bytes in order");
    for (int r = 0; r < c->size; r++) memset(out + r * BYTES, r == c->rank ? 100 + r : 0, BYTES);
    good = comm_all_gather(c, out, out + c->rank * BYTES, BYTES, &e) == ST_OK;
    for (int r = 0; r < c->size; r++)
        for (int i = 0; i < BYTES; i++) good = good && out[r * BYTES + i] == 100 + r;
    ok(on_all_ranks(c, good), "all-gather in place");
    mem_free(out);
}

static void test_broadcast(comm *c)
{
    err e = {0};
    bool good = true;
    for (int root = 0; root < c->size; root++) {
        int64_t v[3] = {c->rank, 10 * c->rank, 100 * c->rank};
        good = good && comm_broadcast(c, v, sizeof v, root, &e) == ST_OK;
        good = good && v[0] == root && v[1] == 10 * root && v[2] == 100 * root;
    }
    ok(on_all_ranks(c, good), "broadcast from each rank");
    is_ok(comm_barrier(c, &e), &e, "barrier");
    ok(c->rank >= 0 && c->rank < c->size && c->local_rank < c->local_size && c->local_size <= c->size,
       "rank %d of %d, %d of %d on this machine", c->rank, c->size, c->local_rank, c->local_size);
}

/* The columns of every rank, at widths that they divide and others: [n][total] on all of them. */
static bool gathers(backend *be, size_t n, size_t total)
{
    size_t ranks = (size_t)backend_ranks(be), part = (total + ranks - 1) / ranks,
           first = part * (size_t)backend_rank(be);
    bool good = true;
    float *x;
    err e = {0};
    if (first > total - part) first = total - part;
    if (MEM_NEW(&x, n * total + ranks, &e)) abort();
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < part; k++) x[i * part + k] = (float)(1000 * i + first + k);
    be->ops->gather_columns(be, (buf){(unsigned char *)x}, n, part, total);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < total; k++) good = good && x[i * total + k] == (float)(1000 * i + k);
    mem_free(x);
    return good && be->fault.code == ST_OK;
}

static void test_ops(comm *c)
{
    static const size_t totals[] = {3, 4, 7, 10, 384};
    backend *be;
    err e = {0};
    bool good = backend_open(&be, &(backend_options){.device = "cpu", .n_threads = 1, .ranks = c}, &e) == ST_OK;
    if (!good) abort();
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++)
        for (size_t n = 1; n < 4; n++) good = gathers(be, n, totals[i]) && good;
    ok(on_all_ranks(c, good), "the op that gathers columns");
    float x[] = {1, (float)c->rank};
    be->ops->all_reduce(be, (buf){(unsigned char *)x}, 2);
    good = x[0] == (float)c->size && x[1] == (float)(c->size * (c->size - 1) / 2);
    ok(on_all_ranks(c, good), "the op that adds up");
    backend_close(be);
}

/* Ends ranks: exit codes, and one that fails alone while the others wait for it. */
static int end_by(comm *c, const char *how)
{
    err e = {0};
    if (strcmp(how, "fail") == 0) return comm_close(c, c->rank ? 0 : 3);
    bool alone = c->rank == c->size - 1;
    if (!alone) comm_barrier(c, &e);
    if (alone && strcmp(how, "die") == 0) abort();
    return comm_close(c, alone);
}

int main(int argc, char **argv)
{
    comm *c = NULL;
    err e = {0};
    int n = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0, rc;
    const char *end = argc > 1 ? argv[argc - 1] : "";
    status st = n ? comm_fork(&c, n, &rc, &e) : comm_open(&c, &e);
    if (n && !c) {
        if (e.msg[0]) fprintf(stderr, "%s\n", e.msg);
        return st == ST_OK ? rc : 1;
    }
    if (st != ST_OK) {
        is_ok(e.code, &e, "the ranks open");
        return tap_done();
    }
    if (c->rank && !freopen("/dev/null", "w", stdout)) return 1;
    if (strchr("fld", end[0]) && end[0]) return end_by(c, end);
    test_all_reduce(c);
    test_all_gather(c);
    test_broadcast(c);
    test_ops(c);
    return comm_close(c, tap_done());
}
