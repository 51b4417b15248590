/* SPDX-License-Identifier: MIT */
/* Sign patterns, collisions and 4-bit reranking. Source: ParisKV; methods.md 8. */
#ifndef KERNELS_OPS_PARIS_H
#define KERNELS_OPS_PARIS_H

#include "kernels/ops.h"

struct paris_ops {
    int reserved;
};

extern const paris_ops ref_paris, cpu_paris;

#endif
