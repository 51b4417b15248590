/* SPDX-License-Identifier: MIT */
/* Page bounds (ops_quest.h). */
#include "config.h"

#include <type_traits>

#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/scores.cuh"
#include "kernels/ops_quest.h"

enum { MOST_ROOM = 96 << 10 }; /* shared memory for pages and queries, with two thread blocks per multiprocessor */

typedef struct {
    void *bound;
    float *sum;
    size_t cap, page;
    int heads, dim;
    quest_how how;
} pages;

static pages pages_of(const quest_index *x)
{
    return {x->bound.p, ptr<float>(x->sum), x->cap, x->page, (int)x->n_kv_heads, (int)x->head_dim, x->how};
}

/* Rounds to the type of the rows. */
template <class T> static __device__ __forceinline__ float round_to(float x)
{
    T y;
    put_f32(&y, x);
    return to_f32(y);
}

/* Adds channel c of the key at position p to its page: bounds, or mean. */
template <class T> static __device__ __forceinline__ void join(const pages &x, int head, int c, size_t p, float v)
{
    bool mean = x.how == QUEST_MEAN;
    size_t at = (head * x.cap + p / x.page) * (mean ? 1 : 2) * x.dim + c, before = p % x.page;
    T *top = (T *)x.bound + at, *low = top + x.dim;
    if (mean) {
        float *sum = x.sum + head * x.dim + c;
        *sum = before == 0 ? v : __fadd_rn(*sum, v);
        put_f32(top, __fdiv_rn(*sum, (float)(before + 1)));
        return;
    }
    if (before == 0 || v > to_f32(*top)) put_f32(top, v);
    if (before == 0 || v < to_f32(*low)) put_f32(low, v);
}

/* A thread has one channel of one head of a job and processes the keys in order. k f32 [n][heads][dim]. */
template <class T> static __global__ void add_k(job_list<index_adds<pages>> jobs)
{
    grid_wait();
    const index_adds<pages> &j = jobs.job[blockIdx.y];
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), head = i / j.x.dim, c = i % j.x.dim;
    if (head >= j.x.heads) return;
    for (int64_t t = 0; t < j.n; t++)
        join<T>(j.x, head, c, (size_t)(j.pos + t), round_to<T>(j.k[(t * j.x.heads + head) * j.x.dim + c]));
}

void cuda_quest_add(backend *be, const index_add_job *jobs, size_t n)
{
    const quest_index *q = (const quest_index *)jobs->index;
    unsigned channels = cuda_blocks(q->n_kv_heads * q->head_dim, 128);
    if (!cuda_begin(be, "quest.add")) return;
    by_type(q->type, [&](auto t) {
        in_lists(jobs, n, adds_of(pages_of), [&](auto &list, unsigned m) {
            cudaError_t rc = launch_dependent(be, add_k<decltype(t)>, dim3(channels, m), dim3(128), 0, list);
            cuda_check(be, rc, "quest.add [%zu, %zu, %zu]", jobs->n, q->n_kv_heads, q->head_dim);
        });
    });
}

/* Recomputes the last page of each head, which n does not fill, from its keys. */
template <class T, class R> static __global__ void redo_k(pages x, half_rows rows, int64_t n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), head = i / x.dim, c = i % x.dim;
    if (head >= x.heads) return;
    for (size_t p = (size_t)n / x.page * x.page; p < (size_t)n; p++)
        join<T>(x, head, c, p, element_of<R>(rows, head, (int64_t)p, c));
}

void cuda_quest_redo(backend *be, const void *index, const kv_rows *rows, int64_t n)
{
    const quest_index *q = (const quest_index *)index;
    pages x = pages_of(q);
    if (!cuda_begin(be, "quest.redo")) return;
    by_type(q->type, [&](auto t) {
        by_rows(rows->type, [&](auto r) {
            typedef decltype(t) T;
            typedef decltype(r) R;
            cudaError_t rc = launch(redo_k<T, R>, dim3(cuda_blocks((size_t)x.heads * x.dim, 128)), dim3(128), 0,
                                    cuda_stream(be), x, rows_of(rows, false), n);
            cuda_check(be, rc, "quest.redo [%d, %d]", x.heads, x.dim);
        });
    });
}

