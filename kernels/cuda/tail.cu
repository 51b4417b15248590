/* SPDX-License-Identifier: MIT */
/* Sums of rows, and the mean of those that lists leave out (ops_tail.h). */
#include "config.h"

#include "kernels/cuda/attention.cuh"
#include "kernels/ops_tail.h"

enum {
    HALVES = 2, /* K, V */
    LANES = 32, /* channels of a block of threads */
    ADDERS = 128,
    AHEAD = 4, /* rows that are loaded before they are added up */
    JOBS = 6   /* of one launch */
};

typedef struct {
    float *sum;
    int64_t block;
    size_t cap;
    int heads, dim;
} row_sums;

static row_sums sums_of(const tail_sums *s)
{
    return {ptr<float>(s->sum), s->block, s->cap, (int)s->n_kv_heads, (int)s->head_dim};
}

static __device__ __forceinline__ float *block_of(const row_sums &s, int head, int half, int64_t block)
{
    return s.sum + ((size_t)(head * HALVES + half) * s.cap + (size_t)block) * s.dim;
}

/* Channel c of the rows of the positions [p, end), read by `row`, joins its sums. */
template <class R>
static __device__ __forceinline__ void join(const row_sums &s, int head, int half, int c, int64_t p, int64_t end,
                                            R &&row)
{
    float sum = p % s.block ? block_of(s, head, half, p / s.block)[c] : 0;
    while (p < end) {
        float x[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) x[k] = p + k < end ? row(p + k) : 0;
#pragma unroll
        for (int k = 0; k < AHEAD; k++, p++) {
            if (p >= end) break;
            sum = __fadd_rn(sum, x[k]);
            if ((p + 1) % s.block && p + 1 < end) continue;
            block_of(s, head, half, p / s.block)[c] = sum;
            sum = 0;
        }
    }
}

/* ---- adding ---- */

typedef struct {
    row_sums to;
    const float *k, *v;
    int64_t first, n;
} row_adds;

static row_adds row_adds_of(const tail_add_job &j)
{
    return {sums_of(j.to), ptr<float>(j.k), ptr<float>(j.v), j.first, (int64_t)j.n};
}

template <class T> static __device__ __forceinline__ float as_stored(float x)
{
    T y;
    put_f32(&y, x);
    return to_f32(y);
}

/* A thread has a channel of a half of a head of a job and takes the rows in order. */
template <class T> static __global__ void sum_rows_k(job_list<row_adds> jobs)
{
    const row_adds &j = jobs.job[blockIdx.y];
    int i = (int)(blockIdx.x * ADDERS + threadIdx.x), unit = i / j.to.dim, c = i % j.to.dim;
    int head = unit / HALVES, half = unit % HALVES;
    if (head >= j.to.heads) return;
    const float *from = (half ? j.v : j.k) + head * j.to.dim + c;
    size_t stride = (size_t)j.to.heads * j.to.dim;
    join(j.to, head, half, c, j.first, j.first + j.n,
         [&](int64_t p) { return as_stored<T>(from[(size_t)(p - j.first) * stride]); });
}

static unsigned adder_blocks(const tail_sums *s)
{
    return cuda_blocks(s->n_kv_heads * HALVES * s->head_dim, ADDERS);
}

void cuda_tail_add(backend *be, const tail_add_job *jobs, size_t n)
{
    const tail_sums *s = jobs->to;
    if (!cuda_begin(be, "tail.add")) return;
    by_type(s->type, [&](auto t) {
        in_lists(jobs, n, row_adds_of, [&](auto &list, unsigned m) {
            cudaError_t rc =
                launch(sum_rows_k<decltype(t)>, dim3(adder_blocks(s), m), dim3(ADDERS), 0, cuda_stream(be), list);
            cuda_check(be, rc, "tail.add [%zu, %zu, %zu]", jobs->n, s->n_kv_heads, s->head_dim);
        });
    });
}

template <class T> static __global__ void sum_again_k(row_sums s, half_rows rows, int half, int64_t first, int64_t n)
{
    int i = (int)(blockIdx.x * ADDERS + threadIdx.x), head = i / s.dim, c = i % s.dim;
    if (head >= s.heads) return;
    join(s, head, half, c, first, n, [&](int64_t p) { return element_of<T>(rows, head, p, c); });
}

