/* SPDX-License-Identifier: MIT */
/* The K rows of a store as an index of tokens, in codes where they are in codes (kv_codes in ops.h). methods.md 7d. */
#ifndef KERNELS_OPS_CODED_H
#define KERNELS_OPS_CODED_H

#include "kernels/ops_codes.h"
#include "kernels/ops_select.h"

/* rows  of a layer, whose slots are positions; as they are when the op is called. Runs of K are of whole bytes
 *
 * The ops are INDEX_OPS. add, redo: nothing, a store keeps its rows itself. score, of token t with query q; all dot
 * products in the order of ops_select.h, every product and sum rounded to float32:
 * - an exact row x: q . x.
 * - a row in blocks (ops_rows.h): q . x with the row x = d (code - offset) that is held; turned rows: (H q) . x.
 * - a code row with pairs (a_c, b_c) by channel: q . a + f . code, with f_c = q_c * b_c; zero_point: f . code - f . a.
 * - a code row by_token: the sum over its runs r, ascending, from the first one's number on, of a_r * s_r + b_r * p_r,
 *   with p_r = q . code and s_r = q . 1 over the channels of the run, the first of which is in partial sum 0;
 *   zero_point: b_r * (p_r - a_r * s_r).
 * What is read is what attention over the candidates would read of their keys, in one list for all heads
 * (attn_job.read). Without spans and votes. */
typedef struct {
    const kv_rows *rows;
} coded_index;

#endif
