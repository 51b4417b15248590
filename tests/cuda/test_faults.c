/* SPDX-License-Identifier: MIT */
/* Faults detected by the device: no such device, out of memory, an access outside its memory. test_shim_faults has
 * those that only the host's shim can produce. */
/* Builds: shim device */
#include "config.h"

#include "tests/cuda/cuda_util.h"

static void test_number(void)
{
    backend *be;
    err e = {0};
    const backend_options o = {.device = "cuda:1023"};
    is_err(backend_open(&be, &o, &e), &e, ST_USAGE,
           "--device cuda:1023: the last GPU of this machine is cuda:", "a number beyond the last");
}

static void test_room(backend *be)
{
    err e = {0};
    buf b, small;
    size_t have = be->ops->available(be);
    is_err(be->ops->alloc(be, &b, have + ((size_t)1 << 30), "rows", &e), &e, ST_NOMEM,
           "out of device memory: rows needs ", "more than is free");
    is_int((long long)be->fault.code, ST_OK, "and the backend still works");
    is_ok(be->ops->alloc(be, &small, 64, "x", &e), &e, "what fits");
    float x[16] = {1}, y[16] = {2};
    be->ops->upload(be, small, x, sizeof x);
    be->ops->download(be, y, small, sizeof y);
    ok(memcmp(x, y, sizeof x) == 0, "goes there and back");
    be->ops->free(be, small, 64);
}

/* On the shim, kernels share the host's memory, and such an access would end the program. */
static void test_access(backend *be)
{
#ifdef CUDA_SHIM
    (void)be;
    tap_skip("an access outside of the memory: only a device answers it");
#else
    err e = {0}, f = {0};
    buf far = {(unsigned char *)(uintptr_t)256}, b;
    float x[4] = {0};
    be->ops->add(be, far, far, 4);
    be->ops->sync(be);
    is_err(backend_fault(be, &e), &e, ST_DEVICE, "add", "an access outside of the memory names the op");
    be->ops->download(be, x, far, sizeof x);
    ok(x[0] == 0, "nothing is computed after it");
    is_err(be->ops->alloc(be, &b, 16, "more", &f), &f, ST_DEVICE, "add",
           "further work is refused, with the first fault");
#endif
}

int main(void)
{
    backend *be = open_cuda();
    if (!be) return 0;
    test_number();
    test_room(be);
    test_access(be);
    backend_close(be);
    return tap_done();
}
