/* SPDX-License-Identifier: MIT */
/* Weights in blocks, as ops_weights.h defines them. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/ops_weights.h"
#include "kernels/ref/ref.h"

/* ---- 32 weights to a scale and codes ---- */

static uint16_t scale_of(float d)
{
    return qblock_limit(f32_to_f16(d)); /* to nearest even */
}

/* The bits of the largest magnitude; 0x7f800000 and above: something is not finite. */
static int32_t largest_of(const float w[QBLOCK_COLS])
{
    int32_t most = 0;
    for (int c = 0; c < QBLOCK_COLS; c++) {
        int32_t u = (int32_t)(f32_to_bits(w[c]) & 0x7fffffff);
        most = u > most ? u : most;
    }
    return most;
}

/* Codes, not yet offset, for the scale d. */
static void round_all(float code[QBLOCK_COLS], const float w[QBLOCK_COLS], float d, float lo, float hi)
{
    float inverse = d < 0 || d > 0 ? 1 / d : 0;
    for (int c = 0; c < QBLOCK_COLS; c++) code[c] = nearbyintf(fminf(fmaxf(w[c] * inverse, lo), hi));
}

static float error_of(const float code[QBLOCK_COLS], const float w[QBLOCK_COLS], float d)
{
    float s[8] = {0};
    for (int c = 0; c < QBLOCK_COLS; c += 8)
        for (int l = 0; l < 8; l++) {
            float x = w[c + l] - d * code[c + l];
            s[l] = s[l] + x * x;
        }
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static uint16_t best_q4(float code[QBLOCK_COLS], const float w[QBLOCK_COLS], float largest)
{
    uint16_t best = 0;
    float least = 0, extreme = largest;
    for (int c = 0; c < QBLOCK_COLS; c++) extreme = w[c] <= -largest ? -largest : extreme;
    for (int i = 0; i < QBLOCK_TRIES; i++) {
        float tried[QBLOCK_COLS];
        uint16_t h = scale_of(-extreme / qblock_ends[i]);
        round_all(tried, w, f16_to_f32(h), -8, 7);
        float error = error_of(tried, w, f16_to_f32(h));
        if (i > 0 && !(error < least)) continue;
        least = error;
        best = h;
        memcpy(code, tried, sizeof tried);
    }
    return best;
}

static uint16_t best_q8(float code[QBLOCK_COLS], const float w[QBLOCK_COLS], float largest)
{
    uint16_t h = scale_of(largest / 127);
    if (h < QBLOCK_LARGEST && largest > 127.5f * f16_to_f32(h)) h++;
    round_all(code, w, f16_to_f32(h), -127, 127);
    return h;
}

uint16_t ref_quantize_block(uint8_t code[QBLOCK_COLS], const float w[QBLOCK_COLS], dtype t)
{
    float f[QBLOCK_COLS] = {0};
    uint16_t d = QBLOCK_NAN;
    int32_t largest = largest_of(w);
    if (largest < 0x7f800000) {
        float a = bits_to_f32((uint32_t)largest);
        d = t == DT_Q8 ? best_q8(f, w, a) : best_q4(f, w, a);
    }
    for (int c = 0; c < QBLOCK_COLS; c++) code[c] = (uint8_t)((int)f[c] + qblock_offset(t));
    return d;
}

/* ---- matrices ---- */

/* Block `b` of the group that row r is in. */
static unsigned char *block_of(buf p, dtype t, size_t cols, size_t r, size_t b)
{
    return p.p + r / QBLOCK_ROWS * qblock_group_bytes(t, cols) + b * qblock_bytes(t);
}

/* Where the code of column c of row r is in a block; Q4: of columns c and c + 16. */
static size_t code_at(size_t r, size_t c)
{
    return QBLOCK_SCALES + QBLOCK_LINE * (c / 4) + 4 * (r % QBLOCK_ROWS) + c % 4;
}

static void put_row(unsigned char *block, dtype t, size_t r, uint16_t d, const uint8_t code[QBLOCK_COLS])
{
    memcpy(block + 2 * (r % QBLOCK_ROWS), &d, 2);
    for (size_t c = 0; c < QBLOCK_COLS / (t == DT_Q8 ? 1 : 2); c++)
        block[code_at(r, c)] = (uint8_t)(t == DT_Q8 ? code[c] : code[c] | code[c + QBLOCK_COLS / 2] << 4);
}

void ref_quantize(backend *be, buf out, dtype type, weight w)
{
    for (size_t r = 0; r < qblock_groups(w.rows) * QBLOCK_ROWS; r++)
        for (size_t b = 0; b < qblock_count(w.cols); b++) {
            float v[QBLOCK_COLS] = {0};
            uint8_t code[QBLOCK_COLS];
            for (size_t c = 0; c < QBLOCK_COLS && b * QBLOCK_COLS + c < w.cols && r < w.rows; c++)
                v[c] = ref_get(w.p, w.type, r * w.cols + b * QBLOCK_COLS + c);
            uint16_t d = ref_quantize_block(code, v, type);
            put_row(block_of(out, type, w.cols, r, b), type, r, d, code);
        }
}

/* code - offset of the columns of block b of row r; the scale is returned. */
static float get_row(int code[QBLOCK_COLS], const weight *w, size_t r, size_t b)
{
    const unsigned char *block = block_of(w->p, w->type, w->cols, r, b);
    for (size_t c = 0; c < QBLOCK_COLS; c++) {
        bool high = w->type == DT_Q4 && c >= QBLOCK_COLS / 2;
        int u = block[code_at(r, high ? c - QBLOCK_COLS / 2 : c)];
        if (w->type == DT_Q4) u = high ? u >> 4 : u & 15;
        code[c] = u - qblock_offset(w->type);
    }
    return ref_get((buf){(unsigned char *)(uintptr_t)block}, DT_F16, r % QBLOCK_ROWS);
}

/* Block b of a row of x in 8 bits; the scale is returned. */
static float round_x(int code[QBLOCK_COLS], const float *x, size_t cols, size_t b)
{
    float most = 0;
    bool finite = true;
    size_t from = b * QBLOCK_COLS, n = cols - from < QBLOCK_COLS ? cols - from : QBLOCK_COLS;
    for (size_t c = 0; c < n; c++) {
        finite = finite && isfinite(x[from + c]);
        most = fmaxf(most, fabsf(x[from + c]));
    }
    float inverse = finite && most >= 0x1p-100f ? 127 / most : 0;
    for (size_t c = 0; c < QBLOCK_COLS; c++)
        code[c] = c < n && inverse > 0 ? (int)nearbyintf(x[from + c] * inverse) : 0;
    if (!finite) return NAN;
    return inverse > 0 ? most / 127 : 0;
}

/* One product, of x itself with `exact`. */
static double dot(const weight *w, size_t r, const float *x, bool exact)
{
    double sum = 0;
    int code[QBLOCK_COLS], xc[QBLOCK_COLS];
    for (size_t b = 0; b < qblock_count(w->cols); b++) {
        double d = (double)get_row(code, w, r, b), part = 0;
        if (exact) {
            for (size_t c = 0; c < QBLOCK_COLS && b * QBLOCK_COLS + c < w->cols; c++)
                part += code[c] * (double)x[b * QBLOCK_COLS + c];
        } else {
            d *= (double)round_x(xc, x, w->cols, b);
            for (size_t c = 0; c < QBLOCK_COLS; c++) part += code[c] * xc[c];
        }
        sum += d * part;
    }
    return sum;
}

void ref_linear_qblocks(const linear_job *j, const float *x, size_t n, bool exact)
{
    float *out = (float *)(void *)j->out.p;
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < j->w.rows; r++) {
            double bias = j->bias.p.p ? (double)ref_get(j->bias.p, j->bias.type, r) : 0;
            out[i * j->w.rows + r] = (float)(bias + dot(&j->w, r, x + i * j->w.cols, exact));
        }
}

void ref_convert(backend *be, buf out, dtype to, buf in, dtype from, size_t n)
{
    for (size_t i = 0; i < n; i++) ref_put(out, to, i, ref_get(in, from, i));
}
