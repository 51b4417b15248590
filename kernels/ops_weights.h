/* SPDX-License-Identifier: MIT */
/* Weights of 8 and 4 bits, as ops.h's `linear` takes them: matrices of type DT_Q8 and DT_Q4.
 *
 * A matrix [rows, cols] is cut into groups of 16 rows, a group into blocks of 32 columns; the last
 * ones are padded. A group's blocks lie one behind the other, and so do the groups: a thread that has
 * a range of rows reads one stream. A block is 16 scales d (f16), then codes:
 *   DT_Q8  8 lines of 64 bytes: column c of row r is byte 64 (c / 4) + 4 r + c % 4, w = d (code - 128),
 *          codes 1 to 255
 *   DT_Q4  4 lines of 64 bytes: column c < 16 of row r is the low half of byte 64 (c / 4) + 4 r + c % 4,
 *          column c + 16 its high half, w = d (code - 8)
 * so that a line is what one instruction multiplies: 4 neighbouring columns of 16 rows, unsigned.
 * w is exact in float32. Rows and columns of the padding are 0. Source: cpu-kernels.md, section 1.
 *
 * Scales, from the largest magnitude a of the block's 32 weights:
 *   DT_Q8  d = f16(a / 127), one unit more where that rounded so far down that a / d > 127.5
 *   DT_Q4  e = -a if a weight has this value, else a; of d = f16(-e / s), s = 8, 7.5, 7, 8.5, 9, the
 *          first with the least squared error: (w - d code)^2 of columns c, c + 8, ... in that order, these
 *          8 sums as ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)), all in float32. The best of these leaves
 *          8 % less error than s = 8, which is ggml's Q4_0.
 * d beyond f16's range is its largest number; codes are w / d rounded to nearest even and cut off at
 * the ends. A block with a weight that is not finite has d = NaN.
 *
 * `linear` without `exact` multiplies them by x in 8 bits, in blocks of 32 columns of a row too:
 *   a = max |x|, x' = round to nearest even (x (127 / a)), scale a / 127, all in float32; where a is
 *   below 2^-100, all zero; a block with something that is not finite has the scale NaN.
 * The sums over a block's columns are integers, hence exact; blocks are summed in float32 (ref: in
 * double). A row's bits do not depend on the other rows of x. With many rows of x an implementation
 * may use float32 or bf16 in place of x'. With `exact` x is used as it is. */
#ifndef KERNELS_OPS_WEIGHTS_H
#define KERNELS_OPS_WEIGHTS_H

#include "kernels/ops.h"

enum {
    QBLOCK_ROWS = 16,
    QBLOCK_COLS = 32,
    QBLOCK_SCALES = 2 * QBLOCK_ROWS, /* bytes in front of a block's codes */
    QBLOCK_LINE = 4 * QBLOCK_ROWS,
    QBLOCK_TRIES = 5, /* scales of DT_Q4 */
    QBLOCK_NAN = 0x7e00,
    QBLOCK_LARGEST = 0x7bff /* f16 */
};

/* s of DT_Q4. */
static const float qblock_ends[QBLOCK_TRIES] __attribute__((unused)) = {8, 7.5f, 7, 8.5f, 9};

/* The bits of a scale that f16 may round to infinity. */
static inline uint16_t qblock_limit(uint16_t h)
{
    return (h & 0x7fff) > QBLOCK_LARGEST ? (uint16_t)((h & 0x8000) | QBLOCK_LARGEST) : h;
}

/* Whether a matrix of this type is held in blocks; it has no elements then. */
static inline bool dtype_in_qblocks(dtype t)
{
    return t == DT_Q8 || t == DT_Q4;
}

/* w = d (code - offset). */
static inline int qblock_offset(dtype t)
{
    return t == DT_Q8 ? 128 : 8;
}

static inline size_t qblock_bytes(dtype t)
{
    return QBLOCK_SCALES + (size_t)QBLOCK_ROWS * QBLOCK_COLS / (t == DT_Q8 ? 1 : 2);
}

static inline size_t qblock_count(size_t cols)
{
    return (cols + QBLOCK_COLS - 1) / QBLOCK_COLS;
}

static inline size_t qblock_groups(size_t rows)
{
    return (rows + QBLOCK_ROWS - 1) / QBLOCK_ROWS;
}

static inline size_t qblock_group_bytes(dtype t, size_t cols)
{
    return qblock_count(cols) * qblock_bytes(t);
}

/* Bytes of a matrix of any type. */
static inline size_t weight_bytes(dtype t, size_t rows, size_t cols)
{
    if (!dtype_in_qblocks(t)) return rows * cols * dtype_size(t);
    return qblock_groups(rows) * qblock_group_bytes(t, cols);
}

#endif
