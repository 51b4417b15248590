/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/base/reader_impl.h"

static status no_uring(void **out, int depth, err *e)
{
    (void)out;
    (void)depth;
    return err_set(e, ST_UNSUPPORTED, "io_uring: built without liburing");
}

const read_way read_uring = {.kind = "io_uring", .open = no_uring};
