/* SPDX-License-Identifier: MIT */
/* Blocks of ActQKV, probes and budgets (ops_block.h). */
#include "config.h"

#include "kernels/cuda/cuda.cuh"
#include "kernels/ops_block.h"

enum {
    BLOCK = 256,
    WARPS = BLOCK / 32,
    FORM = 128,            /* threads of form_k; one warp per head */
    CHANNELS = 256 / 32,   /* per lane, at most */
    MOST_PROBE = 48 << 10, /* bytes of a probe in shared memory */
    ITEMS = 4096           /* scores per block of entropy_k */
};

/* ---- statistics and probes: 32 channels per block, a slice of the rows per warp ---- */

/* Returns the sum over the slices, the same in all warps. part: [WARPS][32]. Ends with a barrier. */
template <class F> static __device__ __forceinline__ F over_slices(F x, F (*part)[32])
{
    int lane = threadIdx.x % 32;
    F sum = 0;
    part[threadIdx.x / 32][lane] = x;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) sum += part[i][lane];
    __syncthreads();
    return sum;
}

static __global__ void __launch_bounds__(BLOCK)
    moments_k(float *mean, float *m2, size_t before, const float *x, size_t n, size_t dim)
{
    SHARED(double, part, [WARPS][32]);
    size_t c = (size_t)blockIdx.x * 32 + threadIdx.x % 32;
    bool inside = c < dim;
    double sum = 0, square = 0;
#pragma unroll 4
    for (size_t i = threadIdx.x / 32; i < n; i += WARPS)
        if (inside) sum += (double)x[i * dim + c];
    double here = over_slices(sum, part) / (double)n;
#pragma unroll 4
    for (size_t i = threadIdx.x / 32; i < n; i += WARPS)
        if (inside) square += ((double)x[i * dim + c] - here) * ((double)x[i * dim + c] - here);
    square = over_slices(square, part);
    if (!inside || threadIdx.x >= 32) return;
    double all = (double)(before + n), apart = before ? here - (double)mean[c] : 0;
    if (before) {
        here = (double)mean[c] + apart * (double)n / all;
        square += (double)m2[c] + apart * apart * (double)before * (double)n / all;
    }
    mean[c] = (float)here;
    m2[c] = (float)square;
}

void cuda_block_moments(backend *be, buf mean, buf m2, size_t before, buf x, size_t n, size_t dim)
{
    if (n == 0 || !cuda_begin(be, "block.moments")) return;
    cudaError_t rc = launch(moments_k, dim3(cuda_blocks(dim, 32)), dim3(BLOCK), 0, cuda_stream(be), ptr<float>(mean),
                            ptr<float>(m2), before, (const float *)ptr<float>(x), n, dim);
    cuda_check(be, rc, "block.moments [%zu, %zu]", n, dim);
}

/* Averages the channels' variances; one thread block. ranks: number of ranks whose channels are added later. */
static __global__ void __launch_bounds__(BLOCK)
    variance_k(float *out, size_t dim, const float *m2, size_t count, int ranks)
{
    SHARED(float, part, [WARPS]);
    float by = 1 / (float)(count - 1), sum = 0;
    for (size_t c = threadIdx.x; c < dim; c += BLOCK) sum += m2[c] * by;
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) *out = sum / ((float)dim * (float)ranks);
}

