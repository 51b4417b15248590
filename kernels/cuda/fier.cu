/* SPDX-License-Identifier: MIT */
/* One-bit keys (ops_fier.h). */
#include "config.h"

#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/scores.cuh"
#include "kernels/ops_fier.h"

enum { WORD = 32, MOST_PAIRS = HEAD_DIM_MAX / 2 };

typedef struct {
    uint32_t *bits;
    void *levels, *ring;
    size_t group, groups, blocks; /* of cap tokens */
    int heads, dim, words;
    fier_levels how;
    fier_open open;
    bool bytes; /* products of whole numbers */
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
            x->how,
            x->open,
            x->products == FIER_INT8};
}

/* ---- adding ---- */

/* Keys of one channel of one head: from position `first` on new ones, f32 [n][heads][dim]; older ones in the ring. */
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

template <class T> static __device__ levels middle_of(const channel<T> &k, int64_t from, int64_t to)
{
    levels l = range_of(k, from, to);
    float r = __fmul_rn(0.25f, __fsub_rn(l.hi, l.lo));
    return {l.z, __fadd_rn(l.lo, r), __fsub_rn(l.hi, r)};
}

template <class T> static __device__ levels mad_of(const channel<T> &k, int64_t from, int64_t to)
{
    float sum = 0, dev = 0, m = (float)(to - from);
    for (int64_t p = from; p < to; p++) sum = __fadd_rn(sum, k.key(p));
    float z = __fdiv_rn(sum, m);
    for (int64_t p = from; p < to; p++) dev = __fadd_rn(dev, fabsf(__fsub_rn(k.key(p), z)));
    dev = __fdiv_rn(dev, m);
    return {z, __fsub_rn(z, dev), __fadd_rn(z, dev)};
}

template <class T> static __device__ levels two_means_of(const channel<T> &k, int64_t from, int64_t to)
{
    levels l = range_of(k, from, to);
    float low = 0, high = 0, n_low = 0, n_high = 0;
    for (int64_t p = from; p < to; p++) {
        float v = k.key(p);
        if (v >= l.z) high = __fadd_rn(high, v), n_high += 1;
        else low = __fadd_rn(low, v), n_low += 1;
    }
    l.lo = n_low == 0 ? __fdiv_rn(high, n_high) : __fdiv_rn(low, n_low);
    l.hi = n_high == 0 ? __fdiv_rn(low, n_low) : __fdiv_rn(high, n_high);
    return l;
}

/* A block has the group that starts at `begin` of one head, and its tokens before `to`; threads are channels, a warp
 * the 32 of a word. */
template <class T>
static __device__ void set_group(const ones &x, const float *k, int64_t first, int64_t begin, int64_t to)
{
    int c = (int)threadIdx.x, head = blockIdx.y, word = c / WORD;
    int64_t g = (int64_t)x.group;
    bool open = to - begin < g, inside = c < x.dim;
    if (open && (x.open == FIER_EXACT || x.open == FIER_KEEP)) return;
    int64_t from = open && x.open == FIER_WINDOW ? max(to - g, (int64_t)0) : begin;
    channel<T> keys = {x, k, first, head, inside ? c : 0};
    levels l = x.how == FIER_MAD        ? mad_of(keys, from, to)
               : x.how == FIER_TWO_MEAN ? two_means_of(keys, from, to)
               : x.how == FIER_MIDDLE   ? middle_of(keys, from, to)
                                        : range_of(keys, from, to);
    T *out = (T *)x.levels + (head * x.groups + (size_t)(begin / g)) * 2 * x.dim;
    if (inside) put_f32(&out[c], l.lo), put_f32(&out[x.dim + c], l.hi);
    unsigned mine = __ballot_sync(ALL_LANES, inside);
    for (int64_t p = begin; p < to; p++) {
        unsigned set = __ballot_sync(ALL_LANES, inside && keys.key(p) >= l.z);
        uint32_t *w = &x.bits[((head * x.blocks + (size_t)p / WORD) * x.words + word) * WORD + (size_t)p % WORD];
        if (c % WORD == 0) *w = (*w & ~mine) | set;
    }
}

