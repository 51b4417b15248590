/* SPDX-License-Identifier: MIT */
/* Finding a CUDA device. The operations themselves are not there yet. */
#include "config.h"

#include <cuda_runtime.h>

#include "kernels/backend.h"

extern "C" status backend_cuda_init(backend *be, int index, err *e) noexcept
{
    (void)be;
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n == 0)
        return err_set(e, ST_DEVICE, "--device cuda: no usable GPU: %s",
                       rc == cudaSuccess ? "no device found" : cudaGetErrorString(rc));
    if (index >= n)
        return err_set(e, ST_USAGE, "--device cuda:%d: there are %d GPUs, numbered from 0", index, n);
    return err_set(e, ST_UNSUPPORTED, "--device cuda: %d GPU found, but this version computes on the CPU only", n);
}
