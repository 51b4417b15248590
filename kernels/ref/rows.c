/* SPDX-License-Identifier: MIT */
/* K and V rows in blocks (ops_rows.h). */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/ref/ref.h"

void ref_hadamard(float *x, size_t n)
{
    for (size_t span = 1; span < n; span *= 2)
        for (size_t i = 0; i < n; i++) {
            if (i & span) continue;
            float a = x[i], b = x[i + span];
            x[i] = a + b;
            x[i + span] = a - b;
        }
    float by = (float)(1 / sqrt((double)n));
    for (size_t i = 0; i < n; i++) x[i] *= by;
}

void ref_put_row(unsigned char *at, dtype t, bool rotated, const float *x, size_t n)
{
    float row[256];
    if (!dtype_in_qblocks(t)) {
        for (size_t i = 0; i < n; i++) ref_put((buf){at}, t, i, x[i]);
        return;
    }
    memcpy(row, x, n * sizeof *row);
    if (rotated) ref_hadamard(row, n);
    for (size_t b = 0; b < n / ROW_BLOCK; b++) {
        uint8_t code[ROW_BLOCK];
        unsigned char *to = at + row_code_bytes(t, b * ROW_BLOCK);
        uint16_t d = ref_quantize_block(code, row + b * ROW_BLOCK, t);
        for (size_t i = 0; i < ROW_BLOCK && t == DT_Q8; i++) to[i] = code[i];
        for (size_t i = 0; i < ROW_BLOCK / 2 && t == DT_Q4; i++) to[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
        memcpy(at + row_code_bytes(t, n) + 2 * b, &d, sizeof d);
    }
}

void ref_get_row(float *x, const unsigned char *at, dtype t, bool rotated, size_t n)
{
    buf b = {(unsigned char *)(uintptr_t)at};
    if (!dtype_in_qblocks(t)) {
        ref_floats(x, b, t, 0, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        int code = t == DT_Q8 ? at[i] : at[i / 2] >> i % 2 * 4 & 15;
        x[i] = ref_get(buf_at(b, row_code_bytes(t, n)), DT_F16, i / ROW_BLOCK) * (float)(code - qblock_offset(t));
    }
    if (rotated) ref_hadamard(x, n);
}

void ref_codes_round(backend *be, buf out, buf in, const kv_rows *rows, bool value, size_t n)
{
    unsigned char row[256 * sizeof(float)];
    bool rotated = rows->rotated & (value ? KV_ROTATED_V : KV_ROTATED_K);
    for (size_t i = 0; i < n * rows->n_kv_heads; i++) {
        ref_put_row(row, rows->type, rotated, f32_at(in, i * rows->head_dim), rows->head_dim);
        ref_get_row(f32_at(out, i * rows->head_dim), row, rows->type, rotated, rows->head_dim);
    }
}
