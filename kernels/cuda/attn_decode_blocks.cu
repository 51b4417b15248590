/* SPDX-License-Identifier: MIT */
/* Attention of one query per sequence over block rows (ops_rows.h). */
#include "config.h"

#include "kernels/cuda/attn_pieces.cuh"

cudaError_t attn_decode_blocks(backend *be, const decode_batch *b, const extents *x, dtype type)
{
    return decode_in_blocks<EXACT>(be, b, x, type);
}

cudaError_t attn_decode_near_blocks(backend *be, const decode_batch *b, const extents *x, dtype type)
{
    return decode_in_blocks<NEAR>(be, b, x, type);
}
