/* SPDX-License-Identifier: MIT */
/* Attention of one query per sequence over a store with quantized rows. */
#include "config.h"

#include "kernels/cuda/attn_pieces.cuh"

cudaError_t attn_decode_codes(backend *be, const decode_batch *b, const extents *x, dtype type)
{
    return decode<CODES>(be, b, x, type);
}
