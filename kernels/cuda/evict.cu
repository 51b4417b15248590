/* SPDX-License-Identifier: MIT */
/* Ops for eviction (ops_evict.h): attention received by keys, and the lists of kept rows. */
#include "config.h"

#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/tiles.cuh"
#include "kernels/ops_evict.h"

enum {
    ROWS = 16,
    BLOCK = 128,
    PER_ROW = BLOCK / ROWS,
    WIDE_BLOCK = 1024,
    SMALL = 4096,
    COUNT_BLOCKS = 16,
    MOVERS = 64
};

/* ---- column sums ---- */

/* Groups of heads whose weights are combined into one column each. */
typedef struct {
    float *sum;
    size_t stride;
    int heads, how; /* heads: per group */
    bool add;
} columns;

static __device__ __forceinline__ float combined(float sum, float x, int how)
{
    return how == COMBINE_MAX ? (sum > x ? sum : x) : sum + x;
}

static __device__ __forceinline__ float mean_factor(const columns &c)
{
    return c.how == COMBINE_MEAN ? 1 / (float)c.heads : 1;
}

/* Returns the heads of group g, which read one list, as a unit at its first KV head. */
static __device__ __forceinline__ attn_unit unit_of_group(const attn_args &j, const columns &c, int g)
{
    attn_unit u;
    int head = g * c.heads, per_kv = j.n_heads / j.n_kv_heads;
    size_t list = j.n_lists == 1 ? 0 : j.n_lists == j.n_heads ? head : head / per_kv;
    u.kv_head = head / per_kv;
    u.head = head;
    u.heads = c.heads;
    u.first = j.range ? j.range[2 * list] : j.first;
    u.n = j.range ? j.range[2 * list + 1] : j.count;
    u.idx = j.idx ? j.idx + list * j.idx_stride : NULL;
    u.at = j.at ? j.at + list * j.idx_stride : NULL;
    return u;
}

/* Loads the queries of tokens [t0, t0 + ROWS) of a head. */
static __device__ void load_tokens(float *q, const attn_args &j, int t0, int head)
{
    int stride = stride_of(j.dim), padded = stride - PAD;
    for (int i = threadIdx.x; i < ROWS * padded; i += BLOCK) {
        int t = t0 + i / padded, c = i % padded;
        q[i / padded * stride + c] = t < j.n_tok && c < j.dim ? j.q[((size_t)t * j.n_heads + head) * j.dim + c] : 0;
    }
}

/* True if x is true in any thread. part: one word per warp. Ends with a barrier. */
static __device__ __forceinline__ bool block_any(bool x, unsigned *part)
{
    unsigned any = __ballot_sync(ALL_LANES, x);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = any;
    __syncthreads();
    any = 0;
    for (int w = 0; w < BLOCK / 32; w++) any |= part[w];
    __syncthreads();
    return any;
}

/* A block has KEYS entries of one group and processes the queries in order, ROWS at a time; PER_ROW threads share a
 * query. */
