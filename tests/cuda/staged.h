/* SPDX-License-Identifier: MIT */
/* For tests that hand host memory to ops: on a device each call gets copies, which come back after it. */
#ifndef TESTS_CUDA_STAGED_H
#define TESTS_CUDA_STAGED_H

#include "kernels/ops.h"

/* From here on be has, beside those on memory, only the ops that staged.c lists: kv_write, attn_prefill, attn_decode and
 * the families select, quest, fier, codes, evict, paris and block. They take host memory of the shapes that their headers
 * name; a store in codes has as many slots as rows.cap. */
void stage_ops(backend *be);

#endif
