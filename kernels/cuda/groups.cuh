/* SPDX-License-Identifier: MIT */
/* Groups of items as kernels read them (item_spans of ops_select.h). */
#ifndef KERNELS_CUDA_GROUPS_CUH
#define KERNELS_CUDA_GROUPS_CUH

#include "kernels/cuda/cuda.cuh"
#include "kernels/ops_select.h"

typedef struct {
    const int32_t *group;
    const int64_t *range;
    size_t n_lists, stride;
    int64_t per;
} list_groups;

static inline list_groups groups_of(const item_spans *g)
{
    if (!g) return {};
    return {ptr<int32_t>(g->span), ptr<int64_t>(g->range), g->n_lists, g->stride, g->per};
}

/* An index_add_job whose index x_of converts for the kernels. */
template <class X> struct index_adds {
    X x;
    int64_t pos;
    const float *k;
    int64_t n;
};
template <class Q, class X> static auto adds_of(X (*x_of)(const Q *))
{
    return [x_of](const index_add_job &j) {
        return index_adds<X>{x_of((const Q *)j.index), j.pos, ptr<float>(j.k), (int64_t)j.n};
    };
}

/* Returns the number of thread-block rows (grid y): heads that read an index with the same kv head and list
 * share one. */
static inline size_t parts_of(const score_job *j, size_t n_kv_heads)
{
    return j->spans ? max(j->spans->n_lists, n_kv_heads) : n_kv_heads;
}

/* Returns the largest number of score columns of any job of a call. */
static inline int64_t most_score_columns(const score_job *jobs, size_t n)
{
    int64_t most = 0;
    for (const score_job *j = jobs; j < jobs + n; j++)
        most = max(most, j->spans ? j->spans->n_max * j->spans->per : j->items.hi);
    return most;
}

/* One list of n groups, whose columns [first, end) hold the candidates [lo, hi). */
typedef struct {
    const int32_t *group;
    int64_t per, n, first, end;
} group_columns;

static __device__ __forceinline__ group_columns columns_of(const list_groups &g, size_t list, int64_t lo, int64_t hi)
{
    group_columns p = {g.group + list * g.stride, g.per, g.range[2 * list + 1], 0, 0};
    if (p.n == 0) return p;
    p.first = max(lo - p.group[0] * p.per, (int64_t)0);
    p.end = p.n * p.per - max((p.group[p.n - 1] + 1) * p.per - hi, (int64_t)0);
    return p;
}

/* Returns the list of the block's heads. */
static __device__ __forceinline__ size_t list_of_part(const list_groups &g)
{
    return blockIdx.y * g.n_lists / gridDim.y;
}

/* Returns the item of a column; column < n * per. */
static __device__ __forceinline__ int64_t item_of(const group_columns &p, int64_t column)
{
    unsigned at = (unsigned)column, per = (unsigned)p.per;
    return p.group[at / per] * p.per + at % per;
}

#endif
