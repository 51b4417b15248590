/* SPDX-License-Identifier: MIT */
/* Dot products of query heads with rows, in the order that ops_select.h fixes: no fma, 16 partial sums, so
 * that the bits do not depend on the level. PARTS vectors hold the partial sums of one product; a tile has
 * DOTS products, whose sums one transposition gives. */
#ifndef KERNELS_CPU_DOTS_H
#define KERNELS_CPU_DOTS_H

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

enum { PARTS = 16 / VF_LANES, DOTS = VF_LANES / PARTS };

/* acc[p * DOTS + i] is part p of product i. Parts began without the zero of a sum, which could only have made a -0 of
 * theirs 0: it is added last. */
INLINE void dots_sums(const VF acc[VF_LANES], float out[DOTS])
{
    float s[VF_LANES];
    vf_store(s, vf_add(vf_sum_each(acc), vf_zero()));
#if CPU_LEVEL == 0
    out[0] = (s[0] + s[1]) + (s[2] + s[3]); /* quads of one product */
#else
    for (int i = 0; i < DOTS; i++) out[i] = PARTS == 1 ? s[i] : s[i] + s[(DOTS + i) % VF_LANES];
#endif
}

/* Lines that far ahead are on their way: the hardware follows a stream within a page of memory at most, and a
 * row is read faster than memory answers. */
enum { DOTS_AHEAD = 4096, DOTS_LINE = 64 };

/* Asks for the lines that lie ahead of 16 channels from c on, once a line. */
INLINE void dots_ask(const bool bound, const dtype t, size_t d, const unsigned char *row, size_t c)
{
    const size_t bytes = dtype_in_qblocks(t) ? 1 : dtype_size(t);
    const size_t at = DOTS_AHEAD + (dtype_in_qblocks(t) ? row_code_bytes(t, c) : c * bytes);
    if (bytes < 4 && c % (DOTS_LINE / bytes)) return;
    prefetch(row + at);
    if (bound) prefetch(row + at + d * bytes);
}

/* Elements [c, c + VF_LANES) of a row of d, of which there are n; full: there are as many. */
INLINE VF dots_load(const bool full, const dtype t, const void *row, size_t c, size_t d, size_t n)
{
    if (dtype_in_qblocks(t)) return vf_load_block(row, c, t, d); /* d is a multiple of a block */
    return full ? vf_load_as(row, c, t) : vf_load_some_as(row, c, t, n);
}

/* Adds the products of channels [c, c + left) of at most 16; full: there are 16; first: to nothing. */
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

/* Products of `heads` queries (stride d) with `items` rows, heads * items <= DOTS; out[h * items + i].
 * bound: a row is a maximum and, d elements on, a minimum, of which q's sign takes one. */
INLINE void dots_tile(const int heads, const int items, const bool bound, const dtype t, const float *q, size_t d,
                      const void *const *row, float out[DOTS])
{
    VF acc[VF_LANES];
    size_t c = 16;
    UNROLL for (int i = 0; i < VF_LANES; i++) acc[i] = vf_zero();
    UNROLL for (int i = 0; i < items; i++) dots_ask(bound, t, d, row[i], 0);
    if (d >= c) dots_step(true, true, heads, items, bound, t, q, d, row, 0, 16, acc);
    else dots_step(false, false, heads, items, bound, t, q, d, row, 0, d, acc);
    for (; c + 16 <= d; c += 16) {
        UNROLL for (int i = 0; i < items; i++) dots_ask(bound, t, d, row[i], c);
        dots_step(true, false, heads, items, bound, t, q, d, row, c, 16, acc);
    }
    if (c < d) dots_step(false, false, heads, items, bound, t, q, d, row, c, d - c, acc);
    dots_sums(acc, out);
}

/* At most `items` of what is left; a whole tile's are stored at once. */
INLINE void dots_put(float *out, const float *sum, const int items, size_t left)
{
    if (left >= (size_t)items) memcpy(out, sum, (size_t)items * sizeof *sum);
    else
        for (size_t i = 0; i < left; i++) out[i] = sum[i];
}

/* Rows [r0, r1) of row_bytes each for `heads` query heads: out[h * stride + r]. */
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

/* The same for any number of heads, some rows at a time so that they are read from memory once. */
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
