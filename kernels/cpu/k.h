/* SPDX-License-Identifier: MIT */
/* The kernels of one level, by their suffixed names; k_table.c puts them into its table. */
#ifndef KERNELS_CPU_K_H
#define KERNELS_CPU_K_H

#include "kernels/cpu/level.h"
#include "kernels/cpu/simd.h"

void LEVEL(k_rmsnorm)(float *out, const float *x, const void *w, dtype wt, size_t n, size_t dim, float eps);
void LEVEL(k_swiglu)(float *out, const float *gate, const float *up, size_t n);
void LEVEL(k_add)(float *x, const float *y, size_t n);
void LEVEL(k_rope)(float *out, const float *x, const float *table, size_t heads, size_t half, size_t r0,
                   size_t r1);
void LEVEL(k_widen)(float *out, const void *in, dtype t, size_t n);
void LEVEL(k_narrow)(void *out, const float *in, dtype t, size_t n);
void LEVEL(k_scale)(float *out, const float *in, float by, size_t n);
float LEVEL(k_read_sum)(const void *p, size_t bytes);
void LEVEL(k_linear)(float *out, size_t out_stride, const float *x, size_t n, const weight *w,
                     const weight *bias, size_t r0, size_t r1);
void LEVEL(k_decode)(const decode_chunk *c);
void LEVEL(k_merge)(float *out, float *lse, const float *acc, const float *top, const float *sum,
                    size_t n_parts, size_t acc_stride, size_t stat_stride, size_t dim);
void LEVEL(k_prefill)(const prefill_block *b);

#endif
