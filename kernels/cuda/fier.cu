/* SPDX-License-Identifier: MIT */
/* One-bit keys (ops_fier.h). */
#include "config.h"

#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/last.cuh"
#include "kernels/cuda/scores.cuh"
#include "kernels/cuda/votes.cuh"
#include "kernels/ops_fier.h"

enum { WORD = 32, MOST_WORDS = HEAD_DIM_MAX / WORD };

typedef struct {
    uint32_t *bits;
    void *levels, *ring;
    size_t group, groups, blocks; /* for cap tokens */
    int heads, dim, words;
    bool bytes; /* integer products */
} ones;

static ones ones_of(const fier_index *x)
{
    return {(uint32_t *)(void *)x->bits.p,
            x->levels.p,
            x->ring.p,
            x->group,
            (x->cap + x->group - 1) / x->group,
            (x->cap + WORD - 1) / WORD,
            (int)x->n_kv_heads,
            (int)x->head_dim,
            (int)fier_words(x->head_dim),
            x->products == FIER_INT8};
}

/* ---- adding ---- */

/* Keys of one channel of one head: new ones from position `first` on, f32 [n][heads][dim]; older ones in the ring. */
template <class T> struct channel {
    const ones &x;
    const float *k;
    int64_t first;
    int head, c;

    __device__ float key(int64_t p) const
    {
        if (p < first) return to_f32(((const T *)x.ring)[(head * x.group + (size_t)p % x.group) * x.dim + c]);
        T y;
        put_f32(&y, k[((size_t)(p - first) * x.heads + head) * x.dim + c]);
        return to_f32(y);
    }
};

typedef struct {
    float z, lo, hi;
} levels;

template <class T> static __device__ levels range_of(const channel<T> &k, int64_t from, int64_t to)
{
    float lo = k.key(from), hi = lo;
    for (int64_t p = from + 1; p < to; p++) {
        float v = k.key(p);
        if (v < lo) lo = v;
        if (v > hi) hi = v;
    }
    return {__fmul_rn(0.5f, __fadd_rn(lo, hi)), lo, hi};
}

/* Sets one head's group that starts at `begin`, from its tokens before `to`. One block per group; threads are channels,
 * a warp has the 32 of a word. */
template <class T>
static __device__ void set_group(const ones &x, const float *k, int64_t first, int64_t begin, int64_t to)
{
    int c = (int)threadIdx.x, head = blockIdx.y, word = c / WORD;
    int64_t g = (int64_t)x.group;
    bool inside = c < x.dim;
    channel<T> keys = {x, k, first, head, inside ? c : 0};
    levels l = range_of(keys, begin, to);
    T *out = (T *)x.levels + (head * x.groups + (size_t)(begin / g)) * 2 * x.dim;
    if (inside) put_f32(&out[c], l.lo), put_f32(&out[x.dim + c], l.hi);
    unsigned mine = __ballot_sync(ALL_LANES, inside);
    for (int64_t p = begin; p < to; p++) {
        unsigned set = __ballot_sync(ALL_LANES, inside && keys.key(p) >= l.z);
        uint32_t *w = &x.bits[((head * x.blocks + (size_t)p / WORD) * x.words + word) * WORD + (size_t)p % WORD];
        if (c % WORD == 0) *w = (*w & ~mine) | set;
    }
}

/* A job may have fewer groups of tokens than the grid. The last block of a head to finish writes the newest keys to the
 * ring, when no group reads it any more. done [jobs][heads]. */
template <class T> static __global__ void add_k(job_list<index_adds<ones>> jobs, int *done)
{
    grid_wait();
    const index_adds<ones> &j = jobs.job[blockIdx.z];
    const ones x = j.x;
    int64_t g = (int64_t)x.group, begin = (j.pos / g + blockIdx.x) * g, end = j.pos + j.n;
    int c = (int)threadIdx.x, head = blockIdx.y;
    if (begin >= end) return;
    set_group<T>(x, j.k, j.pos, begin, min(begin + g, end));
    if (!is_last(&done[blockIdx.z * x.heads + head], (int)((end - 1) / g - j.pos / g + 1)) || c >= x.dim) return;
    for (int64_t p = max(end - g, j.pos); p < end; p++)
        put_f32(&((T *)x.ring)[(head * x.group + (size_t)p % x.group) * x.dim + c],
                j.k[((size_t)(p - j.pos) * x.heads + head) * x.dim + c]);
}

