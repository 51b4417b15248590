/* SPDX-License-Identifier: MIT */
/* For tests that hand host memory to ops: on a device each call gets copies, which come back after it. */
#ifndef TESTS_CUDA_STAGED_H
#define TESTS_CUDA_STAGED_H

#include "kernels/ops.h"

/* From here on kv_write and the families select, quest and fier of be take host memory of the shapes that their headers
 * name (rows in codes excepted). The other ops stay as they are. */
void stage_ops(backend *be);

#endif
