/* SPDX-License-Identifier: MIT */
/* Conversion of matrices from the types and encodings of files to a type that kernels multiply. */
#ifndef MODEL_ENCODED_H
#define MODEL_ENCODED_H

#include "model/weights.h"

enum { ENCODED_ROWS = 64 }; /* rows that are converted at a time, a multiple of QBLOCK_ROWS */

/* Loss of a conversion: the largest error of a weight, relative to the largest weight of its block of 32. */
typedef struct {
    float error; /* 0: no loss */
    bool nonfinite;
} encoded_loss;

/* Work area of a thread. */
typedef struct {
    float *row;         /* a decoded row of the file */
    float *part;        /* [ENCODED_ROWS][cols] this rank's columns of decoded rows */
    unsigned char *out; /* converted rows, before they are written to a file */
    encoded_loss loss;
} encoded_work;

/* Allocates room for matrices of at most cols columns of this rank, all_cols in the file. */
status encoded_open(encoded_work *k, size_t cols, size_t all_cols, err *e);
void encoded_close(encoded_work *k);

/* Converts n <= ENCODED_ROWS rows of this rank's part of a matrix to type t, from row `at` on, a multiple of
 * ENCODED_ROWS: weight_bytes(t, n, w->cols) bytes at `to`. `from` has the rows. The conversion of an encoding is exact
 * if encoding_codes has a function for t; else weights are decoded to float32 and rounded. k->loss collects the loss of
 * encodings. */
void encoded_convert(encoded_work *k, const weight_spec *w, const source_tensor *from, dtype t, size_t at, size_t n,
                     unsigned char *to);

#endif
