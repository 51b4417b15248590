/* SPDX-License-Identifier: MIT */
/* Quantized rows (ops_codes.h): quantizing exact rows, reading quantized rows, and counting the bytes read. */
#include "config.h"

#include "kernels/cuda/attention.cuh"

enum { BLOCK = 256, COUNT_BLOCKS = 16, WARPS = 4 };

/* ---- encoding ---- */

static __device__ __forceinline__ unsigned code_of(const codes_rule &r, float top, float x)
{
    x = rintf((x - r.less) * r.times / r.by) + r.add;
    return !(x > 0) ? 0 : x > top ? (unsigned)top : (unsigned)x; /* NaN: 0 */
}

static __device__ __forceinline__ void widen_range(float &lo, float &hi, float x)
{
    if (x < lo) lo = x;
    if (x > hi) hi = x;
}

static __device__ __forceinline__ void put_pair(const half_rows &r, int head, int64_t row, int c,
                                                const codes_rule &rule)
{
    int apart;
    __half *p = const_cast<__half *>(pair_of(r.codes, r.dim, head, row, c, &apart));
    put_f32(p, rule.a);
    put_f32(p + apart, rule.b);
}

static __device__ __forceinline__ unsigned char *code_row(const half_rows &r, int head, int64_t row)
{
    return r.codes.code + (head * r.codes.cap + (size_t)row) * r.codes.row_bytes;
}

/* Source rows to quantize: one list for all heads, or (each) one per head; stride 0: one for all again. factor:
 * multipliers of their channels; NULL: 1. */
typedef struct {
    const int64_t *all;
    const int32_t *each;
    size_t stride;
    const float *factor;
} sources;

static __device__ __forceinline__ int64_t source_row(const sources &s, int head, size_t i)
{
    return s.all ? s.all[i] : (int64_t)s.each[head * s.stride + i];
}

static __device__ __forceinline__ float scaled(const sources &s, int head, int dim, int c, float x)
{
    return s.factor ? __fmul_rn(x, s.factor[head * dim + c]) : x;
}

/* A block has a group of rows of one head; a thread has the channels of one byte. */
template <class T> static __global__ void encode_channels_k(half_rows r, sources s, size_t first)
{
    const half_codes &h = r.codes;
    const int per = 8 / h.bits, c0 = (int)threadIdx.x * per, head = blockIdx.y, n = min(per, r.dim - c0);
    const float top = (float)((1 << h.bits) - 1);
    const size_t i0 = (size_t)blockIdx.x * h.group;
    const int64_t row = (int64_t)(first + (size_t)blockIdx.x * h.group);
    const T *rows = (const T *)r.exact + head * r.cap * r.dim + c0;
    codes_rule rule[4];
    if (threadIdx.x >= h.row_bytes) return;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float lo = INFINITY, hi = -INFINITY;
        for (int i = 0; k < n && i < h.group; i++)
            widen_range(lo, hi, scaled(s, head, r.dim, c0 + k, to_f32(rows[source_row(s, head, i0 + i) * r.dim + k])));
        rule[k] = codes_rule_of(top, h.zero_point, lo, hi);
        if (k < n) put_pair(r, head, row, c0 + k, rule[k]);
    }
    for (int i = 0; i < h.group; i++) {
        const T *x = rows + source_row(s, head, i0 + i) * r.dim;
        unsigned byte = 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < n) byte |= code_of(rule[k], top, scaled(s, head, r.dim, c0 + k, to_f32(x[k]))) << k * h.bits;
        code_row(r, head, row + i)[threadIdx.x] = (unsigned char)byte;
    }
}

