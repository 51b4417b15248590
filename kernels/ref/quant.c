/* SPDX-License-Identifier: MIT */
/* Weights in blocks (ops_weights.h). */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/ops_weights.h"
#include "kernels/ref/ref.h"

/* ---- quantizing 32 weights ---- */

static uint16_t scale_of(float d)
{
    return qblock_limit(f32_to_f16(d)); /* rounds to nearest even */
}

/* Returns the bits of the largest magnitude; 0x7f800000 and above if a weight is not finite. */
static int32_t largest_of(const float w[QBLOCK_COLS])
{
    int32_t most = 0;
    for (int c = 0; c < QBLOCK_COLS; c++) {
        int32_t u = (int32_t)(f32_to_bits(w[c]) & 0x7fffffff);
        most = u > most ? u : most;
    }
    return most;
}

/* Computes codes without their offset for the scale d. */
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

void ref_quantize(backend *be, buf out, dtype type, weight w)
{
    for (size_t r = 0; r < qblock_groups(w.rows) * QBLOCK_ROWS; r++)
        for (size_t b = 0; b < qblock_count(w.cols); b++) {
            float v[QBLOCK_COLS] = {0};
            qblock_values to = {0};
            for (size_t c = 0; c < QBLOCK_COLS && b * QBLOCK_COLS + c < w.cols && r < w.rows; c++)
                v[c] = ref_get(w.p, w.type, r * w.cols + b * QBLOCK_COLS + c);
            to.d = ref_quantize_block(to.code, v, type);
            qblock_put(qblock_at(out.p, type, w.cols, r, b), type, r, &to);
        }
}

/* Rounds n <= 32 elements of x to 8 bits; returns the scale. */
static float round_x(int code[QBLOCK_COLS], const float *x, size_t n)
{
    float most = 0;
    bool finite = true;
    for (size_t c = 0; c < n; c++) {
        finite = finite && isfinite(x[c]);
        most = fmaxf(most, fabsf(x[c]));
    }
    float inverse = finite && most >= 0x1p-100f ? 127 / most : 0;
    for (size_t c = 0; c < QBLOCK_COLS; c++) code[c] = c < n && inverse > 0 ? (int)nearbyintf(x[c] * inverse) : 0;
    if (!finite) return NAN;
    return inverse > 0 ? most / 127 : 0;
}

/* Multiplies 32 columns of a row with x itself. */
static double dot_exact(const qblock_part *p, bool minimum, const float *x, size_t n)
{
    double sum = 0;
    float w[QBLOCK_COLS];
    qblock_decode(w, p, minimum, n);
    for (size_t c = 0; c < n; c++) sum += (double)w[c] * (double)x[c];
    return sum;
}

/* Multiplies 32 columns of a row with x in 8 bits. */
static double dot_codes(const qblock_part *p, const int x[QBLOCK_COLS])
{
    double dot[2] = {0};
    int sum = 0;
    for (size_t c = 0; c < QBLOCK_COLS; c++) {
        dot[c / (QBLOCK_COLS / 2)] += (double)p->code[c] * x[c];
        sum += x[c];
    }
    return (double)p->scale[0] * dot[0] + (double)p->scale[1] * dot[1] + (double)p->minimum * sum;
}

/* Copies the n columns of x that columns [from, from + n) of w multiply. */
static void take_x(float *out, const weight *w, const float *x, size_t from, size_t n)
{
    const int32_t *order = (const int32_t *)(const void *)w->order.p;
    for (size_t c = 0; c < n; c++) out[c] = x[order ? (size_t)order[from + c] : from + c];
}

/* Computes one product; with `exact`, of x itself. */
static double dot(const weight *w, size_t r, const float *x, bool exact)
{
    const size_t parts = qblock_cols(w->type) / QBLOCK_COLS;
    double sum = 0;
    for (size_t b = 0; b < qblock_count(w->cols); b++) {
        size_t left = w->cols - b * QBLOCK_COLS, n = left < QBLOCK_COLS ? left : QBLOCK_COLS;
        qblock_part p;
        int code[QBLOCK_COLS];
        float part[QBLOCK_COLS];
        take_x(part, w, x, b * QBLOCK_COLS, n);
        qblock_get(&p, qblock_at(w->p.p, w->type, w->cols, r, b / parts), w->type, r, b % parts);
        if (exact) {
            sum += dot_exact(&p, qblock_kind_of(w->type).minimum, part, n);
        } else {
            float scale = round_x(code, part, n);
            sum += (double)scale * dot_codes(&p, code);
        }
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
