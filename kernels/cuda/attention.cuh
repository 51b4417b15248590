/* SPDX-License-Identifier: MIT */
/* A job of attention as kernels read it: which entries of which list a query sees. */
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/cuda.cuh"

enum { HEAD_DIM_MAX = 256 };

/* attn_job for a device. A unit is the query heads that read one KV head's rows through one list: a whole group, or a
 * single head where each has a list of its own. */
typedef struct {
    const float *q;
    float *out, *lse, *scores;
    const void *k, *v;
    const int64_t *range, *qpos, *kpos;
    const int32_t *idx, *at;
    unsigned long long *read;
    size_t cap, idx_stride, score_stride, row_bytes;
    int64_t band;
    int n_tok, n_heads, n_kv_heads, dim, n_lists, n_units;
    float scale;
} attn_args;

typedef struct {
    int kv_head, head, heads;
    int64_t first, n;
    const int32_t *idx, *at; /* NULL, or at the list's start */
} attn_unit;

static __device__ __forceinline__ attn_unit unit_of(const attn_args &j, int i)
{
    attn_unit u;
    int group = j.n_heads / j.n_kv_heads, list = j.n_lists == 1 ? 0 : i;
    bool own = j.n_units != j.n_kv_heads;
    u.kv_head = own ? i / group : i;
    u.head = own ? i : i * group;
    u.heads = own ? 1 : group;
    u.first = j.range[2 * list];
    u.n = j.range[2 * list + 1];
    u.idx = j.idx ? j.idx + list * j.idx_stride : NULL;
    u.at = j.at ? j.at + list * j.idx_stride : NULL;
    return u;
}

/* Entries of the list with a position of at most p; positions ascend. */
static __device__ __forceinline__ int64_t count_until(const attn_unit &u, int64_t p)
{
    int64_t lo = 0, hi = u.n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (u.at[u.first + mid] <= p) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Entries [lo, hi) of the list, counted from range.first, that token t sees. */
static __device__ __forceinline__ void visible(const attn_args &j, const attn_unit &u, int t, int64_t &lo, int64_t &hi)
{
    lo = 0;
    hi = u.n;
    if (u.at) {
        hi = count_until(u, j.qpos[t]);
        if (j.band > 0) lo = count_until(u, j.qpos[t] - j.band);
    } else if (j.kpos) {
        int64_t own = j.qpos[t] - j.kpos[0]; /* the query's own entry */
        hi = min(hi, own + 1);
        if (j.band > 0) lo = max(lo, own - j.band + 1);
    }
    hi = max(hi, lo);
}

static __device__ __forceinline__ size_t row_of(const attn_args &j, const attn_unit &u, int64_t entry)
{
    int64_t at = u.first + entry;
    return u.kv_head * j.cap + (size_t)(u.idx ? u.idx[at] : at);
}

/* What n entries of K and of V that a unit reads add to the job's counter: whole numbers, in any order. */
static __device__ __forceinline__ void count_read(const attn_args &j, int64_t n)
{
    if (!j.read || n <= 0) return;
    atomicAdd(&j.read[READ_K], (unsigned long long)n * j.row_bytes);
    atomicAdd(&j.read[READ_V], (unsigned long long)n * j.row_bytes);
}

/* False after a fault: rows that the kernels do not read. */
bool attn_args_of(backend *be, attn_args *out, const attn_job *job);

/* Rows may be read 16 bytes at a time. */
static inline bool attn_wide(const attn_args *j)
{
    return j->row_bytes % 16 == 0 && ((uintptr_t)j->k | (uintptr_t)j->v) % 16 == 0;
}

#endif
