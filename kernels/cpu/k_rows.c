/* SPDX-License-Identifier: MIT */
/* K and V rows of any type; block rows have the bits of ref. */
#include "config.h"

#include <math.h>

#include "kernels/cpu/k.h"
#include "kernels/cpu/rows.h"

void LEVEL(k_hadamard)(float *x, size_t n)
{
    LEVEL(k_paris_rotate)(x, NULL, 1, (float)(1 / sqrt((double)n)), n);
}

INLINE void get_blocks(float *out, const unsigned char *in, const dtype t, size_t n)
{
    for (size_t c = 0; c < n; c += VF_LANES) vf_store(out + c, vf_load_block(in, c, t, n));
}

void LEVEL(k_get_row)(float *out, const unsigned char *in, dtype t, bool rotated, size_t n)
{
    if (t == DT_Q8) get_blocks(out, in, DT_Q8, n);
    else if (t == DT_Q4) get_blocks(out, in, DT_Q4, n);
    else LEVEL(k_widen)(out, in, t, n);
    if (rotated) LEVEL(k_hadamard)(out, n);
}

void LEVEL(k_put_row)(unsigned char *out, const float *in, dtype t, bool rotated, size_t n)
{
    float x[HEAD_DIM_MAX];
    if (!dtype_in_qblocks(t)) {
        LEVEL(k_narrow)(out, in, t, n);
        return;
    }
    memcpy(x, in, n * sizeof *x);
    if (rotated) LEVEL(k_hadamard)(x, n);
    for (size_t b = 0; b < n / ROW_BLOCK; b++) {
        int8_t code[ROW_BLOCK];
        unsigned char *to = out + row_code_bytes(t, b * ROW_BLOCK);
        uint16_t d = LEVEL(k_quantize_block)(code, x + b * ROW_BLOCK, t);
        for (size_t i = 0; i < ROW_BLOCK && t == DT_Q8; i++) to[i] = (uint8_t)(code[i] + 128);
        for (size_t i = 0; i < ROW_BLOCK / 2 && t == DT_Q4; i++)
            to[i] = (uint8_t)((code[2 * i] + 8) | (code[2 * i + 1] + 8) << 4);
        memcpy(out + row_code_bytes(t, n) + 2 * b, &d, sizeof d);
    }
}