template <class T, int N, bool CODES, int KEYS>
static __global__ void __launch_bounds__(BLOCK) colsum_k(attn_args j, columns c)
{
    SHARED_DYN(float, room);
    SHARED(unsigned, part, [BLOCK / 32]);
    const int stride = stride_of(j.dim), row = threadIdx.x / PER_ROW, mine = threadIdx.x % PER_ROW, me = threadIdx.x;
    const int group = j.n_heads / j.n_kv_heads, n_kv = c.heads > group ? c.heads / group : 1, per_kv = c.heads / n_kv;
    float *q = room, *tile = q + ROWS * stride, *weight = tile + KEYS * stride;
    attn_unit u = unit_of_group(j, c, blockIdx.y);
    const int64_t at = (int64_t)blockIdx.x * KEYS, end = min(at + KEYS, u.n);
    if (at >= u.n) return;
    float *sum = c.sum + blockIdx.y * c.stride + at, total = c.add && at + me < end && me < KEYS ? sum[me] : 0;
    const half_rows rows = half_of(j, false);
    const int first_kv = u.kv_head;
    bool loaded_one = false;
    for (int t0 = 0; t0 < j.n_tok; t0 += ROWS) {
        int64_t lo = 0, hi = 0;
        float w[KEYS / PER_ROW] = {}, s[KEYS / PER_ROW];
        if (t0 + row < j.n_tok) visible(j, u, t0 + row, lo, hi);
        lo = max(lo, at);
        hi = min(hi, end);
        if (!block_any(lo < hi, part)) continue;
        for (int h = 0; h < c.heads; h++) {
            if (h % per_kv == 0 && (n_kv > 1 || !loaded_one)) {
                u.kv_head = first_kv + h / per_kv;
                load_tile<T, N, CODES, KEYS, BLOCK>(tile, rows, u, at, at, end);
                loaded_one = true;
            }
            load_tokens(q, j, t0, u.head + h);
            __syncthreads();
            if (in_blocks<T> && j.rotated & KV_ROTATED_K) {
                hadamard_rows(q, q, ROWS, (size_t)stride, j.dim);
                __syncthreads();
            }
            float lse = lo < hi ? j.lse[(size_t)(t0 + row) * j.n_heads + u.head + h] : -INFINITY;
            tile_products<KEYS, PER_ROW>(s, q + row * stride, tile, mine, stride);
#pragma unroll
            for (int k = 0; k < KEYS / PER_ROW; k++) {
                int64_t entry = at + mine + PER_ROW * k;
                bool sees = entry >= lo && entry < hi && lse != -INFINITY;
                w[k] = combined(w[k], sees ? expf(s[k] * j.scale - lse) : 0, c.how);
            }
            __syncthreads();
        }
#pragma unroll
        for (int k = 0; k < KEYS / PER_ROW; k++) weight[row * (KEYS + 1) + mine + PER_ROW * k] = w[k] * mean_factor(c);
        __syncthreads();
        for (int r = 0; r < ROWS && t0 + r < j.n_tok && me < KEYS; r++) total += weight[r * (KEYS + 1) + me];
    }
    if (me < KEYS && at + me < end) sum[me] = total;
}

/* The same for one query, from the scores that attn_decode stored. One thread per entry; sum may be the scores. */
static __global__ void scored_k(attn_args j, columns c)
{
    attn_unit u = unit_of_group(j, c, blockIdx.y);
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    float w = 0;
    if (i >= u.n) return;
    for (int h = u.head; h < u.head + u.heads; h++) {
        float lse = j.lse[h];
        w = combined(w, isinf(lse) ? 0 : expf(j.scores[h * j.score_stride + i] - lse), c.how);
    }
    float *sum = c.sum + blockIdx.y * c.stride + i;
    *sum = (c.add ? *sum : 0) + w * mean_factor(c);
}

/* Counts the K rows of a list, blockIdx.y, and the sums. A group's pairs are counted once for consecutive entries. */
static __global__ void count_sums_k(attn_args j, columns c, unsigned n_groups, unsigned long long *read, unsigned times)
{
    if (blockIdx.x == 0 && blockIdx.y == 0 && c.add)
        for (unsigned g = threadIdx.x; g < n_groups; g += BLOCK)
            atomicAdd(&read[READ_INDEX], (unsigned long long)unit_of_group(j, c, (int)g).n * sizeof(float));
    if (times == 0) return;
    attn_unit u = unit_of(j, blockIdx.y);
    const half_codes &h = j.k_codes;
    unsigned long long sum = 0;
    for (int64_t i = blockIdx.x * BLOCK + threadIdx.x; i < u.n; i += gridDim.x * BLOCK) {
        int64_t at = h.at ? h.at[slot_of(u, i)] : 0, other = 0;
        if (at < 0 && h.group)
            for (int64_t e = i - 1; e >= 0 && other >= 0; e--) other = h.at[slot_of(u, e)];
        sum += bytes_of(h, j.row_bytes, j.dim, at, other >= 0 || (-1 - other) / h.group != (-1 - at) / h.group);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0 && sum) atomicAdd(&read[READ_K], sum * times);
}

