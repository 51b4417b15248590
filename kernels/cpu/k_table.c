/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/cpu/k.h"

#if CPU_LEVEL == 2
#define LEVEL_NAME "AVX-512"
#elif CPU_LEVEL == 1
#define LEVEL_NAME "AVX2"
#else
#define LEVEL_NAME "generic"
#endif

const cpu_kernels LEVEL(cpu_kernels) = {
    .name = LEVEL_NAME,
    .tile_rows = TILE_ROWS,
    .lanes = VF_LANES,
    .rmsnorm = LEVEL(k_rmsnorm),
    .swiglu = LEVEL(k_swiglu),
    .add = LEVEL(k_add),
    .rope = LEVEL(k_rope),
    .widen = LEVEL(k_widen),
    .narrow = LEVEL(k_narrow),
    .scale = LEVEL(k_scale),
    .linear = LEVEL(k_linear),
    .decode = LEVEL(k_decode),
    .merge = LEVEL(k_merge),
    .prefill = LEVEL(k_prefill),
    .read_sum = LEVEL(k_read_sum),
};
