/* SPDX-License-Identifier: MIT */
/* From scores to lists (ops_select.h). */
#include "config.h"

#include "kernels/cuda/choose.cuh"
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/scores.cuh"
#include "kernels/cuda/votes.cuh"
#include "kernels/ops_tail.h"

enum { BLOCK = 256, WIDE = 1024, GROUP_MAX = 1024, SMALL = 4096 };

/* ---- queries ---- */

static __global__ void mean_heads_k(float *out, const float *q, size_t all, int group, int dim)
{
    grid_wait();
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x, r = i / dim, c = i % dim;
    if (i >= all) return;
    float sum = 0;
    for (int h = 0; h < group; h++) sum = __fadd_rn(sum, q[(r * group + h) * dim + c]);
    out[i] = __fdiv_rn(sum, (float)group);
}

void cuda_select_mean_heads(backend *be, buf out, buf q, size_t n_rows, size_t n_heads, size_t n_groups, size_t dim)
{
    size_t all = n_rows * n_groups * dim;
    if (all == 0 || !cuda_begin(be, "mean_heads")) return;
    cudaError_t rc = launch_dependent(be, mean_heads_k, dim3(cuda_blocks(all, BLOCK)), dim3(BLOCK), 0, ptr<float>(out),
                                      ptr<float>(q), all, (int)(n_heads / n_groups), (int)dim);
    cuda_check(be, rc, "mean_heads [%zu, %zu, %zu]", n_rows, n_heads, dim);
}

/* ---- combination of heads ---- */

/* One block per chunk of a head. */
static __global__ void __launch_bounds__(VOTE_ITEMS) lse_k(job_list<combine_args> jobs, vote_room v)
{
    grid_wait();
    SHARED(vote_part, part, [VOTE_WARPS]);
    const combine_args &j = jobs.job[blockIdx.z];
    size_t head = blockIdx.z * gridDim.y + blockIdx.y;
    int64_t i = (int64_t)blockIdx.x * VOTE_ITEMS + threadIdx.x;
    int first, n = chunks_of(j.lo, j.hi, &first), chunk = (int)blockIdx.x - first;
    if (chunk < 0 || chunk >= n) return;
    vote_part mine = part_of_warp(i >= j.lo && i < j.hi ? logit(j.in[blockIdx.y * j.stride + i], v.scale) : -INFINITY);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < VOTE_WARPS; w++) mine = join_parts(mine, part[w]);
        v.parts[head * v.most + chunk] = mine;
    }
    if (!is_last(&v.done[head], n) || threadIdx.x >= 32) return;
    float lse = lse_of_parts(v.parts + head * v.most, n);
    if (threadIdx.x == 0) v.lse[head] = lse;
}

static __global__ void combine_k(job_list<combine_args> jobs, combine_how how)
{
    grid_wait();
    const combine_args &j = jobs.job[blockIdx.z];
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= j.lo && i < j.hi) combine_item(j, how, i);
}

combine_args cuda_combine_args(const combine_job &j)
{
    return {ptr<float>(j.out), ptr<float>(j.in), j.stride, j.lo, j.hi};
}

combine_how cuda_combine_how(backend *be, const combine_job *j, const float *lse)
{
    size_t group = j->n_heads / j->n_lists;
    float by = (float)group * (j->mode == GQA_LAYER_MEAN ? (float)backend_ranks(be) : 1);
    return {lse, (int)group, j->mode, by, j->scale};
}

static int64_t most_columns(const combine_job *jobs, size_t n)
{
    int64_t most = 1;
    for (size_t i = 0; i < n; i++) most = max(most, jobs[i].hi);
    return most;
}

bool vote_room_of(backend *be, vote_room *v, size_t n_heads, int64_t n_items, float scale)
{
    size_t most = cuda_blocks((size_t)max(n_items, (int64_t)1), VOTE_ITEMS);
    cuda_queue_combined(be); /* which reads lse */
    v->parts = (vote_part *)cuda_room(be, &cuda_of(be)->parts, n_heads * most, sizeof(vote_part), "votes");
    v->lse = (float *)cuda_room(be, &cuda_of(be)->lse, n_heads, sizeof(float), "votes");
    v->done = cuda_zeros(be, n_heads, "votes");
    v->most = most;
    v->scale = scale;
    return v->parts && v->lse && v->done;
}

