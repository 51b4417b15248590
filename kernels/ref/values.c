/* SPDX-License-Identifier: MIT */
/* Elements of buffers of any type. */
#include "config.h"

#include <string.h>

#include "kernels/half.h"
#include "kernels/ref/ref.h"

float ref_get(buf b, dtype t, size_t i)
{
    uint16_t h;
    float f;
    if (t == DT_F32) {
        memcpy(&f, b.p + 4 * i, 4);
        return f;
    }
    memcpy(&h, b.p + 2 * i, 2);
    return t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

void ref_floats(float *out, buf b, dtype t, size_t at, size_t n)
{
    uint16_t h;
    if (t == DT_F32) memcpy(out, b.p + 4 * at, 4 * n);
    else if (t == DT_F16) {
        for (size_t i = 0; i < n; i++) memcpy(&h, b.p + 2 * (at + i), 2), out[i] = f16_to_f32(h);
    } else {
        for (size_t i = 0; i < n; i++) memcpy(&h, b.p + 2 * (at + i), 2), out[i] = bf16_to_f32(h);
    }
}

void ref_put(buf b, dtype t, size_t i, float x)
{
    if (t == DT_F32) {
        memcpy(b.p + 4 * i, &x, 4);
        return;
    }
    uint16_t h = t == DT_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    memcpy(b.p + 2 * i, &h, 2);
}

void ref_round_row(float *out, buf in, size_t r, size_t n, dtype t)
{
    for (size_t c = 0; c < n; c++) {
        float x = ref_get(in, DT_F32, r * n + c);
        buf b = {(unsigned char *)&x};
        ref_put(b, t, 0, x);
        out[c] = ref_get(b, t, 0);
    }
}
