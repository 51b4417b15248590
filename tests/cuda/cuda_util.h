/* SPDX-License-Identifier: MIT */
/* Runs an op of the cuda backend and of ref on the same data. On the shim each case runs in several orders of threads,
 * which must give the same bytes and no race; on a device it runs twice. */
#ifndef TESTS_CUDA_CUDA_UTIL_H
#define TESTS_CUDA_CUDA_UTIL_H

#include "tests/unit/ops_util.h"
#ifdef CUDA_SHIM
#include "tests/cushim/shim.h"
#endif

enum { MOST_BUFS = 32 };

/* Device copies of host arrays, in the order of `put`. */
typedef struct {
    backend *be;
    buf b[MOST_BUFS];
    size_t bytes[MOST_BUFS];
    int n;
} device;

static UNUSED_OK buf put(device *d, const void *host, size_t bytes)
{
    err e = {0};
    buf b;
    if (!host) return (buf){NULL};
    if (d->n == MOST_BUFS || d->be->ops->alloc(d->be, &b, bytes, "test", &e) != ST_OK) {
        printf("Bail out! %s\n", e.msg);
        exit(1);
    }
    d->be->ops->upload(d->be, b, host, bytes);
    d->b[d->n] = b;
    d->bytes[d->n++] = bytes;
    return b;
}

static UNUSED_OK void drop(device *d)
{
    while (d->n > 0) {
        d->n--;
        d->be->ops->free(d->be, d->b[d->n], d->bytes[d->n]);
    }
}

static UNUSED_OK backend *open_cuda(void)
{
    backend *be;
    err e = {0};
    backend_options o = {.device = "cuda"};
    if (backend_open(&be, &o, &e) == ST_OK) return be;
    tap_skip_all("%s", e.msg);
    return NULL;
}

static UNUSED_OK int n_orders(void)
{
#ifdef CUDA_SHIM
    return shim_sees_races() ? 1 : 2; /* a race shows in any order */
#else
    return 2;
#endif
}

static UNUSED_OK void set_order(int i)
{
#ifdef CUDA_SHIM
    shim_seed((uint64_t)i * 77);
#else
    (void)i;
#endif
}

static UNUSED_OK const char *where(void)
{
#ifdef CUDA_SHIM
    return shim_sees_races() ? "race build" : "shim";
#else
    return "cuda";
#endif
}

/* Final checks of a program. */
static UNUSED_OK void check_end(backend *be)
{
    err e = {0};
    is_ok(backend_fault(be, &e), &e, "%s, no fault", where());
#ifdef CUDA_SHIM
    is_int(shim_races(), 0, "%s, no race", where());
    backend_close(be);
    is_int((long long)shim_held(), 0, "%s, all device memory was given back", where());
#else
    backend_close(be);
#endif
}

#endif
