/* SPDX-License-Identifier: MIT */
/* Attention of one query per sequence over rows in host memory, of which the device has copies. */
#include "config.h"

#include "kernels/cuda/attn_pieces.cuh"

cudaError_t attn_decode_near(backend *be, const decode_batch *b, const extents *x, dtype type)
{
    return decode<NEAR>(be, b, x, type);
}
