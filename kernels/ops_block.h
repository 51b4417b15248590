/* SPDX-License-Identifier: MIT */
/* Block representatives, probes and entropy budgets. Source: ActQKV, InfLLM; methods.md 9, 12.1. */
#ifndef KERNELS_OPS_BLOCK_H
#define KERNELS_OPS_BLOCK_H

#include "kernels/ops.h"

struct block_ops {
    int reserved;
};

extern const block_ops ref_block, cpu_block;

#endif
