/* SPDX-License-Identifier: MIT */
/* Attention of one query a sequence over rows in the host's memory, of which the device has some. */
#include "config.h"

#include "kernels/cuda/attn_pieces.cuh"

cudaError_t attn_decode_near(backend *be, const decode_batch *b, const extents *x, dtype type)
{
    return decode<NEAR>(be, b, x, type);
}
