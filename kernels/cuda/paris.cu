/* SPDX-License-Identifier: MIT */
/* ParisKV (ops_paris.h), with the bits of ref. NB is the number of blocks of 8 channels, a power of two. If a warp has
 * a vector, lane l has channels l, l + 32, ..., so that 8 neighbouring lanes have a block. */
#include "config.h"

#include <type_traits>

#include "kernels/cuda/row_blocks.cuh"
#include "kernels/ops_paris.h"

enum {
    BLOCK = 256,
    WARPS = BLOCK / 32,
    SLICES = 16,     /* of the tokens of a mean */
    COUNT_GRID = 64, /* counting blocks per head */
    COPIES = 8,      /* of a histogram, so that lanes with equal scores do not conflict */
    FEW = 1024,      /* scores per chunk; MANY for long contexts */
    MANY = 4096,
    LONG = 1 << 18
};

typedef struct {
    unsigned char *id, *code;
    int32_t *count;
    int64_t *counted;
    const float *sign;
    float *mean;
    size_t cap;
    int heads, dim, rounds; /* dim: channels before padding */
    bool alpha;
    float by; /* 1 / sqrt(padded dim) */
    float threshold[7], centre[8];
} paris;

static paris paris_of(const paris_index *x)
{
    paris p = {ptr<unsigned char>(x->id),
               ptr<unsigned char>(x->code),
               ptr<int32_t>(x->count),
               ptr<int64_t>(x->counted),
               ptr<float>(x->sign),
               ptr<float>(x->mean),
               x->cap,
               (int)x->n_kv_heads,
               (int)x->head_dim,
               (int)x->rounds,
               x->alpha,
               (float)(1 / sqrt((double)paris_dim(x->head_dim))),
               {},
               {}};
    for (int i = 0; i < 7; i++) p.threshold[i] = paris_threshold[i];
    for (int i = 0; i < 8; i++) p.centre[i] = paris_centre[i];
    return p;
}

/* Calls f with the number of blocks as a constant. */
template <class F> static void by_blocks(size_t head_dim, F &&f)
{
    switch (paris_subspaces(head_dim)) {
    case 1: f(std::integral_constant<int, 1>()); break;
    case 2: f(std::integral_constant<int, 2>()); break;
    case 4: f(std::integral_constant<int, 4>()); break;
    case 8: f(std::integral_constant<int, 8>()); break;
    case 16: f(std::integral_constant<int, 16>()); break;
    default: f(std::integral_constant<int, 32>());
    }
}

/* ---- vectors ---- */

template <int NB> struct vec {
    enum { DIM = PARIS_SUBSPACE * NB, N = NB < 4 ? 1 : NB / 4 };
    float x[N];
};

/* Returns ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)) over 8 neighbouring lanes, in each. */
static __device__ __forceinline__ float sum8(float s)
{
    s = __fadd_rn(s, __shfl_xor_sync(ALL_LANES, s, 4));
    s = __fadd_rn(s, __shfl_xor_sync(ALL_LANES, s, 2));
    return __fadd_rn(s, __shfl_xor_sync(ALL_LANES, s, 1));
}

/* Returns |v|^2: lane i sums the channels i mod 8 in ascending order. */
template <int NB> static __device__ __forceinline__ float square(const vec<NB> &v)
{
    int lane = threadIdx.x % PARIS_SUBSPACE;
    float s = 0;
#pragma unroll
    for (int b = 0; b < NB; b++) {
        float x = __shfl_sync(ALL_LANES, v.x[b / 4], lane + PARIS_SUBSPACE * (b % 4));
        s = __fadd_rn(s, __fmul_rn(x, x));
    }
    return sum8(s);
}

template <int NB> static __device__ __forceinline__ void hadamard(vec<NB> &v, float by)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int span = 1; span < 32 && span < v.DIM; span *= 2)
#pragma unroll
        for (int i = 0; i < v.N; i++) {
            float other = __shfl_xor_sync(ALL_LANES, v.x[i], span);
            v.x[i] = __fadd_rn(other, lane & span ? -v.x[i] : v.x[i]);
        }
#pragma unroll
    for (int span = 1; span < v.N; span *= 2)
#pragma unroll
        for (int i = 0; i < v.N; i++) {
            if (i & span) continue;
            float a = v.x[i], b = v.x[i + span];
            v.x[i] = __fadd_rn(a, b);
            v.x[i + span] = __fsub_rn(a, b);
        }
#pragma unroll
    for (int i = 0; i < v.N; i++) v.x[i] = __fmul_rn(v.x[i], by);
}

