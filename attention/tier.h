/* SPDX-License-Identifier: MIT */
/* Tiers of a strategy's rows: the device's memory, the host's memory, or files. A layer below the store.
 *
 * DISK: rows go to the layer's file in blocks and in order, in prompts at the end of a layer, in decode steps when half
 * a window of tokens has left the window. Readers announce what they read (row_tier_before_read, kv_need); see
 * kernels/ops_tier.h. HOST: rows lie in the host's memory, where the device reads and writes them, and the device holds
 * copies of some. The choice of copies affects speed only. */
#ifndef ATTENTION_TIER_H
#define ATTENTION_TIER_H

#include "attention/store.h"

/* Opens the tier of s->tier for the rows of `layers`; *out is NULL for the device's memory. Keeps the pointers, which
 * must outlive the tier. */
status row_tier_open(row_tier **out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                     const bool *layers, backend *be, err *e);
void row_tier_close(row_tier *t);

/* Moves the bytes of a plan that will lie in files or in the host's memory from *part to *slow. */
void row_tier_plan(attn_bytes *part, size_t *slow, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                   const bool *layers);

/* Makes everything available that attention over these jobs will read. */
void row_tier_before_read(backend *be, const attn_job *jobs, size_t n, bool decode);

/* Returns the traffic since the tier was opened; zeros without files. */
tier_counts row_tier_counts(const row_tier *t);
/* Returns u64 [NEAR_KINDS], counts of rows in the host's memory; p NULL if that is the device's memory too. */
buf row_tier_moved(const row_tier *t);
/* Returns the bytes that a token adds to a layer's rows in the host's memory, for codes on average. */
size_t row_tier_far_bytes(const kv_format *f, const attn_shape *shape, const attn_limits *lim);

#endif
