/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/host.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/threads.h"

int host_threads(const backend *be)
{
    return be->ops->imports_copy ? threads_granted(threads_choose(0, backend_ranks(be))) : be->n_threads;
}

void host_each(int n_threads, size_t n, void (*work)(void *ctx, size_t i, int thread), void *ctx)
{
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_threads)
    for (size_t i = 0; i < n; i++) work(ctx, i, threads_id());
}

void host_widen(float *out, const void *in, dtype t, size_t n)
{
    cpu_best_kernels()->widen(out, in, t, n);
}

void host_narrow(void *out, dtype t, const float *in, size_t rows, size_t cols)
{
    const cpu_kernels *k = cpu_best_kernels();
    const weight w = {{(unsigned char *)(uintptr_t)in}, DT_F32, rows, cols, {NULL}};
    if (!dtype_in_qblocks(t)) k->narrow(out, in, t, rows * cols);
    else
        for (size_t g = 0; g < qblock_groups(rows); g++) k->quantize(out, t, &w, g);
}

void host_unpack(float *out, const weight *w, size_t row)
{
    cpu_best_kernels()->unpack(out, DT_F32, w, row, row + 1);
}
