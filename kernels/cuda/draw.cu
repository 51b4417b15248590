/* SPDX-License-Identifier: MIT */
/* The next token from logits (kernels/draw.h), one thread block per row. The largest sum of a logit and its noise has
 * the host's bits, in any order. The item at which the cumulative mass passes a bound is found by a histogram over
 * values, refined within the bin that contains it until few items are left. Masses are multiples of 2^-44, so that sums
 * are exact and their order does not matter. A draw may differ from the host's only if a bound is within 1e-11 of the
 * total mass from an item's. */
#include "config.h"

#include <float.h>

#include "kernels/cuda/cuda.cuh"
#include "kernels/draw.h"
#include "kernels/gumbel.h"

enum { ROWS = 16, BINS = 1024, FEW = 1024, MOST_THREADS = 1024, SMALL = 4096 };

typedef unsigned long long u64;

typedef struct {
    bool greedy, noisy;
    float temp, by, least; /* by: factor of the exponent; masses below `least` are dropped */
    unsigned keep;
    double top_p;
    uint64_t seed;
    int64_t pos;
} draw_row;

typedef struct {
    draw_row row[ROWS];
} draw_batch;

/* Shared memory of a block. */
typedef struct {
    u64 *sum;        /* [BINS] */
    unsigned *count; /* [BINS] */
    u64 *weight;     /* [FEW] remaining items: */
    unsigned *key;   /* [FEW] */
    int *at;         /* [FEW] */
    u64 *word;       /* [MOST_THREADS / 32] */
    struct draw_found *found;
} draw_room;

/* State of a search; at the end the item found. */
struct draw_found {
    unsigned lo, hi, left; /* key interval, and the number of items in it */
    u64 before;            /* weight of the items before the interval; at the end including the item's own */
    int at, bin;
};

/* Remaining items of a row, in order: larger key first, then lower index. */
typedef struct {
    const float *x;
    int n;
    float top, by;
    unsigned last_key; /* the last item kept */
    int last_at, first;
} draw_items;

static __device__ __forceinline__ unsigned key_of(float x)
{
    unsigned b = __float_as_uint(x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

static __device__ __forceinline__ float of_key(unsigned k)
{
    return __uint_as_float(k & 0x80000000u ? k & 0x7fffffffu : ~k);
}

/* Clamps to finite values. + 0 makes negative zero equal to zero. */
static __device__ __forceinline__ float finite(float x)
{
    return fminf(fmaxf(x, -FLT_MAX), FLT_MAX) + 0.0f;
}

static __device__ __forceinline__ bool is_kept(const draw_items &s, unsigned key, int i)
{
    return key > s.last_key || (key == s.last_key && i <= s.last_at);
}

/* Returns 2^(by * (x - top)), with the polynomial of kernels/cpu/k_draw.c. */
static __device__ __forceinline__ float mass_of(const draw_items &s, float x)
{
    float t = fmaxf(__fmul_rn(__fsub_rn(x, s.top), s.by), -127.0f), n = rintf(t), f = t - n;
    if (t < -46) return 0;
    float y = fmaf(1.535336188319500e-4f, f, 1.339887440266574e-3f);
    y = fmaf(y, f, 9.618437357674640e-3f);
    y = fmaf(y, f, 5.550332471162809e-2f);
    y = fmaf(y, f, 2.402264791363012e-1f);
    y = fmaf(y, f, 6.931472028550421e-1f);
    return fmaf(y, f, 1.0f) * __uint_as_float((unsigned)((int)n + 127) << 23);
}

static __device__ __forceinline__ u64 weight_of(const draw_items &s, float x, bool by_mass)
{
    return by_mass ? (u64)(mass_of(s, x) * 0x1p44f + 0.5f) : 1;
}

/* Returns the largest of a value of each thread. */
static __device__ u64 block_most(const draw_room &r, u64 v)
{
    for (int m = 16; m > 0; m /= 2) v = max(v, __shfl_xor_sync(ALL_LANES, v, m));
    if (threadIdx.x % 32 == 0) r.word[threadIdx.x / 32] = v;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; w++) v = max(v, r.word[w]);
    __syncthreads();
    return v;
}

static __device__ u64 block_total(const draw_room &r, u64 v)
{
    u64 sum = 0;
    for (int m = 16; m > 0; m /= 2) v += __shfl_xor_sync(ALL_LANES, v, m);
    if (threadIdx.x % 32 == 0) r.word[threadIdx.x / 32] = v;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; w++) sum += r.word[w];
    __syncthreads();
    return sum;
}