void cuda_tail_redo(backend *be, const tail_sums *s, const kv_rows *rows, int64_t n)
{
    if (!cuda_begin(be, "tail.redo")) return;
    unsigned blocks = cuda_blocks(s->n_kv_heads * s->head_dim, ADDERS);
    for (int half = 0; half < HALVES; half++)
        by_rows(rows->type, [&](auto t) {
            cudaError_t rc = launch(sum_again_k<decltype(t)>, dim3(blocks), dim3(ADDERS), 0, cuda_stream(be),
                                    sums_of(s), rows_of(rows, half), half, n / s->block * s->block, n);
            cuda_check(be, rc, "tail.redo [%zu, %zu]", s->n_kv_heads, s->head_dim);
        });
}

/* ---- the rest ---- */

typedef struct {
    attn_args of;
    row_sums sums;
    slot_range more[TAIL_RANGES];
    int64_t n;
    size_t rows;
    float *k, *v, *bias;
} rest_args;

typedef struct {
    rest_args job[JOBS];
} rest_batch;
static_assert(sizeof(rest_batch) <= 4096, "what kernels take by value");

/* The place of a slot's row near by, a negative number where there is none. */
static __device__ __forceinline__ int64_t near_of_slot(const attn_args &j, int head, size_t slot)
{
    return j.near.k && !j.k_codes.at ? near_row(j.near, head, (int64_t)slot) : -1;
}

template <class T>
static __device__ __forceinline__ float listed(const attn_args &j, const half_rows &rows, const attn_unit &u,
                                               bool value, int64_t i, int c)
{
    size_t slot = slot_of(u, i);
    int64_t row = near_of_slot(j, u.kv_head, slot);
    const void *near = value ? j.near.v : j.near.k;
    if (row >= 0) return element_in(row_of<T>(near, (size_t)row, j.dim), j.dim, c, rows.turned);
    return element_of<T>(rows, u.kv_head, (int64_t)slot, c);
}

/* Channel c of every TAIL_PARTS-th row of a unit's list, from `part` on, joins a sum. A sum from 0 on is never -0, so
 * that adding 0 changes nothing. */
template <class T>
static __device__ __forceinline__ float add_list(float sum, const attn_args &j, const half_rows &rows,
                                                 const attn_unit &u, bool value, int part, int c)
{
    for (int64_t i = part; i < u.n; i += AHEAD * TAIL_PARTS) {
        float x[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            x[k] = i + k * TAIL_PARTS < u.n ? listed<T>(j, rows, u, value, i + k * TAIL_PARTS, c) : 0;
#pragma unroll
        for (int k = 0; k < AHEAD; k++) sum = __fadd_rn(sum, x[k]);
    }
    return sum;
}

/* Row i of a unit's. */
static __device__ __forceinline__ float *rest_row(const rest_args &j, const attn_unit &u, int half, int64_t i)
{
    size_t list = (size_t)(j.of.n_units == j.of.n_kv_heads ? u.kv_head : u.head);
    return (half ? j.v : j.k) + (list * j.rows + (size_t)i) * j.of.dim;
}

/* A block has LANES channels of a half of a unit: a warp is a part of the list, a thread a channel. */
template <class T> static __global__ void __launch_bounds__(LANES *TAIL_PARTS, 1) rest_k(rest_batch b)
{
    SHARED(float, parts, [TAIL_PARTS][LANES]);
    const rest_args &j = b.job[blockIdx.z];
    attn_unit u = unit_of(j.of, blockIdx.y);
    int half = blockIdx.x % HALVES, lane = threadIdx.x % LANES, part = threadIdx.x / LANES;
    int c = (int)blockIdx.x / HALVES * LANES + lane;
    half_rows rows = half_of(j.of, half);
    float sum = 0;
    int64_t taken = 0;
#pragma unroll 1
    for (int r = 0; r <= TAIL_RANGES; r++) {
        if (r) u.idx = NULL, u.first = j.more[r - 1].first, u.n = j.more[r - 1].n;
        if (c < j.of.dim) sum = add_list<T>(sum, j.of, rows, u, half, part, c);
        taken += u.n;
    }
    int64_t m = j.n - taken;
    parts[part][lane] = sum;
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (int h = 0; h < u.heads; h++) j.bias[u.head + h] = m > 0 ? (float)log((double)m) : -INFINITY;
        if (!j.of.k_codes.at) count_read(j.of, taken);
    }
    if (part > 0 || c >= j.of.dim) return;
    float attended = parts[0][lane], all = 0;
    for (int p = 1; p < TAIL_PARTS; p++) attended = __fadd_rn(attended, parts[p][lane]);
    for (int64_t block = 0; block * j.sums.block < j.n; block++) {
        float x = block_of(j.sums, u.head / (j.of.n_heads / j.sums.heads), half, block)[c];
        all = block ? __fadd_rn(all, x) : x;
    }
    rest_row(j, u, half, 0)[c] = m > 0 ? __fdiv_rn(__fsub_rn(all, attended), (float)m) : 0;
}

