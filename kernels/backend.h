/* SPDX-License-Identifier: MIT */
/* What each implementation of ops.h offers to backend_open. Not for other folders. */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#define KERNELS_NOEXCEPT noexcept
#else
#define KERNELS_NOEXCEPT
#endif

/* Fill name, about, ops, n_threads and ctx of a zeroed backend. */
status backend_ref_init(backend *be, err *e);
status backend_cpu_init(backend *be, int n_threads, err *e);
/* index < 0: the first usable device. Errors: ST_UNSUPPORTED (built without CUDA), ST_DEVICE. */
status backend_cuda_init(backend *be, int index, err *e) KERNELS_NOEXCEPT;

/* The plain truth of every op (kernels/ref); cpu starts from it and replaces what it has faster. */
extern const backend_ops ref_ops;

#ifdef __cplusplus
}
#endif

#endif