static void count_sums(backend *be, const attn_job *job, const attn_args *j, const columns *c, size_t n_groups)
{
    bool keys = !job->copied && !job->scores.p;
    unsigned lists = j->n_lists == 1 ? 1 : (unsigned)j->n_units, times = j->n_lists == 1 ? (unsigned)j->n_units : 1;
    if (!job->read.p || (!keys && !c->add)) return;
    cudaError_t rc =
        launch(count_sums_k, dim3(keys ? COUNT_BLOCKS : 1, keys ? lists : 1), dim3(BLOCK), 0, cuda_stream(be), *j, *c,
               (unsigned)n_groups, ptr<unsigned long long>(job->read), keys ? times : 0);
    cuda_check(be, rc, "colsum: counting");
}

template <class T, int N, bool CODES, int KEYS>
static cudaError_t run(backend *be, const attn_args *j, const columns *c, int64_t n_max)
{
    size_t room = (size_t)(ROWS + KEYS) * stride_of(j->dim) + ROWS * (KEYS + 1);
    return launch(colsum_k<T, N, CODES, KEYS>,
                  dim3(cuda_blocks((size_t)n_max, KEYS), (unsigned)(j->n_heads / c->heads)), dim3(BLOCK),
                  room * sizeof(float), cuda_stream(be), *j, *c);
}

template <class T, int N, bool CODES>
static cudaError_t by_dim(backend *be, const attn_args *j, const columns *c, int64_t n_max)
{
    return j->dim <= 128 ? run<T, N, CODES, 32>(be, j, c, n_max) : run<T, N, CODES, 16>(be, j, c, n_max);
}

template <class T> static cudaError_t sum_columns(backend *be, const attn_args *j, const columns *c, int64_t n_max)
{
    constexpr int N = pack<T>::N;
    if constexpr (in_blocks<T>) return by_dim<T, N, false>(be, j, c, n_max);
    else if (attn_has_codes(j))
        return attn_wide(j) ? by_dim<T, N, true>(be, j, c, n_max) : by_dim<T, 1, true>(be, j, c, n_max);
    else return attn_wide(j) ? by_dim<T, N, false>(be, j, c, n_max) : by_dim<T, 1, false>(be, j, c, n_max);
}

void cuda_evict_colsum(backend *be, const attn_job *job, size_t n_groups, int how, bool add, buf sum, size_t stride)
{
    attn_args j;
    columns c = {ptr<float>(sum), stride, (int)(job->n_heads / n_groups), how, add};
    if (job->n_max <= 0 || !cuda_begin(be, "colsum") || !attn_args_of(be, &j, job)) return;
    count_sums(be, job, &j, &c, n_groups);
    if (job->scores.p) {
        cudaError_t rc = launch(scored_k, dim3(cuda_blocks((size_t)job->n_max, BLOCK), (unsigned)n_groups), dim3(BLOCK),
                                0, cuda_stream(be), j, c);
        cuda_check(be, rc, "colsum of scores [%zu], up to %lld keys", job->n_heads, (long long)job->n_max);
        return;
    }
    by_rows(job->rows.type, [&](auto t) {
        cudaError_t rc = sum_columns<decltype(t)>(be, &j, &c, job->n_max);
        cuda_check(be, rc, "colsum [%d, %d, %d], up to %lld keys", j.n_tok, j.n_heads, j.dim, (long long)job->n_max);
    });
}

/* ---- heads ---- */

static __global__ void combine_k(float *out, const float *in, size_t stride, int heads, size_t n, int how)
{
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x, g = blockIdx.y;
    if (i >= n) return;
    const float *x = in + g * heads * stride + i;
    float r = x[0];
    for (int h = 1; h < heads; h++) r = combined(r, x[h * stride], how);
    out[g * stride + i] = r * (how == COMBINE_MEAN ? 1 / (float)heads : 1);
}

