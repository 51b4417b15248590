/* SPDX-License-Identifier: MIT */
/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: blocks of 32 elements with one scale. Byte i of the 4-bit codes holds element i in
 * its low half and element i + 16 in its high half. */
#include "config.h"

#include "model/encoding/encoding.h"

/* Decodes d * (code - offset); `fifth` has the fifth bit of each code. */
static void decode_32(const uint8_t *codes, uint32_t fifth, float d, int offset, float *out)
{
    for (int i = 0; i < 16; i++) {
        int low = (codes[i] & 15) | (int)(fifth >> i & 1) << 4;
        int high = codes[i] >> 4 | (int)(fifth >> (i + 16) & 1) << 4;
        out[i] = d * (float)(low - offset);
        out[i + 16] = d * (float)(high - offset);
    }
}

static void add_32(float m, float *out)
{
    for (int i = 0; i < 32; i++) out[i] += m;
}

void decode_q4_0(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 18, out += 32) decode_32(b + 2, 0, read_f16(b), 8, out);
}

void decode_q4_1(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 20, out += 32) {
        decode_32(b + 4, 0, read_f16(b), 0, out);
        add_32(read_f16(b + 2), out);
    }
}

void decode_q5_0(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 22, out += 32) decode_32(b + 6, read_u32(b + 2), read_f16(b), 16, out);
}

void decode_q5_1(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 24, out += 32) {
        decode_32(b + 8, read_u32(b + 4), read_f16(b), 0, out);
        add_32(read_f16(b + 2), out);
    }
}

void decode_q8_0(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 34, out += 32)
        for (int k = 0; k < 32; k++) out[k] = read_f16(b) * (float)(int8_t)b[2 + k];
}

/* ---- codes ---- */

static void nibbles(const uint8_t *b, uint8_t code[32])
{
    for (int i = 0; i < 16; i++) {
        code[i] = b[i] & 15;
        code[i + 16] = b[i] >> 4;
    }
}

bool codes_q4_0(const uint8_t *b, qblock_values *out)
{
    nibbles(b + 2, out->code);
    out->d = read_u16(b);
    return true;
}

bool codes_q4_1(const uint8_t *b, qblock_values *out)
{
    nibbles(b + 4, out->code);
    out->d = read_u16(b);
    out->m = read_u16(b + 2);
    return true;
}

bool codes_q5_0(const uint8_t *b, qblock_values *out)
{
    uint32_t fifth = read_u32(b + 2);
    for (int i = 0; i < 16; i++) {
        out->code[i] = (uint8_t)(112 + ((b[6 + i] & 15) | (fifth >> i & 1) << 4));
        out->code[i + 16] = (uint8_t)(112 + (b[6 + i] >> 4 | (fifth >> (i + 16) & 1) << 4));
    }
    out->d = read_u16(b);
    return true;
}

/* Code 0, for -128, is not allowed. */
bool codes_q8_0(const uint8_t *b, qblock_values *out)
{
    bool fits = true;
    for (int i = 0; i < 32; i++) {
        out->code[i] = (uint8_t)(128 + (int8_t)b[2 + i]);
        fits &= out->code[i] != 0;
    }
    out->d = read_u16(b);
    return fits;
}
