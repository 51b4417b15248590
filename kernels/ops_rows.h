/* SPDX-License-Identifier: MIT */
/* K and V rows of 8 and 4 bits in blocks: kv_rows of type DT_Q8 and DT_Q4.
 *
 * A row of head_dim elements, a multiple of ROW_BLOCK, is its codes, then an f16 scale d for each block of 32 elements:
 *   DT_Q8  code i is byte i, x = d (code - 128), codes 1 to 255: 8.5 bits an element
 *   DT_Q4  code i is in bits [4 i, 4 i + 4), lowest first, x = d (code - 8): 4.5 bits an element
 * Scale and codes are computed as for a block of weights (ops_weights.h). x is exact in float32. A block with a
 * non-finite element has d = NaN.
 *
 * Rotated rows (kv_rows.rotated): the stored row is H x, with the orthonormal Walsh-Hadamard matrix in Sylvester's
 * order. For spans 1, 2, 4, ... below head_dim, a power of two, x_i and x_(i + span) become
 * x_i + x_(i + span) and x_i - x_(i + span); then all are multiplied by f32(1 / sqrt(head_dim)). All steps are in
 * float32, so that all implementations give the same codes. The rotation spreads outliers of a few channels over all
 * of them, which reduces the error of blocks. H H = 1, so reading a row gives H (H x). Attention works on stored rows:
 * q . H (H k) = (H q) . (H k), and the weighted sum of V rows is rotated back once.
 *
 * Error of attention in decode steps over such rows, and over quantized rows (kv_codes), against sums in double over
 * the same stored numbers: a score is off by at most 2^-15 scale max |q_i| sum |k_i|, an output element by 2^-10 times
 * the sum over the rows of weight times largest |v|, and an output by an NMSE of 1e-8 for scores of the size that
 * models have. (Levels that multiply codes directly round queries and weights to 16 bits. The others multiply in
 * float32 and are far more accurate.)
 * Source: Ashkboos et al. 2024 (QuaRot, section 4: keys and values; rotation of queries and keys after RoPE). */
#ifndef KERNELS_OPS_ROWS_H
#define KERNELS_OPS_ROWS_H

#include "kernels/ops_weights.h"

enum { ROW_BLOCK = QBLOCK_COLS };

/* Returns the bytes of the codes of a row of n elements. */
static inline size_t row_code_bytes(dtype t, size_t n)
{
    return t == DT_Q8 ? n : n / 2;
}

/* Returns the bytes of a K or V row of n elements, of any type. */
static inline size_t kv_row_bytes(dtype t, size_t n)
{
    return dtype_in_qblocks(t) ? row_code_bytes(t, n) + n / ROW_BLOCK * sizeof(uint16_t) : n * dtype_size(t);
}

#endif
