/* SPDX-License-Identifier: MIT */
/* Attention of a prompt's queries with tensor cores, for rows of f16 or bf16 if the job allows rounding. q and the
 * weights have the type of the rows; sums and softmax are float32. attn_prefill.cu is the version without tensor cores.
 * A warp has 16 queries of one unit for each of its bands. Scores and weights stay in its registers, since the layout
 * of a product's result is that of the next product's left operand. Tiles of K and V are double-buffered (cp.async).
 * Tiles begin at multiples of KEYS entries of the list, and a tile that a query does not see does not change its sums.
 * Each PART entries are summed separately, and the parts are joined in their order. A query's bits therefore depend
 * neither on its chunk nor on the number of blocks: few queries after a long context have a block per part, of which
 * the last to finish joins the parts. With many queries a block processes all parts of its queries.
 *
 * Limits by count, for D = 128 on one multiprocessor: a tile of 32 keys for 4 warps (128 queries) is 512 mma, which
 * take 1024 cycles of the tensor cores on sm_80 and 512 on sm_90. In parallel run 96 KiB of shared memory reads, 768
 * cycles (75 % and 150 % of the tensor cores' time; one band per warp would need 1024); 4.5 instructions per score and
 * one per output element, in all 460 per warp in addition to 128 mma, 588 cycles of a scheduler; and 32 ex2 per thread,
 * 256 cycles. The limit is thus the full peak on sm_80, and 67 % on sm_90, where mma.sync alone reportedly reaches some
 * 62 % of wgmma. A multiprocessor runs 8 warps: two blocks of 128 threads with up to 255 registers and 27 to 70 KiB.
 * Source: FlashAttention-2 (Dao 2023, section 3); Milakov and Gimelshein 2018 (online softmax). */
#include "config.h"

#include <limits.h>
#include <type_traits>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/last.cuh"

enum {
    PART = 4096,        /* a multiple of all KEYS */
    FEW = 64,           /* blocks; more occupy a device without a block per part */
    MOST_ROOM = 1 << 24 /* floats for parts */
};
enum { WARPS = 4, BLOCK = 32 * WARPS, BAND = 16 };
#define LOG2_E 1.44269504f

/* Tiling of a head size: BANDS of 16 queries per warp and KEYS per tile. A thread's values must fit into 255 registers:
 * BANDS (D / 2 of the output + KEYS / 2 of scores + D / 4 of q). Q_SHARED: q does not fit and is read from shared
 * memory for every tile. Two bands compensate for that, since they share the loads of K and V. */
template <int D> struct cut;
template <> struct cut<64> {
    enum { BANDS = 2, KEYS = 64, Q_SHARED = false };
};
template <> struct cut<96> {
    enum { BANDS = 2, KEYS = 32, Q_SHARED = false };
};
template <> struct cut<128> {
    enum { BANDS = 2, KEYS = 32, Q_SHARED = true };
};
template <> struct cut<256> {
    enum { BANDS = 1, KEYS = 32, Q_SHARED = false };
};

template <class T, int D> struct tile {
    enum {
        KEYS = cut<D>::KEYS,
        BAND_ROWS = cut<D>::BANDS * BAND, /* queries of a warp */
        ROWS = WARPS * BAND_ROWS,         /* queries of a block */
        STRIDE = D + 8,                   /* 16 bytes of padding put eight rows into different banks */
        SIZE = KEYS * STRIDE,
        BYTES = (4 * SIZE + (cut<D>::Q_SHARED ? ROWS * STRIDE : 0)) * (int)sizeof(T), /* K, V, K, V, q */
        PART_ROOM = (ROWS * D) + 4 * cut<D>::BANDS * BLOCK                            /* floats of a block's part */
    };
};

/* Data of a thread's queries: rows g and g + 8 of each band, g = lane / 4. */
template <class T, int D> struct held {
    enum { BANDS = cut<D>::BANDS, PARTS = cut<D>::Q_SHARED ? 1 : D / 16 };
    unsigned q[BANDS][PARTS][4];
    T *q_shared;                                               /* the warp's first row */
    float out[BANDS][D / 8][4], most[BANDS][2], sum[BANDS][2]; /* sum: over this thread's columns */
    float by[BANDS][2];                                        /* score in powers of two = by * product; bf16: 1 */
};

