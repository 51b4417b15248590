/* SPDX-License-Identifier: MIT */
/* Page bounds: adding keys, and scoring queries against them. */
#include "config.h"

#include "kernels/cpu/dots.h"
#include "kernels/cpu/k.h"

void LEVEL(k_quest_add)(void *bound, const float *k, size_t d, dtype t, bool anew)
{
    for (size_t c = 0; c < d; c += VF_LANES) {
        size_t left = d - c;
        VF v = vf_load_some(k + c, left), top = v, low = v;
        if (!anew && left >= VF_LANES) {
            top = vf_max(v, vf_load_as(bound, c, t));
            low = vf_min(v, vf_load_as(bound, d + c, t));
        } else if (!anew) {
            top = vf_max(v, vf_load_as_n(bound, c, t, left));
            low = vf_min(v, vf_load_as_n(bound, d + c, t, left));
        }
        if (left >= VF_LANES) {
            vf_store_as(bound, c, top, t);
            vf_store_as(bound, d + c, low, t);
        } else {
            vf_store_as_n(bound, c, top, t, left);
            vf_store_as_n(bound, d + c, low, t, left);
        }
    }
}

void LEVEL(k_bounds)(float *out, size_t stride, const float *q, size_t heads, size_t d, const void *pages, dtype t,
                     size_t p0, size_t p1)
{
    size_t bytes = 2 * d * dtype_size(t);
    if (t == DT_F32) dots_rows(true, DT_F32, q, heads, d, pages, bytes, p0, p1, out, stride);
    else if (t == DT_F16) dots_rows(true, DT_F16, q, heads, d, pages, bytes, p0, p1, out, stride);
    else dots_rows(true, DT_BF16, q, heads, d, pages, bytes, p0, p1, out, stride);
}
