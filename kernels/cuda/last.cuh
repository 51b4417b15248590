/* SPDX-License-Identifier: MIT */
/* Joining the results of blocks of one launch: the block that finishes last continues with the output of all, and no
 * block waits. */
#ifndef KERNELS_CUDA_LAST_CUH
#define KERNELS_CUDA_LAST_CUH

#include "kernels/cuda/dev.cuh"

/* True in the last of `members` blocks that call it with this counter (from cuda_zeros), which is then 0 again. Writes
 * by any of their threads before the call are visible in that block. Called by whole blocks. */
static __device__ __forceinline__ bool is_last(int *count, int members)
{
    SHARED(int, before, [1]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        before[0] = members > 1 ? atomicAdd(count, 1) : 0;
        if (members > 1 && before[0] == members - 1) atomicExch(count, 0);
    }
    __syncthreads();
    __threadfence();
    return members <= 1 || before[0] == members - 1;
}

#endif