static dim3 channels(const ones *x)
{
    return dim3((unsigned)x->words * WORD);
}

void cuda_fier_add(backend *be, const index_add_job *jobs, size_t n)
{
    const fier_index *index = (const fier_index *)jobs->index;
    ones x = ones_of(index);
    size_t most = 0;
    for (size_t i = 0; i < n; i++) most = max(most, jobs[i].n);
    if (most == 0 || !cuda_begin(be, "fier.add")) return;
    int *done = cuda_zeros(be, CUDA_JOBS * index->n_kv_heads, "fier.add");
    if (!done) return;
    by_type(index->type, [&](auto t) {
        typedef decltype(t) T;
        unsigned groups = (unsigned)((most - 1) / x.group + 2);
        in_lists(jobs, n, adds_of(ones_of), [&](auto &list, unsigned m) {
            cudaError_t rc =
                launch_dependent(be, add_k<T>, dim3(groups, (unsigned)x.heads, m), channels(&x), 0, list, done);
            cuda_check(be, rc, "fier.add [%zu, %d, %d]", most, x.heads, x.dim);
        });
    });
}

/* Recomputes the ring and the open group from the K rows of the newest tokens. */
template <class T, class R> static __global__ void redo_ring_k(ones x, half_rows rows, int64_t from)
{
    int64_t p = from + blockIdx.x;
    int c = (int)threadIdx.x, head = blockIdx.y;
    if (c < x.dim)
        put_f32(&((T *)x.ring)[(head * x.group + (size_t)p % x.group) * x.dim + c], element_of<R>(rows, head, p, c));
}

template <class T> static __global__ void redo_group_k(ones x, int64_t begin, int64_t n)
{
    set_group<T>(x, NULL, n, begin, n);
}

void cuda_fier_redo(backend *be, const void *redone, const kv_rows *rows, int64_t n)
{
    const fier_index *index = (const fier_index *)redone;
    ones x = ones_of(index);
    int64_t g = (int64_t)x.group, begin = n / g * g;
    if (begin == n || !cuda_begin(be, "fier.redo")) return;
    by_type(index->type, [&](auto t) {
        by_rows(rows->type, [&](auto r) {
            typedef decltype(t) T;
            typedef decltype(r) R;
            cudaError_t rc = launch(redo_ring_k<T, R>, dim3((unsigned)(n - begin), (unsigned)x.heads), channels(&x), 0,
                                    cuda_stream(be), x, rows_of(rows, false), begin);
            if (rc == cudaSuccess)
                rc = launch(redo_group_k<T>, dim3(1, (unsigned)x.heads), channels(&x), 0, cuda_stream(be), x, begin, n);
            cuda_check(be, rc, "fier.redo [%d, %d]", x.heads, x.dim);
        });
    });
}

/* ---- scores ---- */

/* Returns x by, rounded to nearest, within [least, 127]. NaN becomes least. */
static __device__ __forceinline__ int whole(float x, float by, float least)
{
    float v = __fmul_rn(x, by);
    v = v > least ? v : least;
    v = v < 127 ? v : 127;
    return (int)rintf(v);
}