/* Entries [lo, hi) that a query of the block sees, counted from the first tile. In shared memory. */
typedef struct {
    int lo, hi;
} limits;

/* Entries that the queries of a block and of a warp see, counted from the first tile, which begins at entry `first` of
 * the list. some: seen by some query of the warp; all: seen by all of them. */
typedef struct {
    int64_t first; /* index into the list's buffer, includes the list's offset */
    int from, to, some_lo, some_hi, all_lo, all_hi;
} sight;

/* Starts copying KEYS entries; those that no query of the block sees become 0. */
template <class T, int D>
static __device__ __forceinline__ void start_tile(T *k, const attn_args &j, const attn_unit &u, const sight &w, int at)
{
    constexpr int PER_ROW = D / 8;
#pragma unroll 2
    for (int i = threadIdx.x; i < tile<T, D>::KEYS * PER_ROW; i += BLOCK) {
        int entry = at + i / PER_ROW, c = i % PER_ROW * 8, to = i / PER_ROW * tile<T, D>::STRIDE + c;
        bool inside = entry >= w.from && entry < w.to;
        size_t from = inside ? (u.kv_head * j.cap + slot_of(u, w.first - u.first + entry)) * D + c : 0;
        copy16_async(k + to, (const T *)j.k + from, inside);
        copy16_async(k + tile<T, D>::SIZE + to, (const T *)j.v + from, inside);
    }
}

/* Returns the factor that brings the largest element of a query to 2^13 to 2^14; f16 ends at 65504. */
static __device__ __forceinline__ float into_range(float most)
{
    int exponent = (int)(__float_as_uint(most) >> 23) - 127; /* -127: 0; 128: infinity */
    return exponent < -112 || exponent == 128 ? 1 : __uint_as_float((unsigned)(127 + 13 - exponent) << 23);
}

/* Loads row `row` of the block's queries, times scale * log2 e, into fragments. Rows past the last are zero. */
template <class T, int D>
static __device__ __forceinline__ void load_query(held<T, D> &x, const attn_args &j, const attn_unit &u, int64_t row,
                                                  int band, int half)
{
    bool inside = row < (int64_t)j.n_tok * u.heads;
    const float *q = j.q + threadIdx.x % 4 * 2, scale = j.scale * LOG2_E;
    T *to = x.q_shared + (BAND * band + 8 * half + threadIdx.x % 32 / 4) * tile<T, D>::STRIDE + threadIdx.x % 4 * 2;
    float fit = 1, most = 0;
    if (inside) q += query_at(j, u, row) * D;
    if (std::is_same<T, __half>::value) {
#pragma unroll 4
        for (int c = 0; c < D && inside; c += 8)
            most = fmaxf(most, fmaxf(fabsf(q[c] * scale), fabsf(q[c + 1] * scale)));
        for (int m = 1; m < 4; m *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, m));
        fit = into_range(most);
    }
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        float2 v = make_float2(0, 0);
        if (inside) v = *reinterpret_cast<const float2 *>(q + 8 * i);
        unsigned two = pack2(v.x * scale * fit, v.y * scale * fit, T());
        if constexpr (cut<D>::Q_SHARED) *reinterpret_cast<unsigned *>(to + 8 * i) = two;
        else x.q[band][i / 2][half + i % 2 * 2] = two;
    }
    x.by[band][half] = 1 / fit;
}

/* Multiplies the warp's queries with a tile's keys. */
template <class T, int D>
static __device__ __forceinline__ void multiply_keys(float s[][cut<D>::KEYS / 8][4], const held<T, D> &x, const T *k)
{
    const int lane = threadIdx.x % 32;
    const T *q_shared = x.q_shared + lane % 16 * tile<T, D>::STRIDE + lane / 16 * 8;
    k += (lane / 16 * 8 + lane % 8) * tile<T, D>::STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        unsigned q[cut<D>::BANDS][4];
#pragma unroll
        for (int i = 0; i < cut<D>::BANDS; i++) {
            if constexpr (cut<D>::Q_SHARED) load_matrices(q[i], q_shared + BAND * i * tile<T, D>::STRIDE + 16 * c);
            else
#pragma unroll
                for (int a = 0; a < 4; a++) q[i][a] = x.q[i][c][a];
        }
#pragma unroll
        for (int n = 0; n < cut<D>::KEYS / 16; n++) {
            unsigned b[4];
            load_matrices(b, k + 16 * n * tile<T, D>::STRIDE + 16 * c);
#pragma unroll
            for (int i = 0; i < cut<D>::BANDS; i++) {
                mma(s[i][2 * n], q[i], b, T());
                mma(s[i][2 * n + 1], q[i], b + 2, T());
            }
        }
    }
}

