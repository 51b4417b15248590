/* SPDX-License-Identifier: MIT */
/* Attention of one query per sequence, split over the keys. A list is cut into pieces whose size depends only on its
 * own length. A thread block processes one piece of one unit (attention.cuh) and reads each byte of K and V once for up
 * to 8 heads. The last of FAN pieces to finish merges their parts, the last of FAN such merges merges those, and so on.
 * This needs no further launch and no long serial sum. Source: split and merge of flash-decoding; methods.md 0.2.10. */
#ifndef KERNELS_CUDA_ATTN_PIECES_CUH
#define KERNELS_CUDA_ATTN_PIECES_CUH

#include <type_traits>

#include "kernels/cuda/attn_decode.cuh"
#include "kernels/cuda/last.cuh"

enum {
    WARPS = 4,
    BLOCK = 32 * WARPS,
    FAN = 16,
    MERGED = BLOCK / FAN /* heads merged at once */
};

/* ---- one piece ---- */

/* L lanes load UNROLL neighbouring rows at a time: lane l has, of each row, the N elements from column (l + L i) N on,
 * i < NV. AHEAD: the rows of the next iteration are loaded early. ROPE: keys are rotated, so that a lane also reads the
 * elements half a row away. */
template <class T, int N, int L, int NV, int G, int FORM, bool ROPE> struct piece {
    enum { ROWS = BLOCK / L, UNROLL = !ROPE ? 4 : N == 1 ? 1 : 2, TRIP = UNROLL * ROWS };
    enum : bool { AHEAD = N > 1 && !ROPE };
    enum : bool { BLOCKS = in_blocks<T> };
    typedef std::conditional_t<BLOCKS, block_reader<T>, row_reader<T, N, FORM == CODES>> here;
    typedef near_reader<T, BLOCKS ? 8 : N> nearest;
    typedef std::conditional_t<FORM == NEAR, nearest, here> reader;
    typedef group_pairs<N> pairs;
    /* Data loaded by one iteration. */
    typedef struct {
        int row[UNROLL];
        loaded bits[UNROLL][NV];
    } trip;
    const attn_args &j;
    const attn_unit &u;
    int from;      /* first entry, as an index into the list's buffer (includes the list's offset) */
    int64_t entry; /* the same, relative to the list's first entry */
    int n, lane, row0;
    bool mine[NV]; /* column lies within the row */
    int *staged;   /* [n] row numbers in shared memory, computed before the loads that need them */

    __device__ piece(const attn_args &job, const attn_unit &unit, int64_t first, int count, int *rows)
        : j(job), u(unit), from((int)(unit.first + first)), entry(first), n(count), lane(threadIdx.x % L),
          row0(threadIdx.x / L * UNROLL), staged(FORM != EXACT || unit.idx ? rows : NULL)
    {
#pragma unroll
        for (int i = 0; i < NV; i++) mine[i] = (lane + L * i) * N < j.dim;
    }

    __device__ __forceinline__ reader reader_of(const half_rows &rows, const void *near) const
    {
        if constexpr (FORM == NEAR) return {rows, u.kv_head, j.near, (const T *)near};
        else return {rows, u.kv_head};
    }

    /* Stages the row numbers. Quantized rows of K and of V have separate indices. */
    __device__ __forceinline__ void stage(bool value) const
    {
        const half_rows rows = half_of(j, value);
        const reader r = reader_of(rows, NULL);
        for (int i = threadIdx.x; staged && i < n; i += BLOCK) staged[i] = (int)r.row_at(slot_at(u, from + i));
        if (staged) __syncthreads();
    }

    /* Returns the first column of a lane's vector v, or with `other` of the elements that a rotation combines
     * with it. */
    __device__ __forceinline__ int column(int v, bool other) const
    {
        int c = (lane + L * v) * N, half = j.dim / 2;
        return !other ? c : c < half ? c + half : c - half;
    }

    /* Loads UNROLL rows from row `at` on. Elements outside become 0. */
    __device__ __forceinline__ void load(trip &t, const reader &rows, int at, bool other) const
    {
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            int i = at + k < n ? at + k : 0;
            t.row[k] = staged ? staged[i] : from + i;
        }
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
#pragma unroll
            for (int v = 0; v < NV; v++) {
                t.bits[k][v].bits = make_uint4(0, 0, 0, 0);
                if (mine[v] && at + k < n) rows.load(t.bits[k][v], t.row[k], column(v, other));
            }
    }

    /* Converts row k of an iteration to floats. */
    __device__ __forceinline__ void widen(float x[NV * N], const trip &t, const reader &rows, pairs kept[NV], int k,
                                          bool other) const
    {
#pragma unroll
        for (int v = 0; v < NV; v++)
            rows.widen(x + v * N, t.bits[k][v], t.row[k], mine[v] ? column(v, other) : 0, kept[v]);
    }

    /* Rotates row number i: x are its elements, y those that the rotation combines with them. */
    __device__ __forceinline__ void rotate(float x[NV * N], const float y[NV * N], int i) const
    {
        int half = j.dim / 2;
        const float2 *table = (const float2 *)j.rope + (size_t)(entry + (i < n ? i : 0)) * half;
#pragma unroll
        for (int e = 0; e < NV * N; e++) {
            int c = column(e / N, false) + e % N;
            if (!mine[e / N]) continue;
            float2 t = table[c < half ? c : c - half];
            x[e] = fmaf(x[e], t.x, c < half ? -y[e] * t.y : y[e] * t.y);
        }
    }

    /* Rotates a block row, whose elements half a row away are in another lane. */
    __device__ __forceinline__ void rotate_blocks(float x[8], int i) const
    {
        float y[8];
        int half = j.dim / 16, other = lane < half ? lane + half : lane - half, first = (int)threadIdx.x % 32 - lane;
        if (j.rotated & KV_ROTATED_K) hadamard_eight<L>(x, lane, j.dim);
#pragma unroll
        for (int e = 0; e < 8; e++) y[e] = __shfl_sync(ALL_LANES, x[e], first + other % L);
        rotate(x, y, i);
    }

    /* Stages the queries of heads [h0, h0 + G) as q [G][dim] for block rows, Hadamard-rotated if the rows are. Ends
     * with a barrier. */
    __device__ __forceinline__ void stage_queries(float *q, int h0) const
    {
        const float *from = j.q + (size_t)(u.head + h0) * j.dim;
        int heads = min((int)G, u.heads - h0);
        if (!ROPE && j.rotated & KV_ROTATED_K) hadamard_rows(q, from, heads, (size_t)j.dim, j.dim);
        else
            for (int i = threadIdx.x; i < heads * j.dim; i += BLOCK) q[i] = from[i];
        __syncthreads();
    }

    /* Loads the lane's columns of the queries of heads [h0, h0 + G). */
    __device__ __forceinline__ void load_queries(float q[G][NV * N], int h0, const float *staged_q) const
    {
        constexpr int W = N % 4 == 0 ? 4 : 1;
#pragma unroll
        for (int g = 0; g < G; g++)
#pragma unroll
            for (int i = 0; i < NV * N; i += W) {
                float4 x = make_float4(0, 0, 0, 0);
                const float *from = BLOCKS ? staged_q + g * j.dim : j.q + (size_t)(u.head + h0 + g) * j.dim;
                const float *at = from + column(i / N, false) + i % N;
                if (h0 + g < u.heads && mine[i / N]) {
                    if constexpr (W == 4) x = load_f4(at);
                    else x.x = *at;
                }
                q[g][i] = x.x;
                if constexpr (W == 4) q[g][i + 1] = x.y, q[g][i + 2] = x.z, q[g][i + 3] = x.w;
            }
    }

    /* Writes score [G][n], the scaled products of heads [h0, h0 + G). The buffer may first hold their staged
     * queries. */
    __device__ void products(float *score, int h0) const
    {
        float q[G][NV * N];
        const half_rows rows = half_of(j, false);
        const reader keys = reader_of(rows, j.near.k);
        pairs kept[NV], other[ROPE ? NV : 1];
        trip now, next, rotated;
        if (BLOCKS) stage_queries(score, h0);
        if (AHEAD) load(now, keys, row0, false);
        load_queries(q, h0, score);
        if (BLOCKS) __syncthreads();
#pragma unroll
        for (int v = 0; v < NV; v++) kept[v].group = -1;
        for (int v = 0; ROPE && v < NV; v++) other[v].group = -1;
#pragma unroll 1
        for (int at = row0; at - row0 < n; at += TRIP) {
            if (AHEAD) load(next, keys, at + TRIP, false);
            else load(now, keys, at, false);
            if (ROPE && !BLOCKS) load(rotated, keys, at, true);
#pragma unroll
            for (int k = 0; k < UNROLL; k++) {
                float s[G] = {}, x[NV * N];
                widen(x, now, keys, kept, k, false);
                if constexpr (ROPE && BLOCKS) rotate_blocks(x, at + k);
                else if constexpr (ROPE) {
                    float y[NV * N];
                    widen(y, rotated, keys, other, k, true);
                    rotate(x, y, at + k);
                }
#pragma unroll
                for (int g = 0; g < G; g++)
#pragma unroll
                    for (int i = 0; i < NV * N; i++) s[g] = fmaf(q[g][i], x[i], s[g]);
                int head = fold_sums<G, L>(s, lane), i = at + k;
                if (i < n && lane % (L / G) == 0) score[head * n + i] = s[0] * j.scale;
            }
            if (AHEAD) now = next;
        }
    }

    /* Writes part [WARPS][G][dim], the weighted sums of V rows of each warp. */
    __device__ void values(float *part, const float *weight) const
    {
        float sum[G][NV * N] = {};
        const half_rows rows = half_of(j, true);
        const reader all = reader_of(rows, j.near.v);
        pairs kept[NV]; /* unused: pairs of V are per run */
        trip now, next;
        if (AHEAD) load(now, all, row0, false);
#pragma unroll 1
        for (int at = row0; at - row0 < n; at += TRIP) {
            if (AHEAD) load(next, all, at + TRIP, false);
            else load(now, all, at, false);
#pragma unroll
            for (int k = 0; k < UNROLL; k++) {
                float x[NV * N];
                int i = at + k;
                widen(x, now, all, kept, k, false);
#pragma unroll
                for (int g = 0; g < G; g++) {
                    float w = i < n ? weight[g * n + i] : 0;
#pragma unroll
                    for (int c = 0; c < NV * N; c++) sum[g][c] = fmaf(w, x[c], sum[g][c]);
                }
            }
            if (AHEAD) now = next;
        }
        __syncthreads(); /* part overwrites weight */
#pragma unroll
        for (int g = 0; g < G; g++)
#pragma unroll
            for (int i = 0; i < NV * N; i++) {
                for (int m = L; m < 32; m *= 2) sum[g][i] += __shfl_xor_sync(ALL_LANES, sum[g][i], m);
                if ((int)(threadIdx.x % 32) == lane && mine[i / N])
                    part[(threadIdx.x / 32 * G + g) * j.dim + (lane + L * (i / N)) * N + i % N] = sum[g][i];
            }
    }
};

