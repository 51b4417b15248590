/* SPDX-License-Identifier: MIT */
/* Attention of one query per sequence, split over the keys. A list is cut into pieces whose size depends only on its
 * own length. A thread block processes one piece of one unit (attention.cuh) and reads each byte of K and V once for up
 * to 8 heads. The last of FAN pieces to finish merges their parts, the last of FAN such merges merges those, and so on.
 * This needs no further launch and no long serial sum. Source: split and merge of flash-decoding; methods.md 0.2.10. */
#ifndef KERNELS_CUDA_ATTN_PIECES_CUH
#define KERNELS_CUDA_ATTN_PIECES_CUH

#include "kernels/cuda/attn_blocks_mma.cuh"
#include "kernels/cuda/last.cuh"

enum { FAN = 16, MERGED = BLOCK / FAN /* heads merged at once */ };

/* ---- one piece ---- */

/* L lanes load UNROLL neighbouring rows at a time: lane l has, of each row, the N elements from column (l + L i) N on,
 * i < NV. AHEAD: the rows of the next iteration are loaded early. ROPE: keys are rotated, so that a lane also reads the
 * elements half a row away. */
template <class T, int N, int L, int NV, int HEADS, int FORM_, bool ROPE> struct piece : span<T, N, FORM_> {
    typedef span<T, N, FORM_> base;
    typedef typename base::reader reader;
    using base::BLOCKS, base::j, base::u, base::entry, base::n;
    static constexpr int FORM = FORM_;
    enum {
        G = HEADS,
        FRAGMENTS = 0,
        ROWS = BLOCK / L,
        UNROLL = !ROPE    ? 4
                 : N == 1 ? 1
                          : 2,
        TRIP = UNROLL * ROWS,
        PLAIN = FORM_ == EXACT && !ROPE && N > 1 && NV == 1,
        WANTED = !PLAIN    ? 1
                 : G <= 4  ? (BLOCKS ? 4 : 5)
                 : L <= 16 ? 3
                           : 1
    };
    enum : bool { AHEAD = N > 1 && !ROPE };
    typedef group_pairs<N> pairs;
    /* Data loaded by one iteration. */
    typedef struct {
        int row[UNROLL];
        loaded bits[UNROLL][NV];
    } trip;
    int lane, row0;
    bool mine[NV]; /* column lies within the row */

    __device__ piece(const attn_args &job, const attn_unit &unit, int64_t first, int count, int *rows)
        : base(job, unit, first, count, rows), lane(threadIdx.x % L), row0(threadIdx.x / L * UNROLL)
    {
#pragma unroll
        for (int i = 0; i < NV; i++) mine[i] = (lane + L * i) * N < j.dim;
    }

    /* Returns the distance between the scores of two heads. */
    static __host__ __device__ __forceinline__ int apart(int keys)
    {
        return keys;
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
        for (int k = 0; k < UNROLL; k++) t.row[k] = base::row_of_entry(at + k);
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
        const reader keys = base::reader_of(rows, j.near.k);
        pairs kept[NV], other[ROPE ? NV : 1];
        trip now, next, rotated;
        if (BLOCKS) base::template stage_queries<G>(score, h0, !ROPE && rows.rotated);
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

    /* Writes part [WARPS][G][dim], the weighted sums of V rows of each warp, over the weights [G][n]. */
    __device__ void values(float *part) const
    {
        const float *weight = part;
        float sum[G][NV * N] = {};
        const half_rows rows = half_of(j, true);
        const reader all = base::reader_of(rows, j.near.v);
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

/* Adds rows of biases, `stride` apart, to n scores of each head, which are `apart` numbers apart. Not inlined, so that
 * pieces without biases keep their registers. */
static __device__ __noinline__ void add_bias(float *score, int heads, int n, int apart, const float *bias,
                                             size_t stride)
{
    for (int i = threadIdx.x; i < heads * n; i += BLOCK) score[i / n * apart + i % n] += bias[i / n * stride + i % n];
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

/* Computes a piece of a list of rows: its partial output, and the log of its softmax denominator. The scores of its
 * heads follow P::FRAGMENTS numbers. */
template <class P>
static __device__ __forceinline__ void attend(const decode_batch &b, const attn_args &j, const attn_unit &u,
                                              float *room, int64_t first, int n, int64_t most)
{
    int warp = threadIdx.x / 32, apart = P::apart(n);
    float *score = room + P::FRAGMENTS;
    P p(j, u, first, n, (int *)room + most);
    if (P::FORM != CODES) p.stage(false);
    for (int h0 = 0; h0 < u.heads; h0 += P::G) {
        size_t row = ((size_t)blockIdx.z * j.n_heads + u.head + h0) * b.most + blockIdx.x;
        int heads = min((int)P::G, u.heads - h0);
        __syncthreads();
        if (P::FORM == CODES) p.stage(false);
        p.products(room, h0);
        __syncthreads();
        if (j.bias) {
            add_bias(score, heads, n, apart, j.bias + (u.head + h0) * j.bias_stride + first, j.bias_stride);
            __syncthreads();
        }
        for (int i = threadIdx.x; j.scores && i < heads * n; i += BLOCK)
            j.scores[(u.head + h0 + i / n) * j.score_stride + first + i % n] = score[i / n * apart + i % n];
        if (j.scores) __syncthreads();
        for (int g = warp; g < P::G; g += WARPS) {
            float lse = softmax_warp(score + g * apart, n);
            if (g < heads && threadIdx.x % 32 == 0) b.lses[row + g * b.most] = lse;
        }
        if (P::FORM == CODES) p.stage(true);
        __syncthreads();
        p.values(room);
        __syncthreads();
        for (int i = threadIdx.x; i < heads * j.dim; i += BLOCK) {
            float s = 0;
            for (int w = 0; w < WARPS; w++) s += room[w * P::G * j.dim + i];
            b.parts[(row + i / j.dim * b.most) * j.dim + i % j.dim] = s;
        }
    }
}

/* room: floats of shared memory before the staged row numbers. P::WANTED: number of blocks on a multiprocessor where
 * ptxas would allow one less; 1: any number. */
template <class P> static __global__ void __launch_bounds__(BLOCK, P::WANTED) decode_k(decode_batch b, int room)
{
    grid_wait();
    SHARED_DYN(float, shared);
    const attn_args &j = b.job[blockIdx.z];
    attn_unit u = unit_of(j, blockIdx.y);
    int64_t lo, hi;
    visible(j, u, 0, lo, hi);
    if (blockIdx.x == 0) {
        hide_scores(j, u, lo, hi);
        if (P::FORM != CODES && threadIdx.x == 0) count_read(j, hi - lo);
        if (threadIdx.x == 0) count_bias(j, u, hi - lo);
    }
    int64_t size = piece_of(hi - lo), first = lo + blockIdx.x * size;
    if (first >= hi && blockIdx.x > 0) return;
    if (first < hi) attend<P>(b, j, u, shared, first, (int)min(size, hi - first), room);
    finish<P::BLOCKS>(b, j, u, (size_t)((hi - lo + size - 1) / size));
}

/* ---- launching ---- */

template <class P> static cudaError_t run(backend *be, const decode_batch *b, const extents *x)
{
    size_t keys = (size_t)piece_of(x->n_max);
    size_t scores = P::FRAGMENTS + P::G * (size_t)P::apart((int)keys);
    size_t room = max(scores, (size_t)WARPS * P::G * b->job[0].dim);
    size_t staged = P::FORM != EXACT || x->listed ? keys : 0;
    dim3 grid((unsigned)b->most, x->units, x->n_jobs);
    return launch_dependent(be, decode_k<P>, grid, dim3(BLOCK), (room + staged) * sizeof(float), *b, (int)room);
}

/* Few methods rotate keys at read time. Such keys are processed for 4 heads at a time, whatever the group size. */
template <class T, int L, int NV, int FORM, bool ROPE>
static cudaError_t by_group(backend *be, const decode_batch *b, const extents *x)
{
    constexpr int N = pack<T>::N;
    unsigned group = x->heads / x->units;
    if constexpr (!ROPE) {
        if (group == 1) return run<piece<T, N, L, NV, 1, FORM, false>>(be, b, x);
        if (group == 2) return run<piece<T, N, L, NV, 2, FORM, false>>(be, b, x);
        if constexpr (!in_blocks<T>)
            if (group > 4) return run<piece<T, N, L, NV, 8, FORM, false>>(be, b, x);
    }
    return run<piece<T, N, L, NV, 4, FORM, ROPE>>(be, b, x);
}

template <class T, int FORM, bool ROPE>
static cudaError_t decode_as(backend *be, const decode_batch *b, const extents *x, bool wide)
{
    int vectors = b->job[0].dim / pack<T>::N;
    if constexpr (!in_blocks<T>)
        if (!wide) return run<piece<T, 1, 32, HEAD_DIM_MAX / 32, 4, FORM, ROPE>>(be, b, x);
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

template <class T, int D, int FORM>
static cudaError_t on_tensor_cores(backend *be, const decode_batch *b, const extents *x)
{
    return x->heads / x->units > 4 ? run<block_piece<T, D, 8, FORM>>(be, b, x)
                                   : run<block_piece<T, D, 4, FORM>>(be, b, x);
}

/* The float32 units serve groups of one and two heads, RoPE at read time, and rows that block_piece does not support.
 */
template <int FORM>
static cudaError_t decode_in_blocks(backend *be, const decode_batch *b, const extents *x, dtype type)
{
    cudaError_t rc = cudaSuccess;
    bool fit = x->heads / x->units > 2 && !b->job[0].rope;
    for (unsigned i = 0; i < x->n_jobs; i++) fit = fit && attn_blocks_fit(&b->job[i]);
    by_blocks_of(type, [&](auto t) {
        typedef decltype(t) T;
        int dim = b->job[0].dim;
        if (b->job[0].rope) rc = decode_as<T, FORM, true>(be, b, x, true);
        else if (!fit) rc = decode_as<T, FORM, false>(be, b, x, true);
        else if (dim == 64) rc = on_tensor_cores<T, 64, FORM>(be, b, x);
        else if (dim == 128) rc = on_tensor_cores<T, 128, FORM>(be, b, x);
        else rc = on_tensor_cores<T, 256, FORM>(be, b, x);
    });
    return rc;
}

#endif
