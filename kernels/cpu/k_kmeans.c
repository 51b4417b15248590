/* SPDX-License-Identifier: MIT */
/* Nearest centroids: each lane has a row and its best centroid so far. Results do not depend on the level
 * (ops_kmeans.h). */
#include "config.h"

#include <float.h>

#include "kernels/cpu/k.h"

enum { TILE = 4 };

/* Updates `most`, the best sums so far, and `best`, their centroids. Sums have no negative zero, so that the difference
 * of equal sums is +0. */
INLINE void join(VF *most, VF *best, VF sum, size_t at)
{
    sum = vf_min(vf_max(sum, vf_set1(-FLT_MAX)), vf_set1(FLT_MAX));
    sum = vf_add(sum, vf_zero());
    *best = vf_by_sign(vf_sub(*most, sum), *best, vf_set1((float)at));
    *most = vf_max(*most, sum);
}

/* Considers `tile` centroids from `at` on, with independent sums. */
INLINE void take(const int tile, VF *most, VF *best, const float *x, size_t dim, const float *centroid,
                 const float *bias, size_t at)
{
    VF sum[TILE];
    UNROLL for (int i = 0; i < tile; i++) sum[i] = vf_set1(bias[at + (size_t)i]);
    for (size_t c = 0; c < dim; c++) {
        VF v = vf_load(x + c * VF_LANES);
        UNROLL for (int i = 0; i < tile; i++) sum[i] =
            vf_add(sum[i], vf_mul(v, vf_set1(centroid[(at + (size_t)i) * dim + c])));
    }
    UNROLL for (int i = 0; i < tile; i++) join(most, best, sum[i], at + (size_t)i);
}

void LEVEL(k_nearest)(float *best, const float *x, size_t dim, const float *centroid, const float *bias, size_t n)
{
    VF most = vf_set1(-FLT_MAX), at = vf_zero();
    size_t i = 0;
    for (; i + TILE <= n; i += TILE) take(TILE, &most, &at, x, dim, centroid, bias, i);
    for (; i < n; i++) take(1, &most, &at, x, dim, centroid, bias, i);
    vf_store(best, at);
}