/* Adds rows of biases, `stride` apart, to score [heads][n]. Not inlined, so that pieces without biases keep their
 * registers. */
static __device__ __noinline__ void add_bias(float *score, int heads, int n, const float *bias, size_t stride)
{
    for (int i = threadIdx.x; i < heads * n; i += BLOCK) score[i] += bias[i / n * stride + i % n];
}

/* Turns the scores of a head into weights, with one warp. Returns the log of the sum of their exponentials. If that sum
 * is 0, the weights are NaN. */
static __device__ __forceinline__ float softmax_warp(float *score, int n)
{
    float most = -INFINITY, sum = 0;
    int lane = threadIdx.x % 32;
    for (int i = lane; i < n; i += 32) most = fmaxf(most, score[i]);
    most = warp_max(most);
    if (most == -INFINITY) most = 0; /* a bias excludes all entries: the sum is 0 */
    for (int i = lane; i < n; i += 32) {
        float w = expf(score[i] - most);
        score[i] = w;
        sum += w;
    }
    sum = warp_sum(sum);
    for (int i = lane; i < n; i += 32) score[i] /= sum;
    return most + logf(sum);
}

/* Sets the scores of entries [0, lo) and [hi, n), which the query does not see, to -INFINITY. */
static __device__ void hide_scores(const attn_args &j, const attn_unit &u, int64_t lo, int64_t hi)
{
    for (int h = u.head; j.scores && h < u.head + u.heads; h++)
        for (int64_t i = threadIdx.x; i < u.n; i += BLOCK)
            if (i < lo || i >= hi) j.scores[h * j.score_stride + i] = -INFINITY;
}