void cuda_evict_combine(backend *be, buf out, buf in, size_t stride, size_t n_heads, size_t n_groups, size_t n, int how)
{
    if (n == 0 || !cuda_begin(be, "combine")) return;
    cudaError_t rc = launch(combine_k, dim3(cuda_blocks(n, BLOCK), (unsigned)n_groups), dim3(BLOCK), 0, cuda_stream(be),
                            ptr<float>(out), ptr<float>(in), stride, (int)(n_heads / n_groups), n, how);
    cuda_check(be, rc, "combine [%zu of %zu heads, %zu]", n_groups, n_heads, n);
}

static __global__ void repeat_heads_k(float *out, const float *in, size_t all, size_t repeat, size_t dim)
{
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < all) out[i] = in[i / (repeat * dim) * dim + i % dim];
}

void cuda_evict_repeat_heads(backend *be, buf out, buf in, size_t n, size_t n_heads, size_t repeat, size_t dim)
{
    size_t all = n * n_heads * repeat * dim;
    if (all == 0 || !cuda_begin(be, "repeat_heads")) return;
    cudaError_t rc = launch(repeat_heads_k, dim3(cuda_blocks(all, BLOCK)), dim3(BLOCK), 0, cuda_stream(be),
                            ptr<float>(out), ptr<float>(in), all, repeat, dim);
    cuda_check(be, rc, "repeat_heads [%zu, %zu x %zu, %zu]", n, n_heads, repeat, dim);
}

/* ---- lists ---- */

/* kept_rows for a device. */
typedef struct {
    int32_t *at, *slot;
    float *score;
    int64_t *range, *seen;
    unsigned long long *read;
    size_t stride;
} lists;

static lists lists_of(const kept_rows *l)
{
    return {ptr<int32_t>(l->at),
            ptr<int32_t>(l->slot),
            ptr<float>(l->score),
            ptr<int64_t>(l->range),
            ptr<int64_t>(l->seen),
            ptr<unsigned long long>(l->read),
            l->stride};
}

/* Returns list i alone. */
static __device__ __forceinline__ lists list_at(const lists &l, size_t i)
{
    return {l.at + i * l.stride,
            l.slot ? l.slot + i * l.stride : NULL,
            l.score ? l.score + i * l.stride : NULL,
            l.range + 2 * i,
            l.seen + i,
            l.read,
            l.stride};
}

/* Returns the threads of a block that processes a whole list. */
static dim3 list_block(const kept_rows *l)
{
    return dim3(l->stride <= SMALL ? BLOCK : WIDE_BLOCK);
}

static __global__ void pool_k(lists all, const float *in, int64_t trim, int64_t kernel, bool max_pool)
{
    lists l = list_at(all, blockIdx.y);
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x, n = l.range[1] - trim;
    const float *x = in + blockIdx.y * l.stride;
    float best = -INFINITY, sum = 0;
    if (i >= n) return;
    for (int64_t k = max(i - kernel / 2, (int64_t)0); k <= min(i + kernel / 2, n - 1); k++) {
        best = x[k] > best ? x[k] : best;
        sum += x[k];
    }
    l.score[i] = max_pool ? best : sum / (float)kernel;
}

void cuda_evict_pool(backend *be, const kept_rows *l, buf in, int64_t trim, int64_t kernel, bool max_pool)
{
    if (!cuda_begin(be, "pool")) return;
    cudaError_t rc = launch(pool_k, dim3(cuda_blocks(l->stride, BLOCK), (unsigned)l->n_lists), dim3(BLOCK), 0,
                            cuda_stream(be), lists_of(l), ptr<float>(in), trim, kernel, max_pool);
    cuda_check(be, rc, "pool [%zu, %zu], kernel %lld", l->n_lists, l->stride, (long long)kernel);
}

static __global__ void open_k(int32_t *slot, size_t stride)
{
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < stride) slot[blockIdx.y * stride + i] = (int32_t)i;
}

void cuda_evict_open(backend *be, const kept_rows *l)
{
    if (!cuda_begin(be, "open")) return;
    cudaError_t rc = launch(open_k, dim3(cuda_blocks(l->stride, BLOCK), (unsigned)l->n_lists), dim3(BLOCK), 0,
                            cuda_stream(be), ptr<int32_t>(l->slot), l->stride);
    cuda_check(be, rc, "open [%zu, %zu]", l->n_lists, l->stride);
}