/* A warp has a row of one head; its lanes process the runs, then the bytes. */
template <class T>
static __global__ void __launch_bounds__(32 * WARPS) encode_runs_k(half_rows r, sources s, size_t first, size_t n)
{
    SHARED_DYN(float, room);
    const half_codes &h = r.codes;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, per = 8 / h.bits, head = blockIdx.y;
    const float top = (float)((1 << h.bits) - 1);
    const size_t i = (size_t)blockIdx.x * WARPS + warp;
    float *range = room + warp * 2 * h.runs;
    if (i >= n) return;
    const T *x = (const T *)r.exact + (head * r.cap + (size_t)source_row(s, head, i)) * r.dim;
    for (int k = lane; k < h.runs; k += 32) {
        float lo = INFINITY, hi = -INFINITY;
        for (int c = k * h.run; c < min((k + 1) * h.run, r.dim); c++)
            widen_range(lo, hi, scaled(s, head, r.dim, c, to_f32(x[c])));
        range[2 * k] = lo;
        range[2 * k + 1] = hi;
        put_pair(r, head, (int64_t)(first + i), k * h.run, codes_rule_of(top, h.zero_point, lo, hi));
    }
    __syncwarp();
    for (int b = lane; b < (int)h.row_bytes; b += 32) {
        unsigned byte = 0;
        for (int k = 0; k < per && b * per + k < r.dim; k++) {
            const int c = b * per + k;
            const float *own = range + c / h.run * 2;
            byte |=
                code_of(codes_rule_of(top, h.zero_point, own[0], own[1]), top, scaled(s, head, r.dim, c, to_f32(x[c])))
                << k * h.bits;
        }
        code_row(r, head, (int64_t)(first + i))[b] = (unsigned char)byte;
    }
}

/* Quantizes n rows of every head into quantized rows from `first` on. */
static void encode(backend *be, const half_rows &r, dtype type, unsigned heads, const sources &s, size_t first,
                   size_t n)
{
    unsigned group = (unsigned)r.codes.group;
    by_type(type, [&](auto t) {
        typedef decltype(t) T;
        cudaError_t rc;
        if (group)
            rc = launch(encode_channels_k<T>, dim3((unsigned)n / group, heads),
                        dim3(cuda_blocks(r.codes.row_bytes, 32) * 32), 0, cuda_stream(be), r, s, first);
        else
            rc = launch(encode_runs_k<T>, dim3(cuda_blocks(n, WARPS), heads), dim3(32 * WARPS),
                        WARPS * 2 * (size_t)r.codes.runs * sizeof(float), cuda_stream(be), r, s, first, n);
        cuda_check(be, rc, "encode [%zu, %u, %d], %d bits", n, heads, r.dim, r.codes.bits);
    });
}

void cuda_codes_encode(backend *be, const kv_rows *rows, bool value, buf src, size_t first, size_t n)
{
    if (n == 0 || !cuda_begin(be, "encode")) return;
    encode(be, rows_of(rows, value), rows->type, (unsigned)rows->n_kv_heads, {ptr<int64_t>(src), NULL, 0, NULL}, first,
           n);
}

/* ---- moving rows to another store ---- */

/* One thread per element; blockIdx.z: K or V. */
template <class T, class U>
static __global__ void copy_rows_k(U *k, U *v, size_t cap, const T *from_k, const T *from_v, size_t from_cap, int dim,
                                   sources s, size_t first, size_t n)
{
    size_t e = (size_t)blockIdx.x * BLOCK + threadIdx.x, i = e / dim, c = e % dim;
    int head = blockIdx.y;
    if (i >= n) return;
    const T *from = (blockIdx.z ? from_v : from_k) + (head * from_cap + (size_t)source_row(s, head, i)) * dim + c;
    put_f32((blockIdx.z ? v : k) + (head * cap + first + i) * dim + c, to_f32(*from));
}

static void copy_rows(backend *be, const demote_job *j, const sources &s)
{
    dim3 grid(cuda_blocks(j->n * j->to->head_dim, BLOCK), (unsigned)j->to->n_kv_heads, 2);
    by_type(j->from->type, [&](auto t) {
        typedef decltype(t) T;
        by_type(j->to->type, [&](auto u) {
            typedef decltype(u) U;
            cudaError_t rc = launch(copy_rows_k<T, U>, grid, dim3(BLOCK), 0, cuda_stream(be), ptr<U>(j->to->k),
                                    ptr<U>(j->to->v), j->to->cap, ptr<T>(j->from->k), ptr<T>(j->from->v), j->from->cap,
                                    (int)j->to->head_dim, s, j->first, j->n);
            cuda_check(be, rc, "demote [%zu, %zu, %zu]", j->n, j->to->n_kv_heads, j->to->head_dim);
        });
    });
}