/* ---- merging the parts of a list ---- */

/* Merges the parts of `members` pieces, `apart` pieces from each other, for all heads of a unit. The result replaces
 * the first part, or with `all` becomes the output. A part with a sum of 0 may hold anything. */
template <bool BLOCKS>
static __device__ void merge_pieces(const decode_batch &b, const attn_args &j, const attn_unit &u, size_t first,
                                    size_t apart, int members, bool all)
{
    SHARED(float, weight, [BLOCK]);
    int mine = threadIdx.x / FAN, i = threadIdx.x % FAN, dim = j.dim;
    for (int h0 = 0; h0 < u.heads; h0 += MERGED) {
        int heads = min((int)MERGED, u.heads - h0);
        size_t head = (size_t)(u.head + h0), row = (blockIdx.z * j.n_heads + head) * b.most + first;
        bool inside = mine < heads && i < members;
        float l = inside ? b.lses[row + mine * b.most + i * apart] : -INFINITY, top = l;
        for (int m = FAN / 2; m > 0; m /= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, m));
        float w = l == -INFINITY ? 0 : expf(l - top), sum = w;
        for (int m = FAN / 2; m > 0; m /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, m);
        weight[threadIdx.x] = sum == 0 ? 0 : w / sum;
        float *lse = !all ? b.lses + row + mine * b.most : j.lse ? j.lse + head + mine : NULL;
        if (lse && i == 0 && mine < heads) *lse = sum == 0 ? -INFINITY : top + logf(sum);
        __syncthreads();
        for (int c = threadIdx.x; c < heads * dim; c += BLOCK) {
            float x[FAN], acc = 0, *part = b.parts + (row + c / dim * b.most) * dim + c % dim;
            const float *by = weight + c / dim * FAN;
#pragma unroll
            for (int m = 0; m < FAN; m++) x[m] = by[m] != 0 ? part[m * apart * dim] : 0;
#pragma unroll
            for (int m = 0; m < FAN; m++) acc = fmaf(by[m], x[m], acc);
            if (all) j.out[head * dim + c] = acc;
            else *part = acc;
        }
        __syncthreads();
        if (!BLOCKS || !all || !(j.rotated & KV_ROTATED_V)) continue;
        hadamard_rows(j.out + head * dim, j.out + head * dim, heads, (size_t)dim, dim);
    }
}

