/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/backend.h"

status backend_cuda_init(backend *be, int index, err *e)
{
    (void)be;
    (void)index;
    return err_set(e, ST_UNSUPPORTED,
                   "--device cuda: built without CUDA support; run configure --with-cuda to see why");
}