/* lse NULL: no vote. */
static void combine_list(backend *be, const combine_job *jobs, size_t n, const float *lse)
{
    int64_t most = most_columns(jobs, n);
    in_lists(jobs, n, cuda_combine_args, [&](auto &list, unsigned m) {
        cudaError_t rc =
            launch_dependent(be, combine_k, dim3(cuda_blocks((size_t)most, BLOCK), (unsigned)jobs->n_lists, m),
                             dim3(BLOCK), 0, list, cuda_combine_how(be, jobs, lse));
        cuda_check(be, rc, "combine [%zu of %zu heads], up to %lld items", jobs->n_lists, jobs->n_heads,
                   (long long)most);
    });
}

void cuda_defer_combine(backend *be, const combine_job *jobs, size_t n, const float *lse)
{
    cuda_combined *c = &cuda_of(be)->combined;
    cuda_queue_combined(be);
    for (size_t i = 0; i < n; i++) c->job[i] = jobs[i];
    c->lse = lse, c->n = n;
}

void cuda_queue_combined(backend *be)
{
    cuda_combined *c = &cuda_of(be)->combined;
    size_t n = c->n;
    c->n = 0;
    if (n > 0 && be->fault.code == ST_OK) combine_list(be, c->job, n, c->lse);
}

static void vote_lists(backend *be, const combine_job *jobs, size_t n)
{
    vote_room v;
    int64_t most = most_columns(jobs, n);
    if (!vote_room_of(be, &v, n * jobs->n_heads, most, jobs->scale)) return;
    in_lists(jobs, n, cuda_combine_args, [&](auto &list, unsigned m) {
        cudaError_t rc = launch_dependent(be, lse_k, dim3((unsigned)v.most, (unsigned)jobs->n_heads, m),
                                          dim3(VOTE_ITEMS), 0, list, v);
        cuda_check(be, rc, "votes of %zu heads", jobs->n_heads);
    });
    if (be->fault.code == ST_OK) cuda_defer_combine(be, jobs, n, v.lse);
}

void cuda_select_combine(backend *be, const combine_job *jobs, size_t n)
{
    if (!cuda_begin(be, "combine")) return;
    bool vote = jobs->n_heads > jobs->n_lists && (jobs->mode == GQA_VOTE || jobs->mode == GQA_LAYER_VOTE);
    for (size_t i = 0; i < n; i += CUDA_JOBS) {
        size_t m = min(n - i, (size_t)CUDA_JOBS);
        if (vote) vote_lists(be, jobs + i, m);
        else cuda_defer_combine(be, jobs + i, m, NULL);
    }
    if (jobs->mode < GQA_LAYER_MEAN) return;
    cuda_queue_combined(be);
    for (size_t i = 0; i < n; i++) cuda_sum(be, ptr<float>(jobs[i].out), jobs[i].stride);
}

/* ---- scores of tokens to scores of pages ---- */

typedef struct {
    float *out;
    const float *in;
    size_t stride, in_stride;
    item_range items;
    int64_t granule;
} page_reduction_args;

/* 16 lanes share an item of one head; lane i has its tokens i, i + 16, ... */
static __global__ void page_reduce_k(job_list<page_reduction_args> jobs)
{
    const page_reduction_args &j = jobs.job[blockIdx.z];
    int lane = threadIdx.x % PARTS;
    int64_t item = j.items.lo + (int64_t)blockIdx.x * (BLOCK / PARTS) + threadIdx.x / PARTS;
    bool inside = item < j.items.hi;
    int64_t from = item * j.granule, n = inside ? min(j.granule, j.items.n_slots - from) : 0;
    const float *x = j.in + blockIdx.y * j.in_stride + from;
    float part = 0;
    for (int64_t i = lane; i < n; i += PARTS) part = __fadd_rn(part, x[i]);
    part = sum_parts(part);
    if (inside && lane == 0) j.out[blockIdx.y * j.stride + item] = __fdiv_rn(part, (float)n);
}

static page_reduction_args page_reduction_of(const page_reduce_job &j)
{
    return {ptr<float>(j.out), ptr<float>(j.in), j.stride, j.in_stride, j.items, j.granule};
}

