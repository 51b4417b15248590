/* SPDX-License-Identifier: MIT */
/* Q2_K to Q6_K: blocks of 256 elements with one or two f16 scales, and a scale (and a minimum) for each 16 or 32. */
#include "config.h"

#include "model/encoding/encoding.h"

#include <string.h>

void decode_q2_k(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 84, out += 256) {
        float d = read_f16(b + 80), dmin = read_f16(b + 82);
        for (int k = 0; k < 256; k++) {
            int code = b[16 + k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3, s = b[k / 16];
            out[k] = d * (float)(s & 15) * (float)code - dmin * (float)(s >> 4);
        }
    }
}

/* Returns the 6-bit scale of 16 elements: four low bits in 8 bytes, two high bits in 4. */
static int scale_q3(const uint8_t *s, int k)
{
    int low = k < 8 ? s[k] & 15 : s[k - 8] >> 4, high = s[8 + k % 4] >> (k / 4 * 2) & 3;
    return (low | high << 4) - 32;
}

void decode_q3_k(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 110, out += 256) {
        float d = read_f16(b + 108);
        for (int k = 0; k < 256; k++) {
            int code = b[32 + k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
            if (!(b[k % 32] >> (k / 32) & 1)) code -= 4;
            out[k] = d * (float)scale_q3(b + 96, k / 16) * (float)code;
        }
    }
}

/* Unpacks the 6-bit scale and minimum of sub-block j from 12 bytes. */
static void scales_q4(const uint8_t *s, int j, int *scale, int *min)
{
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    *min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
}

/* Decodes 256 elements of Q4_K, or of Q5_K if `fifth` has the fifth bits of their codes. */
static void decode_256(const uint8_t *b, const uint8_t *fifth, const uint8_t *codes, float *out)
{
    float d = read_f16(b), dmin = read_f16(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        scales_q4(b + 4, j, &scale, &min);
        for (int l = 0; l < 32; l++) {
            int code = codes[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
            if (fifth) code |= (fifth[l] >> j & 1) << 4;
            out[32 * j + l] = d * (float)scale * (float)code - dmin * (float)min;
        }
    }
}

void decode_q4_k(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 144, out += 256) decode_256(b, NULL, b + 16, out);
}

void decode_q5_k(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 176, out += 256) decode_256(b, b + 16, b + 48, out);
}

/* Returns the code of element k of a block of Q6_K. */
static int code_q6(const uint8_t *b, int k)
{
    int half = k / 128, quarter = k / 32 % 4, l = k % 32;
    int low = b[64 * half + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
    int high = b[128 + 32 * half + l] >> (2 * quarter) & 3;
    return low | high << 4;
}

void decode_q6_k(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 210, out += 256) {
        float d = read_f16(b + 208);
        for (int k = 0; k < 256; k++) out[k] = d * (float)(int8_t)b[192 + k / 16] * (float)(code_q6(b, k) - 32);
    }
}

/* ---- codes ---- */

/* Unpacks a block of Q4_K, or of Q5_K if `fifth` has the fifth bits of its codes. */
static void codes_256(const uint8_t *b, const uint8_t *fifth, const uint8_t *codes, qblock_values *out)
{
    out->d = read_u16(b);
    out->m = read_u16(b + 2) ^ 0x8000;
    for (int j = 0; j < 8; j++) {
        int scale, min;
        scales_q4(b + 4, j, &scale, &min);
        out->s[j] = (int8_t)scale;
        out->t[j] = (int8_t)min;
        for (int l = 0; l < 32; l++) {
            int code = codes[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
            out->code[32 * j + l] = (uint8_t)(fifth ? code | (fifth[l] >> j & 1) << 4 : code);
        }
    }
}

bool codes_q4_k(const uint8_t *b, qblock_values *out)
{
    codes_256(b, NULL, b + 16, out);
    return true;
}

bool codes_q5_k(const uint8_t *b, qblock_values *out)
{
    codes_256(b, b + 16, b + 48, out);
    return true;
}

bool codes_q6_k(const uint8_t *b, qblock_values *out)
{
    out->d = read_u16(b + 208);
    memcpy(out->s, b + 192, 16);
    for (int k = 0; k < 256; k++) out->code[k] = (uint8_t)code_q6(b, k);
    return true;
}
