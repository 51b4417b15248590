/* SPDX-License-Identifier: MIT */
/* Selection of the best items: code shared by one thread block per list (select.cu) and several (select_wide.cu). */
#ifndef KERNELS_CUDA_CHOOSE_CUH
#define KERNELS_CUDA_CHOOSE_CUH

#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/radix.cuh"
#include "kernels/ops_select.h"

typedef struct {
    const float *score;
    size_t stride;
    item_range items;
    int64_t head, tail, first, k;
    const int64_t *budget; /* NULL: k */
    bool each;
    int64_t granule, idx_stride;
    list_groups of;
    int32_t *idx;
    int64_t *range;
} choose_args;

/* Criterion of a list's selection: all candidates with a key above `least`, and the first `ties` candidates with that
 * key. */
typedef struct {
    int64_t lo, hi, items, head, tail;
    unsigned least;
    int64_t ties;
} choice;

/* An item and the column of its score. */
typedef struct {
    int64_t item, column;
} spot;

/* Returns the criterion for forced items only; no score has the key `least` used here. */
static __device__ __forceinline__ choice forced_of(const choose_args &a)
{
    return {max(a.items.lo, a.head),
            min(a.items.hi, a.tail),
            (a.items.n_slots + a.granule - 1) / a.granule,
            a.head,
            a.tail,
            0xffffffffu,
            0};
}

/* Completes the criterion of a list of n candidates as far as possible without their scores. Returns the number of
 * items to select by score; 0: the criterion is complete. */
static __device__ __forceinline__ int64_t to_take(const choose_args &a, size_t list, int64_t n, choice *c)
{
    int64_t want = a.budget ? a.budget[a.each ? list : 0] : a.k;
    if (want < max(n, (int64_t)0)) return max(want, (int64_t)0);
    c->least = 0; /* no score has this key: all are selected */
    return 0;
}

static __device__ __forceinline__ bool is_tie(const float *s, const choice &c, spot i)
{
    return i.item >= c.lo && i.item < c.hi && !(i.item < c.head || i.item >= c.tail) && key_of(s[i.column]) == c.least;
}

/* Returns the number of slots of item i that are written to the list. */
static __device__ __forceinline__ int64_t slots_of(const choose_args &a, int64_t i, int64_t *from)
{
    int64_t to = min((i + 1) * a.granule, a.items.n_slots);
    *from = max(i * a.granule, a.first);
    return max(to - *from, (int64_t)0);
}

/* Walks a warp's items where(from) .. where(to - 1), in ascending order. ties, at: number of ties and slots before
 * them. Without idx, slots are only counted. Returns the number of slots up to the end. */
template <class F>
static __device__ int64_t walk(const choose_args &a, const float *s, const choice &c, int64_t from, int64_t to,
                               int64_t ties, int64_t at, int32_t *idx, F where)
{
    unsigned lane = threadIdx.x % 32;
    for (int64_t i0 = from; i0 < to; i0 += 32) {
        bool inside = i0 + lane < to;
        spot here = inside ? where(i0 + lane) : spot{0, 0};
        int64_t i = here.item, first = 0, all;
        bool forced = inside && (i < c.head || i >= c.tail), tie = inside && is_tie(s, c, here);
        unsigned same = __ballot_sync(ALL_LANES, tie);
        bool take =
            forced || (inside && !forced && i >= c.lo && i < c.hi &&
                       (tie ? ties + __popc(same & ((1u << lane) - 1)) < c.ties : key_of(s[here.column]) > c.least));
        int64_t n = take ? slots_of(a, i, &first) : 0, mine = at + warp_before(n, &all);
        for (int64_t t = 0; idx && t < n; t++) idx[mine + t] = (int32_t)(first + t);
        ties += __popc(same);
        at += all;
    }
    return at;
}

/* Writes list l from the items where(0) .. where(n - 1), which ascend and include all that c selects. Each warp has a
 * contiguous run of them and first needs the ties, then the slots of the runs before it. room: int64_t [MOST_WARPS].
 * Called by whole blocks. */
template <class F>
static __device__ void list_best(const choose_args &a, size_t l, const float *s, const choice &c, int64_t n,
                                 int64_t *room, F where)
{
    int64_t warps = blockDim.x / 32, run = (n + warps - 1) / warps, from = threadIdx.x / 32 * run, all;
    int64_t to = min(from + run, n), ties = 0;
    for (int64_t i = from; i < to; i += 32) {
        bool tie = i + threadIdx.x % 32 < to && is_tie(s, c, where(i + threadIdx.x % 32));
        ties += __popc(__ballot_sync(ALL_LANES, tie));
    }
    ties = block_before(ties, room, &all);
    int64_t at = block_before(walk(a, s, c, from, to, ties, 0, NULL, where), room, &all);
    walk(a, s, c, from, to, ties, at, a.idx + l * a.idx_stride, where);
    if (threadIdx.x == 0) {
        a.range[2 * l] = 0;
        a.range[2 * l + 1] = all;
    }
}

/* Lists of many items: whether they need the wide kernels, and the launches and scratch of n jobs. heads: combinations
 * that compute their scores, or none. */
bool choose_is_wide(int64_t most);
void choose_wide(backend *be, const job_list<choose_args> &list, unsigned n, size_t n_lists, int64_t most,
                 const cuda_combined &heads);

#endif