/* Reads G neighbouring floats of shared memory, aligned to their size. */
template <int G> static __device__ __forceinline__ void get(float v[G], const float *p)
{
    if constexpr (G == 4) {
        float4 x = *reinterpret_cast<const float4 *>(p);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else if constexpr (G == 2) {
        float2 x = *reinterpret_cast<const float2 *>(p);
        v[0] = x.x, v[1] = x.y;
    } else v[0] = *p;
}
template <int G> static __device__ __forceinline__ void put(float *p, const float v[G])
{
    if constexpr (G == 4) *reinterpret_cast<float4 *>(p) = make_float4(v[0], v[1], v[2], v[3]);
    else if constexpr (G == 2) *reinterpret_cast<float2 *>(p) = make_float2(v[0], v[1]);
    else *p = v[0];
}

/* Computes a, the products of G queries and a row of lower levels; n <= G queries exist. Half a warp has a query. */
template <class T, int G>
static __device__ __forceinline__ void products_of(float a[G], const T *lo, const float *q, int n, int dim)
{
    float v[MOST_CHANNELS];
    int lane = threadIdx.x % 32;
    load_part(v, lo, lane % PARTS, dim);
#pragma unroll
    for (int g = 0; g < G; g += 2) {
        float s = dot_parts(v, q + min(g + lane / PARTS, n - 1) * dim, lane % PARTS, dim);
        a[g] = __shfl_sync(ALL_LANES, s, 0);
        if (g + 1 < G) a[g + 1] = __shfl_sync(ALL_LANES, s, PARTS);
    }
}

template <class T> static __device__ __forceinline__ const T *levels_of(const ones &x, int head, size_t group)
{
    return (const T *)x.levels + (head * x.groups + group) * 2 * x.dim;
}

/* Returns the floats of a table of G queries for one value of two bits. */
static __host__ __device__ __forceinline__ int step_of(int words, int G)
{
    return (words * WORD / 2 + 1) * G;
}

/* A warp's tables for scoring a group of tokens with G queries: a, and for each pair of channels the sum for each value
 * of its two bits. The sums of two bits are `step` floats apart, in separate banks, so that lanes do not conflict. */
template <class T, int G> struct float_sums {
    const ones &x;
    float *sums; /* [4][pairs][G] in shared memory, rows of `step` */
    int step;
    float a[G];

    /* Sets the sums of one pair of channels for each value of its two bits. */
    __device__ __forceinline__ void set_pair(int i, const T *lo, const float *q, int n) const
    {
        float sum[4][G], span[2] = {0, 0};
#pragma unroll
        for (int b = 0; b < 2; b++)
            if (2 * i + b < x.dim) span[b] = __fsub_rn(to_f32(lo[x.dim + 2 * i + b]), to_f32(lo[2 * i + b]));
#pragma unroll
        for (int g = 0; g < G; g++) {
            const float *at = q + min(g, n - 1) * x.dim + 2 * i;
            float w0 = __fmul_rn(at[0], span[0]), w1 = 2 * i + 1 < x.dim ? __fmul_rn(at[1], span[1]) : 0;
#pragma unroll
            for (int bits = 0; bits < 4; bits++) sum[bits][g] = __fadd_rn(bits & 1 ? w0 : 0, bits & 2 ? w1 : 0);
        }
#pragma unroll
        for (int bits = 0; bits < 4; bits++) put<G>(sums + bits * step + i * G, sum[bits]);
    }

    /* Builds the tables for n <= G queries [n][dim]. Synchronizes the warp at the end. */
    __device__ __forceinline__ void make(int head, size_t group, const float *q, int n)
    {
        const T *lo = levels_of<T>(x, head, group);
        for (int i = threadIdx.x % 32; i < (x.dim + 1) / 2; i += 32) set_pair(i, lo, q, n);
        products_of<T, G>(a, lo, q, n, x.dim);
        __syncwarp();
    }

    /* Adds a pair of channels to the sums of a token. */
    __device__ __forceinline__ void add_pair(float s[G], unsigned bits, int i) const
    {
        float v[G];
        get<G>(v, sums + (bits & 3) * step + i * G);
#pragma unroll
        for (int g = 0; g < G; g++) s[g] = __fadd_rn(s[g], v[g]);
    }

    /* Writes s, the scores of the token with the given words, which are WORD apart. */
    __device__ __forceinline__ void estimate(float s[G], const uint32_t *word) const
    {
#pragma unroll
        for (int g = 0; g < G; g++) s[g] = a[g];
#pragma unroll 1
        for (int w = 0; w < x.words; w++) {
            uint32_t bits = word[w * WORD];
            int pairs = min(WORD / 2, (x.dim - w * WORD + 1) / 2);
            if (pairs == WORD / 2) {
#pragma unroll
                for (int i = 0; i < WORD / 2; i++) add_pair(s, bits >> 2 * i, w * WORD / 2 + i);
            } else {
                for (int i = 0; i < pairs; i++) add_pair(s, bits >> 2 * i, w * WORD / 2 + i);
            }
        }
    }
};

/* Returns the byte of channel c of a word: bytes 4 t .. 4 t + 3 are for channels t, t + 8, t + 16 and t + 24, so that
 * one shift moves their bits to the tops of four bytes. */
static __device__ __forceinline__ int byte_of(int c)
{
    return c % 8 * 4 + c / 8;
}

/* The same in integers, on tensor cores: levels u_c of the channels whose bits are set, at most 127, times queries p_c
 * of at most 127. The sums are exact. A warp has its 32 tokens as rows, and up to 8 queries as columns. */
template <class T, int G> struct whole_sums {
    const ones &x;
    unsigned *u;       /* [words][8]: u of 4 channels each (byte_of), of a warp's group */
    const unsigned *p; /* [n][words][8]: p of the current queries */
    const float *unit; /* [n] values of 1 in them */
    float a[G], most;

    __device__ __forceinline__ void make(int head, size_t group, const float *q, int n)
    {
        const T *lo = levels_of<T>(x, head, group);
        float span[MOST_WORDS];
        int lane = threadIdx.x % 32;
        most = 0;
#pragma unroll
        for (int w = 0; w < MOST_WORDS; w++) {
            int c = w * WORD + lane;
            span[w] = c < x.dim ? __fsub_rn(to_f32(lo[x.dim + c]), to_f32(lo[c])) : 0;
            if (span[w] > most) most = span[w];
        }
        most = warp_max(most);
        const float by = __fdiv_rn(127, most);
#pragma unroll
        for (int w = 0; w < MOST_WORDS; w++)
            if (w < x.words)
                ((unsigned char *)u)[w * WORD + byte_of(lane)] =
                    (unsigned char)(w * WORD + lane < x.dim ? whole(span[w], by, 0) : 0);
        products_of<T, G>(a, lo, q, n, x.dim);
        __syncwarp();
    }

    /* Writes s, the scores of this lane's token if it is in the group; word: the warp's words, [words][WORD]. */
    __device__ __forceinline__ void estimate(float s[G], const uint32_t *word, bool mine, int n) const
    {
        int sum[2][4] = {}, lane = threadIdx.x % 32, t = lane % 4;
        const unsigned *query = p + min(lane / 4, n - 1) * x.words * 8 + t;
        for (int w = 0; w < x.words; w++) {
            const unsigned b[2] = {query[8 * w], query[8 * w + 4]}, lo = u[8 * w + t], hi = u[8 * w + 4 + t];
#pragma unroll
            for (int tile = 0; tile < 2; tile++) {
                const unsigned upper = word[w * WORD + 16 * tile + lane / 4] << (3 - t);
                const unsigned lower = word[w * WORD + 16 * tile + 8 + lane / 4] << (3 - t);
                const unsigned rows[4] = {top_bits(upper << 4) & lo, top_bits(lower << 4) & lo, top_bits(upper) & hi,
                                          top_bits(lower) & hi};
                mma_bytes(sum[tile], rows, b);
            }
        }
        /* A lane has four tokens, 8 apart, of two queries. */
#pragma unroll
        for (int g = 0; g < G; g++) {
            int mine_of = 0;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int other = __shfl_sync(ALL_LANES, sum[r / 2][r % 2 * 2 + g % 2], lane % 8 * 4 + g / 2);
                if (r == lane / 8) mine_of = other;
            }
            float scale = __fmul_rn(__fdiv_rn(most, 127), unit[min(g, n - 1)]);
            if (mine) s[g] = __fadd_rn(a[g], __fmul_rn((float)mine_of, scale));
        }
    }
};