/* Normalizes and rotates; returns the norm. */
template <int NB> static __device__ __forceinline__ float rotate(const paris &x, vec<NB> &v)
{
    int lane = threadIdx.x % 32;
    float norm = fmaxf(__fsqrt_rn(square(v)), 1e-8f), by = __fdiv_rn(1, norm);
#pragma unroll
    for (int i = 0; i < v.N; i++) v.x[i] = __fmul_rn(v.x[i], by);
    for (int r = 0; r < x.rounds; r++) {
#pragma unroll
        for (int i = 0; i < v.N; i++)
            if (lane + 32 * i < v.DIM) v.x[i] = __fmul_rn(v.x[i], x.sign[r * v.DIM + lane + 32 * i]);
        hadamard(v, x.by);
    }
    return norm;
}

/* ---- encoding ---- */

/* The exact rows of a head. */
template <class T> struct key_rows {
    const T *k;
    const int32_t *at; /* NULL: a slot is a row */
    size_t cap;
    int dim;
    bool rotated;

    __device__ const T *row(int head, int64_t slot) const
    {
        return row_of<T>(k, head * cap + (size_t)(at ? at[slot] : slot), dim);
    }
    /* Loads channel l + 32 i into x[i] of lane l. */
    template <int N> __device__ __forceinline__ void load(float (&x)[N], int head, int64_t slot) const
    {
        if constexpr (in_blocks<T>) {
            float all[ROW_BLOCKS_MAX];
            get_row(all, row(head, slot), dim, rotated);
            for (int i = 0; i < N; i++) x[i] = all[i];
        } else {
            int lane = (int)threadIdx.x % 32;
            const T *at = row(head, slot);
#pragma unroll
            for (int i = 0; i < N; i++) x[i] = lane + 32 * i < dim ? to_f32(at[lane + 32 * i]) : 0;
        }
    }
    __device__ float element(int head, int64_t slot, int c) const
    {
        return element_in(row(head, slot), dim, c, rotated);
    }
};

template <class T> static key_rows<T> rows_of(const kv_rows *r)
{
    return {ptr<T>(r->k), r->codes.bits ? ptr<int32_t>(r->codes.k_at) : NULL, r->cap, (int)r->head_dim,
            (r->rotated & KV_ROTATED_K) != 0};
}

/* A block has 32 channels of a head, and each warp a slice of the tokens. */
template <class T>
static __global__ void __launch_bounds__(32 * SLICES) mean_k(paris x, key_rows<T> rows, slot_range range)
{
    SHARED(double, part, [SLICES][32]);
    int lane = threadIdx.x % 32, slice = threadIdx.x / 32, c = blockIdx.x * 32 + lane, head = blockIdx.y;
    double sum = 0;
    for (int64_t t = range.first + slice; t < range.first + range.n; t += SLICES)
        if (c < x.dim) sum += (double)rows.element(head, t, c);
    part[slice][lane] = sum;
    __syncthreads();
    if (slice > 0 || c >= x.dim) return;
    for (int i = 1; i < SLICES; i++) sum += part[i][lane];
    x.mean[head * x.dim + c] = range.n > 0 ? (float)(sum / (double)range.n) : 0;
}

void cuda_paris_mean(backend *be, const paris_index *index, const kv_rows *rows, slot_range range)
{
    paris x = paris_of(index);
    if (!cuda_begin(be, "paris.mean")) return;
    by_rows(rows->type, [&](auto t) {
        typedef decltype(t) T;
        cudaError_t rc = launch(mean_k<T>, dim3(cuda_blocks(index->head_dim, 32), (unsigned)x.heads), dim3(32 * SLICES),
                                0, cuda_stream(be), x, rows_of<T>(rows), range);
        cuda_check(be, rc, "paris.mean [%d, %d], up to %lld tokens", x.heads, x.dim, (long long)range.n);
    });
}

