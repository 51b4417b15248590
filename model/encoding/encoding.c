/* SPDX-License-Identifier: MIT */
/* The table of encodings, and the unquantized ones. */
#include "config.h"

#include "model/encoding/encoding.h"

#include <string.h>

void decode_f32(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = read_u32(b + 4 * i);
        memcpy(&out[i], &bits, sizeof bits);
    }
}

void decode_f16(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) out[i] = read_f16(b + 2 * i);
}

void decode_bf16(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) out[i] = bf16_to_f32(read_u16(b + 2 * i));
}

typedef struct {
    gguf_type type;
    decode_fn *decode;
    dtype held;      /* type in memory */
    codes_fn *codes; /* conversion to it without loss */
} encoding;

static const encoding encodings[] = {
    {GGUF_F32, decode_f32, DT_Q8, NULL},          {GGUF_F16, decode_f16, DT_Q8, NULL},
    {GGUF_BF16, decode_bf16, DT_Q8, NULL},        {GGUF_Q4_0, decode_q4_0, DT_Q4, codes_q4_0},
    {GGUF_Q4_1, decode_q4_1, DT_Q4Z, codes_q4_1}, {GGUF_Q5_0, decode_q5_0, DT_Q8, codes_q5_0},
    {GGUF_Q5_1, decode_q5_1, DT_Q8, NULL},        {GGUF_Q8_0, decode_q8_0, DT_Q8, codes_q8_0},
    {GGUF_Q2_K, decode_q2_k, DT_Q8, NULL},        {GGUF_Q3_K, decode_q3_k, DT_Q8, NULL},
    {GGUF_Q4_K, decode_q4_k, DT_Q4K, codes_q4_k}, {GGUF_Q5_K, decode_q5_k, DT_Q5K, codes_q5_k},
    {GGUF_Q6_K, decode_q6_k, DT_Q6K, codes_q6_k}, {GGUF_IQ4_NL, decode_iq4_nl, DT_Q8, codes_iq4_nl},
    {GGUF_IQ4_XS, decode_iq4_xs, DT_Q8, NULL},    {GGUF_MXFP4, decode_mxfp4, DT_Q8, codes_mxfp4},
    {GGUF_NVFP4, decode_nvfp4, DT_Q8, NULL},
};

/* Returns the row of an encoding; all have one. */
static const encoding *find(gguf_type type)
{
    const encoding *x = encodings;
    while (x->type != type) x++;
    return x;
}

decode_fn *encoding_decoder(gguf_type type)
{
    return find(type)->decode;
}

dtype encoding_converted(gguf_type type, unsigned types)
{
    dtype held = find(type)->held;
    return types >> held & 1 ? held : DT_Q8;
}

codes_fn *encoding_codes(gguf_type type, dtype t)
{
    return find(type)->held == t ? find(type)->codes : NULL;
}
