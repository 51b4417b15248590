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
    .round_x = LEVEL(k_round_x),
    .linear_blocks = LEVEL(k_linear_blocks),
    .unpack = LEVEL(k_unpack),
    .quantize = LEVEL(k_quantize),
    .q8_gemm = INT8_GEMM_Q8,
    .q4_gemm = INT8_GEMM_Q4,
    .rows = LEVEL(k_rows),
    .encode = LEVEL(k_encode),
    .decode = LEVEL(k_decode),
    .merge = LEVEL(k_merge),
    .prefill = LEVEL(k_prefill),
    .colsum = LEVEL(k_colsum),
    .weigh = LEVEL(k_weigh),
    .dots = LEVEL(k_dots),
    .bounds = LEVEL(k_bounds),
    .vote_exp = LEVEL(k_vote_exp),
    .vote_sum = LEVEL(k_vote_sum),
    .reduce_heads = LEVEL(k_reduce_heads),
    .lane_maxima = LEVEL(k_lane_maxima),
    .largest = LEVEL(k_largest),
    .count_at_least = LEVEL(k_count_at_least),
    .at_least = LEVEL(k_at_least),
    .best = LEVEL(k_best),
    .clamp = LEVEL(k_clamp),
    .masses = LEVEL(k_masses),
    .part_sums = LEVEL(k_part_sums),
    .split = LEVEL(k_split),
    .fier_score = LEVEL(k_fier_score),
    .fier_score_int8 = LEVEL(k_fier_score_int8),
    .fier_levels = LEVEL(k_fier_levels),
    .fier_bits = LEVEL(k_fier_bits),
    .quest_add = LEVEL(k_quest_add),
    .paris_rotate = LEVEL(k_paris_rotate),
    .paris_bonus = LEVEL(k_paris_bonus),
    .paris_collide = LEVEL(k_paris_collide),
    .paris_estimate = LEVEL(k_paris_estimate),
    .top_bytes = LEVEL(k_top_bytes),
    .read_sum = LEVEL(k_read_sum),
    .moments = LEVEL(k_moments),
    .activation = LEVEL(k_activation),
    .mix = LEVEL(k_mix),
    .dot_norm = LEVEL(k_dot_norm),
};