/* Called by a block after its piece of a list of n: merges if it is the last block of its group, then continues at the
 * next level. */
template <bool BLOCKS>
static __device__ __forceinline__ void finish(const decode_batch &b, const attn_args &j, const attn_unit &u, size_t n)
{
    size_t at = blockIdx.x, apart = 1;
    int *done = b.done + (blockIdx.z * (size_t)j.n_units + blockIdx.y) * (b.most + LEVELS);
    for (int level = 0;; level++) {
        size_t first = at / FAN * FAN, members = min((size_t)FAN, n - first);
        if (!is_last(&done[first * apart + level], (int)members)) return;
        merge_pieces<BLOCKS>(b, j, u, first * apart, apart, (int)members, n <= FAN);
        if (n <= FAN) return;
        at /= FAN;
        apart *= FAN;
        n = (n + FAN - 1) / FAN;
    }
}

/* Computes a piece of a list of rows: its partial output, and the log of its softmax denominator. */
template <class T, int N, int L, int NV, int G, int FORM, bool ROPE>
static __device__ __forceinline__ void attend(const decode_batch &b, const attn_args &j, const attn_unit &u,
                                              float *room, int64_t first, int n, int64_t most)
{
    int warp = threadIdx.x / 32;
    piece<T, N, L, NV, G, FORM, ROPE> p(j, u, first, n, (int *)room + most);
    if (FORM != CODES) p.stage(false);
    for (int h0 = 0; h0 < u.heads; h0 += G) {
        size_t row = ((size_t)blockIdx.z * j.n_heads + u.head + h0) * b.most + blockIdx.x;
        int heads = min(G, u.heads - h0);
        __syncthreads();
        if (FORM == CODES) p.stage(false);
        p.products(room, h0);
        __syncthreads();
        if (j.bias) {
            add_bias(room, heads, n, j.bias + (u.head + h0) * j.bias_stride + first, j.bias_stride);
            __syncthreads();
        }
        for (int i = threadIdx.x; j.scores && i < heads * n; i += BLOCK)
            j.scores[(u.head + h0 + i / n) * j.score_stride + first + i % n] = room[i];
        if (j.scores) __syncthreads();
        for (int g = warp; g < G; g += WARPS) {
            float lse = softmax_warp(room + g * n, n);
            if (g < heads && threadIdx.x % 32 == 0) b.lses[row + g * b.most] = lse;
        }
        if (FORM == CODES) p.stage(true);
        __syncthreads();
        p.values(room, room);
        __syncthreads();
        for (int i = threadIdx.x; i < heads * j.dim; i += BLOCK) {
            float s = 0;
            for (int w = 0; w < WARPS; w++) s += room[w * G * j.dim + i];
            b.parts[(row + i / j.dim * b.most) * j.dim + i % j.dim] = s;
        }
    }
}

/* Returns the number of blocks wanted on a multiprocessor where ptxas would allow one less; 1: any number. */
template <int N, int L, int NV, int G, int FORM, bool ROPE, bool BLOCKS> static constexpr int blocks_wanted()
{
    if (FORM != EXACT || ROPE || N == 1 || NV > 1) return 1;
    return G <= 4 ? (BLOCKS ? 4 : 5) : L <= 16 ? 3 : 1;
}