/* Sets the scores of entries from `at` on that their query does not see to -INFINITY. */
template <int D> static __device__ __forceinline__ void hide(float s[][cut<D>::KEYS / 8][4], const limits *mine, int at)
{
    at += threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * cut<D>::BANDS; i++) {
        limits l = mine[8 * i];
#pragma unroll
        for (int n = 0; n < cut<D>::KEYS / 4; n++) {
            int entry = at + n / 2 * 8 + n % 2;
            if (entry < l.lo || entry >= l.hi) s[i / 2][n / 2][i % 2 * 2 + n % 2] = -INFINITY;
        }
    }
}

/* Turns scores into weights relative to the largest score so far, and rescales the accumulated sums to it. */
template <class T, int D> static __device__ __forceinline__ void weigh(float s[][cut<D>::KEYS / 8][4], held<T, D> &x)
{
    constexpr int N = cut<D>::KEYS / 8;
#pragma unroll
    for (int i = 0; i < cut<D>::BANDS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = x.most[i][h], by = std::is_same<T, __half>::value ? x.by[i][h] : 1, sum = 0;
#pragma unroll
            for (int n = 0; n < N; n++) top = fmaxf(top, fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
            for (int m = 1; m < 4; m *= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, m));
            float from = top == -INFINITY ? 0 : top * by, fade = exp2_fast(x.most[i][h] * by - from);
#pragma unroll
            for (int n = 0; n < 2 * N; n++) {
                float &w = s[i][n / 2][2 * h + n % 2];
                w = exp2_fast(fmaf(w, by, -from));
                sum += w;
            }
            x.most[i][h] = top;
            x.sum[i][h] = fmaf(x.sum[i][h], fade, sum);
#pragma unroll
            for (int n = 0; n < D / 8; n++) x.out[i][n][2 * h] *= fade, x.out[i][n][2 * h + 1] *= fade;
        }
}

template <class T, int D>
static __device__ __forceinline__ void add_values(held<T, D> &x, const float s[][cut<D>::KEYS / 8][4], const T *v)
{
    const int lane = threadIdx.x % 32;
    v += lane % 16 * tile<T, D>::STRIDE + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < cut<D>::KEYS / 16; n++) {
        unsigned w[cut<D>::BANDS][4];
#pragma unroll
        for (int i = 0; i < cut<D>::BANDS; i++)
#pragma unroll
            for (int a = 0; a < 4; a++)
                w[i][a] = pack2(s[i][2 * n + a / 2][a % 2 * 2], s[i][2 * n + a / 2][a % 2 * 2 + 1], T());
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            unsigned b[4];
            load_matrices_transposed(b, v + 16 * n * tile<T, D>::STRIDE + 16 * c);
#pragma unroll
            for (int i = 0; i < cut<D>::BANDS; i++) {
                mma(x.out[i][2 * c], w[i], b, T());
                mma(x.out[i][2 * c + 1], w[i], b + 2, T());
            }
        }
    }
}

template <class T, int D> static __device__ __forceinline__ void add_columns(held<T, D> &x)
{
#pragma unroll
    for (int i = 0; i < 2 * cut<D>::BANDS; i++)
        for (int m = 1; m < 4; m *= 2) x.sum[i / 2][i % 2] += __shfl_xor_sync(ALL_LANES, x.sum[i / 2][i % 2], m);
}

