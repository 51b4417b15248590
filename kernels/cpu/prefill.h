/* SPDX-License-Identifier: MIT */
/* Shared by the kernels of prompt attention and those of attention by tiles. */
#ifndef KERNELS_CPU_PREFILL_H
#define KERNELS_CPU_PREFILL_H

#include <math.h>

#include "kernels/cpu/k.h"

/* Work space of a key tile; see prefill_work_floats. */
typedef struct {
    float *k, *v;  /* PREFILL_KEYS packed rows each */
    float *rows;   /* [HEAD_DIM_PAD][dim_pad] rows before packing to k and v */
    float *s;      /* scores, then weights, of PREFILL_ROWS rows */
    float *factor; /* [PREFILL_ROWS] */
    size_t dim_pad;
} key_work;

/* Clears the results of a block and divides its work space. */
INLINE key_work begin_block(const prefill_block *b)
{
    size_t pad = prefill_dim_pad(b->head_dim);
    key_work w = {.k = b->work, .dim_pad = pad};
    w.v = w.k + PREFILL_KEYS * pad;
    w.rows = w.v + PREFILL_KEYS * pad;
    w.s = w.rows + HEAD_DIM_PAD * pad;
    w.factor = w.s + PREFILL_ROWS * PREFILL_KEYS;
    for (size_t r = 0; r < b->n_rows; r++) b->top[r] = -INFINITY;
    memset(b->sum, 0, b->n_rows * VF_LANES * sizeof *b->sum);
    memset(b->acc, 0, b->n_rows * pad * sizeof *b->acc);
    return w;
}

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