/* A job may have fewer groups of tokens than the grid. */
template <class T> static __global__ void add_k(job_list<index_adds<ones>> jobs)
{
    const index_adds<ones> &j = jobs.job[blockIdx.z];
    int64_t g = (int64_t)j.x.group, begin = (j.pos / g + blockIdx.x) * g, end = j.pos + j.n;
    if (begin < end) set_group<T>(j.x, j.k, j.pos, begin, min(begin + g, end));
}

/* The newest keys into the ring, once no group reads it. */
template <class T> static __global__ void ring_k(job_list<index_adds<ones>> jobs)
{
    const index_adds<ones> &j = jobs.job[blockIdx.z];
    const ones x = j.x;
    int64_t end = j.pos + j.n, p = max(end - (int64_t)x.group, j.pos) + blockIdx.x;
    int c = (int)threadIdx.x, head = blockIdx.y;
    if (p >= end || c >= x.dim) return;
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
    by_type(index->type, [&](auto t) {
        typedef decltype(t) T;
        unsigned groups = (unsigned)(most / x.group + 2), newest = (unsigned)min(most, x.group);
        in_lists(jobs, n, adds_of(ones_of), [&](auto &list, unsigned m) {
            cudaError_t rc =
                launch(add_k<T>, dim3(groups, (unsigned)x.heads, m), channels(&x), 0, cuda_stream(be), list);
            if (rc == cudaSuccess)
                rc = launch(ring_k<T>, dim3(newest, (unsigned)x.heads, m), channels(&x), 0, cuda_stream(be), list);
            cuda_check(be, rc, "fier.add [%zu, %d, %d]", most, x.heads, x.dim);
        });
    });
}

/* Ring and open group from the K rows of the newest tokens. */
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
    int64_t g = (int64_t)x.group, begin = n / g * g, from = x.open != FIER_WINDOW ? begin : n > g ? n - g : 0;
    if (from == n || !cuda_begin(be, "fier.redo")) return;
    by_type(index->type, [&](auto t) {
        by_type(rows->type, [&](auto r) {
            typedef decltype(t) T;
            typedef decltype(r) R;
            cudaError_t rc = launch(redo_ring_k<T, R>, dim3((unsigned)(n - from), (unsigned)x.heads), channels(&x), 0,
                                    cuda_stream(be), x, rows_of(rows, false), from);
            if (rc == cudaSuccess && begin < n)
                rc = launch(redo_group_k<T>, dim3(1, (unsigned)x.heads), channels(&x), 0, cuda_stream(be), x, begin, n);
            cuda_check(be, rc, "fier.redo [%d, %d]", x.heads, x.dim);
        });
    });
}

/* ---- scores ---- */

/* What a group of tokens scores with one query: a, and for each pair of channels the sum that its two bits stand for,
 * as floats or as whole numbers, which `scale` turns into scores. */
typedef struct {
    float a, scale;
    union {
        float f;
        int i;
    } pair[MOST_PAIRS][4];
} table;

/* round to nearest of x (127 / most), within [least, 127]. NaN becomes least. */
static __device__ __forceinline__ int whole(float x, float most, float least)
{
    float v = __fmul_rn(x, __fdiv_rn(127, most));
    v = v > least ? v : least;
    v = v < 127 ? v : 127;
    return (int)rintf(v);
}

