/* SPDX-License-Identifier: MIT */
/* Attention of a prompt's queries: tiles of keys in shared memory with online softmax. A thread block has ROWS queries
 * of one unit (tokens times the heads of a group), so that the heads of a group share what is read. Tiles begin at
 * multiples of KEYS entries of the list, and a tile that a query does not see does not change its sums. A query's bits
 * therefore do not depend on its chunk. Source: Milakov and Gimelshein 2018 (online softmax); FlashAttention. */
#include "config.h"

#include "kernels/cuda/tiles.cuh"

enum { ROWS = 16, BLOCK = 128, PER_ROW = BLOCK / ROWS };

static __device__ void load_queries(float *q, const attn_args &j, const attn_unit &u, int64_t row0)
{
    int stride = stride_of(j.dim), padded = stride - PAD;
    for (int i = threadIdx.x; i < ROWS * padded; i += BLOCK) {
        int64_t row = row0 + i / padded;
        int c = i % padded;
        size_t at = query_at(j, u, row) * j.dim + c;
        q[i / padded * stride + c] = row < (int64_t)j.n_tok * u.heads && c < j.dim ? j.q[at] : 0;
    }
}

/* State of a query between tiles. Its PER_ROW threads hold the same maximum and sum, and different columns of the
 * output: thread t has columns 4 (t + PER_ROW i) .. + 4. */
typedef struct {
    float most, sum, out[HEAD_DIM_MAX / PER_ROW];
} carried;

/* Multiplies one query with the tile's keys and writes the weights to weight [KEYS]. */
template <int KEYS>
static __device__ __forceinline__ void weigh(carried &x, float *weight, const float *q, const float *tile,
                                             const attn_args &j, int64_t at, int64_t lo, int64_t hi)
{
    const int mine = threadIdx.x % PER_ROW;
    float s[KEYS / PER_ROW], top = -INFINITY, sum = 0;
    tile_products<KEYS, PER_ROW>(s, q, tile, mine, stride_of(j.dim));
#pragma unroll
    for (int k = 0; k < KEYS / PER_ROW; k++) {
        int64_t entry = at + mine + PER_ROW * k;
        s[k] = entry >= lo && entry < hi ? s[k] * j.scale : -INFINITY;
        top = fmaxf(top, s[k]);
    }
    for (int m = 1; m < PER_ROW; m *= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, m));
    top = fmaxf(top, x.most);
    float fade = top == x.most ? 1 : expf(x.most - top); /* both may be -INFINITY */
#pragma unroll
    for (int k = 0; k < KEYS / PER_ROW; k++) {
        float w = s[k] == -INFINITY ? 0 : expf(s[k] - top);
        weight[mine + PER_ROW * k] = w;
        sum += w;
    }
    for (int m = 1; m < PER_ROW; m *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, m);
    x.sum = x.sum * fade + sum;
    x.most = top;
#pragma unroll
    for (int i = 0; i < HEAD_DIM_MAX / PER_ROW; i++) x.out[i] *= fade;
}

template <int KEYS>
static __device__ __forceinline__ void add_values(carried &x, const float *weight, const float *tile, int dim)
{
    const int mine = threadIdx.x % PER_ROW, stride = stride_of(dim);
#pragma unroll 4
    for (int k = 0; k < KEYS; k++) {
        float w = weight[k];
#pragma unroll
        for (int i = 0; i < HEAD_DIM_MAX / PER_ROW / 4; i++) {
            int c = 4 * (mine + PER_ROW * i);
            if (c >= stride - PAD) break;
            float4 v = load_f4(tile + k * stride + c);
            x.out[4 * i] = fmaf(w, v.x, x.out[4 * i]);
            x.out[4 * i + 1] = fmaf(w, v.y, x.out[4 * i + 1]);
            x.out[4 * i + 2] = fmaf(w, v.z, x.out[4 * i + 2]);
            x.out[4 * i + 3] = fmaf(w, v.w, x.out[4 * i + 3]);
        }
    }
}