/* Returns key and index of the first item in order, as one number. *is_finite: all items are. */
static __device__ u64 first_of(const draw_room &r, const float *x, int n, bool greedy, bool *is_finite)
{
    u64 best = 0, bad = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        if (!(fabsf(x[i]) <= FLT_MAX)) bad = 1;
        float v = greedy ? (x[i] >= -INFINITY ? x[i] + 0.0f : -INFINITY) : finite(x[i]);
        u64 item = (u64)key_of(v) << 32 | (0xffffffffu - (unsigned)i);
        best = max(best, item);
    }
    *is_finite = block_most(r, bad) == 0;
    return block_most(r, best);
}

/* Returns the total mass of the items with a mass of `least` or more. */
static __device__ u64 mass_from(const draw_room &r, const draw_items &s, float least)
{
    u64 sum = 0;
    for (int i = threadIdx.x; i < s.n; i += blockDim.x) {
        float v = finite(s.x[i]);
        if (is_kept(s, key_of(v), i) && mass_of(s, v) >= least) sum += weight_of(s, v, true);
    }
    return block_total(r, sum);
}

/* ---- the search ---- */

/* Bins in order. Those of the first level have equal width in value, over all values with mass; those of a key interval
 * have equal width in keys. */
typedef struct {
    bool first;
    float top, scale;
    unsigned hi;
    int shift;
} draw_bins;

static __device__ __forceinline__ int bin_of(const draw_bins &b, unsigned key)
{
    if (!b.first) return (int)((b.hi - key) >> b.shift);
    float t = __fmul_rn(__fsub_rn(b.top, of_key(key)), b.scale);
    return t < BINS - 1 ? (int)t : BINS - 1;
}

/* Calls f(index, key, weight) for the items with a weight and with keys in [lo, hi], divided among the threads. */
template <class F>
static __device__ __forceinline__ void each_item(const draw_items &s, unsigned lo, unsigned hi, bool by_mass, F f)
{
    for (int i = threadIdx.x; i < s.n; i += blockDim.x) {
        float v = finite(s.x[i]);
        unsigned key = key_of(v);
        if (key < lo || key > hi || !is_kept(s, key, i)) continue;
        u64 w = weight_of(s, v, by_mass);
        if (w > 0) f(i, key, w);
    }
}

static __device__ void fill_bins(const draw_room &r, const draw_items &s, const draw_bins &b, bool by_mass)
{
    unsigned lo = r.found->lo, hi = r.found->hi;
    u64 rest = 0; /* most of the vocabulary: added once, not by atomics */
    for (int i = threadIdx.x; i < BINS; i += blockDim.x) r.sum[i] = 0, r.count[i] = 0;
    __syncthreads();
    each_item(s, lo, hi, by_mass, [&](int, unsigned key, u64 w) {
        int bin = bin_of(b, key);
        if (!by_mass && bin == BINS - 1) {
            rest++;
        } else {
            atomicAdd(&r.sum[bin], w);
            atomicAdd(&r.count[bin], 1u);
        }
    });
    rest = block_total(r, rest);
    if (threadIdx.x == 0) {
        r.sum[BINS - 1] += rest;
        r.count[BINS - 1] += (unsigned)rest;
    }
    __syncthreads();
}

/* Finds, with one warp, the bin in which the weight passes the bound; if none does, the last bin with an item. */
static __device__ void choose_bin(const draw_room &r, double bound)
{
    enum { EACH = BINS / 32 };
    int lane = threadIdx.x, last = -1;
    u64 mine = 0, upto;
    for (int i = 0; i < EACH; i++) {
        mine += r.sum[lane * EACH + i];
        if (r.count[lane * EACH + i]) last = lane * EACH + i;
    }
    upto = mine;
    for (int m = 1; m < 32; m *= 2) {
        u64 other = __shfl_up_sync(ALL_LANES, upto, (unsigned)m);
        int far = __shfl_up_sync(ALL_LANES, last, (unsigned)m);
        if (lane >= m) upto += other, last = max(last, far);
    }
    u64 before = r.found->before + upto - mine;
    unsigned over = __ballot_sync(ALL_LANES, (double)(r.found->before + upto) > bound);
    int owner = over ? __ffs((int)over) - 1 : __shfl_sync(ALL_LANES, last, 31) / EACH;
    int end = over ? BINS : __shfl_sync(ALL_LANES, last, 31);
    __syncwarp();
    if (lane != owner) return;
    int bin = lane * EACH;
    while (bin < end && !((double)(before + r.sum[bin]) > bound)) before += r.sum[bin++];
    r.found->bin = bin;
    r.found->before = before;
    r.found->left = r.count[bin];
}

