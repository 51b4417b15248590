/* SPDX-License-Identifier: MIT */
/* Work on data in host memory, whatever the backend: conversion of weights when a model is opened. */
#ifndef KERNELS_HOST_H
#define KERNELS_HOST_H

#include "kernels/ops.h"

/* Returns the number of threads for such work: those of a backend on the CPU, else this process's part of the cores. */
int host_threads(const backend *be);
/* Calls work(ctx, i, thread) for each i < n, in any order. thread < n_threads; 0 is the calling thread. */
void host_each(int n_threads, size_t n, void (*work)(void *ctx, size_t i, int thread), void *ctx);

/* Convert n elements to float32, a float32 matrix to any type (blocks: ops_weights.h), and a row of blocks to float32.
 * One thread. The bits are those of ops.h's `convert` and `quantize`. */
void host_widen(float *out, const void *in, dtype t, size_t n);
void host_narrow(void *out, dtype t, const float *in, size_t rows, size_t cols);
void host_unpack(float *out, const weight *w, size_t row);

#endif
