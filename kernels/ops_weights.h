/* SPDX-License-Identifier: MIT */
/* Weights of 8 to 4 bits for ops.h's `linear`: matrices of types in blocks, which the table qblock_kinds describes.
 *
 * A matrix [rows, cols] is split into groups of 16 rows, a group into blocks of 32, 128 or 256 columns; the last ones
 * are padded. Blocks of a group are contiguous, and so are groups: a thread that has a range of rows reads one stream.
 * A block is 16 scales d (f16; DT_FP8: f32), in types with a minimum also 16 numbers m (f16), in types with a zero
 * point also 16 bytes z, and a part for each 32 columns.
 *
 * A part has 16 signed bytes s for each scale of a row (none, one, or two for 16 columns each), and 16 signed bytes t
 * in types with both s and m. Lines of 64 bytes with the codes follow:
 *   8 bits  8 lines: column c of row r is byte 64 (c / 4) + 4 r + c % 4
 *   4 bits  4 lines: column c < 16 of row r is the low half of this byte, column c + 16 its high half
 *   5 bits  the same 4 lines, then one: bit c / 4 of byte 4 r + c % 4 is the upper bit of column c
 *   6 bits  the same 4 lines, then two, of 16 columns each: bits 2 (c % 16 / 4) and up are the upper bits of column c
 * One instruction multiplies one line: 4 neighbouring columns of 16 rows, unsigned. The 8 bits of DT_FP8 are numbers,
 * E4M3 without NaN, and byte 16 c + r of a part.
 *
 * w = d s (code - offset - z) + m t, rounded once to float32; s and t are 1 where they are missing. DT_Q8 has codes 1
 * to 255. Without m, w is exact in float32. Rows and columns of the padding are 0. Source: cpu-kernels.md, section 1.
 * DT_Q4Z and DT_Q4K to DT_Q6K hold the numbers of ggml's Q4_1 and Q4_K to Q6_K, with m = -dmin. DT_FP8, DT_Q4G and
 * DT_Q4G32 hold those of folders: 8-bit floats, and codes with an integer zero point in groups of 128 or 32 columns. w
 * of DT_FP8 is d code, rounded once; that of the other two is exact.
 *
 * Only DT_Q8 and DT_Q4 are made by `quantize`. Scales, from the largest magnitude a of the block's 32 weights:
 *   DT_Q8  d = f16(a / 127), one unit more if that rounded so far down that a / d > 127.5
 *   DT_Q4  e = -a if a weight has this value, otherwise a. Of d = f16(-e / s), s = 8, 7.5, 7, 8.5, 9, the first with
 *          the least squared error: (w - d code)^2 of columns c, c + 8, ... in that order, these 8 sums as ((0 + 4) +
 *          (2 + 6)) + ((1 + 5) + (3 + 7)), all in float32. The best of these has 8 % less error than s = 8, which is
 *          ggml's Q4_0.
 * d beyond f16's range is its largest number. Codes are w / d rounded to nearest even and clamped. A block with a
 * non-finite weight has d = NaN.
 *
 * Without `exact`, `linear` rounds x to 8 bits, in blocks of 32 columns of a row too:
 *   a = max |x|, x' = round to nearest even (x (127 / a)), scale a / 127, all in float32. If a is below 2^-100, all are
 *   zero; a block with a non-finite element has the scale NaN.
 * The sums over the columns of a scale, and the sums of x' that m multiplies, are integers, hence exact; they are added
 * in float32 (ref: in double). DT_FP8: the sums are in float32, too. A row's bits do not depend on the other rows of x.
 * With many rows of x an implementation may use float32 or bf16 in place of x'. With `exact`, x is used unrounded. */
#ifndef KERNELS_OPS_WEIGHTS_H
#define KERNELS_OPS_WEIGHTS_H

#include "kernels/half.h"
#include "kernels/ops.h"

enum {
    QBLOCK_ROWS = 16,
    QBLOCK_COLS = 32,                /* of a part */
    QBLOCK_MOST = 256,               /* columns of a block at most */
    QBLOCK_SCALES = 2 * QBLOCK_ROWS, /* bytes of d */
    QBLOCK_LINE = 4 * QBLOCK_ROWS,
    QBLOCK_TRIES = 5, /* candidate scales of DT_Q4 */
    QBLOCK_NAN = 0x7e00,
    QBLOCK_LARGEST = 0x7bff /* f16 */
};

