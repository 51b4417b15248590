/* SPDX-License-Identifier: MIT */
/* Blocks of a launch that put something together: the one that is done last goes on with what all have written, and
 * nobody waits. */
#ifndef KERNELS_CUDA_LAST_CUH
#define KERNELS_CUDA_LAST_CUH

#include "kernels/cuda/dev.cuh"

/* True in the last of `members` blocks that call it with this count (cuda_zeros), which then is 0 again: what any of
 * their threads wrote before may be read. For whole blocks. */
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
