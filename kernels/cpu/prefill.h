/* SPDX-License-Identifier: MIT */
/* Shared by the kernels of prompt attention (k_prefill.c, k_prefill_tiles.c). */
#ifndef KERNELS_CPU_PREFILL_H
#define KERNELS_CPU_PREFILL_H

#include "kernels/cpu/k.h"

/* Reads entries [first, first + n) to rows as floats, `stride` apart; rows outside the list are unchanged. */
INLINE void read_entries(float *rows, size_t stride, const prefill_block *b, const row_source *from, int64_t first,
                         int64_t n)
{
    int64_t lo = first > b->list_lo ? first : b->list_lo;
    int64_t hi = first + n < b->list_hi ? first + n : b->list_hi;
    if (lo >= hi) return;
    LEVEL(k_rows)(rows + (size_t)(lo - first) * stride, stride, from, b->idx, lo, (size_t)(hi - lo));
}

/* Computes the union of the entries that rows [r0, r0 + n) see; lo >= hi: none. */
INLINE void rows_see(const prefill_block *b, size_t r0, size_t n, int64_t *lo, int64_t *hi)
{
    *lo = INT64_MAX;
    *hi = INT64_MIN;
    for (size_t r = r0; r < r0 + n; r++) {
        if (b->lo[r] >= b->hi[r]) continue;
        if (b->lo[r] < *lo) *lo = b->lo[r];
        if (b->hi[r] > *hi) *hi = b->hi[r];
    }
}

#endif
