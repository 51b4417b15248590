/* SPDX-License-Identifier: MIT */
/* Attention job as kernels read it, and the entries of each list that a query sees. */
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/near.cuh"

enum { HEAD_DIM_MAX = 256 };

/* attn_job for a device. A unit is the set of query heads that read one KV head's rows through one list: a whole group,
 * or a single head if each head has its own list. */
typedef struct {
    const float *q;
    float *out, *lse, *scores;
    const float *bias, *rope;
    const void *k, *v;
    const int64_t *range, *qpos; /* range NULL: `count` entries from `first` on */
    int64_t first, count, kpos;
    bool masked, pseudo;
    unsigned char rotated; /* KV_ROTATED_* */
    const int32_t *idx, *at;
    unsigned long long *read;
    size_t cap, idx_stride, score_stride, bias_stride, row_bytes;
    int64_t band;
    int n_tok, n_heads, n_kv_heads, dim, n_lists, n_units;
    float scale;
    half_codes k_codes, v_codes;
    near_args near;
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
    u.first = j.range ? j.range[2 * list] : j.first;
    u.n = j.range ? j.range[2 * list + 1] : j.count;
    u.idx = j.idx ? j.idx + list * j.idx_stride : NULL;
    u.at = j.at ? j.at + list * j.idx_stride : NULL;
    return u;
}

/* Returns the number of entries of the list with a position of at most p; positions ascend. */
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

/* Finds the entries [lo, hi) of the list, counted from range.first, that token t sees. */
static __device__ __forceinline__ void visible(const attn_args &j, const attn_unit &u, int t, int64_t &lo, int64_t &hi)
{
    lo = 0;
    hi = u.n;
    if (u.at) {
        hi = count_until(u, j.qpos[t]);
        if (j.band > 0) lo = count_until(u, j.qpos[t] - j.band);
    } else if (j.masked) {
        int64_t own = j.qpos[t] - j.kpos; /* the query's own entry */
        hi = min(hi, own + 1);
        if (j.band > 0) lo = max(lo, own - j.band + 1);
    }
    hi = max(hi, lo);
}

/* Finds the range of entries seen by any token of a warp's lanes, which take every `step`-th token. from > to if there
 * are none. */
static __device__ __forceinline__ void seen_by_warp(const attn_args &j, const attn_unit &u, int step, long long &from,
                                                    long long &to)
{
    from = INT64_MAX;
    to = 0;
    for (int t = threadIdx.x; t < j.n_tok; t += step) {
        int64_t lo, hi;
        visible(j, u, t, lo, hi);
        if (lo < hi) from = min(from, (long long)lo), to = max(to, (long long)hi);
    }
    for (int m = 16; m > 0; m /= 2) {
        from = min(from, __shfl_xor_sync(ALL_LANES, from, m));
        to = max(to, __shfl_xor_sync(ALL_LANES, to, m));
    }
}

/* Returns the slot of an index into the list's buffer, which includes the list's offset. */
static __device__ __forceinline__ size_t slot_at(const attn_unit &u, int64_t at)
{
    return (size_t)(u.idx ? u.idx[at] : at);
}

static __device__ __forceinline__ size_t slot_of(const attn_unit &u, int64_t entry)
{
    return slot_at(u, u.first + entry);
}

/* Returns the row in q, out and lse of a unit's query number `row`; queries are numbered by token, then head. */
static __device__ __forceinline__ size_t query_at(const attn_args &j, const attn_unit &u, int64_t row)
{
    return (size_t)(row / u.heads) * j.n_heads + u.head + (size_t)(row % u.heads);
}

static __device__ __forceinline__ half_rows half_of(const attn_args &j, bool value)
{
    bool rotated = j.rotated & (value ? KV_ROTATED_V : KV_ROTATED_K);
    half_rows r = {value ? j.v : j.k, j.cap, j.dim, rotated, value ? j.v_codes : j.k_codes};
    if (value) r.codes.group = 0; /* as it is, and known to the compiler */
    return r;
}

/* Counts n entries of K and of V that a unit reads, all of them exact rows. The counts are integers, so their order
 * does not matter. */
static __device__ __forceinline__ void count_read(const attn_args &j, int64_t n)
{
    if (!j.read || n <= 0) return;
    atomicAdd(&j.read[j.pseudo ? READ_INDEX : READ_K], (unsigned long long)n * j.row_bytes);
    atomicAdd(&j.read[j.pseudo ? READ_INDEX : READ_V], (unsigned long long)n * j.row_bytes);
}

/* Counts the biases of n entries for the heads of a unit. */
static __device__ __forceinline__ void count_bias(const attn_args &j, const attn_unit &u, int64_t n)
{
    if (j.bias && j.read && n > 0)
        atomicAdd(&j.read[READ_INDEX], (unsigned long long)n * (unsigned)u.heads * sizeof(float));
}

/* Fills out from a job. Returns false after a fault: the kernels do not read these rows. */
bool attn_args_of(backend *be, attn_args *out, const attn_job *job);

/* Returns an attention job that reads the slots [first, first + n), for counting. */
static inline attn_job slots_job(const kv_rows *rows, int64_t first, int64_t n, buf read)
{
    attn_job job = {};
    job.n_tok = job.n_lists = 1;
    job.n_heads = rows->n_kv_heads;
    job.rows = *rows;
    job.first = first;
    job.n_max = n;
    job.read = read;
    return job;
}

static inline bool attn_has_codes(const attn_args *j)
{
    return j->k_codes.at != NULL;
}

/* True if rows can be read 16 bytes at a time. */
static inline bool attn_wide(const attn_args *j)
{
    int n = 16 * j->dim / (int)j->row_bytes; /* elements */
    return j->row_bytes % 16 == 0 && ((uintptr_t)j->k | (uintptr_t)j->v) % 16 == 0 && codes_wide(&j->k_codes, n) &&
           codes_wide(&j->v_codes, n);
}

/* Prompt attention with tensor cores. attn_mma_fits is true if it supports the job, independently of the number of
 * queries; attn_mma_run launches it. */
bool attn_mma_fits(const attn_args *j, const attn_job *job);
cudaError_t attn_mma_run(backend *be, const attn_args *j, dtype type);
/* Adds the bytes the job reads, row by row, to its counter; values: V as well as K. For stores with quantized rows;
 * others use `count_read`. */
void cuda_count_rows(backend *be, const attn_args *j, bool values);

#endif