/* One block per list. */
static __global__ void append_k(lists all, int64_t pos, size_t n, int64_t *slots)
{
    lists l = list_at(all, blockIdx.x);
    int64_t count = l.range[1];
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
        l.at[count + i] = (int32_t)(pos + (int64_t)i);
        if (l.score) l.score[count + i] = 0;
        if (slots) slots[i * gridDim.x + blockIdx.x] = l.slot[count + i];
    }
    __syncthreads();
    if (threadIdx.x == 0) l.range[1] = count + (int64_t)n;
}

void cuda_evict_append(backend *be, const kept_rows *l, int64_t pos, size_t n, buf slots)
{
    if (n == 0 || !cuda_begin(be, "append")) return;
    cudaError_t rc = launch(append_k, dim3((unsigned)l->n_lists), dim3(n == 1 ? 32 : BLOCK), 0, cuda_stream(be),
                            lists_of(l), pos, n, ptr<int64_t>(slots));
    cuda_check(be, rc, "append [%zu, %zu]", l->n_lists, n);
}

/* ---- pruning: one block per list ---- */

/* Criterion for the entries that stay: not those before `start`, nor the victim. Without a victim (-1), of the entries
 * before `open` those with a key above `least` and the first `ties` with that key stay. */
typedef struct {
    int64_t start, open, victim, ties;
    unsigned least;
} cut;

static __device__ __forceinline__ unsigned entry_key(const lists &l, int64_t i)
{
    return key_of(l.score[i]);
}

/* Returns the entry with the smallest key among [lo, hi), the last of equal ones. room: one number per warp. */
static __device__ int64_t weakest(const lists &l, int64_t lo, int64_t hi, int64_t *room)
{
    unsigned long long least = ~0ull; /* key, then entries from the end */
    for (int64_t i = lo + threadIdx.x; i < hi; i += blockDim.x)
        least = min(least, (unsigned long long)entry_key(l, i) << 32 | (unsigned)(hi - 1 - i));
    for (int m = 16; m > 0; m /= 2) least = min(least, __shfl_xor_sync(ALL_LANES, least, m));
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = (int64_t)least;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; w++) least = min(least, (unsigned long long)room[w]);
    __syncthreads();
    return hi - 1 - (int64_t)(unsigned)least;
}

/* Buffers for slots and positions of the entries that the budget removes from a list; slot NULL: not stored. */
typedef struct {
    int32_t *slot, *at;
    size_t stride;
} removed_rows;

/* Compacts the entries that stay, in order. The slots of the others follow them, by way of `gone`. Returns the number
 * of entries that stay. */