void cuda_codes_demote(backend *be, const demote_job *j)
{
    sources s = {NULL, ptr<int32_t>(j->slot), j->n_lists == 1 ? 0 : j->stride, NULL};
    if (j->n == 0 || !cuda_begin(be, "demote")) return;
    if (j->exact) {
        copy_rows(be, j, s);
        return;
    }
    for (int value = 0; value < 2; value++) {
        half_rows r = rows_of(j->to, value);
        r.exact = value ? j->from->v.p : j->from->k.p;
        r.cap = j->from->cap;
        s.factor = value ? NULL : ptr<float>(j->factor);
        encode(be, r, j->from->type, (unsigned)j->to->n_kv_heads, s, j->first, j->n);
    }
}

/* One thread per channel of a group of heads; x has n * heads rows per group. */
static __global__ void column_max_k(float *most, const float *x, size_t n, size_t heads, size_t dim)
{
    size_t c = (size_t)blockIdx.x * BLOCK + threadIdx.x, g = blockIdx.y;
    if (c >= dim) return;
    float m = most[g * dim + c];
    for (size_t r = 0; r < n; r++)
        for (size_t h = 0; h < heads; h++) {
            float y = fabsf(x[((r * gridDim.y + g) * heads + h) * dim + c]);
            m = y > m ? y : m;
        }
    most[g * dim + c] = m;
}

void cuda_codes_column_max(backend *be, buf most, buf x, size_t n, size_t n_heads, size_t n_groups, size_t dim)
{
    if (!cuda_begin(be, "column_max")) return;
    cudaError_t rc = launch(column_max_k, dim3(cuda_blocks(dim, BLOCK), (unsigned)n_groups), dim3(BLOCK), 0,
                            cuda_stream(be), ptr<float>(most), ptr<float>(x), n, n_heads / n_groups, dim);
    cuda_check(be, rc, "column_max [%zu, %zu, %zu]", n, n_heads, dim);
}

static __global__ void balance_k(float *out, const float *q, const float *k, size_t n)
{
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    float b = __fsqrt_rn(__fdiv_rn(q[i], k[i]));
    out[i] = b > 0 && b < INFINITY ? b : 1;
}

void cuda_codes_balance(backend *be, buf out, buf q, buf k, size_t n)
{
    if (!cuda_begin(be, "balance")) return;
    cudaError_t rc = launch(balance_k, dim3(cuda_blocks(n, BLOCK)), dim3(BLOCK), 0, cuda_stream(be), ptr<float>(out),
                            ptr<float>(q), ptr<float>(k), n);
    cuda_check(be, rc, "balance [%zu]", n);
}

static __global__ void divide_k(float *out, const float *x, const float *factor, size_t n, size_t n_heads, size_t heads,
                                size_t dim)
{
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) out[i] = __fdiv_rn(x[i], factor[i / dim % n_heads / heads * dim + i % dim]);
}

void cuda_codes_divide_channels(backend *be, buf out, buf x, buf factor, size_t n, size_t n_heads, size_t n_groups,
                                size_t dim)
{
    size_t all = n * n_heads * dim;
    if (all == 0 || !cuda_begin(be, "divide_channels")) return;
    cudaError_t rc = launch(divide_k, dim3(cuda_blocks(all, BLOCK)), dim3(BLOCK), 0, cuda_stream(be), ptr<float>(out),
                            ptr<float>(x), ptr<float>(factor), all, n_heads, n_heads / n_groups, dim);
    cuda_check(be, rc, "divide_channels [%zu, %zu, %zu]", n, n_heads, dim);
}

/* ---- counting reads ---- */

/* Returns the bytes of a slot's row. A group's pairs are counted for the first slot that reads them; marks has a bit
 * per group. */
static __device__ __forceinline__ unsigned long long slot_bytes(const half_codes &h, size_t exact, int dim, size_t slot,
                                                                unsigned *marks)
{
    int64_t row = h.at ? h.at[slot] : 0, group = h.group && row < 0 ? (-1 - row) / h.group : 0;
    unsigned bit = 1u << group % 32;
    bool first = h.group && row < 0 && !(atomicOr(&marks[group / 32], bit) & bit);
    return bytes_of(h, exact, dim, row, first);
}