template <class T, int D>
static __device__ __forceinline__ void put_out(held<T, D> &x, const attn_args &j, const attn_unit &u, int64_t row0)
{
#pragma unroll
    for (int i = 0; i < cut<D>::BANDS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = x.sum[i][h];
            int64_t row = row0 + BAND * i + 8 * h;
            if (row >= (int64_t)j.n_tok * u.heads) continue;
            size_t at = query_at(j, u, row);
            float *out = j.out + at * D + threadIdx.x % 4 * 2, inverse = sum == 0 ? 0 : 1 / sum;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *reinterpret_cast<float2 *>(out + 8 * n) =
                    make_float2(x.out[i][n][2 * h] * inverse, x.out[i][n][2 * h + 1] * inverse);
            if (j.lse && threadIdx.x % 4 == 0)
                j.lse[at] = sum == 0 ? -INFINITY : (x.most[i][h] * x.by[i][h]) / LOG2_E + logf(sum);
        }
}

/* Where a thread keeps the sums of one of its queries: output columns 8 n + 2 t + e of it at out[n column + e next],
 * the largest score and the sum of weights at state[0] and state[2 BLOCK]. out NULL: a row past the last. */
typedef struct {
    float *out, *state;
    int column, next;
} kept_sums;

/* Returns the place of half h of band i. A block that processes all parts keeps their sums in its rows of the output,
 * and its states in shared memory. Otherwise part is the room of one part, BLOCK numbers of all threads at a time. */
template <class T, int D>
static __device__ __forceinline__ kept_sums place_of(const attn_args &j, const attn_unit &u, int64_t row0, float *part,
                                                     float *state, int i, int h)
{
    int64_t row = row0 + BAND * i + 8 * h;
    int mine = threadIdx.x + (4 * i + h) * BLOCK;
    if (part)
        return {part + threadIdx.x + (i * D / 2 + 2 * h) * BLOCK, part + tile<T, D>::ROWS * D + mine, 4 * BLOCK, BLOCK};
    bool inside = row < (int64_t)j.n_tok * u.heads;
    return {inside ? j.out + query_at(j, u, row) * D + threadIdx.x % 4 * 2 : NULL, state + mine, 8, 1};
}

template <class T, int D>
static __device__ __forceinline__ void keep(const held<T, D> &x, int i, int h, const kept_sums &to)
{
    to.state[0] = x.most[i][h], to.state[2 * BLOCK] = x.sum[i][h];
#pragma unroll
    for (int n = 0; n < D / 4 && to.out; n++)
        to.out[n / 2 * to.column + n % 2 * to.next] = x.out[i][n / 2][2 * h + n % 2];
}

/* Joins x with the sums of the part after it, or of the one before it. */
template <class T, int D>
static __device__ __forceinline__ void join(held<T, D> &x, int i, int h, const kept_sums &from, bool after)
{
    float by = std::is_same<T, __half>::value ? x.by[i][h] : 1, most = from.state[0], sum = from.state[2 * BLOCK];
    float top = fmaxf(x.most[i][h], most), zero = top == -INFINITY ? 0 : top * by;
    float mine = exp2_fast(x.most[i][h] * by - zero), other = exp2_fast(most * by - zero);
    float first = after ? mine : other, second = after ? other : mine;
    x.most[i][h] = top;
    x.sum[i][h] = fmaf(after ? x.sum[i][h] : sum, first, (after ? sum : x.sum[i][h]) * second);
#pragma unroll
    for (int n = 0; n < D / 4 && from.out; n++) {
        float &a = x.out[i][n / 2][2 * h + n % 2], b = from.out[n / 2 * from.column + n % 2 * from.next];
        a = fmaf(after ? a : b, first, (after ? b : a) * second);
    }
}

template <class T, int D> static __device__ __forceinline__ void reset(held<T, D> &x)
{
#pragma unroll
    for (int i = 0; i < 2 * cut<D>::BANDS; i++) {
        x.most[i / 2][i % 2] = -INFINITY, x.sum[i / 2][i % 2] = 0;
#pragma unroll
        for (int n = 0; n < D / 4; n++) x.out[i / 2][n / 2][i % 2 * 2 + n % 2] = 0;
    }
}

