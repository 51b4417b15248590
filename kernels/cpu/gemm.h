/* SPDX-License-Identifier: MIT */
/* A vendor's matrix product for prompts. One of gemm_onednn.c, gemm_blas.c and gemm_none.c is built. All functions
 * compute out [n, m] f32 = x [n, k] w [m, k]^T with rows of out `out_stride` floats apart, on n_threads OpenMP threads.
 * Calls of one gemm must not overlap in time. */
#ifndef KERNELS_CPU_GEMM_H
#define KERNELS_CPU_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

typedef struct gemm gemm;

/* *out is NULL, without an error, if no library was built in. */
status gemm_create(gemm **out, int n_threads, err *e);
void gemm_destroy(gemm *g);
/* Returns for example "oneDNN 2.6.3"; valid while g lives. */
const char *gemm_name(const gemm *g);
/* True if the library and this CPU multiply bf16 by bf16 faster than f32 by f32. */
bool gemm_has_bf16(const gemm *g);
/* The same for bytes by bytes. */
bool gemm_has_s8(const gemm *g);

status gemm_f32(gemm *g, const float *x, const float *w, float *out, size_t n, size_t m, size_t k, size_t out_stride,
                err *e);
/* Sums are in float32. ST_UNSUPPORTED if gemm_has_bf16 is false. */
status gemm_bf16(gemm *g, const uint16_t *x, const uint16_t *w, float *out, size_t n, size_t m, size_t k,
                 size_t out_stride, err *e);
/* s8 x s8, s32 out, no scales; used only by measurements. ST_UNSUPPORTED if the library has no such product. */
status gemm_s8(gemm *g, const int8_t *x, const int8_t *w, int32_t *out, size_t n, size_t m, size_t k, err *e);

#endif
