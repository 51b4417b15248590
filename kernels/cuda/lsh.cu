/* SPDX-License-Identifier: MIT */
/* Hash tables (ops_lsh.h). Codes, tables and samples have the bits of ref. Words written by several threads are only
 * modified by integer operations, whose order does not matter. */
#include "config.h"

#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/scores.cuh"
#include "kernels/ops_lsh.h"

enum {
    TOKENS = 32,    /* hashed per block, one per lane */
    HASH_WARPS = 4, /* with one table each */
    PLANES = 4,     /* of a table, at once */
    HASH_PARTS = 4, /* blocks that share the tables */
    SORT_WARPS = 8, /* with one slice of the tokens each */
    BUCKETS = 1024, /* of a table that are filled at once */
    MARK_WARPS = 8, /* with one table each */
    LIST_BLOCK = 1024,
    BIAS_WARPS = 8, /* with one token each */
    BIAS_GRID = 64  /* blocks per head */
};

typedef struct {
    const float *plane, *mean;
    float *norm;
    int32_t *start, *entry;
    size_t cap;
    int heads, dim, bits, tables, borders;
} lsh_args;

static lsh_args args_of(const lsh_index *x)
{
    return {ptr<float>(x->plane),   ptr<float>(x->mean),    ptr<float>(x->norm),
            ptr<int32_t>(x->start), ptr<int32_t>(x->entry), x->cap,
            (int)x->n_kv_heads,     (int)x->head_dim,       (int)x->bits,
            (int)x->tables,         (int)lsh_buckets(x)};
}

/* ---- hashes ---- */

/* Sums the 16 partial sums in the order of ops_select.h. */
static __device__ __forceinline__ float sum16(const float p[PARTS])
{
    float q[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        q[i] = __fadd_rn(__fadd_rn(p[4 * i], p[4 * i + 2]), __fadd_rn(p[4 * i + 1], p[4 * i + 3]));
    return __fadd_rn(__fadd_rn(q[0], q[1]), __fadd_rn(q[2], q[3]));
}

/* Returns |key| of a lane's token; key [width][TOKENS]. */
static __device__ float norm_of(const float *key, int width)
{
    float p[PARTS] = {};
    for (int c = 0; c < width; c += PARTS)
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            float k = key[(c + i) * TOKENS];
            p[i] = __fadd_rn(p[i], __fmul_rn(k, k));
        }
    return __fsqrt_rn(sum16(p));
}

/* Returns the sides of PLANES planes [PLANES][width] on which a lane's token lies, the first plane's as bit 0. */
static __device__ __forceinline__ unsigned sides_of(const float *key, const float *plane, int width)
{
    float p[PLANES][PARTS] = {};
    for (int c = 0; c < width; c += PARTS) {
        float k[PARTS];
#pragma unroll
        for (int i = 0; i < PARTS; i++) k[i] = key[(c + i) * TOKENS];
#pragma unroll
        for (int b = 0; b < PLANES; b++)
#pragma unroll
            for (int i = 0; i < PARTS; i += 4) {
                float4 w = load_f4(plane + b * width + c + i);
                p[b][i] = __fadd_rn(p[b][i], __fmul_rn(w.x, k[i]));
                p[b][i + 1] = __fadd_rn(p[b][i + 1], __fmul_rn(w.y, k[i + 1]));
                p[b][i + 2] = __fadd_rn(p[b][i + 2], __fmul_rn(w.z, k[i + 2]));
                p[b][i + 3] = __fadd_rn(p[b][i + 3], __fmul_rn(w.w, k[i + 3]));
            }
    }
    unsigned code = 0;
#pragma unroll
    for (int b = 0; b < PLANES; b++) code |= (unsigned)(sum16(p[b]) > 0) << b;
    return code;
}

/* A block has TOKENS tokens and every HASH_PARTS-th group of tables. Shared: keys [width][TOKENS], then planes
 * [HASH_WARPS][PLANES][width]. width: number of channels, padded with zeros. */
