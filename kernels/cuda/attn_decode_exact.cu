/* SPDX-License-Identifier: MIT */
/* Attention of one query per sequence over float rows in device memory. */
#include "config.h"

#include "kernels/cuda/attn_pieces.cuh"

cudaError_t attn_decode_exact(backend *be, const decode_batch *b, const extents *x, dtype type)
{
    return decode<EXACT>(be, b, x, type);
}
