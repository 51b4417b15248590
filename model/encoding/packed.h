/* SPDX-License-Identifier: MIT */
/* Matrices of folders in codes of 8 or 4 bits, with scales and zero points in tensors of their own.
 * w[r][c] = (code - zero) scale, rounded once to float32. Source: transformers (finegrained_fp8), compressed-tensors
 * (pack_quantized, naive_quantized), AutoAWQ (packing_utils), GPTQModel (nn_modules/qlinear). */
#ifndef MODEL_PACKED_H
#define MODEL_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"
#include "kernels/ops_weights.h"
#include "model/safetensors.h"

typedef enum {
    PACKED_FP8,  /* a byte for each weight, E4M3 */
    PACKED_INT8, /* a signed byte for each weight */
    PACKED_ROWS, /* compressed-tensors: words along a row */
    PACKED_AWQ,  /* words along a column of 8 rows, whose order is 0 2 4 6 1 3 5 7 */
    PACKED_GPTQ, /* words along a row, transposed */
    PACKED_KINDS
} packed_kind;

enum { PACKED_SCHEMES = 16 };

/* Properties of some matrices by a config. */
typedef struct {
    int bits;
    int64_t group; /* columns of a scale; -1: all */
    bool symmetric;
    size_t block[2]; /* rows and columns of a scale of PACKED_FP8; 0: not in blocks */
} packed_scheme;

/* A config of packed matrices. Each has the first scheme that fits the shapes of its tensors. */
typedef struct {
    const char *file, *method; /* file of the config, and its quant_method; NULL: no config */
    char name[24];             /* the text of method */
    bool plain_zeros;          /* GPTQ's version 2 */
    packed_scheme scheme[PACKED_SCHEMES];
    size_t n; /* schemes; 0: scheme[0] is of no config */
} packed_claims;

/* The tensors of a matrix. Missing ones are NULL. */
typedef struct {
    const char *file;
    const st_tensor *codes, *scales, *zeros, *order, *shape;
} packed_tensors;

typedef struct {
    packed_kind kind;
    const char *type; /* "FP8", "AWQ", ... */
    size_t rows, cols;
    int bits;
    const uint8_t *codes, *scales, *zeros, *order; /* not aligned; zeros, order NULL: none */
    dtype scale_type;
    size_t scale_bytes; /* of the whole tensor */
    size_t n_tensors;
    size_t block_rows, block_cols; /* weights of a scale */
    size_t groups;                 /* scales of a row */
    int zero;                      /* without zeros */
    uint32_t add;                  /* to words of zeros */
    bool narrow;                   /* all scales are f16 numbers, or not finite */
    int32_t *sorted;               /* [cols] columns in the order of their groups; NULL: in order, or of unequal size */
    bool borrowed;                 /* sorted is another matrix's */
} packed_matrix;

/* Checks the types and shapes of a matrix's tensors against the config. Errors: ST_FORMAT, ST_UNSUPPORTED, ST_NOMEM. */
status packed_open(packed_matrix *p, const packed_tensors *t, const packed_claims *q, err *e);
/* Replaces p's order of columns by that of `with`, if they are equal: products of one x then order it once. `with` must
 * not be closed before p. */
void packed_share_order(packed_matrix *p, const packed_matrix *with);
/* Frees the order of columns; also after an error of packed_open. */
void packed_close(packed_matrix *p);
/* Decodes columns [c, c + n) of row r. */
void packed_decode(const packed_matrix *p, size_t r, size_t c, size_t n, float *out);
/* Returns the type that a matrix is converted to: the one that holds its numbers if it is in `types`, else DT_Q8. */
dtype packed_converted(const packed_matrix *p, unsigned types);
/* Returns the order of columns [cols] in type t, where columns of one group are neighbours; NULL: that of the files. */
const int32_t *packed_order(const packed_matrix *p, dtype t);
/* Converts the columns of a block from c on, at most those of the matrix, to the numbers of type t. False if t cannot
 * hold them. *nonfinite is set for a number that is not finite. Columns are in the order of packed_order. */
bool packed_values(const packed_matrix *p, dtype t, size_t r, size_t c, qblock_values *out, bool *nonfinite);

#endif