template <class T>
static __global__ void __launch_bounds__(32 * HASH_WARPS)
    hash_k(lsh_args x, half_rows rows, int head, unsigned short *code, slot_range range, int width)
{
    SHARED_DYN(float, key);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t first = range.first + (int64_t)blockIdx.x * TOKENS, end = range.first + range.n, t = first + lane;
    float *plane = key + width * TOKENS + warp * PLANES * width;
    if constexpr (in_blocks<T>) /* one warp per row */
        for (int i = warp; i < TOKENS; i += HASH_WARPS) {
            float k[ROW_BLOCKS_MAX];
            size_t slot = (size_t)(first + i < end ? first + i : first);
            get_row(k, row_of<T>(rows.exact, head * rows.cap + slot, x.dim), x.dim, rows.rotated);
#pragma unroll
            for (int b = 0; b < ROW_BLOCKS_MAX; b++) {
                int c = b * ROW_BLOCK + lane;
                if (c >= width) continue;
                bool inside = first + i < end && c < x.dim;
                key[c * TOKENS + i] = inside ? __fsub_rn(k[b], x.mean[head * x.dim + c]) : 0;
            }
        }
    for (int i = threadIdx.x; !in_blocks<T> && i < TOKENS * width; i += 32 * HASH_WARPS) {
        int64_t slot = first + i / width;
        int c = i % width;
        bool inside = slot < end && c < x.dim;
        key[c * TOKENS + i / width] =
            inside ? __fsub_rn(element_of<T>(rows, head, slot, c), x.mean[head * x.dim + c]) : 0;
    }
    __syncthreads();
    if (blockIdx.y == 0 && warp == 0 && t < end) x.norm[head * x.cap + (size_t)t] = norm_of(key + lane, width);
    for (int l = blockIdx.y * HASH_WARPS + warp; l < x.tables; l += HASH_PARTS * HASH_WARPS) {
        unsigned mine = 0;
        for (int b = 0; b < x.bits; b += PLANES) {
            const float *from = x.plane + ((size_t)l * x.bits + b) * x.dim;
            __syncwarp();
            for (int i = lane; i < PLANES * width; i += 32) {
                int c = i % width, p = i / width;
                plane[i] = c < x.dim && b + p < x.bits ? from[p * x.dim + c] : 0;
            }
            __syncwarp();
            mine |= sides_of(key + lane, plane, width) << b;
        }
        if (t < end) code[l * x.cap + (size_t)t] = (unsigned short)mine;
    }
}

static void hash(backend *be, buf code, const lsh_index *index, const kv_rows *rows, size_t head, slot_range range)
{
    int width = ((int)index->head_dim + PARTS - 1) / PARTS * PARTS;
    size_t shared = (size_t)width * (TOKENS + HASH_WARPS * PLANES) * sizeof(float);
    if (range.n <= 0 || !cuda_begin(be, "lsh.build")) return;
    by_rows(rows->type, [&](auto t) {
        typedef decltype(t) T;
        cudaError_t rc = launch(hash_k<T>, dim3(cuda_blocks((size_t)range.n, TOKENS), HASH_PARTS),
                                dim3(32 * HASH_WARPS), shared, cuda_stream(be), args_of(index), rows_of(rows, false),
                                (int)head, ptr<unsigned short>(code), range, width);
        cuda_check(be, rc, "lsh.build: hashes [%zu, %zu], %lld tokens", index->tables, index->head_dim,
                   (long long)range.n);
    });
}

/* ---- tables ---- */

/* Returns the lanes with the same code as this one, among those with `in`. */
static __device__ __forceinline__ unsigned same_code(unsigned code, bool in, int bits)
{
    unsigned same = __ballot_sync(ALL_LANES, in);
    for (int b = 0; b < bits; b++) {
        bool one = code >> b & 1;
        unsigned ones = __ballot_sync(ALL_LANES, one);
        same &= one ? ones : ~ones;
    }
    return same;
}