/* Quantizes queries [group][dim] to 8 bits, in the order of byte_of; unit: values of 1. Each warp processes one query
 * after another. */
static __device__ __forceinline__ void round_queries(signed char *p, float *unit, const float *q, int group,
                                                     const ones &x)
{
    int lane = threadIdx.x % 32, channels = x.words * WORD;
    for (int h = threadIdx.x / 32; h < group; h += VOTE_WARPS) {
        float most = 0;
        for (int c = lane; c < x.dim; c += 32)
            if (fabsf(q[h * x.dim + c]) > most) most = fabsf(q[h * x.dim + c]);
        most = warp_max(most);
        const float by = __fdiv_rn(127, most);
        for (int c = lane; c < channels; c += 32)
            p[h * channels + c - lane + byte_of(lane)] =
                (signed char)(c < x.dim ? whole(q[h * x.dim + c], by, -127) : 0);
        if (lane == 0) unit[h] = __fdiv_rn(most, 127);
    }
}

/* Returns the bytes that fier_head_bytes counts for the tokens [from, to). */
template <class T> static __device__ unsigned long long bytes_read(const ones &x, int64_t from, int64_t to)
{
    int64_t g = (int64_t)x.group;
    if (to <= from) return 0;
    return (to - from) * 4ull * x.words + ((to - 1) / g - from / g + 1) * 2ull * x.dim * sizeof(T);
}

