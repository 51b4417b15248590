/* SPDX-License-Identifier: MIT */
/* Where the rows of a strategy's layers lie: the device's memory, the host's, or files. A layer below the store.
 *
 * DISK: blocks of rows go to the layer's file in order, in prompts as a layer ends, in decode steps once half a window
 * of tokens has left the window. Readers name what they read before (row_tier_before_read, kv_need). Mechanism:
 * kernels/ops_tier.h. HOST: rows lie in the host's memory, where the device reads and writes them; of some the device
 * holds copies. Which rows have one decides nothing but time. */
#ifndef ATTENTION_TIER_H
#define ATTENTION_TIER_H

#include "attention/store.h"

/* NULL for the device's memory. layers: those whose rows the tier holds. */
status row_tier_open(row_tier **out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                     const bool *layers, backend *be, err *e);
void row_tier_close(row_tier *p);

/* Of a plan whose rows are all in the device's memory: moves bytes from *part to *slow, as far as they lie in files or
 * in the host's memory. n_layers: of the model's layers those with layers[l]. */
void row_tier_plan(attn_bytes *part, size_t *slow, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                   const bool *layers);

/* All that attention over these jobs will read is where it can be read. */
void row_tier_before_read(backend *be, const attn_job *jobs, size_t n, bool decode);

/* What moved, since the tier was opened; zeros without files. */
tier_counts row_tier_counts(const row_tier *p);
/* u64 [NEAR_KINDS]: what ops count of rows in the host's memory; p NULL: that is the device's memory too. */
buf row_tier_moved(const row_tier *p);
/* Bytes that a token adds to a layer's rows in the host's memory; of codes their mean. */
size_t row_tier_far_bytes(const kv_format *f, const attn_shape *shape, const attn_limits *lim);

#endif
