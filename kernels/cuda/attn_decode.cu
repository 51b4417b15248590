/* SPDX-License-Identifier: MIT */
/* Attention of one query a sequence, split over its keys, and the merge of parts. A list is cut into pieces whose size
 * follows from its own length alone; a block of threads has one piece of one unit (attention.cuh) and reads each byte
 * of K and V once for up to 8 heads. Source: flash-decoding's split and merge; methods.md 0.2.10. */
#include "config.h"

#include <type_traits>

#include "kernels/cuda/attention.cuh"

enum {
    JOBS = 8, /* of one launch */
    WARPS = 4,
    BLOCK = 32 * WARPS,
    MERGE_BLOCK = 128
};

/* How rows lie: all exact and in one place, some in codes, or some near and all in the host's memory. */
enum { EXACT, CODES, NEAR };

typedef struct {
    attn_args job[JOBS];
    float *parts, *lses; /* [job][head][piece], rows of dim floats and one number */
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
 * TURN: keys are rotated, so that a lane also reads their elements half a row away. */
template <class T, int N, int L, int NV, int G, int FORM, bool TURN> struct piece {
    enum { ROWS = BLOCK / L, UNROLL = !TURN ? 4 : N == 1 ? 1 : 2 };
    typedef std::conditional_t<FORM == NEAR, near_reader<T, N>, row_reader<T, N, FORM == CODES>> reader;
    typedef group_pairs<N> pairs;
    const attn_args &j;
    const attn_unit &u;
    int from;      /* of the list's room, its first included */
    int64_t entry; /* of the list, its first not included */
    int n, lane, row0;
    bool mine[NV]; /* columns within the row */

    __device__ piece(const attn_args &job, const attn_unit &unit, int64_t first, int count)
        : j(job), u(unit), from((int)(unit.first + first)), entry(first), n(count), lane(threadIdx.x % L),
          row0(threadIdx.x / L * UNROLL)
    {
#pragma unroll
        for (int i = 0; i < NV; i++) mine[i] = (lane + L * i) * N < j.dim;
    }

    __device__ __forceinline__ reader reader_of(const half_rows &rows, const void *near) const
    {
        if constexpr (FORM == NEAR) return {rows, u.kv_head, j.near, (const T *)near};
        else return {rows, u.kv_head};
    }

    /* Of a lane's vector, or of what a rotation mixes with it. */
    __device__ __forceinline__ int column(int v, bool other) const
    {
        int c = (lane + L * v) * N, half = j.dim / 2;
        return !other ? c : c < half ? c + half : c - half;
    }

    /* UNROLL rows from row `at` on: all loads before the first use. What lies outside is finite. */
    template <bool OTHER>
    __device__ __forceinline__ void load(float x[UNROLL][NV * N], const reader &rows, pairs kept[NV], int at) const
    {
        int64_t row[UNROLL];
        loaded bits[UNROLL][NV];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) row[k] = rows.row_at(slot_at(u, from + (at + k < n ? at + k : 0)));
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
#pragma unroll
            for (int v = 0; v < NV; v++) {
                bits[k][v].bits = make_uint4(0, 0, 0, 0);
                if (mine[v] && at + k < n) rows.load(bits[k][v], row[k], column(v, OTHER));
            }
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
#pragma unroll
            for (int v = 0; v < NV; v++)
                rows.widen(x[k] + v * N, bits[k][v], row[k], mine[v] ? column(v, OTHER) : 0, kept[v]);
    }

    /* x: the rows from row `at` on, y: what the rotation mixes with them. */
    __device__ __forceinline__ void rotate(float x[UNROLL][NV * N], const float y[UNROLL][NV * N], int at) const
    {
        int half = j.dim / 2;
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const float2 *table = (const float2 *)j.turn + (size_t)(entry + (at + k < n ? at + k : 0)) * half;
#pragma unroll
            for (int i = 0; i < NV * N; i++) {
                int c = column(i / N, false) + i % N;
                if (!mine[i / N]) continue;
                float2 t = table[c < half ? c : c - half];
                x[k][i] = fmaf(x[k][i], t.x, c < half ? -y[k][i] * t.y : y[k][i] * t.y);
            }
        }
    }

    /* score [G][n]: scaled products of heads [h0, h0 + G). */
    __device__ void products(float *score, int h0) const
    {
        float q[G][NV * N];
#pragma unroll
        for (int g = 0; g < G; g++)
#pragma unroll
            for (int i = 0; i < NV * N; i++) {
                int c = (lane + L * (i / N)) * N + i % N;
                q[g][i] = h0 + g < u.heads && c < j.dim ? j.q[(size_t)(u.head + h0 + g) * j.dim + c] : 0;
            }
        const half_rows rows = half_of(j, false);
        const reader keys = reader_of(rows, j.near.k);
        pairs kept[NV], other[TURN ? NV : 1];
#pragma unroll
        for (int v = 0; v < NV; v++) kept[v].group = -1;
        for (int v = 0; TURN && v < NV; v++) other[v].group = -1;
#pragma unroll 1
        for (int at = row0; at - row0 < n; at += UNROLL * ROWS) {
            float x[UNROLL][NV * N];
            load<false>(x, keys, kept, at);
            if constexpr (TURN) {
                float y[UNROLL][NV * N];
                load<true>(y, keys, other, at);
                rotate(x, y, at);
            }
#pragma unroll
            for (int k = 0; k < UNROLL; k++) {
                float s[G] = {};
#pragma unroll
                for (int g = 0; g < G; g++)
#pragma unroll
                    for (int i = 0; i < NV * N; i++) s[g] = fmaf(q[g][i], x[k][i], s[g]);
                int head = fold_sums<G, L>(s, lane), i = at + k;
                if (i < n && lane % (L / G) == 0) score[head * n + i] = s[0] * j.scale;
            }
        }
    }

    /* part [WARPS][G][dim]: sums of rows of V, weighed, of each warp. */
    __device__ void values(float *part, const float *weight) const
    {
        float sum[G][NV * N] = {};
        const half_rows rows = half_of(j, true);
        const reader all = reader_of(rows, j.near.v);
        pairs kept[NV]; /* of V go by runs */
#pragma unroll 1
        for (int at = row0; at - row0 < n; at += UNROLL * ROWS) {
            float x[UNROLL][NV * N];
            load<false>(x, all, kept, at);
#pragma unroll
            for (int k = 0; k < UNROLL; k++) {
                int i = at + k;
#pragma unroll
                for (int g = 0; g < G; g++) {
                    float w = i < n ? weight[g * n + i] : 0;
#pragma unroll
                    for (int c = 0; c < NV * N; c++) sum[g][c] = fmaf(w, x[k][c], sum[g][c]);
                }
            }
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

template <class T, int N, int L, int NV, int G, int FORM, bool TURN>
static __global__ void __launch_bounds__(BLOCK) decode_k(decode_batch b)
{
    SHARED_DYN(float, room);
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
    if (first >= hi) return;
    int n = (int)min(size, hi - first), warp = threadIdx.x / 32;
    piece<T, N, L, NV, G, FORM, TURN> p(j, u, first, n);
    for (int h0 = 0; h0 < u.heads; h0 += G) {
        size_t row = ((size_t)blockIdx.z * j.n_heads + u.head + h0) * b.most + blockIdx.x;
        int heads = min(G, u.heads - h0);
        __syncthreads();
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

/* ---- the merge ---- */

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

static __global__ void __launch_bounds__(MERGE_BLOCK) merge_pieces_k(decode_batch b)
{
    SHARED_DYN(float, weight);
    const attn_args &j = b.job[blockIdx.y];
    int head = blockIdx.x;
    attn_unit u = unit_of(j, j.n_units == j.n_heads ? head : head / (j.n_heads / j.n_kv_heads));
    int64_t lo, hi;
    visible(j, u, 0, lo, hi);
    size_t size = (size_t)piece_of(hi - lo), n = ((size_t)(hi - lo) + size - 1) / size;
    size_t row = ((size_t)blockIdx.y * j.n_heads + head) * b.most;
    merge_row(j.out + (size_t)head * j.dim, j.lse ? j.lse + head : NULL, b.parts + row * j.dim, b.lses + row, n, 1,
              j.dim, weight);
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
} extents;

template <class T, int N, int L, int NV, int G, int FORM, bool TURN>
static cudaError_t run(backend *be, const decode_batch *b, const extents *x)
{
    size_t scores = G * (size_t)piece_of(x->n_max), parts = (size_t)WARPS * G * b->job[0].dim;
    dim3 grid((unsigned)b->most, x->units, x->n_jobs);
    return launch(decode_k<T, N, L, NV, G, FORM, TURN>, grid, dim3(BLOCK),
                  (scores > parts ? scores : parts) * sizeof(float), cuda_stream(be), *b);
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
    extents x = {(unsigned)n, 0, 0, 0};
    bool wide = true;
    int form = form_of(&jobs[0]);
    for (size_t i = 0; i < n; i++) {
        if (!attn_args_of(be, &b.job[i], &jobs[i])) return;
        wide = wide && attn_wide(&b.job[i]);
        x.units = (unsigned)b.job[i].n_units;
        x.heads = (unsigned)b.job[i].n_heads;
        x.n_max = max(x.n_max, jobs[i].n_max);
        if (form == CODES) cuda_count_rows(be, &b.job[i], true);
    }
    size_t dim = (size_t)b.job[0].dim;
    b.most = most_pieces(x.n_max);
    size_t rows = n * x.heads * b.most;
    b.parts = (float *)cuda_room(be, &cuda_of(be)->parts, rows * (dim + 1), sizeof(float), "attention");
    if (!b.parts) return;
    b.lses = b.parts + rows * dim;
    by_type(jobs[0].rows.type, [&](auto t) {
        typedef decltype(t) T;
        cudaError_t rc = form == CODES  ? decode<T, CODES>(be, &b, &x, wide)
                         : form == NEAR ? decode<T, NEAR>(be, &b, &x, wide)
                                        : decode<T, EXACT>(be, &b, &x, wide);
        cuda_check(be, rc, "attn_decode [%zu jobs, %u heads, %zu], up to %lld keys", n, x.heads, dim,
                   (long long)x.n_max);
    });
    if (be->fault.code != ST_OK) return;
    cudaError_t rc = launch(merge_pieces_k, dim3(x.heads, (unsigned)n), dim3(MERGE_BLOCK), b.most * sizeof(float),
                            cuda_stream(be), b);
    cuda_check(be, rc, "attn_decode: merge of %zu pieces", b.most);
}

static bool same_form(const attn_job *a, const attn_job *b)
{
    return a->n_lists == b->n_lists && a->rows.n_kv_heads == b->rows.n_kv_heads && a->rows.type == b->rows.type &&
           form_of(a) == form_of(b) && !a->turn.p == !b->turn.p;
}

size_t cuda_decode_room(size_t n_rows, size_t n_heads, size_t dim, int64_t n_max)
{
    return (n_rows < JOBS ? n_rows : (size_t)JOBS) * n_heads * most_pieces(n_max) * (dim + 1);
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