void cuda_select_page_reduce(backend *be, const page_reduce_job *jobs, size_t n)
{
    int64_t most = 1;
    if (!cuda_begin(be, "page_reduce")) return;
    for (const page_reduce_job *j = jobs; j < jobs + n; j++) most = max(most, j->items.hi - j->items.lo);
    in_lists(jobs, n, page_reduction_of, [&](auto &list, unsigned m) {
        cudaError_t rc =
            launch(page_reduce_k, dim3(cuda_blocks((size_t)most, BLOCK / PARTS), (unsigned)jobs->n_heads, m),
                   dim3(BLOCK), 0, cuda_stream(be), list);
        cuda_check(be, rc, "page_reduce [%zu], up to %lld items", jobs->n_heads, (long long)most);
    });
}

/* ---- slopes ---- */

typedef struct {
    const float *q, *score;
    half_rows rows;
    size_t stride;
    item_range items;
    int64_t count;
    uint64_t seed;
    int layer, heads_per_list, group;
    float *slope;
    unsigned long long *read;
    uint64_t bytes;
} slope_args;

static slope_args slope_args_of(const slope_job &j)
{
    slope_args a = {};
    a.q = ptr<float>(j.q), a.score = ptr<float>(j.score);
    a.rows = rows_of(&j.rows, false);
    a.stride = j.stride, a.items = j.items;
    a.count = min((int64_t)j.count, j.items.hi - j.items.lo);
    a.seed = j.seed, a.layer = j.layer;
    a.heads_per_list = (int)(j.n_heads / j.n_lists), a.group = (int)(j.n_heads / j.rows.n_kv_heads);
    a.slope = ptr<float>(j.slope), a.read = ptr<unsigned long long>(j.read);
    a.bytes = slope_bytes(&j);
    return a;
}

/* One block per list; a thread takes some of its draws, for one head after another. */
template <class T> static __global__ void slope_k(job_list<slope_args> jobs)
{
    SHARED(double, part, [MOST_WARPS]);
    const slope_args &a = jobs.job[blockIdx.y];
    int list = (int)blockIdx.x;
    int64_t m = a.items.hi - a.items.lo;
    double cov = 0, var = 0;
    for (int head = list * a.heads_per_list; head < (list + 1) * a.heads_per_list; head++) {
        double n = 0, x = 0, y = 0, xx = 0, xy = 0;
        for (int64_t i = threadIdx.x; i < a.count; i += blockDim.x) {
            int64_t lo = i * m / a.count, size = (i + 1) * m / a.count - lo;
            int64_t t =
                a.items.lo + lo + tail_draw(a.seed, a.items.n_slots - 1, a.layer, (size_t)list, (size_t)i, size);
            double exact = 0, score = (double)a.score[head * a.stride + t];
            for (int c = 0; c < a.rows.dim; c++)
                exact += (double)a.q[head * a.rows.dim + c] * (double)element_of<T>(a.rows, head / a.group, t, c);
            if (!isfinite(score) || !isfinite(exact)) continue;
            n++, x += score, y += exact, xx += score * score, xy += score * exact;
        }
        n = block_sum(n, part), x = block_sum(x, part), y = block_sum(y, part);
        xx = block_sum(xx, part), xy = block_sum(xy, part);
        if (n > 0) cov += xy - x * y / n, var += xx - x * x / n;
    }
    if (threadIdx.x > 0) return;
    a.slope[list] = (float)slope_within(cov, var);
    if (list == 0 && a.read) atomicAdd(a.read, (unsigned long long)a.bytes);
}

void cuda_select_slope(backend *be, const slope_job *jobs, size_t n)
{
    if (jobs->n_lists == 0 || !cuda_begin(be, "slope")) return;
    by_rows(jobs->rows.type, [&](auto t) {
        in_lists(jobs, n, slope_args_of, [&](auto &list, unsigned m) {
            cudaError_t rc =
                launch(slope_k<decltype(t)>, dim3((unsigned)jobs->n_lists, m), dim3(128), 0, cuda_stream(be), list);
            cuda_check(be, rc, "slope [%zu lists], %zu draws", jobs->n_lists, jobs->count);
        });
    });
}

/* ---- selection: radix-select of the k-th largest, then lists in ascending order ---- */

/* Entries of a list, in ascending order: n items, of which [lo, hi) are candidates. With groups, the candidates are the
 * columns from `first` on, between the items before lo and those from `tail` on. */