/* Returns the largest key whose bin is b or later. */
static __device__ unsigned key_at(const draw_bins &bins, int b, unsigned lo, unsigned hi)
{
    while (lo < hi) {
        unsigned mid = lo + (hi - lo) / 2 + 1;
        if (bin_of(bins, mid) >= b) lo = mid;
        else hi = mid - 1;
    }
    return lo;
}

/* Narrows the key interval to the chosen bin; one thread. */
static __device__ void narrow(const draw_room &r, const draw_bins &b)
{
    struct draw_found *f = r.found;
    unsigned lo = f->lo, hi = f->hi;
    f->hi = f->bin == 0 ? hi : key_at(b, f->bin, lo, hi);
    f->lo = f->bin == BINS - 1 || bin_of(b, lo) == f->bin ? lo : key_at(b, f->bin + 1, lo, f->hi) + 1;
}

/* Searches few items: each thread takes one and sums the weights before it. */
static __device__ void among_few(const draw_room &r, const draw_items &s, bool by_mass, double bound)
{
    unsigned lo = r.found->lo, hi = r.found->hi;
    if (threadIdx.x == 0) r.count[0] = 0;
    __syncthreads();
    each_item(s, lo, hi, by_mass, [&](int i, unsigned key, u64 w) {
        unsigned j = atomicAdd(&r.count[0], 1u);
        r.key[j] = key, r.at[j] = i, r.weight[j] = w;
    });
    __syncthreads();
    unsigned n = r.count[0];
    u64 front = r.found->before;
    __syncthreads();
    for (unsigned t = threadIdx.x; t < n; t += blockDim.x) {
        u64 before = front;
        bool last = true;
        for (unsigned j = 0; j < n; j++) {
            bool first = r.key[j] > r.key[t] || (r.key[j] == r.key[t] && r.at[j] < r.at[t]);
            if (first) before += r.weight[j];
            else if (j != t) last = false;
        }
        bool passes = (double)(before + r.weight[t]) > bound;
        if (!((double)before <= bound && (passes || last))) continue;
        r.found->at = r.at[t];
        r.found->before = before + r.weight[t];
    }
    __syncthreads();
}

/* Searches many items of equal value, by index. */
static __device__ void among_equals(const draw_room &r, const draw_items &s, bool by_mass, double bound)
{
    unsigned key = r.found->lo;
    int each = (s.n + (int)blockDim.x - 1) / (int)blockDim.x, from = (int)threadIdx.x * each,
        to = min(from + each, s.n);
    unsigned mine = 0;
    u64 w = weight_of(s, of_key(key), by_mass), before = r.found->before;
    u64 skip = bound > (double)before ? (u64)((bound - (double)before) / (double)w) : 0;
    while (skip > 0 && (double)(before + skip * w) > bound) skip--;
    while (skip + 1 < r.found->left && !((double)(before + (skip + 1) * w) > bound)) skip++;
    for (int i = from; i < to; i++) mine += key_of(finite(s.x[i])) == key && is_kept(s, key, i);
    r.count[threadIdx.x] = mine;
    __syncthreads();
    u64 ahead = 0;
    for (unsigned t = 0; t < threadIdx.x; t++) ahead += r.count[t];
    __syncthreads();
    for (int i = from; i < to; i++)
        if (key_of(finite(s.x[i])) == key && is_kept(s, key, i) && ahead++ == skip) {
            r.found->at = i;
            r.found->before = before + (skip + 1) * w;
        }
    __syncthreads();
}

/* Stores in *r.found the first item up to which the weight exceeds the bound. */
static __device__ void search(const draw_room &r, const draw_items &s, bool by_mass, double bound)
{
    draw_bins b = {true, s.top, BINS * s.by / 46, 0, 0};
    if (threadIdx.x == 0) *r.found = {0, key_of(s.top), 0, 0, 0, 0};
    __syncthreads();
    for (;;) {
        fill_bins(r, s, b, by_mass);
        if (threadIdx.x < 32) choose_bin(r, bound);
        __syncthreads();
        if (threadIdx.x == 0) narrow(r, b);
        __syncthreads();
        unsigned lo = r.found->lo, hi = r.found->hi, left = r.found->left;
        if (left <= FEW) return among_few(r, s, by_mass, bound);
        if (lo == hi) return among_equals(r, s, by_mass, bound);
        b = {false, 0, 0, hi, 0};
        while (((hi - lo) >> b.shift) >= BINS) b.shift++;
    }
}

/* ---- sampling by noise ---- */

/* Returns a number that orders like the double. */
static __device__ __forceinline__ u64 score_key(double x)
{
    u64 b;
    memcpy(&b, &x, sizeof b);
    return b >> 63 ? ~b : b | 1ull << 63;
}

