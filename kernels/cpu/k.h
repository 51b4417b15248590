/* SPDX-License-Identifier: MIT */
/* The kernels of one level, by their suffixed names; k_table.c collects them in a table. */
#ifndef KERNELS_CPU_K_H
#define KERNELS_CPU_K_H

#include "kernels/cpu/level.h"
#include "kernels/cpu/simd.h"

#define KERNEL_DECLARE(ret, name, args) ret LEVEL(k_##name) args;
CPU_KERNELS(KERNEL_DECLARE)

#endif
