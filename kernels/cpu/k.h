/* SPDX-License-Identifier: MIT */
/* The kernels of one level, by their suffixed names; k_table.c puts them into its table. */
#ifndef KERNELS_CPU_K_H
#define KERNELS_CPU_K_H

#include "kernels/cpu/level.h"
#include "kernels/cpu/simd.h"

void LEVEL(k_rmsnorm)(float *out, const float *x, const void *w, dtype wt, size_t n, size_t dim, float eps);
void LEVEL(k_swiglu)(float *out, const float *gate, const float *up, size_t n);
void LEVEL(k_add)(float *x, const float *y, size_t n);
void LEVEL(k_rope)(float *out, const float *x, const float *table, size_t heads, size_t half, size_t r0,
                   size_t r1);
void LEVEL(k_widen)(float *out, const void *in, dtype t, size_t n);
void LEVEL(k_narrow)(void *out, const float *in, dtype t, size_t n);
void LEVEL(k_scale)(float *out, const float *in, float by, size_t n);
float LEVEL(k_read_sum)(const void *p, size_t bytes);
void LEVEL(k_linear)(float *out, size_t out_stride, const float *x, size_t n, const weight *w,
                     const weight *bias, size_t r0, size_t r1);
void LEVEL(k_round_x)(const x8_rows *out, size_t r, const float *x, size_t cols, size_t b0, size_t b1);
void LEVEL(k_linear_blocks)(float *out, size_t out_stride, const x8_rows *x, const weight *w,
                            const weight *bias, size_t g0, size_t g1);
void LEVEL(k_unpack)(void *out, dtype to, const weight *w, size_t r0, size_t r1);
void LEVEL(k_quantize)(unsigned char *out, dtype type, const weight *w, size_t g);
void LEVEL(k_rows)(float *out, size_t stride, const row_source *s, const int32_t *idx, int64_t first, size_t n);
void LEVEL(k_encode)(unsigned char *code, unsigned char *pair, const row_source *s, const int64_t *src, size_t first,
                     size_t n);
void LEVEL(k_decode)(const decode_chunk *c);
void LEVEL(k_merge)(float *out, float *lse, const float *acc, const float *top, const float *sum,
                    size_t n_parts, size_t acc_stride, size_t stat_stride, size_t dim);
void LEVEL(k_prefill)(const prefill_block *b);
void LEVEL(k_moments)(float *mean, float *m2, size_t before, const float *x, size_t n, size_t dim, size_t c0,
                      size_t c1);
float LEVEL(k_activation)(const float *x, const float *mean, const float *inverse, size_t dim);
void LEVEL(k_mix)(float *out, const float *weights, const float *x, size_t n, size_t dim, size_t c0, size_t c1);
void LEVEL(k_dot_norm)(float out[2], const float *x, const void *y, dtype t, size_t n);
void LEVEL(k_colsum)(const colsum_tile *b);
void LEVEL(k_weigh)(const weigh_run *w);
void LEVEL(k_dots)(float *out, size_t stride, const float *q, size_t heads, size_t d, const void *rows, dtype t,
                   size_t r0, size_t r1);
void LEVEL(k_bounds)(float *out, size_t stride, const float *q, size_t heads, size_t d, const void *pages, dtype t,
                     size_t p0, size_t p1);
void LEVEL(k_vote_exp)(float *e, float *top, float *sum, const float *x, float by, size_t n);
bool LEVEL(k_vote_sum)(float *out, const vote_job *j);
void LEVEL(k_reduce_heads)(float *out, const float *x, size_t stride, size_t heads, size_t n, bool max, float by);
size_t LEVEL(k_lane_maxima)(float *out, const float *x, size_t n, size_t per);
float LEVEL(k_largest)(const float *x, size_t n);
size_t LEVEL(k_count_at_least)(const float *x, size_t n, float least);
size_t LEVEL(k_at_least)(int32_t *idx, float *val, const float *x, size_t n, float least);
size_t LEVEL(k_best)(int32_t *idx, const float *x, size_t n, float limit, size_t ties);
float LEVEL(k_clamp)(float *x, size_t n);
void LEVEL(k_masses)(float *p, double *sum, const float *x, size_t n, float top, float by);
void LEVEL(k_part_sums)(double *sum, const float *p, size_t n);
size_t LEVEL(k_split)(int32_t *idx, double sum[2], const float *x, const float *p, size_t n, float lo, float hi);
void LEVEL(k_fier_score)(const fier_run *r);
void LEVEL(k_fier_score_int8)(const fier_run *r);
void LEVEL(k_fier_levels)(float *z, float *lo, float *hi, const float *x, size_t m, size_t d, fier_levels how);
void LEVEL(k_fier_bits)(uint32_t *word, const float *z, const float *x, size_t d);
void LEVEL(k_quest_add)(void *page, const float *k, size_t d, dtype t, bool anew);
void LEVEL(k_paris_rotate)(float *x, const float *sign, size_t rounds, float by, size_t dim);
void LEVEL(k_paris_bonus)(unsigned char *bonus, const float *y, const int32_t *count, const int32_t *limit,
                          size_t n_tiers);
void LEVEL(k_paris_collide)(unsigned char *score, const unsigned char *id, const unsigned char *bonus, size_t n,
                            size_t nb);
void LEVEL(k_paris_estimate)(const paris_piece *p);
void LEVEL(k_top_bytes)(int32_t *out, const unsigned char *x, int32_t first, size_t n, size_t want);

#endif