/* Sets w and the limits of the thread's queries. room: the entries seen by each warp's queries. */
template <int D>
static __device__ __forceinline__ void look(sight *w, limits *mine, const attn_args &j, const attn_unit &u,
                                            int64_t row0, int64_t (*room)[2])
{
    enum { N = 2 * cut<D>::BANDS, KEYS = cut<D>::KEYS };
    long long lo[N], hi[N], from = INT64_MAX, to = 0, all_from = INT64_MAX, all_to = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int64_t row = row0 + i / 2 * BAND + i % 2 * 8, a = 0, b = 0;
        if (row < (int64_t)j.n_tok * u.heads) visible(j, u, (int)(row / u.heads), a, b);
        lo[i] = a, hi[i] = b;
        if (a < b) from = min(from, lo[i]), to = max(to, hi[i]);
    }
    for (int m = 4; m < 32; m *= 2) {
        from = min(from, __shfl_xor_sync(ALL_LANES, from, m));
        to = max(to, __shfl_xor_sync(ALL_LANES, to, m));
    }
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32][0] = from, room[threadIdx.x / 32][1] = to;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        all_from = min(all_from, (long long)room[i][0]), all_to = max(all_to, (long long)room[i][1]);
    w->first = all_to == 0 ? 0 : (u.first + all_from) / KEYS * KEYS;
    long long first = w->first - u.first;
    w->from = all_to == 0 ? 0 : (int)(all_from - first), w->to = all_to == 0 ? 0 : (int)(all_to - first);
    w->some_lo = to == 0 ? 0 : (int)(from - first), w->some_hi = to == 0 ? 0 : (int)(to - first);
    w->all_lo = 0, w->all_hi = INT_MAX;
#pragma unroll
    for (int i = 0; i < N; i++) {
        bool none = lo[i] >= hi[i];
        limits l = {none ? 0 : (int)(lo[i] - first), none ? 0 : (int)(hi[i] - first)};
        if (threadIdx.x % 4 == 0) mine[8 * i] = l;
        w->all_lo = max(w->all_lo, l.lo), w->all_hi = min(w->all_hi, l.hi);
    }
    for (int m = 4; m < 32; m *= 2) {
        w->all_lo = max(w->all_lo, __shfl_xor_sync(ALL_LANES, w->all_lo, m));
        w->all_hi = min(w->all_hi, __shfl_xor_sync(ALL_LANES, w->all_hi, m));
    }
}

/* Sums the tiles of entries [from, to), counted from the first tile, in x. */
template <class T, int D>
static __device__ __forceinline__ void sum_part(held<T, D> &x, T *room, const attn_args &j, const attn_unit &u,
                                                const sight &w, const limits *mine, int from, int to)
{
    typedef tile<T, D> t;
    T *now = room, *next = room + 2 * t::SIZE;
    reset(x);
    if (from < to) start_tile<T, D>(now, j, u, w, from);
    copies_end_group();
    for (int at = from; at < to; at += t::KEYS) {
        if (at + t::KEYS < to) start_tile<T, D>(next, j, u, w, at + t::KEYS);
        copies_end_group();
        copies_wait<1>();
        __syncthreads();
        if (at < w.some_hi && at + t::KEYS > w.some_lo) {
            float s[cut<D>::BANDS][t::KEYS / 8][4] = {};
            multiply_keys<T, D>(s, x, now);
            if (at < w.all_lo || at + t::KEYS > w.all_hi) hide<D>(s, mine, at);
            weigh<T, D>(s, x);
            add_values<T, D>(x, s, now + t::SIZE);
        }
        __syncthreads();
        T *done = now;
        now = next, next = done;
    }
    add_columns(x);
}

/* parts: room for the parts of each block, in the order of the grid; done: a counter for each list of blocks. With
 * gridDim.z 1 a block processes all parts, else part blockIdx.z. */