/* Computes |phi|_1 of a row; one block per row. 0 without a variance. */
static __global__ void __launch_bounds__(BLOCK) activation_k(float *out, const float *x, size_t dim, const float *mean,
                                                             const float *m2, size_t count, const float *variance)
{
    SHARED(float, part, [WARPS]);
    float by = 1 / (float)(count - 1), floor = *variance / 100, sum = 0;
    const float *row = x + blockIdx.x * dim;
    for (size_t c = threadIdx.x; c < dim && floor > 0; c += BLOCK) {
        float d = row[c] - mean[c];
        sum += d * d / (m2[c] * by + floor);
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

/* activation NULL: uniform weights. */
static __global__ void __launch_bounds__(BLOCK)
    probe_k(float *probe, float *weights, const float *activation, const float *x, size_t n, size_t dim)
{
    SHARED(float, room, [WARPS]);
    SHARED(float, part, [WARPS][32]);
    size_t c = (size_t)blockIdx.x * 32 + threadIdx.x % 32;
    float total = 0, sum = 0;
    for (size_t i = threadIdx.x; activation && i < n; i += BLOCK) total += activation[i];
    total = block_sum(total, room);
    bool uniform = !(total > 0) || isinf(total);
    for (size_t i = threadIdx.x; blockIdx.x == 0 && i < n; i += BLOCK)
        weights[i] = uniform ? 1 / (float)n : activation[i] / total;
#pragma unroll 4
    for (size_t i = threadIdx.x / 32; i < n; i += WARPS)
        if (c < dim) sum += (uniform ? 1 / (float)n : activation[i] / total) * x[i * dim + c];
    sum = over_slices(sum, part);
    if (c < dim && threadIdx.x < 32) probe[c] = sum;
}

/* Returns the activations of n rows over the channels of all ranks; NULL after a fault. */
static const float *activations(backend *be, const float *x, size_t n, size_t dim, const float *mean, const float *m2,
                                size_t count)
{
    float *out = (float *)cuda_room(be, &cuda_of(be)->parts, n + 1, sizeof(float), "activations");
    if (!out) return NULL;
    float *variance = out + n;
    cudaError_t rc =
        launch(variance_k, dim3(1), dim3(BLOCK), 0, cuda_stream(be), variance, dim, m2, count, backend_ranks(be));
    if (!cuda_check(be, rc, "block.probe: variance of %zu", dim)) return NULL;
    cuda_sum(be, variance, 1);
    rc = launch(activation_k, dim3((unsigned)n), dim3(BLOCK), 0, cuda_stream(be), out, x, dim, mean, m2, count,
                (const float *)variance);
    if (!cuda_check(be, rc, "block.probe: activations [%zu, %zu]", n, dim)) return NULL;
    cuda_sum(be, out, n);
    return out;
}

void cuda_block_probe(backend *be, buf probe, buf weights, buf x, size_t n, size_t dim, buf mean, buf m2, size_t count)
{
    const float *activation = NULL;
    if (n == 0 || !cuda_begin(be, "block.probe")) return;
    if (mean.p && count > 1) {
        activation = activations(be, ptr<float>(x), n, dim, ptr<float>(mean), ptr<float>(m2), count);
        if (!activation) return;
    }
    cudaError_t rc = launch(probe_k, dim3(cuda_blocks(dim, 32)), dim3(BLOCK), 0, cuda_stream(be), ptr<float>(probe),
                            ptr<float>(weights), activation, (const float *)ptr<float>(x), n, dim);
    cuda_check(be, rc, "block.probe [%zu, %zu]", n, dim);
}

/* ---- scores ---- */

/* Returns the cosine, 0 if one of the vectors is 0. */
static __device__ __forceinline__ float cosine(float dot, float aa, float bb)
{
    return aa == 0 || bb == 0 ? 0 : dot / (sqrtf(aa) * sqrtf(bb));
}

static __device__ __forceinline__ float likeness(bool product, float dot, float aa, float bb)
{
    return product ? dot : cosine(dot, aa, bb);
}

/* Cosines or products of whole rows, one warp per row, 16 bytes per load. The probe is in shared memory, arranged so
 * that neighbouring lanes read neighbouring groups of four: element e of lane l in iteration i is at [i][e / 4][l][e %
 * 4]. */
template <class T>
static __global__ void __launch_bounds__(BLOCK) like_k(float *score, const float *probe, const T *rep, int dim,
                                                       bool product, item_range n, unsigned long long *read)
{
    enum { N = pack<T>::N, TURN = 32 * N };
    SHARED(float, part, [WARPS]);
    SHARED_DYN(float, mine);
    int lane = threadIdx.x % 32;
    float aa = 0;
    add_read(read, (unsigned long long)max(n.hi - n.lo, (int64_t)0) * dim * sizeof(T));
    for (int c = threadIdx.x; c < dim; c += BLOCK) {
        int e = c % N, at = c / TURN * TURN + e / 4 * 128 + c % TURN / N * 4 + e % 4;
        mine[at] = probe[c];
        aa += probe[c] * probe[c];
    }
    aa = block_sum(aa, part); /* also the barrier after the writes */
    for (int64_t b = n.lo + (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; b < n.hi; b += (int64_t)gridDim.x * WARPS) {
        const T *row = rep + (size_t)b * dim;
        float dot = 0, bb = 0;
#pragma unroll 4
        for (int c = lane * N; c < dim; c += TURN) {
            float y[N];
            unpack(y, load16(row + c), row);
#pragma unroll
            for (int e = 0; e < N; e += 4) {
                float4 p = load_f4(mine + c / TURN * TURN + e / 4 * 128 + lane * 4);
                dot += p.x * y[e] + p.y * y[e + 1] + p.z * y[e + 2] + p.w * y[e + 3];
                bb += y[e] * y[e] + y[e + 1] * y[e + 1] + y[e + 2] * y[e + 2] + y[e + 3] * y[e + 3];
            }
        }
        dot = warp_sum(dot), bb = warp_sum(bb);
        if (lane == 0) score[b] = likeness(product, dot, aa, bb);
    }
}

/* Mean over `parts` equal parts, also for rows that like_k cannot load; one warp per row. of: divisor of the sum. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    likes_k(float *score, const float *probe, const T *rep, int dim, int parts, float of, bool product, item_range n,
            unsigned long long *read)
{
    int lane = threadIdx.x % 32, size = dim / parts;
    add_read(read, (unsigned long long)max(n.hi - n.lo, (int64_t)0) * dim * sizeof(T));
    for (int64_t b = n.lo + (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; b < n.hi; b += (int64_t)gridDim.x * WARPS) {
        float sum = 0;
        for (int p = 0; p < parts; p++) {
            float dot = 0, aa = 0, bb = 0;
#pragma unroll 4
            for (int c = p * size + lane; c < (p + 1) * size; c += 32) {
                float a = probe[c], y = to_f32(rep[(size_t)b * dim + c]);
                dot += a * y, aa += a * a, bb += y * y;
            }
            sum += likeness(product, warp_sum(dot), warp_sum(aa), warp_sum(bb));
        }
        if (lane == 0) score[b] = sum / of;
    }
}

/* For one rank's heads: writes the products of the blocks [lo, hi) to parts[0, n_max), then the squared norms, then the
 * probe's squared norm. One warp per row. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    products_k(float *parts, int64_t n_max, const float *probe, const T *rep, int dim, item_range n,
               unsigned long long *read)
{
    int lane = threadIdx.x % 32;
    int64_t warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    add_read(read, (unsigned long long)max(n.hi - n.lo, (int64_t)0) * dim * sizeof(T));
    for (int64_t b = n.lo + warp; b < n.hi; b += (int64_t)gridDim.x * WARPS) {
        float dot = 0, bb = 0;
        for (int c = lane; c < dim; c += 32) {
            float y = to_f32(rep[(size_t)b * dim + c]);
            dot += probe[c] * y, bb += y * y;
        }
        dot = warp_sum(dot), bb = warp_sum(bb);
        if (lane == 0) parts[b] = dot, parts[n_max + b] = bb;
    }
    float aa = 0;
    for (int c = lane; c < dim && warp == 0; c += 32) aa += probe[c] * probe[c];
    aa = warp_sum(aa);
    if (warp == 0 && lane == 0) parts[2 * n_max] = aa;
}

static __global__ void __launch_bounds__(BLOCK) whole_k(float *score, const float *parts, int64_t n_max, item_range n)
{
    int64_t b = n.lo + (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (b < n.hi) score[b] = cosine(parts[b], parts[2 * n_max], parts[n_max + b]);
}

/* Computes the cosine over the heads of all ranks. Blocks that are no candidates are also summed, but not read. */
static void score_whole(backend *be, buf score, buf probe, const block_index *x, item_range n, int64_t n_max, buf read,
                        dim3 grid)
{
    int dim = (int)(x->n_heads * x->head_dim);
    size_t count = 2 * (size_t)n_max + 1;
    float *parts = (float *)cuda_room(be, &cuda_of(be)->parts, count, sizeof *parts, "scores of blocks");
    if (!parts) return;
    by_type(x->type, [&](auto t) {
        typedef decltype(t) T;
        cudaError_t rc =
            launch(products_k<T>, grid, dim3(BLOCK), 0, cuda_stream(be), parts, n_max, (const float *)ptr<float>(probe),
                   (const T *)ptr<T>(x->rep), dim, n, ptr<unsigned long long>(read));
        cuda_check(be, rc, "block.score [%d], up to %lld blocks", dim, (long long)n_max);
    });
    cuda_sum(be, parts, count);
    cudaError_t rc = launch(whole_k, dim3(cuda_blocks((size_t)n_max, BLOCK)), dim3(BLOCK), 0, cuda_stream(be),
                            ptr<float>(score), (const float *)parts, n_max, n);
    cuda_check(be, rc, "block.score, up to %lld blocks", (long long)n_max);
}

void cuda_block_score(backend *be, buf score, buf probe, const block_index *x, size_t parts, item_range n, buf read)
{
    int64_t n_max = n.hi;
    int dim = (int)(x->n_heads * x->head_dim);
    int ranks = backend_ranks(be);
    if (n_max <= 0 || !cuda_begin(be, "block.score")) return;
    dim3 grid(min(cuda_blocks((size_t)n_max, WARPS), (unsigned)(4 * cuda_of(be)->n_sm)));
    if (parts == 0 && ranks > 1 && !x->product) {
        score_whole(be, score, probe, x, n, n_max, read, grid);
        return;
    }
    float of = parts == 0 ? 1 : (float)parts * (float)ranks; /* the ranks' sums are added below */
    if (parts == 0) parts = 1;
    by_type(x->type, [&](auto t) {
        typedef decltype(t) T;
        const size_t turn = 32 * pack<T>::N, shared = (dim + turn - 1) / turn * turn * sizeof(float);
        bool wide = of == 1 && dim * sizeof(T) % 16 == 0 && (uintptr_t)x->rep.p % 16 == 0;
        cudaError_t rc = wide && shared <= MOST_PROBE
                             ? launch(like_k<T>, grid, dim3(BLOCK), shared, cuda_stream(be), ptr<float>(score),
                                      (const float *)ptr<float>(probe), (const T *)ptr<T>(x->rep), dim, x->product, n,
                                      ptr<unsigned long long>(read))
                             : launch(likes_k<T>, grid, dim3(BLOCK), 0, cuda_stream(be), ptr<float>(score),
                                      (const float *)ptr<float>(probe), (const T *)ptr<T>(x->rep), dim, (int)parts, of,
                                      x->product, n, ptr<unsigned long long>(read));
        cuda_check(be, rc, "block.score [%d], up to %lld blocks", dim, (long long)n_max);
    });
    cuda_sum(be, ptr<float>(score), (size_t)n_max);
}

static __global__ void __launch_bounds__(BLOCK) weigh_k(float *score, const float *other, item_range n, float by)
{
    int64_t b = n.lo + (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (b < n.hi) score[b] = __fadd_rn(score[b], __fmul_rn(by, other[b]));
}

void cuda_block_weigh(backend *be, buf score, buf other, item_range n, float by)
{
    if (n.hi <= n.lo || !cuda_begin(be, "block.weigh")) return;
    cudaError_t rc = launch(weigh_k, dim3(cuda_blocks((size_t)(n.hi - n.lo), BLOCK)), dim3(BLOCK), 0, cuda_stream(be),
                            ptr<float>(score), (const float *)ptr<float>(other), n, by);
    cuda_check(be, rc, "block.weigh, %lld blocks", (long long)(n.hi - n.lo));
}

/* ---- blocks ---- */

typedef struct {
    float *mass; /* NULL: all masses are equal */
    size_t ring;
    int heads;
    unsigned long long *read;
} band;

static band band_of(const band_mass *m)
{
    return {ptr<float>(m->mass), m->ring, (int)m->n_heads, ptr<unsigned long long>(m->read)};
}

static __global__ void fold_k(band m, const float *sum, size_t stride, int64_t first, int64_t n, int64_t fresh)
{
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x, p = first + i, old = min(fresh - first, n);
    size_t head = blockIdx.y;
    add_read(m.read, (unsigned long long)max(old, (int64_t)0) * m.heads * sizeof(float));
    if (i >= n) return;
    float *to = &m.mass[head * m.ring + (size_t)p % m.ring];
    *to = (p >= fresh ? 0 : *to) + (sum ? sum[head * stride + i] : 0);
}

void cuda_block_fold(backend *be, const band_mass *mass, buf sum, size_t stride, int64_t first, int64_t n,
                     int64_t fresh)
{
    band m = band_of(mass);
    if (n <= 0 || !cuda_begin(be, "block.fold")) return;
    cudaError_t rc = launch(fold_k, dim3(cuda_blocks((size_t)n, BLOCK), (unsigned)m.heads), dim3(BLOCK), 0,
                            cuda_stream(be), m, (const float *)ptr<float>(sum), stride, first, n, fresh);
    cuda_check(be, rc, "block.fold [%d], %lld tokens", m.heads, (long long)n);
}

typedef struct {
    void *rep;
    const float *keys;
    size_t cap, size, reps;
    int heads, group, dim;
} forming;

/* A token ordered by mass: larger first, then lower index. i == size of the block: none. */
typedef struct {
    float mass;
    size_t i;
} token;

static __device__ __forceinline__ bool precedes(token a, token b)
{
    return a.mass > b.mass || (a.mass == b.mass && a.i < b.i);
}

/* Returns the best token of the block after `last`, in all lanes. first: position of the block's first token in the
 * ring. */
static __device__ token next_token(const forming &f, const band &m, size_t head, size_t first, token last, bool any)
{
    token best = {0, f.size};
    for (size_t i = threadIdx.x % 32; i < f.size; i += 32) {
        token t = {m.mass ? m.mass[head * m.ring + (first + i) % m.ring] : 0, i};
        if (isnan(t.mass)) t.mass = -INFINITY;
        if (any && !precedes(last, t)) continue;
        if (best.i == f.size || precedes(t, best)) best = t;
    }
    for (int l = 16; l > 0; l /= 2) {
        token t = {__shfl_xor_sync(ALL_LANES, best.mass, l), __shfl_xor_sync(ALL_LANES, best.i, l)};
        if (t.i < f.size && (best.i == f.size || precedes(t, best))) best = t;
    }
    return best;
}

/* One warp per head of a block. */
template <class T>
static __global__ void __launch_bounds__(FORM) form_k(forming f, band m, int64_t block, int64_t n, int64_t pos)
{
    int lane = threadIdx.x % 32, head = blockIdx.y * (FORM / 32) + threadIdx.x / 32;
    int64_t b = blockIdx.x;
    if (m.mass) add_read(m.read, (unsigned long long)n * f.size * f.heads * sizeof(float));
    if (b >= n || head >= f.heads) return;
    double sum[CHANNELS] = {0};
    token last = {0, 0};
    const float *keys = f.keys + ((size_t)(head / f.group) * f.cap + b * f.size) * f.dim;
    for (size_t r = 0; r < f.reps; r++) {
        last = next_token(f, m, head, (size_t)pos + b * f.size, last, r > 0);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++)
            if (lane + 32 * i < f.dim) sum[i] += (double)keys[last.i * f.dim + lane + 32 * i];
    }
    T *rep = (T *)f.rep + ((size_t)(block + b) * f.heads + head) * f.dim;
#pragma unroll
    for (int i = 0; i < CHANNELS; i++)
        if (lane + 32 * i < f.dim) put_f32(&rep[lane + 32 * i], (float)(sum[i] / (double)f.reps));
}

void cuda_block_form(backend *be, const block_index *x, const kv_rows *keys, const band_mass *mass, int64_t block,
                     int64_t n, int64_t pos)
{
    forming f = {x->rep.p,
                 ptr<float>(keys->k),
                 keys->cap,
                 x->size,
                 x->reps,
                 (int)x->n_heads,
                 (int)(x->n_heads / x->n_kv_heads),
                 (int)x->head_dim};
    band m = mass ? band_of(mass) : band{};
    if (!cuda_begin(be, "block.form")) return;
    /* Launched without blocks too, so that all steps have the same launches. */
    by_type(x->type, [&](auto t) {
        dim3 grid((unsigned)max(n, (int64_t)1), cuda_blocks(x->n_heads, FORM / 32));
        cudaError_t rc = launch(form_k<decltype(t)>, grid, dim3(FORM), 0, cuda_stream(be), f, m, block, n, pos);
        cuda_check(be, rc, "block.form [%zu, %zu], %lld blocks", x->n_heads, x->head_dim, (long long)n);
    });
}

typedef struct {
    int64_t from, sinks, pending, end, size;
    const int64_t *chosen;
    const int32_t *block;
    int32_t *idx;
    int64_t *range;
    unsigned long long *count;
} far;

/* One thread block. The selected blocks ascend. The first ones are entirely before `from`, the next may be partly
 * before it, and all others are listed whole. */
static __global__ void __launch_bounds__(BLOCK) list_k(far l)
{
    SHARED(float, part, [WARPS]);
    int64_t from = l.from, sinks = l.sinks, n = l.chosen ? l.chosen[1] : 0, first = max(sinks - from, (int64_t)0);
    const int32_t *block = l.block + (l.chosen ? l.chosen[0] : 0);
    float mine = 0;
    for (int64_t i = threadIdx.x; i < n; i += BLOCK) mine += sinks + (block[i] + 1) * l.size <= from;
    int64_t hidden = (int64_t)block_sum(mine, part), cut = 0;
    if (hidden < n) cut = max(from - (sinks + block[hidden] * l.size), (int64_t)0);
    for (int64_t i = threadIdx.x; i < first; i += BLOCK) l.idx[i] = (int32_t)(from + i);
    int64_t tokens = (n - hidden) * l.size - cut, pending = max(l.pending, from),
            rest = max(l.end - pending, (int64_t)0);
    for (int64_t i = threadIdx.x; i < tokens; i += BLOCK) {
        int64_t j = i + cut;
        l.idx[first + i] = (int32_t)(sinks + block[hidden + j / l.size] * l.size + j % l.size);
    }
    for (int64_t i = threadIdx.x; i < rest; i += BLOCK) l.idx[first + tokens + i] = (int32_t)(pending + i);
    add_read(l.count, (unsigned long long)(first + tokens + rest));
    if (threadIdx.x > 0) return;
    l.range[0] = 0;
    l.range[1] = first + tokens + rest;
}

void cuda_block_list(backend *be, const far_list *list)
{
    far l = {list->from,
             list->sinks,
             list->pending,
             list->end,
             list->size,
             ptr<int64_t>(list->chosen),
             ptr<int32_t>(list->block),
             ptr<int32_t>(list->idx),
             ptr<int64_t>(list->range),
             ptr<unsigned long long>(list->count)};
    if (!cuda_begin(be, "block.list")) return;
    cuda_check(be, launch(list_k, dim3(1), dim3(BLOCK), 0, cuda_stream(be), l), "block.list");
}

/* ---- budgets ---- */

/* For a set of scores: the largest, the sum of w = exp(score - largest), and the sum of w (score - largest). */
typedef struct {
    double most, z, sum;
} entropy_part;

/* A block has some of the items. NaN counts as -inf. */
static __global__ void __launch_bounds__(BLOCK) entropy_k(entropy_part *out, const float *s, item_range n)
{
    SHARED(float, room, [WARPS]);
    SHARED(double, part, [WARPS]);
    int64_t lo = n.lo + (int64_t)blockIdx.x * ITEMS, hi = min(lo + ITEMS, n.hi);
    float most = -INFINITY;
    double z = 0, sum = 0;
    for (int64_t i = lo + threadIdx.x; i < hi; i += BLOCK) most = fmaxf(most, s[i]);
    most = block_max(most, room);
    for (int64_t i = lo + threadIdx.x; i < hi && !isinf(most); i += BLOCK) {
        double d = (double)s[i] - (double)most;
        if (!(d > -60)) continue; /* below the precision of a double */
        double w = exp(d);
        z += w;
        sum += w * d;
    }
    z = block_sum(z, part);
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) out[blockIdx.x] = {(double)most, z, sum};
}

/* Returns log Z - sum p (s - largest) from its parts; one warp. */
static __device__ double entropy_of(const entropy_part *p, int n)
{
    int lane = threadIdx.x % 32;
    double most = -INFINITY, z = 0, sum = 0;
    for (int i = lane; i < n; i += 32) most = p[i].most > most ? p[i].most : most;
    for (int m = 16; m > 0; m /= 2) {
        double other = __shfl_xor_sync(ALL_LANES, most, m);
        most = other > most ? other : most;
    }
    if (isinf(most)) return 0;
    for (int i = lane; i < n; i += 32) {
        double down = p[i].most - most, by = exp(down);
        if (p[i].z == 0) continue;
        z += by * p[i].z;
        sum += by * (p[i].sum + p[i].z * down);
    }
    z = warp_sum(z), sum = warp_sum(sum);
    return log(z) - sum / z;
}

typedef struct {
    float *theta;
    double *sum;
    int64_t *count, *pool, *k;
    int64_t least, most;
    size_t layers, layer;
} pools;

static pools pools_of(const entropy_pool *p, size_t layer, buf k)
{
    return {ptr<float>(p->theta),
            ptr<double>(p->sum),
            ptr<int64_t>(p->count),
            ptr<int64_t>(p->pool),
            ptr<int64_t>(k),
            p->least,
            p->most,
            p->n_layers,
            layer};
}

/* Returns a layer's fraction of the remaining pool; layers ascend. */
static __device__ double fraction_of(const pools &p, double theta)
{
    double later = 0, left = (double)(p.layers - p.layer);
    int64_t count = p.count[0];
    for (size_t j = p.layer + 1; j < p.layers && count > 0; j++) later += p.sum[j] / (double)count;
    return count > 0 && theta + later > 0 ? theta / (theta + later) : 1 / left;
}

/* Takes a layer's budget from the pool by its entropy; one warp. */
static __global__ void take_k(pools p, const entropy_part *parts, int n_parts, item_range n)
{
    float theta = (float)entropy_of(parts, n_parts);
    if (threadIdx.x > 0) return;
    int64_t pool = p.pool[0], reserve = p.least * (int64_t)(p.layers - p.layer - 1);
    int64_t k = (int64_t)floor(fraction_of(p, (double)theta) * (double)pool + 0.5);
    k = min(min(max(k, p.least), p.most), pool - reserve);
    k = max(min(k, n.hi - n.lo), (int64_t)0);
    p.theta[p.layer] = theta;
    p.k[0] = k;
    p.pool[0] = pool - k;
}

void cuda_block_take(backend *be, const entropy_pool *pool, size_t layer, buf score, item_range n, buf k)
{
    unsigned chunks = max(1u, cuda_blocks((size_t)max(n.hi - n.lo, (int64_t)0), ITEMS));
    if (!cuda_begin(be, "block.take")) return;
    entropy_part *parts = (entropy_part *)cuda_room(be, &cuda_of(be)->parts, chunks, sizeof *parts, "entropies");
    if (!parts) return;
    cudaError_t rc =
        launch(entropy_k, dim3(chunks), dim3(BLOCK), 0, cuda_stream(be), parts, (const float *)ptr<float>(score), n);
    if (rc == cudaSuccess)
        rc = launch(take_k, dim3(1), dim3(32), 0, cuda_stream(be), pools_of(pool, layer, k),
                    (const entropy_part *)parts, (int)chunks, n);
    cuda_check(be, rc, "block.take, up to %lld items", (long long)(n.hi - n.lo));
}

static __global__ void close_k(pools p)
{
    size_t l = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (l == 0) p.count[0]++;
    if (l < p.layers) p.sum[l] += (double)p.theta[l];
}

void cuda_block_close_pool(backend *be, const entropy_pool *pool)
{
    if (!cuda_begin(be, "block.close_pool")) return;
    cudaError_t rc = launch(close_k, dim3(cuda_blocks(pool->n_layers, BLOCK)), dim3(BLOCK), 0, cuda_stream(be),
                            pools_of(pool, 0, (buf){NULL}));
    cuda_check(be, rc, "block.close_pool [%zu]", pool->n_layers);
}