/* Made by a whole block; part: a float a warp. Ends with a barrier. */
template <class T>
static __device__ void make_table(table *t, const ones &x, int head, size_t group, const float *q, float *part)
{
    const T *lo = (const T *)x.levels + (head * x.groups + group) * 2 * x.dim, *hi = lo + x.dim;
    float most = 0, largest = 0;
    for (int c = threadIdx.x; x.bytes && c < x.dim; c += SCORE_BLOCK) {
        float span = __fsub_rn(to_f32(hi[c]), to_f32(lo[c]));
        if (span > most) most = span;
        if (fabsf(q[c]) > largest) largest = fabsf(q[c]);
    }
    if (x.bytes) most = block_max(most, part), largest = block_max(largest, part);
    for (int i = threadIdx.x; i < (x.dim + 1) / 2; i += SCORE_BLOCK) {
        float w[2] = {0, 0};
        int u[2] = {0, 0};
        for (int b = 0; b < 2 && 2 * i + b < x.dim; b++) {
            int c = 2 * i + b;
            float span = __fsub_rn(to_f32(hi[c]), to_f32(lo[c]));
            w[b] = __fmul_rn(q[c], span);
            if (x.bytes) u[b] = whole(span, most, 0) * whole(q[c], largest, -127);
        }
        for (int bits = 0; bits < 4; bits++) {
            if (x.bytes) t->pair[i][bits].i = (bits & 1 ? u[0] : 0) + (bits & 2 ? u[1] : 0);
            else t->pair[i][bits].f = __fadd_rn(bits & 1 ? w[0] : 0, bits & 2 ? w[1] : 0);
        }
    }
    if (threadIdx.x < 32) { /* both halves of the warp do the same */
        float v[MOST_CHANNELS];
        load_part(v, lo, threadIdx.x % PARTS, x.dim);
        float a = dot_parts(v, q, threadIdx.x % PARTS, x.dim);
        if (threadIdx.x == 0) t->a = a, t->scale = __fmul_rn(__fdiv_rn(most, 127), __fdiv_rn(largest, 127));
    }
    __syncthreads();
}

static __device__ __forceinline__ float estimate(const table *t, const ones &x, int head, int64_t token)
{
    const uint32_t *word = x.bits + (head * x.blocks + (size_t)token / WORD) * x.words * WORD + (size_t)token % WORD;
    float sum = t->a;
    int whole_sum = 0;
    for (int w = 0; w < x.words; w++) {
        uint32_t bits = word[w * WORD];
        int pairs = min(WORD / 2, (x.dim - w * WORD + 1) / 2);
        for (int i = 0; i < pairs; i++, bits >>= 2) {
            if (x.bytes) whole_sum += t->pair[w * WORD / 2 + i][bits & 3].i;
            else sum = __fadd_rn(sum, t->pair[w * WORD / 2 + i][bits & 3].f);
        }
    }
    return x.bytes ? __fadd_rn(t->a, __fmul_rn((float)whole_sum, t->scale)) : sum;
}

/* Tokens of an incomplete group that are scored by their keys. out: from `from` on. */
template <class T>
static __device__ void score_exactly(const ones &x, float *out, const float *q, int head, int64_t from, int64_t to)
{
    for (int64_t t0 = from; t0 < to; t0 += SCORE_ROWS) {
        int64_t t = t0 + threadIdx.x / PARTS;
        int lane = threadIdx.x % PARTS;
        bool inside = t < to;
        float k[MOST_CHANNELS];
        load_part(k, (const T *)x.ring + (head * x.group + (inside ? (size_t)t % x.group : 0)) * x.dim, lane,
                  inside ? x.dim : 0);
        float s = dot_parts(k, q, lane, x.dim);
        if (inside && lane == 0) out[t - from] = s;
    }
}

/* What fier_head_bytes counts of the tokens [from, end). */
template <class T>
static __device__ unsigned long long bytes_read(const ones &x, int64_t from, int64_t end, int64_t open)
{
    int64_t g = (int64_t)x.group, to = min(end, open), exact = end - max(from, open);
    unsigned long long row = x.dim * sizeof(T), bytes = exact > 0 ? (unsigned long long)exact * row : 0;
    if (to > from) bytes += (to - from) * 4ull * x.words + ((to - 1) / g - from / g + 1) * 2ull * row;
    return bytes;
}

/* Tokens [from, to) of one group of x, out from `from` on. For a whole block. */
template <class T>
static __device__ void score_tokens(table *t, float *part, const ones &x, float *out, const float *q, int head,
                                    int64_t from, int64_t to, int64_t open)
{
    if (from >= open) {
        score_exactly<T>(x, out, q, head, from, to);
        return;
    }
    make_table<T>(t, x, head, (size_t)from / x.group, q, part);
    for (int64_t i = from + threadIdx.x; i < to; i += SCORE_BLOCK) out[i - from] = estimate(t, x, head, i);
    __syncthreads();
}