static __device__ __forceinline__ void put_out(const carried &x, const attn_args &j, const attn_unit &u, int64_t row)
{
    const int mine = threadIdx.x % PER_ROW;
    size_t at = query_at(j, u, row);
    if (row >= (int64_t)j.n_tok * u.heads) return;
#pragma unroll
    for (int i = 0; i < HEAD_DIM_MAX / PER_ROW; i++) {
        int c = 4 * (mine + PER_ROW * (i / 4)) + i % 4;
        if (c < j.dim) j.out[at * j.dim + c] = x.sum == 0 ? 0 : x.out[i] / x.sum;
    }
    if (j.lse && mine == 0) j.lse[at] = x.sum == 0 ? -INFINITY : x.most + logf(x.sum);
}

/* Rotates the output back if V rows are stored rotated; called by the block that wrote it. */
static __device__ __forceinline__ void hadamard_out(const attn_args &j, const attn_unit &u, int64_t row0)
{
    __syncthreads();
    for (int i = threadIdx.x / 32; i < ROWS && row0 + i < (int64_t)j.n_tok * u.heads; i += BLOCK / 32) {
        float *out = j.out + query_at(j, u, row0 + i) * j.dim, x[ROW_BLOCKS_MAX];
        load_lanes(x, out, j.dim);
        hadamard_lanes(x, j.dim);
        store_lanes(out, x, j.dim);
    }
}

template <class T, int N, bool CODES, int KEYS> static __global__ void __launch_bounds__(BLOCK) prefill_k(attn_args j)
{
    SHARED_DYN(float, room);
    SHARED(int64_t, seen, [ROWS][2]);
    const int row_in = threadIdx.x / PER_ROW, stride = stride_of(j.dim);
    float *q = room, *tile = q + ROWS * stride, *weight = tile + KEYS * stride + row_in * (KEYS + 1);
    attn_unit u = unit_of(j, blockIdx.y);
    int64_t row0 = (int64_t)blockIdx.x * ROWS, row = row0 + row_in, n_rows = (int64_t)j.n_tok * u.heads, lo = 0, hi = 0;
    if (row < n_rows) visible(j, u, (int)(row / u.heads), lo, hi);
    if (threadIdx.x % PER_ROW == 0) seen[row_in][0] = lo, seen[row_in][1] = hi;
    load_queries(q, j, u, row0);
    __syncthreads();
    if constexpr (in_blocks<T>)
        if (j.rotated & KV_ROTATED_K) {
            hadamard_rows(q, q, ROWS, (size_t)stride, j.dim);
            __syncthreads();
        }
    int64_t from = 0, to = 0; /* entries that any query of the block sees */
    for (int i = 0; i < ROWS; i++) {
        if (seen[i][0] >= seen[i][1]) continue;
        from = to == 0 ? seen[i][0] : min(from, seen[i][0]);
        to = max(to, seen[i][1]);
    }
    carried x = {-INFINITY, 0, {}};
    const half_rows keys = half_of(j, false), values = half_of(j, true);
    for (int64_t at = (u.first + from) / KEYS * KEYS - u.first; at < to; at += KEYS) {
        load_tile<T, N, CODES, KEYS, BLOCK>(tile, keys, u, at, from, to);
        __syncthreads();
        weigh<KEYS>(x, weight, q + row_in * stride, tile, j, at, lo, hi);
        __syncthreads();
        load_tile<T, N, CODES, KEYS, BLOCK>(tile, values, u, at, from, to);
        __syncthreads();
        add_values<KEYS>(x, weight, tile, j.dim);
        __syncthreads();
    }
    put_out(x, j, u, row);
    if constexpr (in_blocks<T>)
        if (j.rotated & KV_ROTATED_V) hadamard_out(j, u, row0);
}

/* Counts each list's rows as read, from the first to the last entry that a query sees. One warp per list. */
static __global__ void count_k(attn_args j)
{
    attn_unit u = unit_of(j, blockIdx.x);
    long long from, to;
    seen_by_warp(j, u, 32, from, to);
    if (threadIdx.x == 0 && from < to) count_read(j, to - from);
}

template <class T, int N, bool CODES, int KEYS> static cudaError_t run(backend *be, const attn_args *j)
{
    int stride = stride_of(j->dim);
    size_t room = (size_t)(ROWS + KEYS) * stride + ROWS * (KEYS + 1),
           rows = (size_t)j->n_tok * (j->n_heads / j->n_units);
    return launch(prefill_k<T, N, CODES, KEYS>, dim3(cuda_blocks(rows, ROWS), (unsigned)j->n_units), dim3(BLOCK),
                  room * sizeof(float), cuda_stream(be), *j);
}