/* Candidates of s for DT_Q4. */
static const float qblock_ends[QBLOCK_TRIES] __attribute__((unused)) = {8, 7.5f, 7, 8.5f, 9};

/* Returns the bits of a scale, with infinity replaced by f16's largest number. */
static inline uint16_t qblock_limit(uint16_t h)
{
    return (h & 0x7fff) > QBLOCK_LARGEST ? (uint16_t)((h & 0x8000) | QBLOCK_LARGEST) : h;
}

typedef struct {
    size_t cols; /* columns of a block */
    int bits, offset;
    int scales;                 /* bytes s of a row in a part */
    bool minimum, zero, floats; /* floats: the codes are E4M3 numbers, d is f32 */
} qblock_kind;

/* By type. Elements are not in blocks: their rows are 0. */
static const qblock_kind qblock_kinds[DT_COUNT] __attribute__((unused)) = {
    {0, 0, 0, 0, false, false, false},    /* DT_F32 */
    {0, 0, 0, 0, false, false, false},    /* DT_F16 */
    {0, 0, 0, 0, false, false, false},    /* DT_BF16 */
    {32, 8, 128, 0, false, false, false}, /* DT_Q8 */
    {32, 4, 8, 0, false, false, false},   /* DT_Q4 */
    {32, 4, 0, 0, true, false, false},    /* DT_Q4Z */
    {256, 4, 0, 1, true, false, false},   /* DT_Q4K */
    {256, 5, 0, 1, true, false, false},   /* DT_Q5K */
    {256, 6, 32, 2, false, false, false}, /* DT_Q6K */
    {128, 8, 0, 0, false, false, true},   /* DT_FP8 */
    {128, 4, 0, 0, false, true, false},   /* DT_Q4G */
    {32, 4, 0, 0, false, true, false},    /* DT_Q4G32 */
};

/* The set of types in blocks, for qblocks of backend_ops. */
enum { QBLOCK_TYPES = (1 << DT_COUNT) - (1 << DT_Q8) };

/* True if matrices of this type are stored in blocks, without individual elements. */
static inline bool dtype_in_qblocks(dtype t)
{
    return t >= DT_Q8;
}

/* True if `quantize` makes matrices of this type. */
static inline bool dtype_is_quantized_to(dtype t)
{
    return t == DT_Q8 || t == DT_Q4;
}

static inline qblock_kind qblock_kind_of(dtype t)
{
    return qblock_kinds[t];
}

static inline int qblock_offset(dtype t)
{
    return qblock_kind_of(t).offset;
}

/* Returns the columns of a block. */
static inline size_t qblock_cols(dtype t)
{
    return qblock_kind_of(t).cols;
}

/* Returns the bytes of the numbers before a block's parts. */
static inline size_t qblock_head_bytes(dtype t)
{
    const qblock_kind k = qblock_kind_of(t);
    return (size_t)QBLOCK_SCALES * (k.minimum || k.floats ? 2 : 1) + (k.zero ? (size_t)QBLOCK_ROWS : 0);
}

/* Returns the bytes of s and t before the codes of a part. */
static inline size_t qblock_factor_bytes(dtype t)
{
    const qblock_kind k = qblock_kind_of(t);
    return k.scales ? (size_t)QBLOCK_ROWS * (size_t)(k.scales + k.minimum) : 0;
}

static inline size_t qblock_part_bytes(dtype t)
{
    return qblock_factor_bytes(t) + (size_t)QBLOCK_ROWS * QBLOCK_COLS / 8 * (size_t)qblock_kind_of(t).bits;
}

static inline size_t qblock_bytes(dtype t)
{
    return qblock_head_bytes(t) + qblock_cols(t) / QBLOCK_COLS * qblock_part_bytes(t);
}

/* Returns the number of groups of 32 columns, of which each is a block of x in 8 bits. */
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
    return (cols + qblock_cols(t) - 1) / qblock_cols(t) * qblock_bytes(t);
}

/* Returns block b of the group that row r belongs to. */
static inline unsigned char *qblock_at(unsigned char *p, dtype t, size_t cols, size_t r, size_t b)
{
    return p + r / QBLOCK_ROWS * qblock_group_bytes(t, cols) + b * qblock_bytes(t);
}

