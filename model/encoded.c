/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/encoded.h"

#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/draw.h"
#include "kernels/host.h"

void encoded_close(encoded_work *k)
{
    mem_free(k->row);
    mem_free(k->part);
    mem_free(k->out);
    *k = (encoded_work){0};
}

status encoded_open(encoded_work *k, size_t cols, size_t all_cols, err *e)
{
    size_t padded = qblock_count(cols) * QBLOCK_COLS, bytes;
    *k = (encoded_work){0};
    status st = size_mul(&bytes, ENCODED_ROWS * sizeof(float), padded, "decoded rows", e);
    if (st == ST_OK) st = MEM_NEW(&k->row, all_cols, e);
    if (st == ST_OK) st = mem_alloc((void **)&k->part, bytes, 1, "decoded rows", e);
    if (st == ST_OK) st = mem_alloc((void **)&k->out, bytes, 1, "converted rows", e);
    if (st != ST_OK) encoded_close(k);
    return st;
}

/* ---- without loss ---- */

/* Converts the numbers of all blocks of rows; false if one of them does not fit the type. */
static bool repack(const weight_spec *w, const source_tensor *f, dtype t, size_t at, size_t n, unsigned char *to,
                   bool *nonfinite)
{
    codes_fn *codes = encoding_codes(f->encoding->type, t);
    size_t first = w->first_col / qblock_cols(t), blocks = w->cols / qblock_cols(t), bytes;
    qblock_values v = {0};
    memset(to, 0, weight_bytes(t, n, w->cols));
    for (size_t r = 0; r < n; r++) {
        const uint8_t *row = tensor_row(f, w->first_row + at + r, &bytes) + first * f->encoding->bytes;
        for (size_t b = 0; b < blocks; b++) {
            if (!codes(row + b * f->encoding->bytes, &v)) return false;
            if ((v.d & 0x7c00) == 0x7c00 || (v.m & 0x7c00) == 0x7c00) *nonfinite = true;
            qblock_put(qblock_at(to, t, w->cols, r, b), t, r, &v);
        }
    }
    return true;
}

/* Like repack, of a matrix in codes with scales of their own. */
static bool repack_packed(const weight_spec *w, const source_tensor *f, dtype t, size_t at, size_t n, unsigned char *to,
                          bool *nonfinite)
{
    const size_t cols = qblock_cols(t), blocks = (w->cols + cols - 1) / cols;
    qblock_values v = {0};
    memset(to, 0, weight_bytes(t, n, w->cols));
    for (size_t r = 0; r < n; r++)
        for (size_t b = 0; b < blocks; b++) {
            size_t row = f->before + w->first_row + at + r;
            if (!packed_values(f->packed, t, row, w->first_col + b * cols, &v, nonfinite)) return false;
            qblock_put(qblock_at(to, t, w->cols, r, b), t, r, &v);
        }
    return true;
}

/* ---- by way of float32 ---- */

static void decode_rows(encoded_work *k, const weight_spec *w, const source_tensor *f, size_t at, size_t n)
{
    size_t bytes;
    for (size_t r = 0; r < n; r++) {
        float *part = k->part + r * w->cols;
        if (f->packed) {
            packed_decode(f->packed, f->before + w->first_row + at + r, w->first_col, w->cols, part);
            continue;
        }
        if (!f->encoding) {
            tensor_copy(f, w->first_row + at + r, w->first_col, w->cols, k->row);
            host_widen(part, k->row, f->element, w->cols);
            continue;
        }
        const uint8_t *row = tensor_row(f, w->first_row + at + r, &bytes);
        decode_fn *decode = encoding_decoder(f->encoding->type);
        decode(row, bytes / f->encoding->bytes, k->row);
        memcpy(part, k->row + w->first_col, w->cols * sizeof(float));
    }
}

/* Returns the larger of a magnitude so far and |x|. */
static inline float larger(float most, float x)
{
    float a = fabsf(x);
    return a > most ? a : most;
}

/* Compares n decoded rows with their blocks. Returns the largest error. */
static float measure_error(const encoded_work *k, dtype t, size_t n, size_t cols, unsigned char *blocks)
{
    const weight held = {{blocks}, t, n, cols, {NULL}};
    float largest = 0;
    for (size_t r = 0; r < n; r++) {
        host_unpack(k->row, &held, r);
        for (size_t c = 0; c < cols; c += QBLOCK_COLS) {
            const float *x = k->part + r * cols + c, *y = k->row + c;
            size_t left = cols - c < QBLOCK_COLS ? cols - c : QBLOCK_COLS;
            float most = 0, error = 0;
            for (size_t i = 0; i < left; i++) most = larger(most, x[i]);
            for (size_t i = 0; i < left; i++) error = larger(error, x[i] - y[i]);
            if (error > largest * most) largest = error / most;
        }
    }
    return largest;
}

void encoded_convert(encoded_work *k, const weight_spec *w, const source_tensor *from, dtype t, size_t at, size_t n,
                     unsigned char *to)
{
    const gguf_encoding *x = from->encoding;
    if (from->packed && dtype_in_qblocks(t) && w->first_col % qblock_cols(t) == 0 &&
        repack_packed(w, from, t, at, n, to, &k->loss.nonfinite))
        return;
    bool same = x && encoding_codes(x->type, t) && w->first_col % qblock_cols(t) == 0;
    if (same && repack(w, from, t, at, n, to, &k->loss.nonfinite)) return;
    decode_rows(k, w, from, at, n);
    host_narrow(to, t, k->part, n, w->cols);
    if (!tensor_is_encoded(from)) return;
    k->loss.nonfinite |= !draw_finite(k->part, n * w->cols);
    float error = dtype_in_qblocks(t) ? measure_error(k, t, n, w->cols, to) : 0;
    if (error > k->loss.error) k->loss.error = error;
}