/* Replaces counts[w][b] by the index of warp w's first token of bucket `low + b`. `at`: number of entries of lower
 * buckets. Writes the borders of these buckets. Returns the number of entries of these and lower buckets. */
static __device__ int64_t start_buckets(int (*counts)[BUCKETS], int32_t *start, int low, int n, int64_t at)
{
    SHARED(int64_t, room, [MOST_WARPS]);
    for (int b0 = 0; b0 < n; b0 += 32 * SORT_WARPS) {
        int b = b0 + threadIdx.x;
        int64_t sum = 0, warp, all;
        for (int w = 0; b < n && w < SORT_WARPS; w++) sum += counts[w][b];
        int64_t before = warp_before(sum, &warp);
        int64_t mine = at + before + block_before(warp, room, &all);
        if (b < n) start[low + b] = (int32_t)mine;
        for (int w = 0; b < n && w < SORT_WARPS; w++) {
            int count = counts[w][b];
            counts[w][b] = (int)mine;
            mine += count;
        }
        at += all;
    }
    __syncthreads();
    return at;
}

/* One block per table. Each warp counts its slice of the tokens, then writes them after those of the preceding
 * slices. */
static __global__ void __launch_bounds__(32 * SORT_WARPS)
    fill_k(lsh_args x, int head, const unsigned short *codes, slot_range range)
{
    SHARED(int, counts, [SORT_WARPS][BUCKETS]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, buckets = x.borders - 1;
    size_t table = (size_t)head * x.tables + blockIdx.x;
    int32_t *start = x.start + table * x.borders, *entry = x.entry + table * x.cap;
    const unsigned short *code = codes + blockIdx.x * x.cap;
    int64_t slice = (range.n + SORT_WARPS * 32 - 1) / (SORT_WARPS * 32) * 32, end = range.first + range.n, at = 0;
    int64_t from = range.first + warp * slice, to = min(from + slice, end);
    for (int low = 0; low < buckets; low += BUCKETS) {
        int n = min((int)BUCKETS, buckets - low);
        for (int b = lane; b < n; b += 32) counts[warp][b] = 0;
        __syncthreads();
        for (int64_t t = from + lane; t < to; t += 32)
            if (code[t] >= low && code[t] < low + n) atomicAdd(&counts[warp][code[t] - low], 1);
        __syncthreads();
        at = start_buckets(counts, start, low, n, at);
        for (int64_t t0 = from; t0 < to; t0 += 32) {
            unsigned mine = t0 + lane < to ? code[t0 + lane] : 0;
            bool in = t0 + lane < to && (int)mine >= low && (int)mine < low + n;
            unsigned same = same_code(mine, in, x.bits), before = same & ((1u << lane) - 1);
            int target = in ? counts[warp][mine - low] + __popc(before) : 0;
            if (in) entry[target] = (int32_t)(t0 + lane);
            __syncwarp();
            if (in && before == 0) counts[warp][mine - low] = target + __popc(same);
            __syncwarp();
        }
    }
    if (threadIdx.x == 0) start[buckets] = (int32_t)at;
}

void cuda_lsh_build(backend *be, const lsh_index *index, const kv_rows *rows, slot_range range, buf code)
{
    for (size_t h = 0; h < index->n_kv_heads; h++) {
        hash(be, code, index, rows, h, range);
        if (!cuda_begin(be, "lsh.build")) return;
        cudaError_t rc = launch(fill_k, dim3((unsigned)index->tables), dim3(32 * SORT_WARPS), 0, cuda_stream(be),
                                args_of(index), (int)h, (const unsigned short *)ptr<unsigned short>(code), range);
        cuda_check(be, rc, "lsh.build: tables [%zu, %zu], %lld tokens", index->tables, index->bits, (long long)range.n);
    }
}

/* ---- samples ---- */

typedef struct {
    lsh_args x;
    half_rows rows;
    const float *q;
    int group; /* query heads per kv head */
    slot_range range;
    int32_t *idx;
    float *bias;
    int64_t *list;
    unsigned *hits; /* per head: a bit for each token hit, then a bit for each token hit again */
    size_t words;   /* of one of the two */
    size_t row_bytes;
    unsigned long long *read;
} sample_args;

/* A warp has a table of a head: finds the query's bucket and marks its tokens. */
static __global__ void __launch_bounds__(32 * MARK_WARPS) mark_k(sample_args j)
{
    const lsh_args &x = j.x;
    int half = threadIdx.x % 32 / PARTS, lane = threadIdx.x % PARTS, l = blockIdx.x * MARK_WARPS + threadIdx.x / 32;
    size_t h = blockIdx.y, table = h / j.group * x.tables + l;
    unsigned *once = j.hits + 2 * h * j.words, *twice = once + j.words, bucket = 0;
    unsigned long long n = 0;
    float q[MOST_CHANNELS];
    if (l >= x.tables) return;
    load_part(q, j.q + h * x.dim, lane, x.dim);
    for (int b0 = 0; b0 < x.bits; b0 += 2) { /* half a warp has a plane */
        int b = min(b0 + half, x.bits - 1);
        float s = dot_parts(q, x.plane + ((size_t)l * x.bits + b) * x.dim, lane, x.dim);
        bucket |= (unsigned)(s > 0) << b;
    }
    bucket |= __shfl_xor_sync(ALL_LANES, bucket, PARTS);
    const int32_t *start = x.start + table * x.borders + bucket, *entry = x.entry + table * x.cap;
    for (int32_t i = start[0] + (int32_t)(threadIdx.x % 32); i < start[1]; i += 32) {
        int32_t t = entry[i];
        unsigned bit = 1u << t % 32;
        if (t < j.range.first) continue;
        n++;
        if (atomicOr(&once[t / 32], bit) & bit) atomicOr(&twice[t / 32], bit);
    }
    n = warp_sum(n);
    if (j.read && n > 0 && threadIdx.x % 32 == 0) atomicAdd(&j.read[READ_INDEX], n * sizeof(int32_t));
}

/* A block lists the tokens of a head that were hit twice. */
static __global__ void __launch_bounds__(LIST_BLOCK) list_k(sample_args j)
{
    SHARED(int64_t, room, [MOST_WARPS]);
    size_t h = blockIdx.x, from = (size_t)j.range.first / 32, to = (size_t)(j.range.first + j.range.n + 31) / 32;
    const unsigned *twice = j.hits + (2 * h + 1) * j.words;
    int32_t *idx = j.idx + h * j.x.cap;
    int64_t at = 0, warp, all;
    for (size_t w0 = from; w0 < to; w0 += LIST_BLOCK) {
        size_t w = w0 + threadIdx.x;
        unsigned bits = w < to ? twice[w] : 0;
        int64_t before = warp_before(__popc(bits), &warp), mine = at + before + block_before(warp, room, &all);
        for (; bits; bits &= bits - 1) idx[mine++] = (int32_t)(32 * w) + __ffs((int)bits) - 1;
        at += all;
    }
    if (threadIdx.x > 0) return;
    j.list[2 * h] = 0, j.list[2 * h + 1] = at;
    if (!j.read || at == 0) return;
    atomicAdd(&j.read[READ_INDEX], (unsigned long long)at * sizeof(float));
    if (!j.rows.codes.at) atomicAdd(&j.read[READ_K], (unsigned long long)at * j.row_bytes);
}

/* A warp has a token of a head's list. */
template <class T> static __global__ void __launch_bounds__(32 * BIAS_WARPS) bias_k(sample_args j)
{
    const lsh_args &x = j.x;
    int lane = threadIdx.x % 32, kv_head = blockIdx.y / j.group;
    size_t h = blockIdx.y;
    const float *q = j.q + h * x.dim, *mean = x.mean + (size_t)kv_head * x.dim;
    float qq = 0;
    for (int c = lane; c < x.dim; c += 32) qq += q[c] * q[c];
    float length = sqrtf(warp_sum(qq));
    for (int64_t i = (int64_t)blockIdx.x * BIAS_WARPS + threadIdx.x / 32; i < j.list[2 * h + 1];
         i += (int64_t)gridDim.x * BIAS_WARPS) {
        int32_t t = j.idx[h * x.cap + i];
        float dot = 0, by = length * x.norm[kv_head * x.cap + t];
        if constexpr (in_blocks<T>) {
            float k[ROW_BLOCKS_MAX];
            get_row(k, row_of<T>(j.rows.exact, kv_head * j.rows.cap + (size_t)t, x.dim), x.dim, j.rows.rotated);
#pragma unroll
            for (int b = 0; b < ROW_BLOCKS_MAX; b++)
                if (b * ROW_BLOCK < x.dim) dot += q[b * ROW_BLOCK + lane] * (k[b] - mean[b * ROW_BLOCK + lane]);
        } else
            for (int c = lane; c < x.dim; c += 32) dot += q[c] * (element_of<T>(j.rows, kv_head, t, c) - mean[c]);
        dot = warp_sum(dot);
        if (lane == 0) j.bias[h * x.cap + i] = lsh_bias(by > 0 ? dot / by : 0, (size_t)x.bits, (size_t)x.tables);
    }
}

/* Counts the keys of the samples in a store with quantized rows. */
static void count_codes(backend *be, const lsh_job *job)
{
    attn_args keys;
    attn_job j = {};
    j.rows = *job->rows, j.q = job->q, j.n_tok = 1, j.n_heads = j.n_lists = job->n_heads;
    j.range = job->list, j.idx = job->idx, j.idx_stride = job->x->cap, j.n_max = job->range.n, j.read = job->read;
    if (attn_args_of(be, &keys, &j)) cuda_count_rows(be, &keys, false);
}

void cuda_lsh_collide(backend *be, const lsh_job *job)
{
    const lsh_index *x = job->x;
    unsigned heads = (unsigned)job->n_heads;
    sample_args j = {args_of(x),
                     rows_of(job->rows, false),
                     ptr<float>(job->q),
                     (int)(job->n_heads / x->n_kv_heads),
                     job->range,
                     ptr<int32_t>(job->idx),
                     ptr<float>(job->bias),
                     ptr<int64_t>(job->list),
                     ptr<unsigned>(job->hits),
                     (x->cap + 31) / 32,
                     kv_row_bytes(job->rows->type, x->head_dim),
                     ptr<unsigned long long>(job->read)};
    if (!cuda_begin(be, "lsh.collide")) return;
    cudaError_t rc = cudaMemsetAsync(j.hits, 0, 2 * heads * j.words * sizeof *j.hits, cuda_stream(be));
    if (rc == cudaSuccess)
        rc = launch(mark_k, dim3(cuda_blocks(x->tables, MARK_WARPS), heads), dim3(32 * MARK_WARPS), 0, cuda_stream(be),
                    j);
    if (rc == cudaSuccess) rc = launch(list_k, dim3(heads), dim3(LIST_BLOCK), 0, cuda_stream(be), j);
    by_rows(job->rows->type, [&](auto t) {
        typedef decltype(t) T;
        unsigned grid = max(1u, min((unsigned)BIAS_GRID, cuda_blocks((size_t)max(j.range.n, (int64_t)1), BIAS_WARPS)));
        if (rc == cudaSuccess) rc = launch(bias_k<T>, dim3(grid, heads), dim3(32 * BIAS_WARPS), 0, cuda_stream(be), j);
        cuda_check(be, rc, "lsh.collide [%u, %zu], up to %lld tokens", heads, x->tables, (long long)j.range.n);
    });
    if (job->read.p && job->rows->codes.bits) count_codes(be, job);
}