template <class T, int D>
static __global__ void __launch_bounds__(BLOCK) prefill_mma_k(attn_args j, float *parts, int *done)
{
    typedef tile<T, D> t;
    SHARED_DYN(T, room);
    SHARED(int64_t, seen, [WARPS][2]);
    SHARED(limits, limit, [t::ROWS]);
    SHARED(float, state, [4 * cut<D>::BANDS * BLOCK]);
    constexpr int HALVES = 2 * cut<D>::BANDS;
    attn_unit u = unit_of(j, blockIdx.y);
    /* The last queries see the most entries, so their blocks are scheduled first. */
    int row_in = threadIdx.x / 32 * t::BAND_ROWS + threadIdx.x % 32 / 4;
    int64_t row0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * t::ROWS + row_in;
    held<T, D> x = {};
    sight w;
    limits *mine = limit + row_in;
    look<D>(&w, mine, j, u, row0, seen);
    int offset = (int)(w.first % PART), n = w.to == 0 ? 1 : (offset + w.to - 1) / PART + 1;
    bool split = gridDim.z > 1;
    if (split && (int)blockIdx.z >= n) return;
    x.q_shared = room + 4 * t::SIZE + threadIdx.x / 32 * t::BAND_ROWS * t::STRIDE;
#pragma unroll
    for (int i = 0; i < HALVES; i++) load_query(x, j, u, row0 + i / 2 * BAND + i % 2 * 8, i / 2, i % 2);
    const size_t list = blockIdx.y * gridDim.x + blockIdx.x;
    float *own = split ? parts + list * gridDim.z * t::PART_ROOM : NULL;
    for (int p = split ? blockIdx.z : 0, end = split ? p + 1 : n; p < end; p++) {
        sum_part<T, D>(x, room, j, u, w, mine, max(p * PART - offset, 0), min((p + 1) * PART - offset, w.to));
        float *part = split ? own + p * (size_t)t::PART_ROOM : NULL;
#pragma unroll
        for (int i = 0; i < HALVES; i++) {
            kept_sums place = place_of<T, D>(j, u, row0, part, state, i / 2, i % 2);
            if (!split && p > 0) join(x, i / 2, i % 2, place, false);
            if (split ? n > 1 : p + 1 < n) keep(x, i / 2, i % 2, place);
        }
    }
    if (split && n > 1) {
        if (!is_last(&done[list], n)) return;
        reset(x);
        for (int p = 0; p < n; p++)
#pragma unroll
            for (int i = 0; i < HALVES; i++)
                join(x, i / 2, i % 2, place_of<T, D>(j, u, row0, own + p * (size_t)t::PART_ROOM, state, i / 2, i % 2),
                     true);
    }
    put_out(x, j, u, row0);
}

bool attn_mma_fits(const attn_args *j, const attn_job *job)
{
    bool size = j->dim == 64 || j->dim == 96 || j->dim == 128 || j->dim == 256;
    bool type = job->rows.type == DT_F16 || job->rows.type == DT_BF16;
    return size && type && !attn_has_codes(j) && job->rounded && attn_wide(j) &&
           ((uintptr_t)j->q | (uintptr_t)j->out) % 8 == 0;
}

template <class T, int D> static cudaError_t prefill(backend *be, const attn_args *j)
{
    typedef tile<T, D> t;
    size_t blocks = cuda_blocks((size_t)j->n_tok * (j->n_heads / j->n_units), t::ROWS), lists = blocks * j->n_units;
    size_t parts = j->count > PART && lists <= FEW ? (size_t)j->count / PART + 2 : 1;
    if (lists * parts * t::PART_ROOM > MOST_ROOM) parts = 1;
    float *room = NULL;
    int *done = NULL;
    if (parts > 1) {
        room = (float *)cuda_room(be, &cuda_of(be)->parts, lists * parts * t::PART_ROOM, sizeof(float), "attention");
        done = cuda_zeros(be, lists, "attention");
        if (!room || !done) return cudaSuccess; /* the fault is recorded */
    }
    return launch(prefill_mma_k<T, D>, dim3((unsigned)blocks, (unsigned)j->n_units, (unsigned)parts), dim3(BLOCK),
                  t::BYTES, cuda_stream(be), *j, room, done);
}

cudaError_t attn_mma_run(backend *be, const attn_args *j, dtype type)
{
    cudaError_t rc = cudaErrorInvalidValue;
    by_type(type, [&](auto e) {
        typedef decltype(e) T;
        if constexpr (sizeof(T) == 2)
            rc = j->dim == 64    ? prefill<T, 64>(be, j)
                 : j->dim == 96  ? prefill<T, 96>(be, j)
                 : j->dim == 128 ? prefill<T, 128>(be, j)
                                 : prefill<T, 256>(be, j);
    });
    return rc;
}