template <class T, int N, bool CODES> static cudaError_t by_dim(backend *be, const attn_args *j)
{
    return j->dim <= 128 ? run<T, N, CODES, 32>(be, j) : run<T, N, CODES, 16>(be, j);
}

template <class T> static cudaError_t prefill(backend *be, const attn_args *j)
{
    constexpr int N = pack<T>::N;
    if constexpr (in_blocks<T>) return by_dim<T, N, false>(be, j);
    else if (attn_has_codes(j)) return attn_wide(j) ? by_dim<T, N, true>(be, j) : by_dim<T, 1, true>(be, j);
    else return attn_wide(j) ? by_dim<T, N, false>(be, j) : by_dim<T, 1, false>(be, j);
}

void cuda_attn_prefill(backend *be, const attn_job *job)
{
    attn_args j;
    if (job->n_tok == 0 || !attn_is_plain(be, job) || !cuda_begin(be, "attn_prefill") || !attn_args_of(be, &j, job))
        return;
    if (attn_has_codes(&j)) cuda_count_rows(be, &j, true);
    else if (j.read) {
        cudaError_t rc = launch(count_k, dim3((unsigned)j.n_units), dim3(32), 0, cuda_stream(be), j);
        cuda_check(be, rc, "attn_prefill: counting");
    }
    if (attn_mma_fits(&j, job)) {
        cuda_check(be, attn_mma_run(be, &j, job->rows.type), "attn_prefill [%d, %d, %d], up to %lld keys", j.n_tok,
                   j.n_heads, j.dim, (long long)job->n_max);
        return;
    }
    by_rows(job->rows.type, [&](auto t) {
        cudaError_t rc = prefill<decltype(t)>(be, &j);
        cuda_check(be, rc, "attn_prefill [%d, %d, %d], up to %lld keys", j.n_tok, j.n_heads, j.dim,
                   (long long)job->n_max);
    });
}

bool attn_args_of(backend *be, attn_args *out, const attn_job *job)
{
    const kv_rows *r = &job->rows;
    bool own = job->n_lists == job->n_heads && job->n_heads != r->n_kv_heads;
    if (r->head_dim > HEAD_DIM_MAX) {
        err_set(&be->fault, ST_UNSUPPORTED, "attention: head_dim %zu: must be at most %d", r->head_dim,
                (int)HEAD_DIM_MAX);
        return false;
    }
    *out = {};
    out->q = ptr<float>(job->q);
    out->out = ptr<float>(job->out);
    out->lse = ptr<float>(job->lse);
    out->scores = ptr<float>(job->scores);
    out->bias = ptr<float>(job->bias);
    out->rope = ptr<float>(job->rope);
    out->bias_stride = job->bias_stride;
    out->pseudo = job->pseudo;
    out->rotated = (unsigned char)r->rotated;
    out->k = r->k.p;
    out->v = r->v.p;
    out->range = ptr<int64_t>(job->range);
    out->qpos = ptr<int64_t>(job->qpos);
    out->first = job->first;
    out->count = job->n_max;
    out->masked = job->masked;
    out->kpos = job->kpos;
    out->idx = ptr<int32_t>(job->idx);
    out->at = ptr<int32_t>(job->at);
    out->read = job->copied ? NULL : ptr<unsigned long long>(job->read);
    out->cap = r->cap;
    out->idx_stride = job->idx_stride;
    out->score_stride = job->score_stride;
    out->row_bytes = kv_row_bytes(r->type, r->head_dim);
    out->band = job->band;
    out->n_tok = (int)job->n_tok;
    out->n_heads = (int)job->n_heads;
    out->n_kv_heads = (int)r->n_kv_heads;
    out->dim = (int)r->head_dim;
    out->n_lists = (int)job->n_lists;
    out->n_units = (int)(own ? job->n_heads : r->n_kv_heads);
    out->scale = job->scale;
    out->k_codes = codes_of(r, false);
    out->v_codes = codes_of(r, true);
    out->near = near_of(r);
    return true;
}