typedef struct {
    int64_t lo, hi, n, tail;
    group_columns in;
} entries;

template <bool GROUPS>
static __device__ __forceinline__ entries entries_of(const choice &c, const list_groups &g, size_t l)
{
    if (!GROUPS) return {c.lo, c.hi, c.items, 0, {}};
    group_columns in = columns_of(g, l, c.lo, c.hi);
    int64_t lo = min(c.head, c.items), hi = lo + max(in.end - in.first, (int64_t)0), tail = max(c.tail, lo);
    return {lo, hi, hi + max(c.items - tail, (int64_t)0), tail, in};
}

template <bool GROUPS> static __device__ __forceinline__ spot spot_of(const entries &e, int64_t i)
{
    if (!GROUPS) return {i, i};
    if (i < e.lo) return {i, 0};
    if (i >= e.hi) return {e.tail + i - e.hi, 0};
    int64_t column = e.in.first + i - e.lo;
    return {item_of(e.in, column), column};
}

template <bool GROUPS> static __global__ void __launch_bounds__(WIDE) choose_k(job_list<choose_args> jobs)
{
    grid_wait();
    SHARED(int, count, [DIGITS]);
    SHARED(int64_t, found, [2]);
    SHARED(int64_t, room, [MOST_WARPS]);
    const choose_args a = jobs.job[blockIdx.y];
    size_t l = blockIdx.x;
    const float *s = a.score + l * a.stride;
    choice c = forced_of(a);
    entries e = entries_of<GROUPS>(c, a.of, l);
    int64_t k = to_take(a, l, e.hi - e.lo, &c);
    auto where = [&e](int64_t i) { return spot_of<GROUPS>(e, i); };
    if (k > 0) {
        auto key = [&](int64_t i) { return key_of(s[where(i).column]); };
        unsigned prefix = kth_key(key, e.lo, e.hi, &k, count, found);
        c.least = prefix;
        c.ties = k;
    }
    list_best(a, l, s, c, e.n, room, where);
}

static choose_args args_of(const choose_job &j)
{
    return {ptr<float>(j.score),
            j.stride,
            j.items,
            j.head,
            j.tail,
            j.first,
            j.k,
            ptr<int64_t>(j.budget),
            j.each,
            j.granule,
            j.idx_stride,
            groups_of(j.spans),
            ptr<int32_t>(j.idx),
            ptr<int64_t>(j.range)};
}

/* True if deferred combinations are those of all candidates' scores of the jobs. */
static bool combines(const cuda_combined &c, const choose_job *jobs, size_t n)
{
    bool same = c.n == n;
    for (size_t i = 0; same && i < n; i++) {
        const combine_job &from = c.job[i];
        const choose_job &j = jobs[i];
        int64_t end = (j.items.n_slots + j.granule - 1) / j.granule;
        same = from.out.p == j.score.p && from.stride == j.stride && from.n_lists == j.n_lists &&
               from.lo <= j.items.lo && from.hi >= j.items.hi && from.hi <= end;
    }
    return same;
}

/* Runs one thread block per list. With groups there are few columns, a small multiple of the selection size. */
void cuda_select_choose(backend *be, const choose_job *jobs, size_t n)
{
    if (jobs->n_lists == 0) return;
    int64_t most = 0;
    for (const choose_job *j = jobs; j < jobs + n; j++)
        most = max(most, j->spans ? j->spans->n_max * j->spans->per : j->most);
    bool wide = !jobs->spans && choose_is_wide(most);
    cuda_combined heads = cuda_of(be)->combined;
    if (!wide || !combines(heads, jobs, n)) heads.n = 0;
    if (heads.n > 0) cuda_of(be)->combined.n = 0; /* the choice includes them */
    if (!cuda_begin(be, "choose")) return;
    auto kernel = jobs->spans ? choose_k<true> : choose_k<false>;
    in_lists(jobs, n, args_of, [&](auto &list, unsigned m) {
        if (wide) {
            choose_wide(be, list, m, jobs->n_lists, most, heads);
            return;
        }
        cudaError_t rc =
            launch_dependent(be, kernel, dim3((unsigned)jobs->n_lists, m), dim3(most <= SMALL ? 128 : WIDE), 0, list);
        cuda_check(be, rc, "choose [%zu lists], up to %lld scores", jobs->n_lists, (long long)most);
    });
}
