/* SPDX-License-Identifier: MIT */
/* Attention of one query a sequence, split over its keys, and the merge of parts. A list is cut into pieces whose size
 * follows from its own length alone; a block of threads has one piece of one unit (attention.cuh) and reads each byte
 * of K and V once for up to 8 heads. Of FAN pieces the block that is done last merges the parts, of FAN such merges
 * the last one again, and so on: no launch of its own, and no long sum in series. Source: flash-decoding's split and
 * merge; methods.md 0.2.10. */
#include "config.h"

#include <type_traits>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/last.cuh"

enum {
    JOBS = 8, /* of one launch */
    WARPS = 4,
    BLOCK = 32 * WARPS,
    FAN = 16,
    MERGED = BLOCK / FAN, /* heads at once */
    LEVELS = 8,           /* more merges than any list takes, one behind the other */
    MERGE_BLOCK = 128
};

/* How rows lie: all exact and in one place, some in codes, or some near and all in the host's memory. */
enum { EXACT, CODES, NEAR };

typedef struct {
    attn_args job[JOBS];
    float *parts, *lses; /* [job][head][piece], rows of dim floats and one number */
    int *done;           /* [job][unit][most + LEVELS]: blocks that are done, of the pieces from one on */
    size_t most;         /* pieces a list may have */
} decode_batch;

/* Keys of a piece, for a list of n. */
static __host__ __device__ __forceinline__ int64_t piece_of(int64_t n)
{
    return n <= 4096 ? 64 : n <= 16384 ? 128 : n <= 65536 ? 256 : n <= 1 << 20 ? 512 : 1024;
}

static size_t most_pieces(int64_t n_max)
{
    const int64_t ends[] = {4096, 16384, 65536, 1 << 20};
    size_t most = n_max > 0 ? cuda_blocks((size_t)n_max, (size_t)piece_of(n_max)) : 1;
    for (int i = 0; i < 4; i++) {
        size_t n = (size_t)(ends[i] / piece_of(ends[i]));
        if (ends[i] <= n_max && n > most) most = n;
    }
    return most;
}

/* ---- one piece ---- */

/* L lanes have UNROLL neighbouring rows under way: lane l of each the N elements from column (l + L i) N on, i < NV.
 * AHEAD: and those of the next trip. TURN: keys are rotated, so that a lane also reads their elements half a row away.
 */
