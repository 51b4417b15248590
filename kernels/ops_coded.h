/* SPDX-License-Identifier: MIT */
/* The K rows of a store, quantized or not, as an index of tokens (kv_codes in ops.h). methods.md 7d. */
#ifndef KERNELS_OPS_CODED_H
#define KERNELS_OPS_CODED_H

#include "kernels/ops_codes.h"
#include "kernels/ops_select.h"

/* rows  of a layer, whose slots are positions; current when the op is called. Runs of K are whole bytes
 *
 * The ops are INDEX_OPS. add, redo: nothing, since a store keeps its rows. score: the score of token t with query q.
 * Dot products have the order of ops_select.h, and every product and sum is rounded to float32:
 * - float row x: q . x.
 * - block row (ops_rows.h): q . x with the stored row x = d (code - offset); rotated rows: (H q) . x.
 * - quantized row with pairs (a_c, b_c) by channel: q . a + f . code, f_c = q_c * b_c; zero_point: f . code - f . a.
 * - quantized row by_token: the sum over its runs r, ascending, starting with the first run's term, of
 *   a_r * s_r + b_r * p_r, with p_r = q . code and s_r = q . 1 over the channels of the run, whose first channel is in
 *   partial sum 0; zero_point: b_r * (p_r - a_r * s_r).
 * Bytes read are those that attention over the candidates reads of their keys, in one list for all heads
 * (attn_job.read). No spans and votes. */
typedef struct {
    const kv_rows *rows;
} coded_index;

#endif
