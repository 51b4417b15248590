/* SPDX-License-Identifier: MIT */
/* Communication between ranks (ops.h), on the backend's stream. */
#include "config.h"

#include "kernels/cuda/cuda.cuh"

static void keep_fault(backend *be, const char *op, const char *why)
{
    if (why) err_set(&be->fault, ST_DEVICE, "%s: %s: NCCL: %s", be->name, op, why);
}

void cuda_sum(backend *be, float *x, size_t n)
{
    if (cuda_of(be)->nccl && be->fault.code == ST_OK)
        keep_fault(be, cuda_of(be)->last, cuda_nccl_sum(cuda_of(be)->nccl, x, n));
}

void cuda_all_reduce(backend *be, buf x, size_t n)
{
    if (cuda_begin(be, "all_reduce")) cuda_sum(be, ptr<float>(x), n);
}

void cuda_gather_columns(backend *be, buf x, size_t n, size_t part, size_t total)
{
    size_t ranks = (size_t)backend_ranks(be), f = sizeof(float);
    if (!cuda_of(be)->nccl || !cuda_begin(be, "gather_columns")) return;
    float *all = (float *)cuda_room(be, &cuda_of(be)->gathered, ranks * n * part, f, "columns of all ranks");
    if (!all) return;
    keep_fault(be, "gather_columns", cuda_nccl_gather(cuda_of(be)->nccl, all, ptr<float>(x), n * part));
    for (size_t r = 0; r < ranks && be->fault.code == ST_OK; r++) {
        size_t first = r * part < total - part ? r * part : total - part;
        for (size_t i = 0; i < n; i++)
            cuda_check(be,
                       cudaMemcpyAsync(ptr<float>(x) + i * total + first, all + (r * n + i) * part, part * f,
                                       cudaMemcpyDeviceToDevice, cuda_stream(be)),
                       "gather_columns [%zu, %zu] of %zu", n, part, total);
    }
}