/* First entry of a list, which ascends, whose slot is at least `slot`. */
static __device__ __forceinline__ int64_t first_from(const attn_unit &u, int64_t slot)
{
    int64_t lo = 0, hi = u.n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if ((int64_t)slot_of(u, mid) < slot) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* A warp has LANES channels of a half of a unit's block of positions. */
template <class T> static __global__ void __launch_bounds__(LANES *TAIL_PARTS) rest_blocks_k(rest_batch b)
{
    const rest_args &j = b.job[blockIdx.z];
    attn_unit u = unit_of(j.of, blockIdx.y);
    int runs = (j.of.dim + LANES - 1) / LANES, half = blockIdx.x % HALVES, at = blockIdx.x / HALVES;
    int c = at % runs * LANES + (int)(threadIdx.x % LANES);
    int64_t block = at / runs * TAIL_PARTS + (int)(threadIdx.x / LANES), from = block * j.sums.block;
    half_rows rows = half_of(j.of, half);
    float sum = 0;
    int64_t m = min(j.sums.block, j.n - from), taken = 0;
    for (int r = 0; r <= TAIL_RANGES; r++) {
        if (r) u.idx = NULL, u.first = j.more[r - 1].first, u.n = j.more[r - 1].n;
        int64_t i = first_from(u, from), end = first_from(u, from + j.sums.block);
        m -= end - i, taken += u.n;
        for (; i < end && c < j.of.dim; i++) sum = __fadd_rn(sum, listed<T>(j.of, rows, u, half, i, c));
    }
    if (block == 0 && blockIdx.x == 0 && threadIdx.x == 0 && !j.of.k_codes.at) count_read(j.of, taken);
    if (from >= j.n || c >= j.of.dim) return;
    float *all = block_of(j.sums, u.head / (j.of.n_heads / j.sums.heads), half, block);
    rest_row(j, u, half, block)[c] = m > 0 ? __fdiv_rn(__fsub_rn(all[c], sum), (float)m) : 0;
    for (int h = 0; h < u.heads && c == 0 && !half; h++)
        j.bias[(size_t)(u.head + h) * j.rows + block] = m > 0 ? (float)log((double)m) : -INFINITY;
}

static __global__ void count_sums_read_k(unsigned long long *read, unsigned long long bytes)
{
    add_read(read, bytes);
}

/* Counts what the kernel does not. */
static void count_rest(backend *be, const rest_args *a, const tail_rest_job *j)
{
    if (!a->of.read) return;
    for (int i = 0; i <= TAIL_RANGES && attn_has_codes(&a->of); i++) {
        attn_args x = a->of;
        if (i) x.range = NULL, x.idx = NULL, x.first = a->more[i - 1].first, x.count = a->more[i - 1].n;
        cuda_count_rows(be, &x, true);
    }
    cudaError_t rc = launch(count_sums_read_k, dim3(1), dim3(1), 0, cuda_stream(be), a->of.read + READ_INDEX,
                            (unsigned long long)tail_bytes(j->sums, j->n));
    cuda_check(be, rc, "tail.rest");
}

/* The kernels of m jobs. */
static void run_rest(backend *be, const tail_rest_job *jobs, const rest_batch &b, unsigned m)
{
    const attn_args &of = b.job[0].of;
    unsigned tiles = jobs->rows > 1 ? cuda_blocks(jobs->rows, TAIL_PARTS) : 1;
    dim3 grid(HALVES * cuda_blocks((size_t)of.dim, LANES) * tiles, (unsigned)of.n_units, m);
    by_rows(jobs->of.rows.type, [&](auto t) {
        auto kernel = jobs->rows > 1 ? rest_blocks_k<decltype(t)> : rest_k<decltype(t)>;
        cudaError_t rc = launch(kernel, grid, dim3(LANES * TAIL_PARTS), 0, cuda_stream(be), b);
        cuda_check(be, rc, "tail.rest [%d, %d, %d]", of.n_units, of.n_kv_heads, of.dim);
    });
}

void cuda_tail_rest(backend *be, const tail_rest_job *jobs, size_t n)
{
    if (!cuda_begin(be, "tail.rest")) return;
    for (size_t i = 0; i < n; i += JOBS) {
        rest_batch b = {};
        size_t m = min(n - i, (size_t)JOBS);
        for (size_t k = 0; k < m; k++) {
            const tail_rest_job &j = jobs[i + k];
            rest_args *a = &b.job[k];
            if (!attn_args_of(be, &a->of, &j.of)) return;
            a->sums = sums_of(j.sums);
            for (int r = 0; r < TAIL_RANGES; r++) a->more[r] = j.more[r];
            a->n = j.n;
            a->rows = j.rows;
            a->k = ptr<float>(j.k), a->v = ptr<float>(j.v), a->bias = ptr<float>(j.bias);
            count_rest(be, a, &j);
        }
        run_rest(be, jobs, b, (unsigned)m);
    }
}

/* ---- samples ---- */

typedef struct {
    const int32_t *idx;   /* NULL: none */
    const int64_t *range; /* NULL: [first, first + count) */
    int64_t first, count;
    size_t idx_stride, rows;
    slot_range more[TAIL_RANGES];
    int64_t n;
    uint64_t seed;
    int layer, lists, share;
    int32_t *out;
    int64_t *out_range, *left;
    float *bias;
} drawn_args;

static drawn_args drawn_args_of(const tail_sample_job &j)
{
    const attn_job &of = j.rest.of;
    drawn_args a = {};
    a.idx = ptr<int32_t>(of.idx), a.range = ptr<int64_t>(of.range);
    a.first = of.first, a.count = of.n_max;
    a.idx_stride = of.idx_stride, a.rows = j.rest.rows;
    for (int r = 0; r < TAIL_RANGES; r++) a.more[r] = j.rest.more[r];
    a.n = j.rest.n;
    a.seed = j.seed, a.layer = j.layer;
    a.lists = (int)of.n_lists, a.share = (int)(of.n_heads / of.n_lists);
    a.out = ptr<int32_t>(j.idx), a.out_range = ptr<int64_t>(j.range), a.left = ptr<int64_t>(j.left);
    a.bias = ptr<float>(j.rest.bias);
    return a;
}

/* The list of a sample, without what else attn_unit has. */
static __device__ __forceinline__ attn_unit list_of(const drawn_args &j, int list)
{
    attn_unit u = {};
    u.first = j.range ? j.range[2 * list] : j.first;
    u.n = j.range ? j.range[2 * list + 1] : j.count;
    u.idx = j.idx ? j.idx + list * j.idx_stride : NULL;
    return u;
}

/* Token number `rank` of those that the list leaves. */
static __device__ __forceinline__ int64_t left_at(const drawn_args &j, const attn_unit &u, int64_t rank)
{
    int64_t lo = 0, hi = j.n - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2, left = mid + 1 - first_from(u, mid + 1);
        for (int r = 0; r < TAIL_RANGES; r++) left -= min(max(mid + 1 - j.more[r].first, (int64_t)0), j.more[r].n);
        if (left > rank) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

/* A block has a list, a thread every ADDERS-th of its draws. */
static __global__ void sample_k(job_list<drawn_args> jobs)
{
    const drawn_args &j = jobs.job[blockIdx.y];
    int list = (int)blockIdx.x;
    attn_unit u = list_of(j, list);
    int64_t m = j.n - u.n;
    for (int r = 0; r < TAIL_RANGES; r++) m -= j.more[r].n;
    int64_t b = min(m, (int64_t)j.rows);
    for (int64_t i = threadIdx.x; i < b; i += ADDERS) {
        int64_t lo = i * m / b, size = (i + 1) * m / b - lo;
        int64_t rank = lo + tail_draw(j.seed, j.n - 1, j.layer, (size_t)list, (size_t)i, size);
        j.out[list * j.rows + (size_t)i] = (int32_t)left_at(j, u, rank);
        for (int h = list * j.share; h < (list + 1) * j.share; h++)
            j.bias[h * j.rows + (size_t)i] = (float)log((double)size);
    }
    if (threadIdx.x > 0) return;
    j.out_range[2 * list] = 0, j.out_range[2 * list + 1] = b;
    j.left[list] = m;
}

void cuda_tail_sample(backend *be, const tail_sample_job *jobs, size_t n)
{
    unsigned lists = (unsigned)jobs->rest.of.n_lists;
    if (!cuda_begin(be, "tail.sample")) return;
    in_lists(jobs, n, drawn_args_of, [&](auto &list, unsigned m) {
        cudaError_t rc = launch(sample_k, dim3(lists, m), dim3(ADDERS), 0, cuda_stream(be), list);
        cuda_check(be, rc, "tail.sample [%u, %zu]", lists, jobs->rest.rows);
    });
}

typedef struct {
    const float *scores, *parts;
    const int64_t *range, *left;
    size_t score_stride, stride;
    int n_parts, share;
    float *out;
    unsigned long long *read;
} missed_args;

static missed_args missed_args_of(const tail_missed_job &j)
{
    missed_args a = {};
    a.scores = ptr<float>(j.of.scores), a.parts = ptr<float>(j.parts);
    a.range = ptr<int64_t>(j.of.range), a.left = ptr<int64_t>(j.left);
    a.score_stride = j.of.score_stride, a.stride = j.stride;
    a.n_parts = (int)j.n_parts, a.share = (int)(j.of.n_heads / j.of.n_lists);
    a.out = ptr<float>(j.out);
    a.read = ptr<unsigned long long>(j.of.read);
    return a;
}

/* Share and sigma of a query head whose sample has b of m tokens. */
static __device__ __forceinline__ void missed_of(const missed_args &j, int head, int64_t b, int64_t m)
{
    const float *score = j.scores + head * j.score_stride;
    double top = -INFINITY, all = 0, tau = 0, turns = 0, before = 0;
    for (int p = 0; p < j.n_parts; p++) top = fmax(top, (double)j.parts[p * j.stride + head]);
    for (int p = 0; p < j.n_parts; p++) all += exp((double)j.parts[p * j.stride + head] - top);
    if (!(all > 0)) b = 0;
    for (int64_t i = 0; i < b; i++) {
        double y = exp((double)score[i] - top) / all;
        tau += y;
        turns += i ? (y - before) * (y - before) : 0;
        before = y;
    }
    double var = 0 < b && b < m ? (1 - (double)b / (double)m) * (double)b / (2 * (double)(b - 1)) * turns : 0;
    tau = fmin(tau, 1.0);
    j.out[2 * head] = (float)tau;
    j.out[2 * head + 1] = tau > 0 ? (float)(sqrt(var) / tau) : 0;
}

/* A block of one warp has a list, a thread every 32nd of its heads; the first one adds them up. */
static __global__ void missed_k(job_list<missed_args> jobs)
{
    const missed_args &j = jobs.job[blockIdx.y];
    int list = (int)blockIdx.x, first = list * j.share;
    int64_t b = j.range[2 * list + 1], m = j.left[list];
    for (int h = (int)threadIdx.x; h < j.share; h += 32) missed_of(j, first + h, b, m);
    __syncthreads();
    if (threadIdx.x > 0 || !j.read) return;
    double sum = 0, off = 0;
    for (int h = first; h < first + j.share; h++) {
        double tau = (double)j.out[2 * h];
        sum += tau;
        off += tau * (1 - tau) * (double)j.out[2 * h + 1];
    }
    atomicAdd(&j.read[READ_MISSED], (unsigned long long)(sum * READ_ONE + 0.5));
    atomicAdd(&j.read[READ_MISSED_VAR], (unsigned long long)(off * off * READ_ONE + 0.5));
    atomicAdd(&j.read[READ_MEASURED], (unsigned long long)j.share);
}

void cuda_tail_missed(backend *be, const tail_missed_job *jobs, size_t n)
{
    unsigned lists = (unsigned)jobs->of.n_lists;
    if (!cuda_begin(be, "tail.missed")) return;
    in_lists(jobs, n, missed_args_of, [&](auto &list, unsigned m) {
        cudaError_t rc = launch(missed_k, dim3(lists, m), dim3(32), 0, cuda_stream(be), list);
        cuda_check(be, rc, "tail.missed [%u, %zu]", lists, jobs->n_parts);
    });
}