/* Returns the item with the largest sum of value and noise, among the remaining ones with a mass of at least
 * `least`. */
static __device__ int noisiest(const draw_room &r, const draw_items &s, const draw_row &rule)
{
    gumbel_best best = {0, -1};
    gumbel_try(&best, rule.seed, rule.pos, (double)rule.temp, s.top, s.first); /* few can exceed it */
    for (int i = threadIdx.x; i < s.n; i += blockDim.x) {
        float v = finite(s.x[i]);
        if (i == s.first || !is_kept(s, key_of(v), i) || (rule.least > 0 && mass_of(s, v) < rule.least)) continue;
        gumbel_try(&best, rule.seed, rule.pos, (double)rule.temp, v, i);
    }
    u64 most = block_most(r, score_key(best.score));
    u64 id = block_most(r, score_key(best.score) == most ? 0xffffffffu - (unsigned)best.id : 0);
    return (int)(0xffffffffu - (unsigned)id);
}

/* ---- the kernel ---- */

static __device__ int draw_item_of(const draw_room &r, draw_items &s, const draw_row &rule, float share)
{
    if (rule.keep < (unsigned)s.n) {
        search(r, s, false, (double)rule.keep - 1);
        s.last_at = r.found->at;
        s.last_key = key_of(finite(s.x[s.last_at]));
        __syncthreads();
    }
    if (rule.noisy && !(rule.top_p < 1)) return noisiest(r, s, rule);
    double all = (double)mass_from(r, s, 0), kept = all;
    if (rule.top_p < 1) {
        double bound = nextafter(rule.top_p * all, 0.0);
        search(r, s, true, fmin(bound, all * (1 - 1e-9)));
        kept = fmin(kept, (double)r.found->before);
        __syncthreads();
    }
    if (rule.noisy) {
        s.last_at = r.found->at;
        s.last_key = key_of(finite(s.x[s.last_at]));
        return noisiest(r, s, rule);
    }
    if (rule.least > 0) kept = fmin(kept, (double)mass_from(r, s, rule.least));
    search(r, s, true, fmin((double)share * kept, all * (1 - 1e-9)));
    return r.found->at;
}

static __global__ void __launch_bounds__(MOST_THREADS)
    draw_k(int *ids, int *good, const float *x, int vocab, draw_batch b, const float *share)
{
    grid_wait();
    SHARED(u64, sum, [BINS]);
    SHARED(unsigned, count, [BINS]);
    SHARED(u64, weight, [FEW]);
    SHARED(unsigned, key, [FEW]);
    SHARED(int, at, [FEW]);
    SHARED(u64, word, [MOST_THREADS / 32]);
    SHARED(draw_found, found, [1]);
    const draw_room r = {sum, count, weight, key, at, word, found};
    const draw_row &rule = b.row[blockIdx.x];
    bool is_finite;
    u64 best = first_of(r, x + (size_t)blockIdx.x * vocab, vocab, rule.greedy, &is_finite);
    int id = (int)(0xffffffffu - (unsigned)best);
    draw_items s = {x + (size_t)blockIdx.x * vocab, vocab, 0, rule.by, 0, vocab, id};
    if (!rule.greedy) {
        s.top = of_key((unsigned)(best >> 32));
        id = draw_item_of(r, s, rule, share[blockIdx.x]);
    }
    if (threadIdx.x == 0) ids[blockIdx.x] = id, good[blockIdx.x] = is_finite;
}

void cuda_draw(backend *be, buf ids, buf x, size_t n, size_t vocab, const draw_rule *rule, buf share)
{
    for (size_t i = 0; i < n; i += ROWS) {
        draw_batch b = {};
        size_t rows = n - i < ROWS ? n - i : (size_t)ROWS;
        for (size_t k = 0; k < rows; k++) {
            const draw_rule *o = &rule[i + k];
            float by = 1.44269504f / o->temp;
            b.row[k] = {o->temp == 0,  o->how == DRAW_GUMBEL,         o->temp,  by < 1e30f ? by : 1e30f,
                        draw_least(o), (unsigned)draw_keep(o, vocab), o->top_p, o->seed,
                        o->pos};
        }
        if (!cuda_begin(be, "draw")) return;
        cudaError_t rc =
            launch_dependent(be, draw_k, dim3((unsigned)rows), dim3(vocab <= SMALL ? 128 : MOST_THREADS), 0,
                             ptr<int>(ids) + i, ptr<int>(ids) + n + i, (const float *)ptr<float>(x) + i * vocab,
                             (int)vocab, b, (const float *)ptr<float>(share) + i);
        cuda_check(be, rc, "draw [%zu, %zu]", rows, vocab);
    }
}