typedef struct {
    ones x;
    float *score;
    size_t stride;
    const float *q;
    int64_t lo, hi;
    list_groups of;
    unsigned long long *read;
} fier_scores;

/* The token of a lane; inside: it is scored. */
typedef struct {
    int token;
    bool inside;
} lane_token;

/* Loads the words of a lane's token, WORD apart, into shared memory. */
static __device__ __forceinline__ void stage_words(uint32_t *to, const ones &x, int head, const lane_token &l)
{
    const uint32_t *word =
        x.bits + (head * x.blocks + (size_t)l.token / WORD) * x.words * WORD + (size_t)l.token % WORD;
    uint32_t bits[MOST_WORDS];
#pragma unroll
    for (int w = 0; w < MOST_WORDS; w++)
        if (w < x.words) bits[w] = word[w * WORD];
#pragma unroll
    for (int w = 0; w < MOST_WORDS; w++)
        if (w < x.words) to[w * WORD] = bits[w];
}

/* Scores a warp's tokens group by group; most warps have tokens of one group only. Calls estimate(mine, group), where
 * mine is true in the lanes of that group. */
template <class F> static __device__ __forceinline__ void by_groups(const ones &x, const lane_token &l, F estimate)
{
    unsigned left = __ballot_sync(ALL_LANES, l.inside), lane = threadIdx.x % 32;
    int group = (int)((unsigned)l.token / (unsigned)x.group);
    while (left) {
        int now = __shfl_sync(ALL_LANES, group, __ffs((int)left) - 1);
        bool mine = (left >> lane & 1) && group == now;
        estimate(mine, (size_t)now);
        left &= ~__ballot_sync(ALL_LANES, mine);
        __syncwarp(); /* the group's tables are no longer read */
    }
}

/* Layout of the shared memory of the scores, in 4-byte words: queries; for bytes also the quantized queries and their
 * units; then, per warp, tables of a group of tokens, and the words of the tokens. */
typedef struct {
    int rounded, unit, first, per_warp, words, all;
} score_room;

static __host__ __device__ __forceinline__ score_room score_room_of(const ones &x, int group, int step)
{
    score_room r;
    r.rounded = (group * x.dim + 3) / 4 * 4;
    r.unit = r.rounded + (x.bytes ? group * x.words * 8 : 0);
    r.first = (r.unit + (x.bytes ? group : 0) + 3) / 4 * 4;
    r.per_warp = x.bytes ? x.words * 8 : 4 * step;
    r.words = r.first + VOTE_WARPS * r.per_warp;
    r.all = r.words + VOTE_WARPS * x.words * WORD;
    return r;
}

/* Counts the bytes read for the group of a column; without groups, the first block counts the whole job. */
template <class T> static __device__ void count_scored(const fier_scores &j, const group_columns &in, int64_t column)
{
    if (!j.read) return;
    if (!j.of.group) {
        if (column == 0 && blockIdx.y == 0) atomicAdd(j.read, bytes_read<T>(j.x, j.lo, j.hi) * j.x.heads);
    } else if (column < in.n * in.per && column % in.per == 0) {
        int64_t begin = item_of(in, column);
        atomicAdd(j.read, bytes_read<T>(j.x, max(begin, j.lo), min(begin + in.per, j.hi)));
    }
}