/* True if a slot's row is always in device memory. */
static __device__ __forceinline__ bool is_near(const attn_args &j, const half_codes &h, size_t slot)
{
    return j.near.exact && h.at && h.at[slot] >= 0;
}

/* Counts the entries from the first to the last that any token sees; blockIdx.y: the list. words: words of marks per
 * list. */
static __global__ void __launch_bounds__(BLOCK)
    count_rows_k(attn_args j, bool values, unsigned times, unsigned *marks, size_t words)
{
    SHARED(long long, ends, [BLOCK / 32][2]);
    attn_unit u = unit_of(j, blockIdx.y);
    long long from, to;
    seen_by_warp(j, u, BLOCK, from, to);
    if (threadIdx.x % 32 == 0) ends[threadIdx.x / 32][0] = from, ends[threadIdx.x / 32][1] = to;
    __syncthreads();
    for (int w = 0; w < BLOCK / 32; w++) from = min(from, ends[w][0]), to = max(to, ends[w][1]);
    if (from >= to) return; /* no token sees the list */
    unsigned long long k = 0, v = 0, rows = 0, found = 0, link = 0;
    for (long long i = from + blockIdx.x * BLOCK + threadIdx.x; i < to; i += (long long)gridDim.x * BLOCK) {
        size_t slot = slot_of(u, i);
        unsigned long long key = slot_bytes(j.k_codes, j.row_bytes, j.dim, slot, marks + blockIdx.y * words);
        unsigned long long value = values ? slot_bytes(j.v_codes, j.row_bytes, j.dim, slot, NULL) : 0;
        bool near_k = is_near(j, j.k_codes, slot), near_v = is_near(j, j.v_codes, slot);
        k += key;
        v += value;
        rows += 1 + values;
        found += near_k + (near_v && values);
        link += (near_k ? 0 : key) + (near_v ? 0 : value);
    }
    k = warp_sum(k);
    v = warp_sum(v);
    rows = warp_sum(rows);
    found = warp_sum(found);
    link = warp_sum(link);
    if (threadIdx.x % 32 != 0) return;
    if (j.near.count && rows) {
        atomicAdd(&j.near.count[NEAR_ASKED], rows * times);
        atomicAdd(&j.near.count[NEAR_FOUND], found * times);
        atomicAdd(&j.near.count[NEAR_LINK], link * times);
    }
    if (k) atomicAdd(&j.read[j.pseudo ? READ_INDEX : READ_K], k * times);
    if (v) atomicAdd(&j.read[j.pseudo ? READ_INDEX : READ_V], v * times);
}

void cuda_count_rows(backend *be, const attn_args *j, bool values)
{
    const half_codes *h = &j->k_codes;
    unsigned lists = j->n_lists == 1 ? 1 : (unsigned)j->n_units, times = j->n_lists == 1 ? (unsigned)j->n_units : 1;
    size_t words = h->group ? (h->cap / (size_t)h->group + 31) / 32 : 1;
    if (!j->read || be->fault.code != ST_OK) return;
    unsigned *marks = (unsigned *)cuda_room(be, &cuda_of(be)->parts, lists * words, sizeof *marks, "marks of groups");
    if (!marks) return;
    cudaError_t rc = cudaMemsetAsync(marks, 0, lists * words * sizeof *marks, cuda_stream(be));
    if (rc == cudaSuccess)
        rc = launch(count_rows_k, dim3(COUNT_BLOCKS, lists), dim3(BLOCK), 0, cuda_stream(be), *j, values, times, marks,
                    words);
    cuda_check(be, rc, "counting rows of %u lists", lists);
}

/* ---- reading rows ---- */

/* One thread per element of K and V. */
template <class T>
static __global__ void fetch_k(float *k, float *v, size_t cap, half_rows keys, half_rows values, int64_t first,
                               int64_t n)
{
    int head = blockIdx.y, dim = keys.dim;
    size_t e = (size_t)blockIdx.x * BLOCK + threadIdx.x, i = e / dim;
    int c = (int)(e % dim);
    if ((int64_t)i >= n) return;
    size_t to = (head * cap + i) * dim + c;
    k[to] = element_of<T>(keys, head, first + (int64_t)i, c);
    if (v) v[to] = element_of<T>(values, head, first + (int64_t)i, c);
}

