/* SPDX-License-Identifier: MIT */
/* Tiers of a strategy's rows, below the store: device memory, host memory, or files.
 *
 * DISK: rows are written to the layer's file in blocks and in order. In prompts they are written at the end of a layer,
 * in decode steps after half a window of tokens has left the window. Readers announce the rows that they read
 * (row_tier_before_read, kv_need); see kernels/ops_tier.h.
 * HOST: the device reads and writes the rows in host memory and holds copies of some. The choice of copies affects only
 * speed. */
#ifndef ATTENTION_TIER_H
#define ATTENTION_TIER_H

#include "attention/store.h"

/* Opens the tier of s->tier for the rows of `layers`; *out is NULL for device memory. The pointers must outlive the
 * tier. */
status row_tier_open(row_tier **out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                     const bool *layers, backend *be, err *e);
void row_tier_close(row_tier *t);

/* Moves the bytes of a plan that belong in files or host memory from *part to *slow. */
void row_tier_plan(attn_bytes *part, size_t *slow, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                   const bool *layers);

/* Makes the rows available that these attention jobs read. */
void row_tier_before_read(backend *be, const attn_job *jobs, size_t n, bool decode);

/* Returns the traffic since the tier was opened; zeros without files. */
tier_counts row_tier_counts(const row_tier *t);
/* Returns u64 [NEAR_KINDS], counts of rows in host memory; p NULL if the host is the device. */
buf row_tier_moved(const row_tier *t);
/* Returns the bytes that a token adds to a layer's rows in host memory, on average for quantized stores. */
size_t row_tier_far_bytes(const kv_format *f, const attn_shape *shape, const attn_limits *lim);

#endif
