/* SPDX-License-Identifier: MIT */
/* Attention of one query per sequence: arguments that its op (attn_decode.cu) passes to the kernels for each form of
 * rows. */
#ifndef KERNELS_CUDA_ATTN_DECODE_CUH
#define KERNELS_CUDA_ATTN_DECODE_CUH

#include "kernels/cuda/attention.cuh"

enum {
    JOBS = 8,  /* per launch */
    LEVELS = 8 /* more merge levels than any list needs */
};

/* Form of the rows: all exact, some quantized, or in host memory with some copies on the device. */
enum { EXACT, CODES, NEAR };

typedef struct {
    attn_args job[JOBS];
    float *parts, *lses; /* [job][head][piece]: rows of dim floats; one log of a sum */
    int *done;           /* [job][unit][most + LEVELS]: number of finished blocks of the pieces from an index on */
    size_t most;         /* most pieces of a list */
} decode_batch;

/* Largest extents of the jobs of a launch. */
typedef struct {
    unsigned n_jobs, units, heads;
    int64_t n_max;
    bool listed, wide; /* some have index lists; attn_wide holds for all */
} extents;

/* Returns the number of keys per piece for a list of n. */
static __host__ __device__ __forceinline__ int64_t piece_of(int64_t n)
{
    return n <= 4096 ? 64 : n <= 16384 ? 128 : n <= 65536 ? 256 : n <= 1 << 20 ? 512 : 1024;
}

/* One launch function per form of rows, each in its own file so that they compile in parallel. */
cudaError_t attn_decode_exact(backend *be, const decode_batch *b, const extents *x, dtype type);
cudaError_t attn_decode_codes(backend *be, const decode_batch *b, const extents *x, dtype type);
cudaError_t attn_decode_blocks(backend *be, const decode_batch *b, const extents *x, dtype type);
cudaError_t attn_decode_near_blocks(backend *be, const decode_batch *b, const extents *x, dtype type);
cudaError_t attn_decode_near(backend *be, const decode_batch *b, const extents *x, dtype type);

#endif
