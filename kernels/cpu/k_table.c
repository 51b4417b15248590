/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/cpu/k.h"
#include "kernels/cpu/simd_int8.h"

#if CPU_LEVEL == 5
#define LEVEL_NAME "NEON with dot products"
#elif CPU_LEVEL == 4
#define LEVEL_NAME "NEON"
#elif CPU_LEVEL == 3
#define LEVEL_NAME "AVX-512 VNNI"
#elif CPU_LEVEL == 2
#define LEVEL_NAME "AVX-512"
#elif CPU_LEVEL == 1
#define LEVEL_NAME "AVX2"
#else
#define LEVEL_NAME "generic"
#endif

#define KERNEL_ENTRY(ret, name, args) .name = LEVEL(k_##name),

const cpu_kernels LEVEL(cpu_kernels) = {
    .name = LEVEL_NAME, .tile_rows = TILE_ROWS, .lanes = VF_LANES, .qblock_gemm = INT8_GEMM, CPU_KERNELS(KERNEL_ENTRY)};