static __device__ int64_t keep(const lists &l, const cut &c, int64_t n, int32_t *gone, const removed_rows &t,
                               int64_t *room)
{
    int64_t step = blockDim.x, from = (c.victim >= 0 && c.start == 0 ? c.victim : 0) / step * step, kept = from,
            ties = 0, all;
    unsigned before = (1u << threadIdx.x % 32) - 1;
    for (int64_t base = from; base < n; base += step) {
        int64_t i = base + threadIdx.x;
        bool inside = i < n, chosen = inside && c.victim < 0 && i >= c.start && i < c.open;
        int32_t at = inside ? l.at[i] : 0, slot = inside && l.slot ? l.slot[i] : 0;
        float score = inside && l.score ? l.score[i] : 0;
        unsigned key = chosen ? entry_key(l, i) : 0;
        unsigned same = __ballot_sync(ALL_LANES, chosen && key == c.least);
        int64_t tie = ties + block_before(__popc(same), room, &all) + __popc(same & before);
        ties += all;
        bool stays =
            inside && i >= c.start && i != c.victim && (!chosen || key > c.least || (key == c.least && tie < c.ties));
        unsigned staying = __ballot_sync(ALL_LANES, stays);
        int64_t to = kept + block_before(__popc(staying), room, &all) + __popc(staying & before);
        kept += all;
        if (stays) {
            l.at[to] = at;
            if (l.score) l.score[to] = score;
            if (l.slot) l.slot[to] = slot;
        } else if (inside) {
            if (l.slot) gone[i - to] = slot;
            if (t.slot && i >= c.start) {
                t.slot[i - to - c.start] = l.slot ? slot : at;
                t.at[i - to - c.start] = at;
            }
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; l.slot && i < n - kept; i += step) l.slot[kept + i] = gone[i];
    return kept;
}

static __global__ void __launch_bounds__(WIDE_BLOCK)
    prune_k(lists all, int64_t pos, keep_rule rule, int32_t *gone, removed_rows t)
{
    SHARED(int, count, [DIGITS]);
    SHARED(int64_t, found, [2]);
    SHARED(int64_t, room, [MOST_WARPS]);
    lists l = list_at(all, blockIdx.x);
    if (t.slot) t.slot += blockIdx.x * t.stride, t.at += blockIdx.x * t.stride;
    int64_t n = l.range[1], lo = 0, hi = rule.band > 0 ? n : 0;
    while (lo < hi) { /* positions ascend */
        int64_t mid = lo + (hi - lo) / 2;
        if (pos - l.at[mid] >= rule.band) lo = mid + 1;
        else hi = mid;
    }
    cut c = {lo, 0, -1, 0, 0};
    int64_t left = n - lo;
    __syncthreads(); /* all threads have read the range */
    if (threadIdx.x == 0) l.seen[0] = left;
    if (left > rule.budget) {
        int64_t k = rule.budget - rule.recent;
        c.open = n - rule.recent;
        if (threadIdx.x == 0 && l.read) atomicAdd(l.read, (unsigned long long)(c.open - lo) * sizeof(float));
        if (left == rule.budget + 1) {
            c.victim = weakest(l, lo, c.open, room);
        } else if (k == 0) {
            c.least = 0xffffffffu; /* no score has this key */
        } else {
            c.least = kth_key([&](int64_t i) { return entry_key(l, i); }, lo, c.open, &k, count, found);
            c.ties = k;
        }
    } else if (lo == 0) {
        return;
    }
    int64_t kept = keep(l, c, n, gone + blockIdx.x * l.stride, t, room);
    if (threadIdx.x == 0) l.range[1] = kept;
}

/* Returns scratch for slots: `columns` per list. */
static int32_t *slot_room(backend *be, const kept_rows *l, size_t columns)
{
    return (int32_t *)cuda_room(be, &cuda_of(be)->parts, columns * l->n_lists * l->stride, sizeof(int32_t), "slots");
}

void cuda_evict_prune(backend *be, const kept_rows *l, int64_t pos, const keep_rule *rule)
{
    if (l->n_lists == 0 || !cuda_begin(be, "prune")) return;
    int32_t *gone = slot_room(be, l, 1);
    if (!gone) return;
    removed_rows t = {ptr<int32_t>(rule->gone_slot), ptr<int32_t>(rule->gone_at), rule->gone_stride};
    cudaError_t rc = launch(prune_k, dim3((unsigned)l->n_lists), list_block(l), 0, cuda_stream(be), lists_of(l), pos,
                            *rule, gone, t);
    cuda_check(be, rc, "prune [%zu lists of %zu] to %lld", l->n_lists, l->stride, (long long)rule->budget);
}

/* ---- compaction ---- */

/* Writes the entries [from, to) whose slot is below the limit (or not) to out, in order, as entries or as slots.
 * Returns their number. Called by whole blocks. */
static __device__ int64_t gather(const int32_t *slot, int64_t from, int64_t to, int64_t limit, bool below, bool entries,
                                 int32_t *out, int64_t *room)
{
    int64_t n = 0, all;
    for (int64_t base = from; base < to; base += blockDim.x) {
        int64_t i = base + threadIdx.x;
        bool take = i < to && (slot[i] < limit) == below;
        unsigned taken = __ballot_sync(ALL_LANES, take);
        int64_t at = n + block_before(__popc(taken), room, &all) + __popc(taken & ((1u << threadIdx.x % 32) - 1));
        if (take) out[at] = entries ? (int32_t)i : slot[i];
        n += all;
    }
    __syncthreads();
    return n;
}

/* Gives entries at or above the limit free slots below it. moves [list][3][stride] has sources and targets. The free
 * slots then begin with the remaining ones below the limit. */
static __global__ void __launch_bounds__(WIDE_BLOCK)
    compact_k(lists all, int64_t limit, int32_t *moves, int64_t *n_moves)
{
    SHARED(int64_t, room, [MOST_WARPS]);
    lists l = list_at(all, blockIdx.x);
    int32_t *from = moves + 3 * blockIdx.x * l.stride, *to = from + l.stride, *high = to + l.stride;
    int64_t n = l.range[1], stride = (int64_t)l.stride;
    int64_t moving = gather(l.slot, 0, n, limit, false, true, from, room);
    int64_t low = gather(l.slot, n, stride, limit, true, false, to, room);
    int64_t others = gather(l.slot, n, stride, limit, false, false, high, room);
    for (int64_t i = threadIdx.x; i < moving; i += blockDim.x) {
        int64_t entry = from[i];
        from[i] = l.slot[entry];
        l.slot[entry] = to[i];
        l.slot[stride - moving + i] = from[i];
    }
    for (int64_t i = threadIdx.x; i < low - moving; i += blockDim.x) l.slot[n + i] = to[moving + i];
    for (int64_t i = threadIdx.x; i < others; i += blockDim.x) l.slot[n + low - moving + i] = high[i];
    if (threadIdx.x == 0) n_moves[blockIdx.x] = moving;
}

/* Moves rows within the regions of a list; blockIdx.y: the region. */
template <class T>
static __global__ void move_rows_k(T *k, T *v, size_t cap, size_t units, const int32_t *moves, const int64_t *n_moves,
                                   size_t stride, bool one_list)
{
    size_t list = one_list ? 0 : blockIdx.y, n = (size_t)n_moves[list] * units;
    const int32_t *from = moves + 3 * list * stride, *to = from + stride;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += (size_t)gridDim.x * BLOCK) {
        size_t a = (blockIdx.y * cap + (size_t)to[i / units]) * units + i % units;
        size_t b = (blockIdx.y * cap + (size_t)from[i / units]) * units + i % units;
        k[a] = k[b];
        v[a] = v[b];
    }
}

