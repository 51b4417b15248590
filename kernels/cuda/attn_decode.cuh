/* SPDX-License-Identifier: MIT */
/* Attention of one query a sequence: what its op (attn_decode.cu) hands to the kernels for each form of rows. */
#ifndef KERNELS_CUDA_ATTN_DECODE_CUH
#define KERNELS_CUDA_ATTN_DECODE_CUH

#include "kernels/cuda/attention.cuh"

enum {
    JOBS = 8,  /* of one launch */
    LEVELS = 8 /* more merges than any list takes, one behind the other */
};

/* How rows lie: all exact and in one place, some in codes, or some near and all in the host's memory. */
enum { EXACT, CODES, NEAR };

typedef struct {
    attn_args job[JOBS];
    float *parts, *lses; /* [job][head][piece], rows of dim floats and one number */
    int *done;           /* [job][unit][most + LEVELS]: blocks that are done, of the pieces from one on */
    size_t most;         /* pieces a list may have */
} decode_batch;

/* Largest extents of the jobs of a launch. */
typedef struct {
    unsigned n_jobs, units, heads;
    int64_t n_max;
    bool listed, wide; /* some have lists; attn_wide of all */
} extents;

/* Keys of a piece, for a list of n. */
static __host__ __device__ __forceinline__ int64_t piece_of(int64_t n)
{
    return n <= 4096 ? 64 : n <= 16384 ? 128 : n <= 65536 ? 256 : n <= 1 << 20 ? 512 : 1024;
}

/* One launch, for a form of rows each: files of their own, so that they compile side by side. */
cudaError_t attn_decode_exact(backend *be, const decode_batch *b, const extents *x, dtype type);
cudaError_t attn_decode_codes(backend *be, const decode_batch *b, const extents *x, dtype type);
cudaError_t attn_decode_blocks(backend *be, const decode_batch *b, const extents *x, dtype type);
cudaError_t attn_decode_near_blocks(backend *be, const decode_batch *b, const extents *x, dtype type);
cudaError_t attn_decode_near(backend *be, const decode_batch *b, const extents *x, dtype type);

#endif