/* Returns the bound of a page; each term is the larger of two rounded products (ref/quest.c). */
static __device__ __forceinline__ float page_bound(const float *top, const float *low, const float *q, int lane,
                                                   int dim, quest_how how)
{
    float p = 0, best = -INFINITY;
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++) {
        int c = lane + PARTS * i;
        if (c >= dim) continue;
        float a = __fmul_rn(q[c], top[i]), b = __fmul_rn(q[c], low[i]), term = a > b ? a : b;
        p = __fadd_rn(p, term);
        if (term > best) best = term;
    }
    if (how != QUEST_MAXCH) return sum_parts(p);
    for (int m = 1; m < PARTS; m *= 2) best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, m));
    return best;
}

typedef struct {
    pages x;
    float *score;
    size_t stride;
    const float *q;
    int64_t lo, hi;
    list_groups of;
    unsigned long long *read;
} quest_scores;

/* A grid row has `group` heads of a job that share the pages of one KV head: all of its query heads, or with groups
 * (groups.cuh) those that follow one list. */
template <class T, bool GROUPS, bool MEAN>
static __global__ void __launch_bounds__(SCORE_BLOCK) score_k(job_list<quest_scores> jobs, int group)
{
    grid_wait();
    SHARED_DYN(float, mine);
    const quest_scores &j = jobs.job[blockIdx.z];
    const pages x = j.x;
    int part = blockIdx.y, head = part * x.heads / (int)gridDim.y, lane = threadIdx.x % PARTS;
    group_columns in = {NULL, 1, j.hi, j.lo, j.hi};
    if (GROUPS) in = columns_of(j.of, list_of_part(j.of), j.lo, j.hi);
    load_group(mine, j.q, part, group, x.dim);
    if (j.read && blockIdx.x == 0 && threadIdx.x == 0 && in.end > in.first)
        atomicAdd(j.read, (unsigned long long)(in.end - in.first) * (MEAN ? 1 : 2) * x.dim * sizeof(T));
    for (int turn = 0; turn < SCORE_TURNS; turn++) {
        int64_t p = ((int64_t)blockIdx.x * SCORE_TURNS + turn) * SCORE_ROWS + threadIdx.x / PARTS;
        bool inside = p >= in.first && p < in.end, blank = GROUPS && !inside && p < in.n * in.per;
        size_t page = !inside ? 0 : GROUPS ? (size_t)item_of(in, p) : (size_t)p;
        const T *row = (const T *)x.bound + (head * x.cap + page) * (MEAN ? 1 : 2) * x.dim;
        float top[MOST_CHANNELS], low[MOST_CHANNELS];
        load_part(top, row, lane, inside ? x.dim : 0);
        if (!MEAN) load_part(low, row + x.dim, lane, inside ? x.dim : 0);
        for (int h = 0; h < group; h++) {
            const float *q = mine + h * x.dim;
            float s = MEAN ? dot_parts(top, q, lane, x.dim) : page_bound(top, low, q, lane, x.dim, x.how);
            if ((inside || blank) && lane == 0)
                j.score[(size_t)(part * group + h) * j.stride + p] = inside ? s : -INFINITY;
        }
    }
}

/* ---- scores with 16-byte loads ---- */

/* A thread block scores as many pages as fit, and requests all their bounds before it uses the first. The bounds go
 * directly to shared memory, each warp loading its own pages, and not through registers. LANES lanes share a page: lane
 * l has elements (l + LANES i) N .. + N of a row, that is N partial sums of the definition. */
template <class T> struct wide {
    enum { N = pack<T>::N, LANES = PARTS / N, OF_WARP = 32 / LANES, PAGES = SCORE_BLOCK / LANES, UNIT = 16 * LANES };
    typedef std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t> bits;

    /* Returns the stride between pages, chosen so that simultaneous reads of the lanes use different banks. */
    static __host__ __device__ __forceinline__ int stride(int row_bytes)
    {
        return (row_bytes / UNIT | 1) * UNIT;
    }
};

/* Starts copying the pages of a warp's lanes, row_bytes each, to `to`. page: of this lane. */
template <class T>
static __device__ __forceinline__ void start_pages(unsigned char *to, const T *first, unsigned row_bytes, unsigned page)
{
    typedef wide<T> w;
    const unsigned lane = threadIdx.x % 32, stride = (unsigned)w::stride((int)row_bytes);
    for (unsigned c = 16 * lane; c - 16 * lane < row_bytes; c += 16 * 32) {
        const unsigned char *from = reinterpret_cast<const unsigned char *>(first) + c;
#pragma unroll
        for (int i = 0; i < w::OF_WARP; i++) {
            uint64_t row = __shfl_sync(ALL_LANES, page, i * w::LANES);
            if (c < row_bytes) copy16_async(to + i * stride + c, from + row * row_bytes, true);
        }
    }
}

