/* SPDX-License-Identifier: MIT */
/* Dot products with quantized rows, in the order fixed by ops_select.h. Codes are widened to floats in registers, once
 * for a few query heads. */
#include "config.h"

#include <string.h>

#include "kernels/cpu/dots.h"
#include "kernels/cpu/k.h"

/* Loads codes [c, c + left) of a row, at most VF_LANES. */
INLINE VF row_codes(const bool full, const unsigned char *row, const int bits, size_t c, size_t left)
{
    const unsigned char *p = row + c * (size_t)bits / 8;
    unsigned char last[VF_LANES] = {0};
    if (full || left >= VF_LANES) return vf_codes(p, bits);
    memcpy(last, p, (left * (size_t)bits + 7) / 8);
    return vf_codes(last, bits);
}

/* Adds the products of channels [c, c + left), at most 16. full: exactly 16. */
INLINE void code_step(const bool full, const int heads, const int items, const int bits, const float *q,
                      size_t q_stride, const unsigned char *const *row, size_t c, size_t left, VF acc[VF_LANES])
{
    UNROLL for (int p = 0; p < PARTS; p++)
    {
        const size_t e = c + (size_t)p * VF_LANES, n = left - (size_t)p * VF_LANES;
        if (!full && left <= (size_t)p * VF_LANES) continue;
        UNROLL for (int i = 0; i < items; i++)
        {
            VF x = row_codes(full, row[i], bits, e, n);
            UNROLL for (int h = 0; h < heads; h++)
            {
                const float *qh = q + (size_t)h * q_stride + e;
                VF *a = &acc[p * DOTS + h * items + i];
                *a = vf_add(*a, vf_mul(full ? vf_load(qh) : vf_load_some(qh, n), x));
            }
        }
    }
}

/* Multiplies `heads` queries with `items` rows, heads * items <= DOTS; out[h * items + i]. */
INLINE void code_tile(const int heads, const int items, const int bits, const float *q, size_t q_stride, size_t d,
                      const unsigned char *const *row, float out[DOTS])
{
    VF acc[VF_LANES];
    size_t c = 0;
    UNROLL for (int i = 0; i < VF_LANES; i++) acc[i] = vf_zero();
    for (; c + 16 <= d; c += 16) code_step(true, heads, items, bits, q, q_stride, row, c, 16, acc);
    if (c < d) code_step(false, heads, items, bits, q, q_stride, row, c, d - c, acc);
    dots_sums(acc, out);
}

/* Multiplies n rows with `heads` query heads: out[h * stride + i]. */
INLINE void code_heads(const int heads, const int bits, const float *q, size_t q_stride, size_t d,
                       const unsigned char *code, size_t row_bytes, size_t n, float *out, size_t stride)
{
    enum { MOST = DOTS };
    const int items = DOTS / heads;
    for (size_t r = 0; r < n; r += (size_t)items) {
        const unsigned char *row[MOST];
        float sum[DOTS];
        for (size_t i = 0; i < (size_t)items; i++) row[i] = code + (r + i < n ? r + i : n - 1) * row_bytes;
        code_tile(heads, items, bits, q, q_stride, d, row, sum);
        for (int h = 0; h < heads; h++) dots_put(out + (size_t)h * stride + r, sum + h * items, items, n - r);
    }
}

/* Works in blocks of rows, so that rows are read from memory once. */
INLINE void code_rows(const int bits, float *out, size_t stride, const float *q, size_t q_stride, size_t heads,
                      size_t d, const unsigned char *code, size_t row_bytes, size_t n)
{
    enum { BLOCK = 64 };
    for (size_t r = 0; r < n; r += BLOCK) {
        size_t some = n - r < BLOCK ? n - r : BLOCK, h = 0;
        const unsigned char *rows = code + r * row_bytes;
        for (; DOTS >= 4 && h + 4 <= heads; h += 4)
            code_heads(DOTS >= 4 ? 4 : 1, bits, q + h * q_stride, q_stride, d, rows, row_bytes, some,
                       out + h * stride + r, stride);
        for (; h < heads; h++)
            code_heads(1, bits, q + h * q_stride, q_stride, d, rows, row_bytes, some, out + h * stride + r, stride);
    }
}

void LEVEL(k_code_dots)(float *out, size_t stride, const float *q, size_t q_stride, size_t heads, size_t d,
                        const unsigned char *code, size_t row_bytes, int bits, size_t n)
{
    if (bits == 2) code_rows(2, out, stride, q, q_stride, heads, d, code, row_bytes, n);
    else code_rows(4, out, stride, q, q_stride, heads, d, code, row_bytes, n);
}