typedef struct {
    ones x;
    float *score;
    size_t stride;
    const float *q;
    int64_t n, lo, hi;
    list_groups of;
    unsigned long long *read;
} fier_scores;

/* A row of blocks has `group` heads of a job that read the bits of one KV head together. A block has one group of
 * tokens: of x, or of the list that the heads follow (groups.cuh), which may touch several of x. */
template <class T, bool GROUPS>
static __global__ void __launch_bounds__(SCORE_BLOCK, GROUPS ? 5 : 9) /* without numbers ptxas spills for one more */
    score_k(job_list<fier_scores> jobs, int group)
{
    SHARED(table, t, [1]);
    SHARED(float, part, [SCORE_BLOCK / 32]);
    const fier_scores &j = jobs.job[blockIdx.z];
    const ones x = j.x;
    int head = (int)blockIdx.y * x.heads / (int)gridDim.y;
    int64_t g = (int64_t)x.group, open = x.open == FIER_EXACT ? j.n / g * g : j.n;
    int64_t per = GROUPS ? j.of.per : g, place = blockIdx.x * per, begin = place;
    if (GROUPS) {
        size_t list = list_of_part(j.of);
        if ((int64_t)blockIdx.x >= j.of.range[2 * list + 1]) return;
        begin = j.of.group[list * j.of.stride + blockIdx.x] * per;
    }
    int64_t from = max(begin, j.lo), to = min(begin + per, j.hi);
    if (j.read && threadIdx.x == 0) {
        if (GROUPS) atomicAdd(j.read, bytes_read<T>(x, from, to, open));
        else if (blockIdx.x == 0 && head == 0) atomicAdd(j.read, bytes_read<T>(x, j.lo, j.hi, open) * x.heads);
    }
    for (int h = blockIdx.y * group; h < (int)(blockIdx.y + 1) * group; h++) {
        float *out = j.score + h * j.stride + place;
        for (int64_t i = begin + threadIdx.x; GROUPS && i < begin + per; i += SCORE_BLOCK)
            if (i < from || i >= to) out[i - begin] = -INFINITY;
        for (int64_t a = from, b; a < to; a = b) {
            b = GROUPS ? min((a / g + 1) * g, to) : to;
            score_tokens<T>(t, part, x, out + (a - begin), j.q + (size_t)h * x.dim, head, a, b, open);
        }
    }
}

static fier_scores fier_scores_of(const score_job &j)
{
    return {ones_of((const fier_index *)j.index),
            ptr<float>(j.score),
            j.stride,
            ptr<float>(j.q),
            j.items.n_slots,
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

void cuda_fier_score(backend *be, const score_job *jobs, size_t n)
{
    const fier_index *x = (const fier_index *)jobs->index;
    size_t parts = parts_of(jobs, x->n_kv_heads);
    int64_t most = most_places(jobs, n), per = jobs->spans ? jobs->spans->per : (int64_t)x->group;
    unsigned blocks = cuda_blocks((size_t)max(most, (int64_t)1), (size_t)per);
    if (!cuda_begin(be, "fier.score")) return;
    by_type(x->type, [&](auto t) {
        typedef decltype(t) T;
        auto kernel = jobs->spans ? score_k<T, true> : score_k<T, false>;
        in_lists(jobs, n, fier_scores_of, [&](auto &list, unsigned m) {
            cudaError_t rc = launch(kernel, dim3(blocks, (unsigned)parts, m), dim3(SCORE_BLOCK), 0, cuda_stream(be),
                                    list, (int)(jobs->n_heads / parts));
            cuda_check(be, rc, "fier.score [%zu, %zu], up to %u groups", jobs->n_heads, x->head_dim, blocks);
        });
    });
    if (jobs->votes.p)
        in_lists(jobs, n, votes_of, [&](auto &list, unsigned m) { cuda_select_combine(be, list.job, m); });
}