void cuda_evict_compact(backend *be, const kv_rows *rows, const kept_rows *l, int64_t limit)
{
    size_t bytes = kv_row_bytes(rows->type, rows->head_dim), regions = l->n_lists == 1 ? rows->n_kv_heads : l->n_lists;
    if (l->n_lists == 0 || !cuda_begin(be, "compact")) return;
    int32_t *moves = slot_room(be, l, 3 + 2); /* including a count per list */
    if (!moves) return;
    int64_t *n_moves = (int64_t *)moves;
    moves += 2 * l->n_lists;
    cudaError_t rc = launch(compact_k, dim3((unsigned)l->n_lists), list_block(l), 0, cuda_stream(be), lists_of(l),
                            limit, moves, n_moves);
    if (rc == cudaSuccess && bytes % 16 == 0)
        rc = launch(move_rows_k<uint4>, dim3(MOVERS, (unsigned)regions), dim3(BLOCK), 0, cuda_stream(be),
                    ptr<uint4>(rows->k), ptr<uint4>(rows->v), rows->cap, bytes / 16, moves, n_moves, l->stride,
                    l->n_lists == 1);
    else if (rc == cudaSuccess)
        rc = launch(move_rows_k<uint16_t>, dim3(MOVERS, (unsigned)regions), dim3(BLOCK), 0, cuda_stream(be),
                    ptr<uint16_t>(rows->k), ptr<uint16_t>(rows->v), rows->cap, bytes / 2, moves, n_moves, l->stride,
                    l->n_lists == 1);
    cuda_check(be, rc, "compact [%zu lists of %zu] to %lld", l->n_lists, l->stride, (long long)limit);
}