/* Loads the queries of one KV head into shared memory, followed by a mask per element with all bits set if it is above
 * 0. */
template <class T>
static __device__ __forceinline__ void load_signed(float *to, const float *q, int kv_head, int group, int dim)
{
    typename wide<T>::bits *above = reinterpret_cast<typename wide<T>::bits *>(to + group * dim);
    for (int i = threadIdx.x; i < group * dim; i += SCORE_BLOCK) {
        to[i] = q[(size_t)kv_head * group * dim + i];
        above[i] = to[i] > 0 ? (typename wide<T>::bits) ~0u : (typename wide<T>::bits)0;
    }
}

/* Returns elements of top where the bits of `above` are set, and of low elsewhere. */
static __device__ __forceinline__ uint4 chosen(uint4 top, uint4 low, uint4 above)
{
    return make_uint4((top.x & above.x) | (low.x & ~above.x), (top.y & above.y) | (low.y & ~above.y),
                      (top.z & above.z) | (low.z & ~above.z), (top.w & above.w) | (low.w & ~above.w));
}

/* Computes s [G], the scores of heads q, q + dim, ..., in all lanes of the page. The larger product of q with a page's
 * bounds is that with the upper bound if q is above 0, else that with the lower one; rounding preserves the order. row:
 * the page's bounds in shared memory; above: mask of the first head. Heads past the last of `left` repeat it. */
template <class T, int HOW, int G>
static __device__ __forceinline__ void page_scores(float s[G], const unsigned char *row, const float *q,
                                                   const typename wide<T>::bits *above, int left, int dim)
{
    typedef wide<T> w;
    float p[G][w::N];
    const int lane = threadIdx.x % w::LANES;
#pragma unroll
    for (int g = 0; g < G; g++)
#pragma unroll
        for (int e = 0; e < w::N; e++) p[g][e] = HOW == QUEST_MAXCH ? -INFINITY : 0;
#pragma unroll 2
    for (int c = lane * w::N; c < dim; c += PARTS) {
        uint4 low, top = *reinterpret_cast<const uint4 *>(row + c * sizeof(T));
        if (HOW != QUEST_MEAN) low = *reinterpret_cast<const uint4 *>(row + (dim + c) * sizeof(T));
#pragma unroll
        for (int g = 0; g < G; g++) {
            const int at = min(g, left - 1) * dim + c;
            float v[w::N];
            if (HOW == QUEST_MEAN) unpack(v, top, (const T *)0);
            else unpack(v, chosen(top, low, *reinterpret_cast<const uint4 *>(above + at)), (const T *)0);
#pragma unroll
            for (int e = 0; e < w::N; e += 4) {
                const float4 f = load_f4(q + at + e);
                const float by[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    float term = __fmul_rn(by[k], v[e + k]), &sum = p[g][e + k];
                    if (HOW == QUEST_MAXCH) sum = term > sum ? term : sum;
                    else sum = __fadd_rn(sum, term);
                }
            }
        }
    }
#pragma unroll
    for (int g = 0; g < G; g++) s[g] = HOW == QUEST_MAXCH ? largest_part<w::N>(p[g]) : sum_packed<w::N>(p[g]);
}

/* Like score_k, for rows that are multiples of PARTS elements and of 16 bytes. */
template <class T, int HOW, int G>
static __global__ void __launch_bounds__(SCORE_BLOCK, 5) score_wide_k(job_list<quest_scores> jobs, int group)
{
    grid_wait();
    typedef wide<T> w;
    SHARED_DYN(float, mine);
    const quest_scores &j = jobs.job[blockIdx.z];
    const pages x = j.x;
    const int part = blockIdx.y, head = part * x.heads / (int)gridDim.y, dim = x.dim, own = threadIdx.x / w::LANES;
    const int row_bytes = (HOW == QUEST_MEAN ? 1 : 2) * dim * (int)sizeof(T), stride = w::stride(row_bytes);
    const typename w::bits *above = reinterpret_cast<const typename w::bits *>(mine + group * dim);
    unsigned char *rows = (unsigned char *)mine + group * dim * (sizeof(float) + sizeof(T));
    const T *bound = (const T *)x.bound + head * x.cap * (HOW == QUEST_MEAN ? 1 : 2) * dim;
    const bool groups = j.of.group != NULL;
    const group_columns in =
        groups ? columns_of(j.of, list_of_part(j.of), j.lo, j.hi) : group_columns{NULL, 1, j.hi, j.lo, j.hi};
    const int64_t p0 = (int64_t)blockIdx.x * w::PAGES, p = p0 + own;
    const bool inside = p >= in.first && p < in.end, blank = groups && !inside && p < in.n * in.per;
    const bool puts = (inside || blank) && threadIdx.x % w::LANES == 0;
    float *score = j.score + (size_t)part * group * j.stride + p;
    if (j.read && blockIdx.x == 0 && threadIdx.x == 0 && in.end > in.first)
        atomicAdd(j.read, (unsigned long long)(in.end - in.first) * row_bytes);
    if (p0 >= in.end || p0 + w::PAGES <= in.first) { /* the block has no pages */
        for (int h = 0; h < group && puts; h++) score[h * j.stride] = -INFINITY;
        return;
    }
    start_pages(rows + threadIdx.x / 32 * w::OF_WARP * stride, bound, (unsigned)row_bytes,
                !inside ? 0 : (unsigned)(groups ? item_of(in, p) : p));
    copies_end_group();
    load_signed<T>(mine, j.q, part, group, dim);
    copies_wait<0>();
    __syncthreads();
    for (int h = 0; h < group; h += G) {
        float s[G];
        page_scores<T, HOW, G>(s, rows + own * stride, mine + h * dim, above + h * dim, group - h, dim);
        for (int g = 0; g < G; g++)
            if (h + g < group && puts) score[(h + g) * j.stride] = inside ? s[g] : -INFINITY;
    }
}