/* Stores the block's part of the votes of heads [first, first + n), counted over all jobs. s: scores of its tokens.
 * parts: shared memory [VOTE_WARPS][G]. */
template <int G>
static __device__ __forceinline__ void leave_votes(const vote_room &v, vote_part *parts, const float s[G], bool inside,
                                                   size_t first, int n, int chunk)
{
#pragma unroll
    for (int g = 0; g < G; g++) {
        vote_part p = part_of_warp(inside ? logit(s[g], v.scale) : -INFINITY);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32 * G + g] = p;
    }
    __syncthreads();
    if ((int)threadIdx.x < n) {
        vote_part p = parts[threadIdx.x];
        for (int w = 1; w < VOTE_WARPS; w++) p = join_parts(p, parts[w * G + threadIdx.x]);
        v.parts[(first + threadIdx.x) * v.most + chunk] = p;
    }
    __syncthreads();
}

/* A grid row has `group` heads of a job that share the bits of one KV head, G at a time. A warp has 32 columns: tokens,
 * or those of the list that the heads follow (groups.cuh). */
template <class T, int G, bool BYTES>
static __global__ void __launch_bounds__(VOTE_ITEMS, G == 2 ? 2 : 3)
    score_k(job_list<fier_scores> jobs, int group, vote_room votes)
{
    grid_wait();
    SHARED_DYN(float, mine); /* queries, then tables, then words */
    SHARED(vote_part, parts, [VOTE_WARPS * G]);
    const fier_scores &j = jobs.job[blockIdx.z];
    const ones x = j.x;
    int head = (int)blockIdx.y * x.heads / (int)gridDim.y, first, chunks = chunks_of(j.lo, j.hi, &first);
    int64_t begin = (int64_t)blockIdx.x * VOTE_ITEMS, column = begin + threadIdx.x;
    group_columns in = {NULL, 1, j.hi, j.lo, j.hi};
    if (j.of.group) in = columns_of(j.of, list_of_part(j.of), j.lo, j.hi);
    count_scored<T>(j, in, column);
    if (j.of.group ? begin >= in.n * in.per : begin + VOTE_ITEMS <= j.lo || begin >= j.hi) return;
    bool inside = column >= in.first && column < in.end, blank = j.of.group && column < in.n * in.per;
    int64_t token = !inside ? 0 : j.of.group ? item_of(in, column) : column;
    lane_token l = {(int)token, inside};
    int step = step_of(x.words, G), warp = threadIdx.x / 32;
    score_room at = score_room_of(x, group, step);
    uint32_t *word = (uint32_t *)mine + at.words + warp * x.words * WORD;
    stage_words(word + threadIdx.x % 32, x, head, l);
    for (int i = threadIdx.x; i < group * x.dim; i += VOTE_ITEMS) mine[i] = j.q[(size_t)blockIdx.y * group * x.dim + i];
    __syncthreads();
    if (BYTES) {
        round_queries((signed char *)(mine + at.rounded), mine + at.unit, mine, group, x);
        __syncthreads();
    }
    for (int h = 0; h < group; h += G) {
        const float *q = mine + h * x.dim;
        size_t all = blockIdx.y * (size_t)group + h;
        int n = min(G, group - h);
        float s[G];
        for (int i = 0; i < G; i++) s[i] = -INFINITY;
        if constexpr (BYTES) {
            whole_sums<T, G> t = {x,
                                  (unsigned *)mine + at.first + warp * at.per_warp,
                                  (const unsigned *)mine + at.rounded + h * x.words * 8,
                                  mine + at.unit + h,
                                  {},
                                  0};
            by_groups(x, l, [&](bool in_group, size_t now) {
                t.make(head, now, q, n);
                t.estimate(s, word, in_group, n);
            });
        } else {
            float_sums<T, G> t = {x, mine + at.first + warp * at.per_warp, step, {}};
            by_groups(x, l, [&](bool in_group, size_t now) {
                t.make(head, now, q, n);
                if (in_group) t.estimate(s, word + threadIdx.x % 32);
            });
        }
#pragma unroll
        for (int i = 0; i < G; i++)
            if (i < n && (inside || blank)) j.score[(all + i) * j.stride + column] = s[i];
        if (votes.parts)
            leave_votes<G>(votes, parts, s, inside, blockIdx.z * (size_t)gridDim.y * group + all, n,
                           (int)blockIdx.x - first);
    }
    size_t row = blockIdx.z * gridDim.y + blockIdx.y;
    if (!votes.parts || !is_last(&votes.done[row], chunks)) return;
    for (int h = threadIdx.x / 32; h < group; h += VOTE_WARPS) {
        float lse = lse_of_parts(votes.parts + (row * group + h) * votes.most, chunks);
        if (threadIdx.x % 32 == 0) votes.lse[row * group + h] = lse;
    }
}