/* ---- the numbers of a row of a block ---- */

typedef struct {
    uint16_t d, m; /* f16 */
    float scale;   /* d of DT_FP8 */
    uint8_t z;
    int8_t s[QBLOCK_MOST / 16]; /* [parts][scales] */
    int8_t t[QBLOCK_MOST / QBLOCK_COLS];
    uint8_t code[QBLOCK_MOST];
} qblock_values;

/* Returns the offset in a line of column c of row r. */
static inline size_t qblock_in_line(size_t r, size_t c)
{
    return 4 * (r % QBLOCK_ROWS) + c % 4;
}

static inline void qblock_put_f16(unsigned char *p, size_t r, uint16_t h)
{
    p[2 * (r % QBLOCK_ROWS)] = (unsigned char)h;
    p[2 * (r % QBLOCK_ROWS) + 1] = (unsigned char)(h >> 8);
}

/* Writes 32 codes of row r to the lines of a part. */
static inline void qblock_put_codes(unsigned char *line, qblock_kind k, size_t r, const uint8_t code[QBLOCK_COLS])
{
    unsigned char *upper = line + 4 * QBLOCK_LINE;
    const int bits = k.bits;
    if (k.floats) {
        for (size_t c = 0; c < QBLOCK_COLS; c++) line[QBLOCK_ROWS * c + r % QBLOCK_ROWS] = code[c];
        return;
    }
    if (bits == 8) {
        for (size_t c = 0; c < QBLOCK_COLS; c++) line[QBLOCK_LINE * (c / 4) + qblock_in_line(r, c)] = code[c];
        return;
    }
    for (size_t c = 0; c < QBLOCK_COLS / 2; c++)
        line[QBLOCK_LINE * (c / 4) + qblock_in_line(r, c)] =
            (unsigned char)((code[c] & 15) | code[c + QBLOCK_COLS / 2] << 4);
    for (size_t c = 0; c < 4 && bits == 5; c++) {
        unsigned u = 0;
        for (size_t i = 0; i < 8; i++) u |= (unsigned)(code[4 * i + c] >> 4) << i;
        upper[qblock_in_line(r, c)] = (unsigned char)u;
    }
    for (size_t c = 0; c < 8 && bits == 6; c++) {
        unsigned u = 0;
        for (size_t i = 0; i < 4; i++) u |= (unsigned)(code[c / 4 * 16 + 4 * i + c % 4] >> 4) << 2 * i;
        upper[c / 4 * QBLOCK_LINE + qblock_in_line(r, c)] = (unsigned char)u;
    }
}

/* Writes the numbers of row r into its block. */
static inline void qblock_put(unsigned char *at, dtype t, size_t r, const qblock_values *v)
{
    const qblock_kind k = qblock_kind_of(t);
    unsigned char *part = at + qblock_head_bytes(t);
    const size_t row = r % QBLOCK_ROWS, scales = (size_t)k.scales;
    if (k.floats) memcpy(at + sizeof v->scale * row, &v->scale, sizeof v->scale);
    else qblock_put_f16(at, r, v->d);
    if (k.minimum) qblock_put_f16(at + QBLOCK_SCALES, r, v->m);
    if (k.zero) at[QBLOCK_SCALES + row] = v->z;
    for (size_t i = 0; i < k.cols / QBLOCK_COLS; i++, part += qblock_part_bytes(t)) {
        for (size_t j = 0; j < scales; j++) part[QBLOCK_ROWS * j + row] = (unsigned char)v->s[scales * i + j];
        if (scales && k.minimum) part[QBLOCK_ROWS * scales + row] = (unsigned char)v->t[i];
        qblock_put_codes(part + qblock_factor_bytes(t), k, r, v->code + QBLOCK_COLS * i);
    }
}

/* 32 columns of a row: w = scale[c / 16] code + minimum. */
typedef struct {
    float scale[2], minimum;
    float code[QBLOCK_COLS]; /* less offset and zero point */
} qblock_part;

static inline float qblock_f16(const unsigned char *p, size_t r)
{
    return f16_to_f32((uint16_t)(p[2 * (r % QBLOCK_ROWS)] | p[2 * (r % QBLOCK_ROWS) + 1] << 8));
}

