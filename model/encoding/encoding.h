/* SPDX-License-Identifier: MIT */
/* Encodings of matrices in GGUF files: a row is a list of blocks, each of which decodes on its own. */
#ifndef MODEL_ENCODING_H
#define MODEL_ENCODING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/gguf.h"
#include "kernels/half.h"
#include "kernels/ops_weights.h"

/* Decodes n blocks to float32. All products are exact, and a sum is rounded once, so that every order of the
 * operations gives these bits. Source: ggml, ggml-common.h and ggml-quants.c (dequantize_row_*). */
typedef void decode_fn(const uint8_t *blocks, size_t n, float *out);

/* Returns the decoder of an encoding. */
decode_fn *encoding_decoder(gguf_type type);
/* Returns the type that matrices of an encoding are converted to: the one that holds its numbers if the backend
 * multiplies it, else DT_Q8. types: qblocks of backend_ops. */
dtype encoding_converted(gguf_type type, unsigned types);

/* Converts a block to the numbers of a block of another type (ops_weights.h) without loss. False if that type cannot
 * hold them. */
typedef bool codes_fn(const uint8_t *block, qblock_values *out);
/* Returns the function that converts blocks of an encoding to type t; NULL: conversion loses bits. */
codes_fn *encoding_codes(gguf_type type, dtype t);
codes_fn codes_q4_0, codes_q4_1, codes_q5_0, codes_q8_0, codes_q4_k, codes_q5_k, codes_q6_k, codes_iq4_nl, codes_mxfp4;

decode_fn decode_f32, decode_f16, decode_bf16;
decode_fn decode_q4_0, decode_q4_1, decode_q5_0, decode_q5_1, decode_q8_0;
decode_fn decode_q2_k, decode_q3_k, decode_q4_k, decode_q5_k, decode_q6_k;
decode_fn decode_iq4_nl, decode_iq4_xs, decode_mxfp4, decode_nvfp4;

/* Read numbers that need not be aligned. */
static inline uint16_t read_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t read_u32(const uint8_t *p)
{
    return read_u16(p) | (uint32_t)read_u16(p + 2) << 16;
}

static inline float read_f16(const uint8_t *p)
{
    return f16_to_f32(read_u16(p));
}

#endif
