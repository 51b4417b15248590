/* SPDX-License-Identifier: MIT */
/* Block rows (ops_rows.h) as vectors. Included by k_*.c. */
#ifndef KERNELS_CPU_ROWS_H
#define KERNELS_CPU_ROWS_H

#include "kernels/cpu/simd.h"
#include "kernels/ops_rows.h"

/* Loads elements [c, c + VF_LANES) of a row of d: scale times (code - offset), which is exact. */
INLINE VF vf_load_block(const unsigned char *row, size_t c, const dtype t, size_t d)
{
    VF scale = vf_set1_f16(row + row_code_bytes(t, d) + c / ROW_BLOCK * sizeof(uint16_t));
    VF code = t == DT_Q8 ? vf_bytes(row + c) : vf_codes(row + c / 2, 4);
    return vf_mul(vf_sub(code, vf_set1((float)qblock_offset(t))), scale);
}

#endif