/* Returns the code of column c of row r from the lines of a part. */
static inline int qblock_code(const unsigned char *line, int bits, size_t r, size_t c)
{
    const size_t at = qblock_in_line(r, c), half = c / (QBLOCK_COLS / 2), l = c % (QBLOCK_COLS / 2) / 4;
    if (bits == 8) return line[QBLOCK_LINE * (c / 4) + at];
    int code = line[QBLOCK_LINE * l + at] >> (4 * half) & 15;
    if (bits == 5) code |= (line[QBLOCK_LINE * 4 + at] >> (c / 4) & 1) << 4;
    if (bits == 6) code |= (line[QBLOCK_LINE * (4 + half) + at] >> (2 * l) & 3) << 4;
    return code;
}

/* Returns d of row r of a block. */
static inline float qblock_scale(const unsigned char *at, dtype t, size_t r)
{
    float d;
    if (!qblock_kind_of(t).floats) return qblock_f16(at, r);
    memcpy(&d, at + sizeof d * (r % QBLOCK_ROWS), sizeof d);
    return d;
}

/* Returns the number that is subtracted from the codes of row r of a block. */
static inline int qblock_zero(const unsigned char *at, dtype t, size_t r)
{
    return qblock_kind_of(t).zero ? at[QBLOCK_SCALES + r % QBLOCK_ROWS] : qblock_offset(t);
}

/* Reads columns [32 i, 32 i + 32) of row r of a block. */
static inline void qblock_get(qblock_part *out, const unsigned char *at, dtype t, size_t r, size_t i)
{
    const qblock_kind k = qblock_kind_of(t);
    const unsigned char *part = at + qblock_head_bytes(t) + i * qblock_part_bytes(t);
    const unsigned char *lines = part + qblock_factor_bytes(t);
    const float d = qblock_scale(at, t, r);
    const int zero = qblock_zero(at, t, r);
    for (int j = 0; j < 2; j++) {
        int of = j < k.scales ? j : k.scales - 1;
        out->scale[j] = k.scales ? d * (float)(int8_t)part[QBLOCK_ROWS * of + (int)(r % QBLOCK_ROWS)] : d;
    }
    out->minimum = k.minimum ? qblock_f16(at + QBLOCK_SCALES, r) : 0;
    if (k.minimum && k.scales)
        out->minimum *= (float)(int8_t)part[(size_t)QBLOCK_ROWS * (size_t)k.scales + r % QBLOCK_ROWS];
    for (size_t c = 0; c < QBLOCK_COLS; c++)
        out->code[c] = k.floats ? e4m3_to_f32(lines[QBLOCK_ROWS * c + r % QBLOCK_ROWS])
                                : (float)(qblock_code(lines, k.bits, r, c) - zero);
}

/* Decodes up to 32 columns. A minimum of 0 is not added, so that the sign of a zero is kept. */
static inline void qblock_decode(float *out, const qblock_part *p, bool minimum, size_t n)
{
    for (size_t c = 0; c < n; c++) {
        float w = p->scale[c / (QBLOCK_COLS / 2)] * p->code[c];
        out[c] = minimum ? w + p->minimum : w;
    }
}

/* Decodes row r of a matrix in blocks. */
static inline void qblock_row(float *out, unsigned char *w, dtype t, size_t cols, size_t r)
{
    const size_t parts = qblock_cols(t) / QBLOCK_COLS;
    for (size_t b = 0; b < qblock_count(cols); b++) {
        qblock_part p;
        size_t left = cols - b * QBLOCK_COLS;
        qblock_get(&p, qblock_at(w, t, cols, r, b / parts), t, r, b % parts);
        qblock_decode(out + b * QBLOCK_COLS, &p, qblock_kind_of(t).minimum,
                      left < QBLOCK_COLS ? left : (size_t)QBLOCK_COLS);
    }
}

/* Returns the bytes of a matrix of any type. */
static inline size_t weight_bytes(dtype t, size_t rows, size_t cols)
{
    if (!dtype_in_qblocks(t)) return rows * cols * dtype_size(t);
    return qblock_groups(rows) * qblock_group_bytes(t, cols);
}

#endif