static fier_scores fier_scores_of(const score_job &j)
{
    return {ones_of((const fier_index *)j.index),
            ptr<float>(j.score),
            j.stride,
            ptr<float>(j.q),
            j.items.lo,
            j.items.hi,
            groups_of(j.spans),
            ptr<unsigned long long>(j.read)};
}

static combine_job votes_of(const score_job &j)
{
    return {.out = j.votes,
            .in = j.score,
            .stride = j.stride,
            .n_heads = j.n_heads,
            .n_lists = ((const fier_index *)j.index)->n_kv_heads,
            .lo = j.items.lo,
            .hi = j.items.hi,
            .mode = GQA_VOTE,
            .scale = j.scale};
}

template <class T, int G, bool BYTES>
static cudaError_t score(backend *be, dim3 grid, const job_list<fier_scores> &list, size_t group, const vote_room &v)
{
    const ones &x = list.job[0].x;
    size_t room = (size_t)score_room_of(x, (int)group, step_of(x.words, G)).all;
    return launch_dependent(be, score_k<T, G, BYTES>, grid, dim3(VOTE_ITEMS), room * sizeof(float), list, (int)group,
                            v);
}

static void score_list(backend *be, const score_job *jobs, size_t n, int64_t most)
{
    const fier_index *x = (const fier_index *)jobs->index;
    size_t parts = parts_of(jobs, x->n_kv_heads), group = jobs->n_heads / parts;
    vote_room v = {};
    if (jobs->votes.p && !vote_room_of(be, &v, n * jobs->n_heads, most, jobs->scale)) return;
    in_lists(jobs, n, fier_scores_of, [&](auto &list, unsigned m) {
        by_type(x->type, [&](auto t) {
            typedef decltype(t) T;
            dim3 grid(cuda_blocks((size_t)max(most, (int64_t)1), VOTE_ITEMS), (unsigned)parts, m);
            bool bytes = x->products == FIER_INT8;
            cudaError_t rc = bytes && group > 4   ? score<T, 8, true>(be, grid, list, group, v)
                             : bytes && group > 2 ? score<T, 4, true>(be, grid, list, group, v)
                             : bytes              ? score<T, 2, true>(be, grid, list, group, v)
                             : group == 1         ? score<T, 1, false>(be, grid, list, group, v)
                             : group == 2         ? score<T, 2, false>(be, grid, list, group, v)
                                                  : score<T, 4, false>(be, grid, list, group, v);
            cuda_check(be, rc, "fier.score [%zu, %zu], up to %lld tokens", jobs->n_heads, x->head_dim, (long long)most);
        });
    });
    if (!jobs->votes.p || be->fault.code != ST_OK) return;
    in_lists(jobs, n, votes_of, [&](auto &list, unsigned m) { cuda_defer_combine(be, list.job, m, v.lse); });
}

void cuda_fier_score(backend *be, const score_job *jobs, size_t n)
{
    int64_t most = most_score_columns(jobs, n);
    if (!cuda_begin(be, "fier.score")) return;
    for (size_t i = 0; i < n; i += CUDA_JOBS) score_list(be, jobs + i, min(n - i, (size_t)CUDA_JOBS), most);
}