/* The same for block rows: one warp per row; blockIdx.z: K or V. */
template <class T>
static __global__ void __launch_bounds__(32 * WARPS)
    fetch_blocks_k(float *k, float *v, size_t cap, half_rows keys, half_rows values, int64_t first, int64_t n)
{
    const void *rows = blockIdx.z ? values.exact : keys.exact;
    int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int head = blockIdx.y, dim = keys.dim;
    bool rotated = blockIdx.z ? values.rotated : keys.rotated;
    float x[ROW_BLOCKS_MAX];
    if (i >= n) return;
    get_row(x, row_of<T>(rows, head * keys.cap + (size_t)(first + i), dim), dim, rotated);
    store_lanes((blockIdx.z ? v : k) + (head * cap + (size_t)i) * dim, x, dim);
}

template <class T> static constexpr auto fetcher_of()
{
    if constexpr (in_blocks<T>) return fetch_blocks_k<T>;
    else return fetch_k<T>;
}

void cuda_codes_fetch(backend *be, const kv_rows *out, const kv_rows *rows, int64_t first, int64_t n, buf read)
{
    attn_args j;
    attn_job job = slots_job(rows, first, n, read);
    if (!cuda_begin(be, "fetch") || !attn_args_of(be, &j, &job)) return;
    cuda_count_rows(be, &j, out->v.p != NULL);
    by_rows(rows->type, [&](auto t) {
        typedef decltype(t) T;
        dim3 grid(max(1u, cuda_blocks((size_t)n * rows->head_dim, BLOCK)), (unsigned)j.n_units), block(BLOCK);
        if (in_blocks<T>)
            grid = dim3(max(1u, cuda_blocks((size_t)n, WARPS)), (unsigned)j.n_units, out->v.p ? 2 : 1),
            block = dim3(32 * WARPS);
        cudaError_t rc = launch(fetcher_of<T>(), grid, block, 0, cuda_stream(be), ptr<float>(out->k),
                                ptr<float>(out->v), out->cap, rows_of(rows, false), rows_of(rows, true), first, n);
        cuda_check(be, rc, "fetch [%zu, %zu], %lld rows", rows->n_kv_heads, rows->head_dim, (long long)n);
    });
}

/* One warp per row. */
template <class T>
static __global__ void __launch_bounds__(32 * WARPS)
    round_k(float *out, const float *in, size_t n, int dim, bool rotated)
{
    size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    float x[ROW_BLOCKS_MAX];
    if (row >= n) return;
    load_lanes(x, in + row * dim, dim);
    round_lanes<T>(x, dim, rotated);
    store_lanes(out + row * dim, x, dim);
}

template <class T> static __global__ void round_numbers_k(float *out, const float *in, size_t n)
{
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    T x;
    if (i >= n) return;
    put_f32(&x, in[i]);
    out[i] = to_f32(x);
}

void cuda_codes_round(backend *be, buf out, buf in, const kv_rows *rows, bool value, size_t n)
{
    size_t all = n * rows->n_kv_heads, dim = rows->head_dim;
    bool rotated = rows->rotated & (value ? KV_ROTATED_V : KV_ROTATED_K);
    if (all == 0 || !cuda_begin(be, "round")) return;
    by_rows(rows->type, [&](auto t) {
        typedef decltype(t) T;
        cudaError_t rc;
        if constexpr (in_blocks<T>)
            rc = launch(round_k<T>, dim3(cuda_blocks(all, WARPS)), dim3(32 * WARPS), 0, cuda_stream(be),
                        ptr<float>(out), ptr<float>(in), all, (int)dim, rotated);
        else
            rc = launch(round_numbers_k<T>, dim3(cuda_blocks(all * dim, BLOCK)), dim3(BLOCK), 0, cuda_stream(be),
                        ptr<float>(out), ptr<float>(in), all * dim);
        cuda_check(be, rc, "round [%zu, %zu]", all, dim);
    });
}
