/* SPDX-License-Identifier: MIT */
/* What of a strategy's rows lies in files, and when it goes there (methods.md 8: regions and flushes). Mechanism:
 * kernels/ops_tier.h. Included by attention/ alone. */
#ifndef ATTENTION_TIER_H
#define ATTENTION_TIER_H

#include "attention/method.h"

/* Which tokens stay in memory. */
void attn_tier_regions(attn_tier *t, const attn_spec *s);
/* Opens the files' common part; the stores add their layers. */
status attn_tier_open(attn_tier *t, const attn_spec *s, const attn_shape *shape, backend *be, err *e);
/* Of a plan of n layers whose rows are all in memory: what stays, what goes to the disk. */
void attn_tier_plan(attn_bytes *part, size_t *disk, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                    int n);


/* Rows of a layer and head that the device holds of exact ones in the host's memory, as in kv_near, for `cap` slots. */
typedef struct {
    int64_t first, window, slots;
} near_places;
near_places attn_near_places(const attn_spec *s, const attn_shape *shape, int64_t cap, const bool *layers);
/* Of a plan of n layers: what lies in the host's memory, and what of it on the device. */
void attn_host_plan(attn_bytes *part, size_t *host, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                    const bool *layers);

#endif