/* Rounds like half.h, including NaN. */
static __device__ __forceinline__ unsigned bf16_bits(float x)
{
    unsigned u = __float_as_uint(x);
    return (u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

/* Encodes the blocks of one register into a row [5 NB bytes code][NB ids] in shared memory. */
template <int NB>
static __device__ __forceinline__ void encode_blocks(unsigned char *out, const paris &x, float v, int first, float norm)
{
    int lane = threadIdx.x % 32, j = lane % PARIS_SUBSPACE, b = first + lane / PARIS_SUBSPACE;
    float radius = __fsqrt_rn(sum8(__fmul_rn(v, v)));
    float u = __fmul_rn(fabsf(v), __fdiv_rn(1, fmaxf(radius, 1e-8f))), centre = x.centre[0];
    unsigned bins = 0;
#pragma unroll
    for (int i = 0; i < 7; i++)
        if (x.threshold[i] < u) bins = i + 1, centre = x.centre[i + 1];
    bins <<= 3 * j;
    for (int m = 4; m > 0; m /= 2) bins |= __shfl_xor_sync(ALL_LANES, bins, m);
    unsigned id = __ballot_sync(ALL_LANES, v >= 0) >> (lane - j) & 255;
    float alpha = fmaxf(sum8(__fmul_rn(centre, u)), 1e-6f), w = __fmul_rn(norm, radius);
    unsigned weight = bf16_bits(x.alpha ? __fdiv_rn(w, alpha) : w);
    if (j > 0 || b >= NB) return;
    out[2 * b] = (unsigned char)weight;
    out[2 * b + 1] = (unsigned char)(weight >> 8);
    for (int i = 0; i < 3; i++) out[2 * NB + 3 * b + i] = (unsigned char)(bins >> 8 * i);
    out[PARIS_CODE * NB + b] = (unsigned char)id;
}

/* Copies n bytes from shared memory; rows are 4-byte words if U is unsigned. */
template <class U> static __device__ __forceinline__ void copy_row(unsigned char *to, const unsigned char *from, int n)
{
    for (int i = threadIdx.x % 32; i < n / (int)sizeof(U); i += 32) ((U *)to)[i] = ((const U *)from)[i];
}

/* One warp per key. */
template <class T, int NB>
static __global__ void __launch_bounds__(BLOCK) encode_k(paris x, key_rows<T> rows, slot_range range)
{
    grid_wait();
    typedef std::conditional_t<NB % 4 == 0, unsigned, unsigned char> unit;
    SHARED(unsigned, stage, [WARPS][(PARIS_CODE + 1) * 32 / 4]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
    int64_t i = (int64_t)blockIdx.x * WARPS + warp, t = range.first + i;
    if (i >= range.n) return;
    vec<NB> v;
    rows.load(v.x, head, t);
#pragma unroll
    for (int r = 0; r < v.N; r++) {
        int c = lane + 32 * r;
        if (x.mean && c < x.dim) v.x[r] = __fsub_rn(v.x[r], x.mean[head * x.dim + c]);
    }
    float norm = rotate(x, v);
    unsigned char *mine = (unsigned char *)stage[warp];
#pragma unroll
    for (int r = 0; r < v.N; r++) encode_blocks<NB>(mine, x, v.x[r], 4 * r, norm);
    __syncwarp();
    size_t at = head * x.cap + (size_t)t;
    copy_row<unit>(x.code + at * PARIS_CODE * NB, mine, PARIS_CODE * NB);
    copy_row<unit>(x.id + at * NB, mine + PARIS_CODE * NB, NB);
}

void cuda_paris_encode(backend *be, const paris_index *index, const kv_rows *rows, slot_range range)
{
    paris x = paris_of(index);
    if (range.n <= 0 || !cuda_begin(be, "paris.encode")) return;
    by_rows(rows->type, [&](auto t) {
        by_blocks(index->head_dim, [&](auto nb) {
            typedef decltype(t) T;
            cudaError_t rc = launch_dependent(be, encode_k<T, nb.value>,
                                              dim3(cuda_blocks((size_t)range.n, WARPS), (unsigned)x.heads), dim3(BLOCK),
                                              0, x, rows_of<T>(rows), range);
            cuda_check(be, rc, "paris.encode [%d, %d], up to %lld tokens", x.heads, x.dim, (long long)range.n);
        });
    });
}

/* One warp per query. */
template <int NB> static __global__ void query_k(paris x, float *y, float *norm, const float *q)
{
    grid_wait();
    int lane = threadIdx.x, head = blockIdx.x;
    vec<NB> v;
#pragma unroll
    for (int r = 0; r < v.N; r++) v.x[r] = lane + 32 * r < x.dim ? q[(size_t)head * x.dim + lane + 32 * r] : 0;
    float n = rotate(x, v);
    if (lane == 0) norm[head] = n;
#pragma unroll
    for (int r = 0; r < v.N; r++)
        if (lane + 32 * r < v.DIM) y[(size_t)head * v.DIM + lane + 32 * r] = v.x[r];
}

void cuda_paris_query(backend *be, buf y, buf norm, buf q, size_t n_heads, const paris_index *index)
{
    paris x = paris_of(index);
    if (!cuda_begin(be, "paris.query")) return;
    by_blocks(index->head_dim, [&](auto nb) {
        cudaError_t rc = launch_dependent(be, query_k<nb.value>, dim3((unsigned)n_heads), dim3(32), 0, x, ptr<float>(y),
                                          ptr<float>(norm), (const float *)ptr<float>(q));
        cuda_check(be, rc, "paris.query [%zu, %d]", n_heads, x.dim);
    });
}

/* ---- collisions ---- */

/* Loads the ids of a token, four per word. */
template <int NB> static __device__ __forceinline__ void load_ids(unsigned w[(NB + 3) / 4], const unsigned char *p)
{
    if constexpr (NB == 1) {
        w[0] = *p;
    } else if constexpr (NB == 2) {
        w[0] = *reinterpret_cast<const unsigned short *>(p);
    } else if constexpr (NB == 4) {
        w[0] = *reinterpret_cast<const unsigned *>(p);
    } else if constexpr (NB == 8) {
        uint2 u = *reinterpret_cast<const uint2 *>(p);
        w[0] = u.x, w[1] = u.y;
    } else {
#pragma unroll
        for (int i = 0; i < NB / 16; i++) {
            uint4 u = load16(p + 16 * i);
            w[4 * i] = u.x, w[4 * i + 1] = u.y, w[4 * i + 2] = u.z, w[4 * i + 3] = u.w;
        }
    }
}

typedef struct {
    int64_t from[4], to[4]; /* ranges of tokens: 0 and 1 are subtracted from the counts, 2 and 3 are added */
} moves;

static __device__ __forceinline__ int64_t clamp(int64_t v, int64_t lo, int64_t hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

static __device__ __forceinline__ moves moves_of(const int64_t *counted, slot_range range)
{
    int64_t a = counted[0], b = a + counted[1], c = range.first, d = c + range.n;
    return {{a, clamp(d, clamp(c, a, b), b), c, clamp(b, clamp(a, c, d), d)}, {clamp(c, a, b), b, clamp(a, c, d), d}};
}

/* A block counts its tokens in shared memory, then adds nonzero counts. They are integers, so their order does not
 * matter. */
template <int NB> static __global__ void __launch_bounds__(BLOCK) count_k(paris x, slot_range range)
{
    grid_wait();
    SHARED(int, bins, [NB * PARIS_PATTERNS]);
    moves m = moves_of(x.counted, range);
    int head = blockIdx.y;
    int64_t first = (int64_t)blockIdx.x * BLOCK;
    bool any = false;
    for (int s = 0; s < 4; s++) any = any || m.from[s] + first < m.to[s];
    if (!any) return;
    for (int i = threadIdx.x; i < NB * PARIS_PATTERNS; i += BLOCK) bins[i] = 0;
    __syncthreads();
    for (int s = 0; s < 4; s++)
        for (int64_t t = m.from[s] + first + threadIdx.x; t < m.to[s]; t += (int64_t)gridDim.x * BLOCK) {
            unsigned w[(NB + 3) / 4];
            load_ids<NB>(w, x.id + (head * x.cap + (size_t)t) * NB);
#pragma unroll
            for (int b = 0; b < NB; b++)
                atomicAdd(&bins[b * PARIS_PATTERNS + (w[b / 4] >> 8 * (b % 4) & 255)], s < 2 ? -1 : 1);
        }
    __syncthreads();
    for (int i = threadIdx.x; i < NB * PARIS_PATTERNS; i += BLOCK)
        if (bins[i] != 0) atomicAdd(&x.count[head * NB * PARIS_PATTERNS + i], bins[i]);
}

/* Updates `counted` after all blocks have read it. */
static __global__ void counted_k(paris x, slot_range range, int nb, unsigned long long *read)
{
    grid_wait();
    moves m = moves_of(x.counted, range);
    int64_t n = 0;
    for (int s = 0; s < 4; s++) n += max(m.to[s] - m.from[s], (int64_t)0);
    add_read(read, (unsigned long long)n * x.heads * nb);
    x.counted[0] = range.first;
    x.counted[1] = range.n;
}

void cuda_paris_count(backend *be, const paris_index *index, slot_range range, buf read)
{
    paris x = paris_of(index);
    if (!cuda_begin(be, "paris.count")) return;
    unsigned grid = max(1u, min((unsigned)COUNT_GRID, cuda_blocks((size_t)max(range.n, (int64_t)1), BLOCK)));
    by_blocks(index->head_dim, [&](auto nb) {
        cudaError_t rc =
            launch_dependent(be, count_k<nb.value>, dim3(grid, (unsigned)x.heads), dim3(BLOCK), 0, x, range);
        if (rc == cudaSuccess)
            rc =
                launch_dependent(be, counted_k, dim3(1), dim3(1), 0, x, range, nb.value, ptr<unsigned long long>(read));
        cuda_check(be, rc, "paris.count [%d, %d], up to %lld tokens", x.heads, x.dim, (long long)range.n);
    });
}

typedef struct {
    int64_t limit[PARIS_LEVELS];
    int n;
} paris_limits;

/* One block per block of channels, one thread per pattern. The number of tokens that precede a pattern is counted,
 * without sorting. Among equal patterns of other warps, those of lower warps have lower ids. */
static __global__ void __launch_bounds__(PARIS_PATTERNS)
    bonus_k(unsigned char *bonus, const int32_t *count, const float *y, paris_limits t, unsigned long long *read)
{
    grid_wait();
    SHARED(float4, dots, [PARIS_PATTERNS / 4]);
    SHARED(int4, counts, [PARIS_PATTERNS / 4]);
    float *dot = (float *)dots;
    int id = threadIdx.x, first = id / 32 * 32, before = 0;
    float mine = 0;
    for (int j = 0; j < PARIS_SUBSPACE; j++) {
        float v = y[blockIdx.x * PARIS_SUBSPACE + j];
        mine = id >> j & 1 ? __fadd_rn(mine, v) : __fsub_rn(mine, v);
    }
    if (isnan(mine)) mine = -INFINITY;
    dot[id] = mine;
    ((int *)counts)[id] = count[blockIdx.x * PARIS_PATTERNS + id];
    __syncthreads();
#pragma unroll 4
    for (int o = 0; o < PARIS_PATTERNS / 4; o++) {
        float4 d = dots[o];
        int4 c = counts[o];
        if (4 * o < first) {
            before +=
                (d.x >= mine ? c.x : 0) + (d.y >= mine ? c.y : 0) + (d.z >= mine ? c.z : 0) + (d.w >= mine ? c.w : 0);
        } else if (4 * o >= first + 32) {
            before += (d.x > mine ? c.x : 0) + (d.y > mine ? c.y : 0) + (d.z > mine ? c.z : 0) + (d.w > mine ? c.w : 0);
        } else {
            before += d.x > mine || (d.x == mine && 4 * o < id) ? c.x : 0;
            before += d.y > mine || (d.y == mine && 4 * o + 1 < id) ? c.y : 0;
            before += d.z > mine || (d.z == mine && 4 * o + 2 < id) ? c.z : 0;
            before += d.w > mine || (d.w == mine && 4 * o + 3 < id) ? c.w : 0;
        }
    }
    int won = 0;
#pragma unroll
    for (int i = 0; i < PARIS_LEVELS; i++) won += i < t.n && before < t.limit[i];
    bonus[blockIdx.x * PARIS_PATTERNS + id] = (unsigned char)won;
    add_read(read, (unsigned long long)gridDim.x * PARIS_PATTERNS * sizeof *count);
}

static void make_bonus(backend *be, const paris_job *j)
{
    /* the padded dim is a multiple of the block size, so rows of y are contiguous */
    size_t n = j->x->n_kv_heads * paris_subspaces(j->x->head_dim);
    paris_limits t = {{}, (int)j->n_levels};
    for (size_t i = 0; i < j->n_levels; i++) t.limit[i] = j->limit[i];
    if (!cuda_begin(be, "paris.search")) return;
    cudaError_t rc = launch_dependent(be, bonus_k, dim3((unsigned)n), dim3(PARIS_PATTERNS), 0,
                                      ptr<unsigned char>(j->bonus), (const int32_t *)ptr<int32_t>(j->x->count),
                                      (const float *)ptr<float>(j->y), t, ptr<unsigned long long>(j->read));
    cuda_check(be, rc, "paris.search: bonuses of %zu blocks", n);
}

static int64_t chunk_of(int64_t n)
{
    return n < LONG ? FEW : MANY;
}

/* One thread per token at a time: sums its NB bytes from tables in shared memory. Each bank holds two words of a
 * table. */
template <int NB>
static __global__ void __launch_bounds__(BLOCK) collide_k(paris x, unsigned char *score, const unsigned char *bonus,
                                                          slot_range range, int64_t chunk, unsigned long long *read)
{
    grid_wait();
    SHARED(unsigned, words, [NB * PARIS_PATTERNS / 4]);
    const unsigned char *table = (const unsigned char *)words;
    int head = blockIdx.y;
    int64_t n = range.n, from = blockIdx.x * chunk, to = min(from + chunk, n);
    add_read(read, (unsigned long long)n * x.heads * NB);
    if (from >= to) return;
    const unsigned *in = reinterpret_cast<const unsigned *>(bonus + (size_t)head * NB * PARIS_PATTERNS);
    for (int i = threadIdx.x; i < NB * PARIS_PATTERNS / 4; i += BLOCK) words[i] = in[i];
    __syncthreads();
    const unsigned char *id = x.id + (head * x.cap + (size_t)range.first) * NB;
    unsigned char *out = score + head * x.cap;
#pragma unroll 4
    for (int64_t i = from + threadIdx.x; i < to; i += BLOCK) {
        unsigned w[(NB + 3) / 4], sum = 0;
        load_ids<NB>(w, id + (size_t)i * NB);
#pragma unroll
        for (int b = 0; b < NB; b++) sum += table[b * PARIS_PATTERNS + (w[b / 4] >> 8 * (b % 4) & 255)];
        out[i] = (unsigned char)sum;
    }
}

void cuda_paris_collide(backend *be, const paris_job *j)
{
    paris x = paris_of(j->x);
    slot_range range = j->range;
    int64_t chunk = chunk_of(range.n);
    if (range.n <= 0 || !cuda_begin(be, "paris.collide")) return;
    by_blocks(j->x->head_dim, [&](auto nb) {
        cudaError_t rc = launch_dependent(
            be, collide_k<nb.value>, dim3(cuda_blocks((size_t)range.n, (size_t)chunk), (unsigned)x.heads), dim3(BLOCK),
            0, x, ptr<unsigned char>(j->score), (const unsigned char *)ptr<unsigned char>(j->bonus), range, chunk,
            ptr<unsigned long long>(j->read));
        cuda_check(be, rc, "paris.collide [%d, %d], up to %lld tokens", x.heads, x.dim, (long long)range.n);
    });
}

/* ---- candidates ---- */

typedef struct {
    const unsigned char *score;
    size_t stride;
    slot_range range;
    int64_t m;
    int64_t chunk;
    unsigned *total;      /* [heads][256]: number of tokens with a score */
    unsigned short *tail; /* [heads][chunks][256]: number of tokens of the chunk with at least that score */
} paris_pick;

/* Returns the sum of x over this thread and all later ones; room: unsigned [WARPS]. */
static __device__ __forceinline__ unsigned sum_from(unsigned x, unsigned *room)
{
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int m = 1; m < 32; m *= 2) {
        unsigned y = __shfl_down_sync(ALL_LANES, x, m);
        if (lane + m < 32) x += y;
    }
    if (lane == 0) room[warp] = x;
    __syncthreads();
    for (unsigned w = warp + 1; w < WARPS; w++) x += room[w];
    __syncthreads();
    return x;
}

/* Builds the histogram of a chunk; at the end each thread has one score. */
static __global__ void __launch_bounds__(BLOCK) tally_k(paris_pick c)
{
    grid_wait();
    SHARED(int, bins, [256 * COPIES]);
    SHARED(unsigned, room, [WARPS]);
    size_t head = blockIdx.y;
    int64_t from = blockIdx.x * c.chunk, to = min(from + c.chunk, c.range.n);
    unsigned n = 0;
    if (from >= to) return;
    for (int i = threadIdx.x; i < 256 * COPIES; i += BLOCK) bins[i] = 0;
    __syncthreads();
    for (int64_t i = from + threadIdx.x; i < to; i += BLOCK)
        atomicAdd(&bins[c.score[head * c.stride + i] * COPIES + threadIdx.x % COPIES], 1);
    __syncthreads();
    for (int i = 0; i < COPIES; i++) n += (unsigned)bins[threadIdx.x * COPIES + (i + threadIdx.x) % COPIES];
    if (n > 0) atomicAdd(&c.total[head * 256 + threadIdx.x], n);
    c.tail[(head * gridDim.x + blockIdx.x) * 256 + threadIdx.x] = (unsigned short)sum_from(n, room);
}

/* Finds the lowest selected score and the number of tokens selected with that score. */
static __device__ __forceinline__ void find_least(const paris_pick &c, size_t head, unsigned want, unsigned *found,
                                                  unsigned *room)
{
    unsigned n = c.total[head * 256 + threadIdx.x], sum = sum_from(n, room);
    if (sum >= want && sum - n < want) found[0] = threadIdx.x, found[1] = want - (sum - n);
    __syncthreads();
}

/* Packs two counts into one number: scores above the lowest selected one, and in the low 32 bits those equal to it. */
static __device__ __forceinline__ uint64_t counts_of(unsigned above, unsigned ties)
{
    return (uint64_t)above << 32 | ties;
}

/* Returns the sum over the warps before this one; *all: over the block. */
static __device__ __forceinline__ uint64_t before_warp(uint64_t x, uint64_t *room, uint64_t *all)
{
    uint64_t before = 0;
    for (int m = 16; m > 0; m /= 2) x += __shfl_xor_sync(ALL_LANES, x, m);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    *all = 0;
    for (unsigned w = 0; w < WARPS; w++) {
        if (w < threadIdx.x / 32) before += room[w];
        *all += room[w];
    }
    __syncthreads();
    return before;
}

/* Writes the selected tokens of a chunk, each to its final position. A warp walks a contiguous part of the chunk. */
static __global__ void __launch_bounds__(BLOCK) emit_k(paris_pick c, int32_t *cand)
{
    grid_wait();
    SHARED(unsigned, found, [2]);
    SHARED(unsigned, room, [WARPS]);
    SHARED(uint64_t, sums, [WARPS]);
    size_t head = blockIdx.y;
    unsigned lane = threadIdx.x % 32, below = (1u << lane) - 1;
    int64_t n = c.range.n, from = blockIdx.x * c.chunk, to = min(from + c.chunk, n), want = clamp(c.m, 0, n);
    if (from >= to || want == 0) return;
    find_least(c, head, (unsigned)want, found, room);
    unsigned least = found[0], left = found[1];
    const unsigned char *s = c.score + head * c.stride;
    int64_t run = c.chunk / WARPS, start = from + threadIdx.x / 32 * run, end = min(start + run, to);
    uint64_t chunks = 0, mine = 0, base, all;
    for (unsigned i = threadIdx.x; i < blockIdx.x; i += BLOCK) {
        const unsigned short *tail = c.tail + (head * gridDim.x + i) * 256;
        unsigned above = least < 255 ? tail[least + 1] : 0;
        chunks += counts_of(above, tail[least] - above);
    }
    for (int64_t i = start + lane; i < end; i += 32) mine += counts_of(s[i] > least, s[i] == least);
    before_warp(chunks, sums, &base);
    base += before_warp(mine, sums, &all);
    unsigned above = (unsigned)(base >> 32), ties = (unsigned)base;
    int32_t *out = cand + head * c.stride;
    for (int64_t i0 = start; i0 < end; i0 += 32) {
        int64_t i = i0 + lane;
        bool is_above = i < end && s[i] > least, is_tie = i < end && s[i] == least;
        unsigned a = __ballot_sync(ALL_LANES, is_above), e = __ballot_sync(ALL_LANES, is_tie),
                 tie = ties + __popc(e & below);
        if (is_above || (is_tie && tie < left))
            out[above + __popc(a & below) + min(tie, left)] = (int32_t)(c.range.first + i);
        above += __popc(a);
        ties += __popc(e);
    }
}

static void find_candidates(backend *be, const paris_job *j)
{
    slot_range range = j->range;
    int64_t chunk = chunk_of(range.n);
    size_t heads = j->x->n_kv_heads, cap = j->x->cap, chunks = (size_t)((range.n + chunk - 1) / chunk),
           most = (max(cap, (size_t)range.n) + FEW - 1) / FEW;
    size_t total = heads * 256 * sizeof(unsigned), tail = heads * most * 256 * sizeof(unsigned short);
    if (range.n <= 0 || !cuda_begin(be, "paris.search")) return;
    unsigned char *room = (unsigned char *)cuda_room(be, &cuda_of(be)->parts, total + tail, 1, "histograms");
    if (!room) return;
    paris_pick c = {ptr<unsigned char>(j->score),    cap, range, j->m, chunk, (unsigned *)room,
                    (unsigned short *)(room + total)};
    dim3 grid((unsigned)chunks, (unsigned)heads);
    cudaError_t rc = cudaMemsetAsync(room, 0, total, cuda_stream(be));
    if (rc == cudaSuccess) rc = launch_dependent(be, tally_k, grid, dim3(BLOCK), 0, c);
    if (rc == cudaSuccess) rc = launch_dependent(be, emit_k, grid, dim3(BLOCK), 0, c, ptr<int32_t>(j->cand));
    cuda_check(be, rc, "paris.search: candidates [%zu], up to %lld tokens", heads, (long long)range.n);
}

/* ---- estimates ---- */

/* Eight lanes share a candidate; lane j has element j of each block. Its code and ids, 6 NB bytes, pass through shared
 * memory in the widest loads that the row allows. */
template <int NB> struct code_row {
    enum {
        PIECE = NB < 16 ? NB : 16,
        PIECES = (PARIS_CODE + 1) * NB / PIECE,
        CODE = PARIS_CODE * NB / PIECE,
        ROOM = 6 * NB + 16
    };
    typedef std::conditional_t<
        PIECE == 16, uint4,
        std::conditional_t<
            PIECE == 8, uint2,
            std::conditional_t<PIECE == 4, unsigned, std::conditional_t<PIECE == 2, unsigned short, unsigned char>>>>
        unit;
};

/* Returns four bytes from `at` on, which is a multiple of 4 if NB is; bytes from `end` on are 0. */
template <int NB> static __device__ __forceinline__ unsigned word_at(const unsigned char *p, int at, int end)
{
    unsigned w = 0;
    if constexpr (NB % 4 == 0) {
        w = *reinterpret_cast<const unsigned *>(p + at);
    } else {
        for (int i = 0; i < 4 && at + i < end; i++) w |= (unsigned)p[at + i] << 8 * i;
    }
    return w;
}

/* Decodes elements j of the candidate's blocks: w times the signed centre. signed_centre [16] is indexed by bin + 8 *
 * sign. */
template <int NB>
static __device__ __forceinline__ void decode(float v[NB], const unsigned char *row, const float *signed_centre, int j)
{
#pragma unroll
    for (int b4 = 0; b4 < NB; b4 += 4) {
        const int bins = 2 * NB + 3 * b4, end = PARIS_CODE * NB;
        const unsigned w[2] = {word_at<NB>(row, 2 * b4, 2 * NB), word_at<NB>(row, 2 * b4 + 4, 2 * NB)};
        const unsigned c[3] = {word_at<NB>(row, bins, end), word_at<NB>(row, bins + 4, end),
                               word_at<NB>(row, bins + 8, end)};
        unsigned id = word_at<NB>(row, end + b4, end + NB);
        const unsigned packed[4] = {c[0], c[0] >> 24 | c[1] << 8, c[1] >> 16 | c[2] << 16, c[2] >> 8};
#pragma unroll
        for (int i = 0; i < 4 && b4 + i < NB; i++) {
            unsigned t = (packed[i] >> 3 * j & 7) | (id >> (8 * i + j) & 1) << 3;
            float weight = __uint_as_float(i % 2 ? w[i / 2] & 0xffff0000u : w[i / 2] << 16);
            v[b4 + i] = __fmul_rn(weight, signed_centre[t]);
        }
    }
}

typedef struct {
    float *est;
    const float *y, *norm;
    const int32_t *cand;
    int64_t m;
    unsigned long long *read;
} estimates;

/* A block has BLOCK / 8 candidates of a kv head at a time. */
template <int NB> static __global__ void __launch_bounds__(BLOCK) estimate_k(paris x, estimates e)
{
    grid_wait();
    typedef code_row<NB> code;
    typedef typename code::unit unit;
    SHARED(uint4, stage, [BLOCK / PARIS_SUBSPACE][(code::ROOM + 15) / 16]);
    SHARED(float, signed_centre, [16]);
    SHARED(float, y, [PARIS_SUBSPACE * NB]);
    int head = blockIdx.y, j = threadIdx.x % PARIS_SUBSPACE, slot = threadIdx.x / PARIS_SUBSPACE,
        dim = PARIS_SUBSPACE * NB;
    int64_t n = e.m, step = (int64_t)gridDim.x * (BLOCK / PARIS_SUBSPACE);
    add_read(e.read, (unsigned long long)max(n, (int64_t)0) * x.heads * NB * (1 + PARIS_CODE));
    if (threadIdx.x < 8) {
        float c = x.centre[0];
        for (int i = 1; i < 8; i++)
            if ((int)threadIdx.x == i) c = x.centre[i];
        signed_centre[threadIdx.x] = -c;
        signed_centre[8 + threadIdx.x] = c;
    }
    for (int i = threadIdx.x; i < dim; i += BLOCK) y[i] = e.y[(size_t)head * dim + i];
    __syncthreads();
    unit *mine = reinterpret_cast<unit *>(stage[slot]);
    for (int64_t i0 = (int64_t)blockIdx.x * (BLOCK / PARIS_SUBSPACE); i0 < n; i0 += step) {
        int64_t i = i0 + slot;
        size_t at = head * x.cap + (i < n ? (size_t)e.cand[head * x.cap + i] : 0);
        const unit *rows = reinterpret_cast<const unit *>(x.code + at * PARIS_CODE * NB);
        const unit *ids = reinterpret_cast<const unit *>(x.id + at * NB);
        for (int p = j; p < code::PIECES; p += PARIS_SUBSPACE) mine[p] = p < code::CODE ? rows[p] : ids[p - code::CODE];
        __syncwarp();
        float v[NB];
        decode<NB>(v, reinterpret_cast<const unsigned char *>(mine), signed_centre, j);
        __syncwarp();
        float s = 0;
#pragma unroll
        for (int b = 0; b < NB; b++) s = __fadd_rn(s, __fmul_rn(v[b], y[PARIS_SUBSPACE * b + j]));
        s = sum8(s);
        if (j == 0 && i < n) e.est[head * x.cap + i] = __fmul_rn(e.norm[head], s);
    }
}

static void estimate(backend *be, const paris_job *j)
{
    paris x = paris_of(j->x);
    estimates e = {ptr<float>(j->est),
                   ptr<float>(j->y),
                   ptr<float>(j->norm),
                   ptr<int32_t>(j->cand),
                   j->m,
                   ptr<unsigned long long>(j->read)};
    if (j->m <= 0 || !cuda_begin(be, "paris.search")) return;
    unsigned blocks = min(cuda_blocks((size_t)j->m, BLOCK / PARIS_SUBSPACE), (unsigned)(16 * cuda_of(be)->n_sm));
    by_blocks(j->x->head_dim, [&](auto nb) {
        cudaError_t rc =
            launch_dependent(be, estimate_k<nb.value>, dim3(blocks, (unsigned)x.heads), dim3(BLOCK), 0, x, e);
        cuda_check(be, rc, "paris.search: estimates [%d, %d], up to %lld candidates", x.heads, x.dim, (long long)j->m);
    });
}

void cuda_paris_search(backend *be, const paris_job *j)
{
    make_bonus(be, j);
    cuda_paris_collide(be, j);
    find_candidates(be, j);
    estimate(be, j);
}

static __global__ void resolve_k(int32_t *idx, size_t idx_stride, const int64_t *range, const int32_t *cand,
                                 size_t stride)
{
    grid_wait();
    size_t l = blockIdx.y;
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    int32_t *entry = idx + l * idx_stride + range[2 * l] + i;
    if (i < range[2 * l + 1]) *entry = cand[l * stride + *entry];
}

void cuda_paris_resolve(backend *be, buf idx, size_t idx_stride, buf range, size_t n_lists, buf cand, size_t stride)
{
    if (idx_stride == 0 || !cuda_begin(be, "paris.resolve")) return;
    cudaError_t rc = launch_dependent(
        be, resolve_k, dim3(cuda_blocks(idx_stride, BLOCK), (unsigned)n_lists), dim3(BLOCK), 0, ptr<int32_t>(idx),
        idx_stride, (const int64_t *)ptr<int64_t>(range), (const int32_t *)ptr<int32_t>(cand), stride);
    cuda_check(be, rc, "paris.resolve [%zu lists]", n_lists);
}