/* room: floats of shared memory before the staged row numbers. */
template <class T, int N, int L, int NV, int G, int FORM, bool ROPE>
static __global__ void __launch_bounds__(BLOCK, blocks_wanted<N, L, NV, G, FORM, ROPE, in_blocks<T>>())
    decode_k(decode_batch b, int room)
{
    SHARED_DYN(float, shared);
    const attn_args &j = b.job[blockIdx.z];
    attn_unit u = unit_of(j, blockIdx.y);
    int64_t lo, hi;
    visible(j, u, 0, lo, hi);
    if (blockIdx.x == 0) {
        hide_scores(j, u, lo, hi);
        if (FORM != CODES && threadIdx.x == 0) count_read(j, hi - lo);
        if (threadIdx.x == 0) count_bias(j, u, hi - lo);
    }
    int64_t size = piece_of(hi - lo), first = lo + blockIdx.x * size;
    if (first >= hi && blockIdx.x > 0) return;
    if (first < hi) attend<T, N, L, NV, G, FORM, ROPE>(b, j, u, shared, first, (int)min(size, hi - first), room);
    finish<in_blocks<T>>(b, j, u, (size_t)((hi - lo + size - 1) / size));
}

/* ---- launching ---- */

template <class T, int N, int L, int NV, int G, int FORM, bool ROPE>
static cudaError_t run(backend *be, const decode_batch *b, const extents *x)
{
    size_t keys = (size_t)piece_of(x->n_max), room = max(G * keys, (size_t)WARPS * G * b->job[0].dim);
    size_t staged = FORM != EXACT || x->listed ? keys : 0;
    dim3 grid((unsigned)b->most, x->units, x->n_jobs);
    return launch(decode_k<T, N, L, NV, G, FORM, ROPE>, grid, dim3(BLOCK), (room + staged) * sizeof(float),
                  cuda_stream(be), *b, (int)room);
}

/* Few methods rotate keys at read time. Such keys are processed for 4 heads at a time, whatever the group size. */
template <class T, int L, int NV, int FORM, bool ROPE>
static cudaError_t by_group(backend *be, const decode_batch *b, const extents *x)
{
    constexpr int N = pack<T>::N;
    unsigned group = x->heads / x->units;
    if constexpr (!ROPE) {
        if (group == 1) return run<T, N, L, NV, 1, FORM, false>(be, b, x);
        if (group == 2) return run<T, N, L, NV, 2, FORM, false>(be, b, x);
        if (group > 4) return run<T, N, L, NV, 8, FORM, false>(be, b, x);
    }
    return run<T, N, L, NV, 4, FORM, ROPE>(be, b, x);
}

template <class T, int FORM, bool ROPE>
static cudaError_t decode_as(backend *be, const decode_batch *b, const extents *x, bool wide)
{
    int vectors = b->job[0].dim / pack<T>::N;
    if constexpr (!in_blocks<T>)
        if (!wide) return run<T, 1, 32, HEAD_DIM_MAX / 32, 4, FORM, ROPE>(be, b, x);
    if constexpr (sizeof(T) == 4)
        return vectors <= 32 ? by_group<T, 32, 1, FORM, ROPE>(be, b, x) : by_group<T, 32, 2, FORM, ROPE>(be, b, x);
    else
        return vectors <= 8    ? by_group<T, 8, 1, FORM, ROPE>(be, b, x)
               : vectors <= 16 ? by_group<T, 16, 1, FORM, ROPE>(be, b, x)
                               : by_group<T, 32, 1, FORM, ROPE>(be, b, x);
}

template <int FORM> static cudaError_t decode(backend *be, const decode_batch *b, const extents *x, dtype type)
{
    cudaError_t rc = cudaSuccess;
    by_type(type, [&](auto t) {
        typedef decltype(t) T;
        bool halves = b->job[0].dim / 2 % pack<T>::N == 0;
        rc = b->job[0].rope ? decode_as<T, FORM, true>(be, b, x, x->wide && halves)
                            : decode_as<T, FORM, false>(be, b, x, x->wide);
    });
    return rc;
}

template <int FORM>
static cudaError_t decode_in_blocks(backend *be, const decode_batch *b, const extents *x, dtype type)
{
    cudaError_t rc = cudaSuccess;
    by_blocks_of(type, [&](auto t) {
        typedef decltype(t) T;
        rc = b->job[0].rope ? decode_as<T, FORM, true>(be, b, x, true) : decode_as<T, FORM, false>(be, b, x, true);
    });
    return rc;
}

#endif
