/* SPDX-License-Identifier: MIT */
/* Dot products of query heads with rows, in the order fixed by ops_select.h: no fma, 16 partial sums, so that the bits
 * do not depend on the level. PARTS vectors hold the partial sums of one product. A tile has DOTS products, whose sums
 * come from one transposition. */
#ifndef KERNELS_CPU_DOTS_H
#define KERNELS_CPU_DOTS_H

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

enum { PARTS = 16 / VF_LANES, DOTS = VF_LANES / PARTS };

/* Sums parts: acc[p * DOTS + i] is part p of product i. Parts did not start at zero, which could only have turned a -0
 * into 0, so zero is added last. */
INLINE void dots_sums(const VF acc[VF_LANES], float out[DOTS])
{
    float s[VF_LANES];
    vf_store(s, vf_add(vf_sum_each(acc), vf_zero()));
#if CPU_LEVEL == 0
    out[0] = (s[0] + s[1]) + (s[2] + s[3]); /* four partial sums of one product */
#else
    for (int i = 0; i < DOTS; i++) out[i] = PARTS == 1 ? s[i] : s[i] + s[(DOTS + i) % VF_LANES];
#endif
}

/* Prefetch distance in bytes. The hardware follows a stream only within a page, and a row is read faster than memory
 * responds. */
enum { DOTS_AHEAD = 4096, DOTS_LINE = 64 };

/* Prefetches the lines ahead of 16 channels from c on, each line once. */
INLINE void dots_prefetch(const bool bound, const dtype t, size_t d, const unsigned char *row, size_t c)
{
    const size_t bytes = dtype_in_qblocks(t) ? 1 : dtype_size(t);
    const size_t at = DOTS_AHEAD + (dtype_in_qblocks(t) ? row_code_bytes(t, c) : c * bytes);
    if (bytes < 4 && c % (DOTS_LINE / bytes)) return;
    prefetch(row + at);
    if (bound) prefetch(row + at + d * bytes);
}

/* Loads elements [c, c + VF_LANES) of a row of d elements, n of which exist. full: all exist. */
INLINE VF dots_load(const bool full, const dtype t, const void *row, size_t c, size_t d, size_t n)
{
    if (dtype_in_qblocks(t)) return vf_load_block(row, c, t, d); /* d is a multiple of a block */
    return full ? vf_load_as(row, c, t) : vf_load_some_as(row, c, t, n);
}

/* Adds the products of channels [c, c + left), at most 16. full: exactly 16. first: overwrites the sums. */
INLINE void dots_step(const bool full, const bool first, const int heads, const int items, const bool bound,
                      const dtype t, const float *q, size_t d, const void *const *row, size_t c, size_t left,
                      VF acc[VF_LANES])
{
    UNROLL for (int p = 0; p < PARTS; p++)
    {
        const size_t e = c + (size_t)p * VF_LANES, n = left - (size_t)p * VF_LANES;
        if (!full && left <= (size_t)p * VF_LANES) continue;
        UNROLL for (int i = 0; i < items; i++)
        {
            VF top = dots_load(full, t, row[i], e, d, n), low = top;
            if (bound) low = dots_load(full, t, row[i], d + e, d, n);
            UNROLL for (int h = 0; h < heads; h++)
            {
                const float *qh = q + (size_t)h * d + e;
                VF qv = full ? vf_load(qh) : vf_load_some(qh, n), x = bound ? vf_by_sign(qv, top, low) : top;
                VF *a = &acc[p * DOTS + h * items + i];
                *a = first ? vf_mul(qv, x) : vf_add(*a, vf_mul(qv, x));
            }
        }
    }
}

/* Multiplies `heads` queries (stride d) with `items` rows, heads * items <= DOTS; out[h * items + i]. bound: a row is a
 * maximum followed by a minimum of d elements, selected by q's sign. */
INLINE void dots_tile(const int heads, const int items, const bool bound, const dtype t, const float *q, size_t d,
                      const void *const *row, float out[DOTS])
{
    VF acc[VF_LANES];
    size_t c = 16;
    UNROLL for (int i = 0; i < VF_LANES; i++) acc[i] = vf_zero();
    UNROLL for (int i = 0; i < items; i++) dots_prefetch(bound, t, d, row[i], 0);
    if (d >= c) dots_step(true, true, heads, items, bound, t, q, d, row, 0, 16, acc);
    else dots_step(false, false, heads, items, bound, t, q, d, row, 0, d, acc);
    for (; c + 16 <= d; c += 16) {
        UNROLL for (int i = 0; i < items; i++) dots_prefetch(bound, t, d, row[i], c);
        dots_step(true, false, heads, items, bound, t, q, d, row, c, 16, acc);
    }
    if (c < d) dots_step(false, false, heads, items, bound, t, q, d, row, c, d - c, acc);
    dots_sums(acc, out);
}

/* Stores at most `items` of the remaining sums; a whole tile is stored at once. */
INLINE void dots_put(float *out, const float *sum, const int items, size_t left)
{
    if (left >= (size_t)items) memcpy(out, sum, (size_t)items * sizeof *sum);
    else
        for (size_t i = 0; i < left; i++) out[i] = sum[i];
}

/* Multiplies rows [r0, r1) of row_bytes each with `heads` query heads: out[h * stride + r]. */
INLINE void dots_heads(const int heads, const bool bound, const dtype t, const float *q, size_t d, const void *rows,
                       size_t row_bytes, size_t r0, size_t r1, float *out, size_t stride)
{
    enum { MOST = DOTS };
    const int items = DOTS / heads;
    const unsigned char *p = rows;
    for (size_t r = r0; r < r1; r += (size_t)items) {
        const void *row[MOST];
        float sum[DOTS];
        for (size_t i = 0; i < (size_t)items; i++) row[i] = p + (r + i < r1 ? r + i : r1 - 1) * row_bytes;
        dots_tile(heads, items, bound, t, q, d, row, sum);
        for (int h = 0; h < heads; h++) dots_put(out + (size_t)h * stride + r, sum + h * items, items, r1 - r);
    }
}

/* Like dots_heads for any number of heads, in blocks of rows so that rows are read from memory once. */
INLINE void dots_rows(const bool bound, const dtype t, const float *q, size_t heads, size_t d, const void *rows,
                      size_t row_bytes, size_t r0, size_t r1, float *out, size_t stride)
{
    enum { BLOCK = 32 };
    for (size_t r = r0; r < r1; r += BLOCK) {
        size_t end = r + BLOCK < r1 ? r + BLOCK : r1, h = 0;
        for (; DOTS >= 4 && h + 4 <= heads; h += 4)
            dots_heads(DOTS >= 4 ? 4 : 1, bound, t, q + h * d, d, rows, row_bytes, r, end, out + h * stride, stride);
        for (; h < heads; h++) dots_heads(1, bound, t, q + h * d, d, rows, row_bytes, r, end, out + h * stride, stride);
    }
}

#endif