static quest_scores quest_scores_of(const score_job &j)
{
    return {pages_of((const quest_index *)j.index),
            ptr<float>(j.score),
            j.stride,
            ptr<float>(j.q),
            j.items.lo,
            j.items.hi,
            groups_of(j.spans),
            ptr<unsigned long long>(j.read)};
}

/* Returns the shared memory of score_wide_k; 0: not supported by it. */
template <class T> static size_t wide_bytes(const quest_index *x, size_t group)
{
    int row_bytes = (int)quest_bytes(x, 1);
    size_t room = (size_t)wide<T>::stride(row_bytes) * wide<T>::PAGES;
    room += group * x->head_dim * (sizeof(float) + sizeof(T));
    return x->head_dim % PARTS != 0 || (uintptr_t)x->bound.p % 16 != 0 || room > MOST_ROOM ? 0 : room;
}

typedef void quest_kernel(job_list<quest_scores>, int);

template <class T, int G> static quest_kernel *wide_kernel(quest_how how)
{
    return how == QUEST_SUM     ? score_wide_k<T, QUEST_SUM, G>
           : how == QUEST_MAXCH ? score_wide_k<T, QUEST_MAXCH, G>
                                : score_wide_k<T, QUEST_MEAN, G>;
}

/* A kernel with the pages per thread block and its bytes of shared memory. */
typedef struct {
    quest_kernel *run;
    int pages;
    size_t room;
} quest_run;

template <class T> static quest_run quest_run_of(const quest_index *x, size_t group, bool spans)
{
    size_t room = wide_bytes<T>(x, group);
    bool mean = x->how == QUEST_MEAN;
    if (room)
        return {group == 1   ? wide_kernel<T, 1>(x->how)
                : group == 2 ? wide_kernel<T, 2>(x->how)
                             : wide_kernel<T, 4>(x->how),
                wide<T>::PAGES, room};
    return {spans ? (mean ? score_k<T, true, true> : score_k<T, true, false>)
                  : (mean ? score_k<T, false, true> : score_k<T, false, false>),
            SCORE_ROWS * SCORE_TURNS, group * x->head_dim * sizeof(float)};
}

void cuda_quest_score(backend *be, const score_job *jobs, size_t n)
{
    const quest_index *x = (const quest_index *)jobs->index;
    size_t parts = parts_of(jobs, x->n_kv_heads), group = jobs->n_heads / parts;
    int64_t most = most_score_columns(jobs, n);
    quest_run k = {};
    if (!cuda_begin(be, "quest.score")) return;
    by_type(x->type, [&](auto t) { k = quest_run_of<decltype(t)>(x, group, jobs->spans != NULL); });
    in_lists(jobs, n, quest_scores_of, [&](auto &list, unsigned m) {
        dim3 grid(most > 0 ? cuda_blocks((size_t)most, (size_t)k.pages) : 1, (unsigned)parts, m);
        cudaError_t rc = launch_dependent(be, k.run, grid, dim3(SCORE_BLOCK), k.room, list, (int)group);
        cuda_check(be, rc, "quest.score [%zu, %zu], up to %lld pages", jobs->n_heads, x->head_dim, (long long)most);
    });
}