template <class T, int N, int L, int NV, int G, int FORM, bool TURN> struct piece {
    enum { ROWS = BLOCK / L, UNROLL = !TURN ? 4 : N == 1 ? 1 : 2, TRIP = UNROLL * ROWS };
    enum : bool { AHEAD = N > 1 && !TURN };
    typedef std::conditional_t<FORM == NEAR, near_reader<T, N>, row_reader<T, N, FORM == CODES>> reader;
    typedef group_pairs<N> pairs;
    /* What a trip loads. */
    typedef struct {
        int row[UNROLL];
        loaded bits[UNROLL][NV];
    } trip;
    const attn_args &j;
    const attn_unit &u;
    int from;      /* of the list's room, its first included */
    int64_t entry; /* of the list, its first not included */
    int n, lane, row0;
    bool mine[NV]; /* columns within the row */
    int *staged;   /* [n] where rows lie, in shared memory: so that no trip waits for that first */

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

    /* Codes of K and of V lie at places of their own. */
    __device__ __forceinline__ void stage(bool value) const
    {
        const half_rows rows = half_of(j, value);
        const reader r = reader_of(rows, NULL);
        for (int i = threadIdx.x; staged && i < n; i += BLOCK) staged[i] = (int)r.row_at(slot_at(u, from + i));
        if (staged) __syncthreads();
    }

    /* Of a lane's vector, or of what a rotation mixes with it. */
    __device__ __forceinline__ int column(int v, bool other) const
    {
        int c = (lane + L * v) * N, half = j.dim / 2;
        return !other ? c : c < half ? c + half : c - half;
    }

    /* UNROLL rows from row `at` on. What lies outside is finite. */
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

    /* Row k of a trip. */
    __device__ __forceinline__ void widen(float x[NV * N], const trip &t, const reader &rows, pairs kept[NV], int k,
                                          bool other) const
    {
#pragma unroll
        for (int v = 0; v < NV; v++)
            rows.widen(x + v * N, t.bits[k][v], t.row[k], mine[v] ? column(v, other) : 0, kept[v]);
    }

    /* x: row number i, y: what the rotation mixes with it. */
    __device__ __forceinline__ void rotate(float x[NV * N], const float y[NV * N], int i) const
    {
        int half = j.dim / 2;
        const float2 *table = (const float2 *)j.turn + (size_t)(entry + (i < n ? i : 0)) * half;
#pragma unroll
        for (int e = 0; e < NV * N; e++) {
            int c = column(e / N, false) + e % N;
            if (!mine[e / N]) continue;
            float2 t = table[c < half ? c : c - half];
            x[e] = fmaf(x[e], t.x, c < half ? -y[e] * t.y : y[e] * t.y);
        }
    }

    /* Heads [h0, h0 + G), the lane's columns. */
    __device__ __forceinline__ void load_queries(float q[G][NV * N], int h0) const
    {
        constexpr int W = N % 4 == 0 ? 4 : 1;
#pragma unroll
        for (int g = 0; g < G; g++)
#pragma unroll
            for (int i = 0; i < NV * N; i += W) {
                float4 x = make_float4(0, 0, 0, 0);
                const float *at = j.q + (size_t)(u.head + h0 + g) * j.dim + column(i / N, false) + i % N;
                if (h0 + g < u.heads && mine[i / N]) {
                    if constexpr (W == 4) x = load_f4(at);
                    else x.x = *at;
                }
                q[g][i] = x.x;
                if constexpr (W == 4) q[g][i + 1] = x.y, q[g][i + 2] = x.z, q[g][i + 3] = x.w;
            }
    }

    /* score [G][n]: scaled products of heads [h0, h0 + G). */
    __device__ void products(float *score, int h0) const
    {
        float q[G][NV * N];
        const half_rows rows = half_of(j, false);
        const reader keys = reader_of(rows, j.near.k);
        pairs kept[NV], other[TURN ? NV : 1];
        trip now, next, turned;
        if (AHEAD) load(now, keys, row0, false);
        load_queries(q, h0);
#pragma unroll
        for (int v = 0; v < NV; v++) kept[v].group = -1;
        for (int v = 0; TURN && v < NV; v++) other[v].group = -1;
#pragma unroll 1
        for (int at = row0; at - row0 < n; at += TRIP) {
            if (AHEAD) load(next, keys, at + TRIP, false);
            else load(now, keys, at, false);
            if (TURN) load(turned, keys, at, true);
#pragma unroll
            for (int k = 0; k < UNROLL; k++) {
                float s[G] = {}, x[NV * N];
                widen(x, now, keys, kept, k, false);
                if constexpr (TURN) {
                    float y[NV * N];
                    widen(y, turned, keys, other, k, true);
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

    /* part [WARPS][G][dim]: sums of rows of V, weighed, of each warp. */
    __device__ void values(float *part, const float *weight) const
    {
        float sum[G][NV * N] = {};
        const half_rows rows = half_of(j, true);
        const reader all = reader_of(rows, j.near.v);
        pairs kept[NV]; /* of V go by runs */
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
        __syncthreads(); /* part takes the place of weight */
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

/* Adds rows of biases, `stride` apart, to score [heads][n]. Apart, so that pieces without any keep their registers. */
static __device__ __noinline__ void add_bias(float *score, int heads, int n, const float *bias, size_t stride)
{
    for (int i = threadIdx.x; i < heads * n; i += BLOCK) score[i] += bias[i / n * stride + i % n];
}

/* Scores of a head to weights, by one warp; returns the log of their sum, which they are divided by: where it is 0,
 * they are not numbers. */
static __device__ __forceinline__ float softmax_warp(float *score, int n)
{
    float most = -INFINITY, sum = 0;
    int lane = threadIdx.x % 32;
    for (int i = lane; i < n; i += 32) most = fmaxf(most, score[i]);
    most = warp_max(most);
    if (most == -INFINITY) most = 0; /* a bias leaves all of them out: the sum is 0 */
    for (int i = lane; i < n; i += 32) {
        float w = expf(score[i] - most);
        score[i] = w;
        sum += w;
    }
    sum = warp_sum(sum);
    for (int i = lane; i < n; i += 32) score[i] /= sum;
    return most + logf(sum);
}

/* The scores of entries [0, lo) and [hi, n), which the query does not see. */
static __device__ void hide_scores(const attn_args &j, const attn_unit &u, int64_t lo, int64_t hi)
{
    for (int h = u.head; j.scores && h < u.head + u.heads; h++)
        for (int64_t i = threadIdx.x; i < u.n; i += BLOCK)
            if (i < lo || i >= hi) j.scores[h * j.score_stride + i] = -INFINITY;
}

/* ---- the merge of a list's parts ---- */

/* Parts of `members` pieces of all heads of a unit, `apart` pieces from each other, become one in place of the first,
 * or what attention gives. A part with the sum 0 may hold anything. */
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
    }
}

/* A block behind its piece of a list of n: goes on where it is the last of those whose parts become one. */
static __device__ __forceinline__ void finish(const decode_batch &b, const attn_args &j, const attn_unit &u, size_t n)
{
    size_t at = blockIdx.x, apart = 1;
    int *done = b.done + (blockIdx.z * (size_t)j.n_units + blockIdx.y) * (b.most + LEVELS);
    for (int level = 0;; level++) {
        size_t first = at / FAN * FAN, members = min((size_t)FAN, n - first);
        if (!is_last(&done[first * apart + level], (int)members)) return;
        merge_pieces(b, j, u, first * apart, apart, (int)members, n <= FAN);
        if (n <= FAN) return;
        at /= FAN;
        apart *= FAN;
        n = (n + FAN - 1) / FAN;
    }
}

/* A piece: its part and the log of its sum. */
template <class T, int N, int L, int NV, int G, int FORM, bool TURN>
static __device__ __forceinline__ void attend(const decode_batch &b, const attn_args &j, const attn_unit &u,
                                              float *room, int64_t first, int n, int64_t most)
{
    int warp = threadIdx.x / 32;
    piece<T, N, L, NV, G, FORM, TURN> p(j, u, first, n, (int *)room + most);
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

/* Blocks that a processor is to have, where ptxas would leave it one less; 1: any number. */
template <int N, int NV, int G, int FORM, bool TURN> static constexpr int blocks_wanted()
{
    return FORM == EXACT && !TURN && G <= 4 && N > 1 && NV == 1 ? 5 : 1;
}

/* room: numbers of shared memory before the places of rows. */
template <class T, int N, int L, int NV, int G, int FORM, bool TURN>
static __global__ void __launch_bounds__(BLOCK, blocks_wanted<N, NV, G, FORM, TURN>())
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
    if (first < hi) attend<T, N, L, NV, G, FORM, TURN>(b, j, u, shared, first, (int)min(size, hi - first), room);
    finish(b, j, u, (size_t)((hi - lo + size - 1) / size));
}

/* ---- the merge of parts of several lists ---- */

/* out [dim] and *lse of n parts, `stride` rows apart; weight: room for n. A part with the sum 0 may hold anything. */
static __device__ void merge_row(float *out, float *lse, const float *parts, const float *lses, size_t n, size_t stride,
                                 int dim, float *weight)
{
    SHARED(float, part, [MERGE_BLOCK / 32]);
    float top = -INFINITY, sum = 0;
    for (size_t i = threadIdx.x; i < n; i += MERGE_BLOCK) top = fmaxf(top, lses[i * stride]);
    top = block_max(top, part);
    for (size_t i = threadIdx.x; i < n; i += MERGE_BLOCK) {
        float l = lses[i * stride], w = l == -INFINITY ? 0 : expf(l - top);
        weight[i] = w;
        sum += w;
    }
    sum = block_sum(sum, part); /* its barriers also show the weights to all */
    for (int c = threadIdx.x; c < dim; c += MERGE_BLOCK) {
        float acc = 0;
#pragma unroll 4
        for (size_t i = 0; i < n; i++)
            if (weight[i] != 0) acc = fmaf(weight[i], parts[i * stride * dim + c], acc);
        out[c] = sum == 0 ? 0 : acc / sum;
    }
    if (lse && threadIdx.x == 0) *lse = sum == 0 ? -INFINITY : top + logf(sum);
}

static __global__ void __launch_bounds__(MERGE_BLOCK)
    merge_parts_k(float *out, float *lse, const float *parts, const float *lses, size_t n, size_t rows, int dim)
{
    SHARED_DYN(float, weight);
    size_t r = blockIdx.x;
    merge_row(out + r * dim, lse ? lse + r : NULL, parts + r * dim, lses + r, n, rows, dim, weight);
}

void cuda_attn_merge(backend *be, buf out, buf lse, buf parts, buf lses, size_t n_parts, size_t n_rows, size_t dim)
{
    if (n_rows == 0 || !cuda_begin(be, "attn_merge")) return;
    cudaError_t rc =
        launch(merge_parts_k, dim3((unsigned)n_rows), dim3(MERGE_BLOCK), n_parts * sizeof(float), cuda_stream(be),
               ptr<float>(out), ptr<float>(lse), ptr<float>(parts), ptr<float>(lses), n_parts, n_rows, (int)dim);
    cuda_check(be, rc, "attn_merge [%zu, %zu, %zu]", n_parts, n_rows, dim);
}

/* ---- launching ---- */

/* Largest extents of the jobs of a launch. */
typedef struct {
    unsigned n_jobs, units, heads;
    int64_t n_max;
    bool listed;
} extents;

template <class T, int N, int L, int NV, int G, int FORM, bool TURN>
static cudaError_t run(backend *be, const decode_batch *b, const extents *x)
{
    size_t keys = (size_t)piece_of(x->n_max), room = max(G * keys, (size_t)WARPS * G * b->job[0].dim);
    size_t staged = FORM != EXACT || x->listed ? keys : 0;
    dim3 grid((unsigned)b->most, x->units, x->n_jobs);
    return launch(decode_k<T, N, L, NV, G, FORM, TURN>, grid, dim3(BLOCK), (room + staged) * sizeof(float),
                  cuda_stream(be), *b, (int)room);
}

/* Few methods turn keys: theirs are taken for 4 heads at a time, whatever the group. */
template <class T, int L, int NV, int FORM, bool TURN>
static cudaError_t by_group(backend *be, const decode_batch *b, const extents *x)
{
    constexpr int N = pack<T>::N;
    unsigned group = x->heads / x->units;
    if constexpr (!TURN) {
        if (group == 1) return run<T, N, L, NV, 1, FORM, false>(be, b, x);
        if (group == 2) return run<T, N, L, NV, 2, FORM, false>(be, b, x);
        if (group > 4) return run<T, N, L, NV, 8, FORM, false>(be, b, x);
    }
    return run<T, N, L, NV, 4, FORM, TURN>(be, b, x);
}

template <class T, int FORM, bool TURN>
static cudaError_t decode_as(backend *be, const decode_batch *b, const extents *x, bool wide)
{
    int vectors = b->job[0].dim / pack<T>::N;
    if (!wide) return run<T, 1, 32, HEAD_DIM_MAX / 32, 4, FORM, TURN>(be, b, x);
    if constexpr (sizeof(T) == 4)
        return vectors <= 32 ? by_group<T, 32, 1, FORM, TURN>(be, b, x) : by_group<T, 32, 2, FORM, TURN>(be, b, x);
    else
        return vectors <= 8    ? by_group<T, 8, 1, FORM, TURN>(be, b, x)
               : vectors <= 16 ? by_group<T, 16, 1, FORM, TURN>(be, b, x)
                               : by_group<T, 32, 1, FORM, TURN>(be, b, x);
}

template <class T, int FORM> static cudaError_t decode(backend *be, const decode_batch *b, const extents *x, bool wide)
{
    if (!b->job[0].turn) return decode_as<T, FORM, false>(be, b, x, wide);
    return decode_as<T, FORM, true>(be, b, x, wide && b->job[0].dim / 2 % pack<T>::N == 0);
}

static int form_of(const attn_job *j)
{
    if (j->rows.codes.bits) return CODES;
    return j->rows.near && j->rows.near->k.p ? NEAR : EXACT;
}

static void decode_jobs(backend *be, const attn_job *jobs, size_t n)
{
    decode_batch b = {};
    extents x = {(unsigned)n, 0, 0, 0, false};
    bool wide = true;
    int form = form_of(&jobs[0]);
    for (size_t i = 0; i < n; i++) {
        if (!attn_args_of(be, &b.job[i], &jobs[i])) return;
        wide = wide && attn_wide(&b.job[i]);
        x.units = (unsigned)b.job[i].n_units;
        x.heads = (unsigned)b.job[i].n_heads;
        x.n_max = max(x.n_max, jobs[i].n_max);
        x.listed = x.listed || jobs[i].idx.p;
        if (form == CODES) cuda_count_rows(be, &b.job[i], true);
    }
    size_t dim = (size_t)b.job[0].dim;
    b.most = most_pieces(x.n_max);
    size_t rows = n * x.heads * b.most;
    b.parts = (float *)cuda_room(be, &cuda_of(be)->parts, rows * (dim + 1), sizeof(float), "attention");
    b.done = cuda_zeros(be, n * x.units * (b.most + LEVELS), "attention");
    if (!b.parts || !b.done) return;
    b.lses = b.parts + rows * dim;
    by_type(jobs[0].rows.type, [&](auto t) {
        typedef decltype(t) T;
        cudaError_t rc = form == CODES  ? decode<T, CODES>(be, &b, &x, wide)
                         : form == NEAR ? decode<T, NEAR>(be, &b, &x, wide)
                                        : decode<T, EXACT>(be, &b, &x, wide);
        cuda_check(be, rc, "attn_decode [%zu jobs, %u heads, %zu], up to %lld keys", n, x.heads, dim,
                   (long long)x.n_max);
    });
}

static bool same_form(const attn_job *a, const attn_job *b)
{
    return a->n_lists == b->n_lists && a->rows.n_kv_heads == b->rows.n_kv_heads && a->rows.type == b->rows.type &&
           form_of(a) == form_of(b) && !a->turn.p == !b->turn.p;
}

void cuda_decode_reserve(backend *be, size_t n_rows, size_t n_heads, size_t dim, int64_t n_max)
{
    size_t heads = (n_rows < JOBS ? n_rows : (size_t)JOBS) * n_heads, most = most_pieces(n_max);
    if (cuda_room(be, &cuda_of(be)->parts, heads * most * (dim + 1), sizeof(float), "attention"))
        cuda_zeros(be, heads * (most + LEVELS), "attention");
}

void cuda_attn_decode(backend *be, const attn_job *jobs, size_t n_jobs)
{
    for (size_t i = 0; i < n_jobs;) {
        size_t k = 1;
        while (i + k < n_jobs && k < JOBS && same_form(&jobs[i + k], &jobs[i])) k++;
        if (!cuda_begin(be, "attn_decode")) return;
        decode_jobs(be, jobs + i, k);
        i += k;
    }
}
