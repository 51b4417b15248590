/* SPDX-License-Identifier: MIT */
/* K and V rows of 8 and 4 bits, each of which stands for itself: kv_rows of type DT_Q8 and DT_Q4.
 *
 * A row of head_dim elements, a multiple of ROW_BLOCK, is its codes, then an f16 scale d for each block of 32 elements:
 *   DT_Q8  code i is byte i, x = d (code - 128), codes 1 to 255: 8.5 bits an element
 *   DT_Q4  code i is in bits [4 i, 4 i + 4), lowest first, x = d (code - 8): 4.5 bits an element
 * Scale and codes follow from a block as those of a block of weights (ops_weights.h); x is exact in float32. A block
 * with something that is not finite has d = NaN.
 *
 * Turned rows (kv_rows.turned): the row that is held is H x, with the orthonormal Walsh-Hadamard matrix in Sylvester's
 * order: for spans 1, 2, 4, ... below head_dim, which is a power of two, x_i and x_(i + span) become x_i + x_(i + span)
 * and x_i - x_(i + span); then all are multiplied by f32(1 / sqrt(head_dim)). All in float32, so that codes are the
 * same bits in all implementations. Outliers of a few channels are spread over all of them, and blocks lose less. H H =
 * 1: whoever reads rows gets H (H x). Attention reads what is held: q . H (H k) = (H q) . (H k), and the sum of weights
 * times rows of V is turned back once.
 *
 * Attention of decode steps over such rows, and over rows in codes (kv_codes), against sums in double over the same
 * numbers, in the basis that is held: a score is off by at most 2^-15 scale max |q_i| sum |k_i|, an output element by
 * 2^-10 times the sum over the rows of weight times largest |v|, and an output by an NMSE of 1e-8 where scores are of
 * the size that models have. (Levels that multiply codes as they are round queries and weights to 16 bits. The others
 * multiply in float32 and are far closer.)
 * Source: Ashkboos et al. 2024 (QuaRot, section 4: keys and values; rotation of queries and keys behind RoPE). */
#ifndef KERNELS_OPS_ROWS_H
#define KERNELS_OPS_ROWS_H

#include "kernels/ops_weights.h"

enum { ROW_BLOCK = QBLOCK_COLS };

/* Bytes of the codes of a row of n elements. */
static inline size_t row_code_bytes(dtype t, size_t n)
{
    return t == DT_Q8 ? n : n / 2;
}

/* Bytes of a K or V row of n elements, of any type. */
static inline size_t kv_row_bytes(dtype t, size_t n)
{
    return dtype_in_qblocks(t) ? row_code_bytes(t, n) + n / ROW_BLOCK * sizeof(uint16_t) : n * dtype_size(t);
}

#endif
