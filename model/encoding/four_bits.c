/* SPDX-License-Identifier: MIT */
/* IQ4_NL, IQ4_XS, MXFP4, NVFP4: 4-bit codes that index a table of values. Of n codes in n / 2 bytes, byte i holds
 * code i in its low half and code i + n / 2 in its high half. */
#include "config.h"

#include "model/encoding/encoding.h"

#include <math.h>

static const float iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

static void look_up(const uint8_t *codes, int n, const float table[16], float scale, float *out)
{
    for (int i = 0; i < n / 2; i++) {
        out[i] = scale * table[codes[i] & 15];
        out[i + n / 2] = scale * table[codes[i] >> 4];
    }
}

void decode_iq4_nl(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 18, out += 32) look_up(b + 2, 32, iq4, read_f16(b), out);
}

void decode_iq4_xs(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 136, out += 256) {
        float d = read_f16(b);
        for (int j = 0; j < 8; j++) {
            int low = b[4 + j / 2] >> (j % 2 * 4) & 15, high = read_u16(b + 2) >> (2 * j) & 3;
            look_up(b + 8 + 16 * j, 32, iq4, d * (float)((low | high << 4) - 32), out + 32 * j);
        }
    }
}

void decode_mxfp4(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 17, out += 32)
        look_up(b + 1, 32, e2m1, b[0] == 255 ? NAN : ldexpf(1, b[0] - 127), out);
}

/* Returns an unsigned E4M3 number: 4 bits of exponent (bias 7), 3 of mantissa; 127 is NaN. */
static float ue4m3(int c)
{
    int exponent = c >> 3 & 15, mantissa = c & 7;
    if ((c & 127) == 127) return NAN;
    return exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
}

void decode_nvfp4(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++, b += 36, out += 64)
        for (int j = 0; j < 4; j++) look_up(b + 4 + 8 * j, 16, e2m1, ue4m3(b[j]), out + 16 * j);
}

/* ---- codes ---- */

bool codes_iq4_nl(const uint8_t *b, qblock_values *out)
{
    for (int i = 0; i < 16; i++) {
        out->code[i] = (uint8_t)(128 + (int)iq4[b[2 + i] & 15]);
        out->code[i + 16] = (uint8_t)(128 + (int)iq4[b[2 + i] >> 4]);
    }
    out->d = read_u16(b);
    return true;
}

/* Twice the values of e2m1 are integers; half of 2^(b[0] - 127) must be an f16 number. */
bool codes_mxfp4(const uint8_t *b, qblock_values *out)
{
    for (int i = 0; i < 16; i++) {
        out->code[i] = (uint8_t)(128 + (int)(2 * e2m1[b[1 + i] & 15]));
        out->code[i + 16] = (uint8_t)(128 + (int)(2 * e2m1[b[1 + i] >> 4]));
    }
    if (b[0] < 104 || b[0] > 143) return false;
    out->d = f32_to_f16(ldexpf(1, b[0] - 128));
    return true;
}
